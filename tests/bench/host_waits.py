#!/usr/bin/env python3
"""How often the host waits for the device in a training step of main.py, between two log lines, on simulated NPUs.

    python3 tests/bench/host_waits.py

Counters are read after the second step and after the last but one, with no log line between. They do not depend on how
fast the machine is. "torch_npu's scaler" is a plain loop around torch_npu.npu.amp.GradScaler and SGD.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bench

sys.path.insert(0, str(bench.ROOT / "tests/simcann"))
from run import Unusable, environment

NEW, OLD = "Ascend910B2", "Ascend910A"  # the old one has no inf and nan
OWN = "torch_npu's scaler"
TYPES = {
    "fp32": [],
    "bf16": ["--amp", "--amp-dtype", "bfloat16"],
    "fp16, static scale": ["--amp", "--loss_scale", "1024"],
    "fp16, dynamic scale": ["--amp", "--loss_scale", "-1"],
}
HALF = [name for name in TYPES if name.startswith("fp16")]

# Both scripts write down the counters. The old chip's internal formats are not simulated: tests/simcann/README.md.
COUNT = """
import ctypes, os, sys
import torch
def write_counters(moment):
    counters = ctypes.CDLL("libascendcl.so").simcann_counters_json
    counters.restype = ctypes.c_char_p
    with open(f"{moment}.{os.getpid()}", "wb") as file:
        file.write(counters())
def simplify_old_chip():
    if os.environ["SIMCANN_CHIP"] == "Ascend910A":
        torch.npu.config.allow_internal_format = False
"""
# Each of main.py's processes imports it.
MAIN = """
import main
add, prepare, steps = main.ProgressMeter.add, main.PLATFORMS["npu"].prepare, []
def add_and_count(self, *step):
    add(self, *step)
    steps.append(None)
    if len(steps) in (2, self.num_batches - 1):
        write_counters("first" if len(steps) == 2 else "last")
def prepare_and_set():
    count = prepare()
    simplify_old_chip()
    return count
main.ProgressMeter.add, main.PLATFORMS["npu"].prepare = add_and_count, prepare_and_set
if __name__ == "__main__":
    main.main()
"""
PLAIN = """
import torch_npu, torchvision
def train(rank, ranks, steps):
    torch.npu.set_device(rank)
    simplify_old_chip()
    model = torchvision.models.resnet18(num_classes=2).npu()
    if ranks > 1:
        torch.distributed.init_process_group("hccl", f"file://{os.getcwd()}/store", rank=rank, world_size=ranks)
        model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4)
    scaler = torch_npu.npu.amp.GradScaler(init_scale=1024.0)
    images, targets = torch.zeros(4, 3, 32, 32).npu(), torch.zeros(4, dtype=torch.int32).npu()
    for step in range(1, steps):
        with torch.autocast("npu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step in (2, steps - 1):
            write_counters("first" if step == 2 else "last")
    os._exit(0)
if __name__ == "__main__":
    ranks, steps = map(int, sys.argv[1:])
    torch.multiprocessing.spawn(train, (ranks, steps), ranks)
"""

LEGEND = """\
A step's own, of one rank. Synchronisations: of a stream, an event or the whole device, and operators whose result has
a shape that depends on the data. Copies: from the device to the host, synchronous or not. Waits: how often the host
stood still. A copy and the synchronisation that belongs to it, before a synchronous copy (torch_npu's way to read a
number) or behind an asynchronous one, are one wait. So waits are whichever of the two is more.
"""


def count(script, arguments, chip, steps, ranks, env):
    """Run a script on simulated NPUs. Returns a step's synchronisations and its copies to the host, on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(COUNT + script)
        settings = {"SIMCANN_CHIP": chip, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(bench.ROOT)}
        command = [sys.executable, "script.py", *map(str, arguments)]
        result = subprocess.run(command, env={**env, **settings}, cwd=folder, capture_output=True, text=True)
        if result.returncode:
            bench.refuse(f"{' '.join(command)} failed: {(result.stderr.strip().splitlines() or ['no message'])[-1]}")
        totals = []
        for moment in "first", "last":
            processes = [json.loads(file.read_text()) for file in Path(folder).glob(f"{moment}.*")]
            if len(processes) != ranks:
                bench.refuse(f"{len(processes)} of {ranks} ranks have counted")
            copies = [
                n for groups in processes for name, n in groups["copies"].items() if name.startswith("device_to_host")
            ]
            totals.append((sum(sum(groups["host_waits"].values()) for groups in processes), sum(copies)))
    return [(last - first) / (steps - 3) / ranks for first, last in zip(*totals, strict=True)]


def run():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=5, help="steps of a run, at least 5")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="numbers of NPUs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    options = parser.parse_args()
    if options.steps < 5:
        bench.refuse("argument --steps: at least 5")
    try:
        env = environment()
    except Unusable as error:
        bench.refuse(error)

    def count_case(chip, name, ranks):
        if name == OWN:
            return count(PLAIN, [ranks, options.steps], chip, options.steps, ranks, env)
        line = "-a resnet18 --image-size 32 --resize-size 32 --workers 0 --epochs 1 --print-freq 1000 --seed 1"
        line += f" --device npu --device_list {','.join(map(str, range(ranks)))}"
        line += f" --batch-size {4 * ranks} --dummy {4 * ranks * options.steps}"
        return count(MAIN, [*line.split(), *TYPES[name]], chip, options.steps, ranks, env)

    cases = [*itertools.product([NEW], TYPES, options.ranks), *itertools.product([OLD], [*HALF, OWN], options.ranks)]
    with ThreadPoolExecutor(options.jobs) as pool:
        counted = dict(zip(cases, pool.map(lambda case: count_case(*case), cases), strict=True))

    def most(chip, *names):
        """Return the most waits, and of the old chip those beyond torch_npu's."""
        more = {ranks: max(counted[OLD, OWN, ranks]) if chip == OLD else 0 for ranks in options.ranks}
        return max(max(counted[chip, name, ranks]) - more[ranks] for name in names for ranks in options.ranks)

    print(LEGEND)
    bench.report(
        "host_waits",
        ["simulated chip", "training", "ranks", "synchronisations", "copies to the host", "waits"],
        [[*case, *(f"{value:g}" for value in (*each, max(each)))] for case, each in counted.items()],
        fp32=bench.at_most(0, most(NEW, "fp32")),
        bf16=bench.at_most(0, most(NEW, "bf16")),
        fp16=bench.at_most(1, most(NEW, *HALF)),
        fp16_old_chip_beyond_torch_npu=bench.at_most(0, most(OLD, *HALF)),
        simulated=True,
    )


if __name__ == "__main__":
    run()
