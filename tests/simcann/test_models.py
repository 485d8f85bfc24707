"""A training step of every torchvision family on a simulated NPU is the CPU's."""

import concurrent.futures
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FAMILIES = [
    *("alexnet", "vgg", "vgg_bn", "resnet", "resnext", "wide_resnet", "densenet", "googlenet", "inception"),
    *("squeezenet", "shufflenet_v2", "mobilenet_v2", "mobilenet_v3", "mnasnet", "efficientnet"),
    *("efficientnet_v2", "regnet", "convnext", "vit", "swin", "swin_v2", "maxvit"),
]
# The others are equal bit for bit, since the kernels are those of the CPU. Attention and layers of three
# dimensions are put together from other kernels than on the CPU.
ROUNDED = {"convnext", "vit", "swin", "swin_v2", "maxvit"}


def steps(families):
    """The report of each family; importing torch and torch_npu takes longer than most of the steps."""
    command = [sys.executable, HERE / "run.py", "python3", HERE / "scripts/models.py", *families]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    reports = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == len(families), run.stderr
    return {report["family"]: report for report in reports}


@pytest.fixture(scope="module")
def reports():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        halves = pool.map(steps, [FAMILIES[::2], FAMILIES[1::2]])
        return {family: report for half in halves for family, report in half.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_step(family, reports):
    report = reports[family]
    assert "error" not in report, report["error"]
    assert report["difference"] <= (1e-4 if family in ROUNDED else 0.0)
    assert len(report["losses"]) == 4 and all(math.isfinite(loss) for loss in report["losses"].values()), report
