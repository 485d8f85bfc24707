"""main.py on simulated NPUs: the real torch_npu, its HCCL process group and GradScaler, over tests/simcann.

What passes here is the code that faces torch_npu. Nothing here says how hardware computes.
"""

import ast
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import main

ROOT = Path(main.__file__).parent
sys.path.insert(0, str(ROOT / "tests/simcann"))
from run import environment

# Runs main.py with both kinds of device set to what they have in common, so that only the device is left to differ.
ALIKE = """
import sys, torch, main
for platform in main.PLATFORMS.values():
    platform.memory_format, platform.fused_sgd = torch.contiguous_format, False
main.main()
"""
# Runs main.py with a dynamic loss scale that starts so high that steps overflow until it has been halved often enough.
HIGH_SCALE = """
import main
grad_scaler = main.PLATFORMS["npu"].grad_scaler
main.PLATFORMS["npu"].grad_scaler = lambda **options: grad_scaler(**{**options, "init_scale": 2.0**120})
main.main()
"""


@pytest.fixture(scope="session")
def npu(run, small):
    """npu(*flags, cwd=…, simcann={…}, code=…, **options): run main.py, or code that runs it, on simulated NPUs."""
    built = environment()

    def run_npu(*flags, cwd, simcann=None, code=None, command=None, **options):
        command = command or (["-c", code] if code else [ROOT / "main.py"])
        options = small(**{"device": "npu", "device_list": 0, "arch": "resnet18", **options})
        env = {**built, "PYTHONPATH": str(ROOT), **(simcann or {})}
        return run(*flags, *options, cwd=cwd, command=command, env=env)

    return run_npu


def losses(result):
    return [float(loss) for loss in re.findall(r"^Epoch: .*\tLoss (\S+)", result.stdout, re.MULTILINE)]


def segments():
    return set(os.listdir("/dev/shm"))


def processes_of(folder):
    """The processes whose working folder is `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                found.append(process.name)
        except OSError:
            continue
    return found


# Launching


def test_run_8p_is_the_guides_command_on_eight_devices(tree, tmp_path, free_port):
    environ = {**environment(), "OMP_NUM_THREADS": "1", "LOG_FILE": str(tmp_path / "log")}
    few = "--arch shufflenet_v2_x0_5 --image-size 32 --resize-size 36 --workers 8 --batch-size 16 --epochs 1 --seed 7"
    command = ["bash", ROOT / "run_8p.sh", tree, *few.split(), "--dist-url", f"tcp://127.0.0.1:{free_port()}"]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "=> using 8 × npu over hccl\n" in result.stdout
    best, checkpoint = re.search(r"\nimages/s: \d+\nbest Acc@1: ([\d.]+)\ncheckpoint: (.*)\n$", result.stdout).groups()
    state = torch.load(tmp_path / checkpoint, weights_only=True)
    assert state["best_acc1"] == pytest.approx(float(best), abs=1e-3)
    assert state["amp"]["scale"] == 1024
    assert (tmp_path / "log").read_text() in result.stdout
    assert result.stdout.count(" *   Acc@1") == 1


def test_run_8p_passes_on_a_failure(tree, tmp_path):
    environ = {**environment(), "SIMCANN_DEVICES": "4"}
    command = ["bash", ROOT / "run_8p.sh", tree]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert result.returncode == 1
    error = "main.py: error: --device_list 0,1,2,3,4,5,6,7: no npu 4, 5, 6, 7 here; there is 0 to 3\n"
    assert error in result.stdout
    assert "best Acc@1" not in result.stdout


def test_four_devices_that_are_not_the_first(npu, tree, tmp_path):
    result = npu(tree, "--amp", cwd=tmp_path, device_list="4,5,6,7", arch="shufflenet_v2_x0_5")
    assert result.returncode == 0, result.stderr
    assert "=> using 4 × npu over hccl\n" in result.stdout


def test_torchrun(npu, tree, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2", ROOT / "main.py"]
    result = npu(tree, "--amp", cwd=tmp_path, device_list="0,1", command=torchrun, arch="shufflenet_v2_x0_5")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(" *   Acc@1") == 1
    assert (tmp_path / "model_best.pth.tar").exists()


def test_two_machines(start, finish, small, tree, tmp_path, free_port):
    meeting = {"world_size": 2, "addr": "127.0.0.1", "port": free_port(), "batch_size": 4, "device": "npu"}
    runs = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        options = small(**meeting, rank=rank, device_list=rank, arch="shufflenet_v2_x0_5")
        runs.append(start(tree, *options, cwd=tmp_path / str(rank), env=environment()))
    results = [finish(process) for process in runs]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr + results[1].stderr
    assert "=> using 2 × npu over hccl\n" in results[0].stdout
    assert results[1].stdout == ""
    assert [(tmp_path / str(rank) / "checkpoint.pth.tar").exists() for rank in range(2)] == [True, False]


# Numbers


def test_one_device_equals_the_cpu_bit_for_bit(npu, run, small, tree, tmp_path, load, differences):
    """With the same memory format and the same optimizer implementation, three steps and a validation."""
    states = []
    for device in "npu", "cpu":
        folder = tmp_path / device
        folder.mkdir()
        result = npu(tree, cwd=folder, device=device, code=ALIKE)
        assert result.returncode == 0, result.stderr
        states.append(load(folder))
        del states[-1]["history"][0]["img_per_s"], states[-1]["history"][0]["seconds"]
    assert differences(*states) == []


@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_devices_equal_cpu_processes_to_rounding(devices, npu, tree, tmp_path, load):
    """As shipped: hccl and gloo, contiguous and channels last, one SGD kernel and another."""
    states, shown = [], []
    for device in "npu", "cpu":
        folder = tmp_path / device
        folder.mkdir()
        # 64 px and a low rate: batch norm over few numbers turns rounding into more, and where a ReLU stands on its
        # edge, rounding decides whether a gradient passes; on one kind of CPU against another as well.
        result = npu(tree, cwd=folder, device=device, device_list=devices, lr=1e-5, image_size=64, resize_size=64)
        assert result.returncode == 0, result.stderr
        shown.append(losses(result))
        states.append(load(folder)["state_dict"])
    assert len(shown[0]) == 3
    assert shown[0] == pytest.approx(shown[1], rel=1e-3)
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)


# Mixed precision


def initial_weights(classes=3, seed=7):
    torch.manual_seed(seed)
    return main.create_model(main.parse_args(["--device", "cpu"]), classes).state_dict()


def test_static_scale_skips_steps_that_overflow(npu, tree, tmp_path, load):
    result = npu(tree, "--amp", cwd=tmp_path, loss_scale=1e30)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("=> gradients overflowed, steps skipped: 1; loss scale 1e+30\n") == 1  # of three steps
    state, initial = load(tmp_path), initial_weights()
    trained = {name for name in initial if "running" not in name and "num_batches" not in name}
    assert all(torch.equal(state["state_dict"][name], initial[name]) for name in trained)
    assert state["amp"]["scale"] == pytest.approx(1e30)


def test_static_scale_trains(npu, tree, tmp_path, load):
    result = npu(tree, "--amp", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "overflowed" not in result.stdout
    state = load(tmp_path)
    assert state["amp"]["scale"] == 1024
    assert not torch.equal(state["state_dict"]["fc.weight"], initial_weights()["fc.weight"])


def test_dynamic_scale_halves_and_survives_a_resume(npu, tree, tmp_path, load, differences):
    def dynamic(folder, epochs, resume):
        return npu(tree, "--amp", "--resume", resume, cwd=folder, loss_scale=-1, epochs=epochs, code=HIGH_SCALE)

    once, twice = tmp_path / "once", tmp_path / "twice"
    once.mkdir(), twice.mkdir()
    whole = dynamic(once, 2, "auto")
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("=> gradients overflowed, steps skipped: 1; ") == 2  # the first of each epoch's three
    state = load(once)
    assert state["amp"]["scale"] == 2.0**114

    assert dynamic(twice, 1, "auto").returncode == 0
    assert load(twice)["amp"]["scale"] == 2.0**117
    assert dynamic(twice, 2, "auto").returncode == 0
    again = load(twice)
    for row in state["history"] + again["history"]:
        del row["img_per_s"], row["seconds"]
        assert all(math.isnan(row.pop(name)) for name in ("train_loss", "train_acc1", "train_acc5"))  # no step counted
    assert differences(state, again) == []


def test_bfloat16_needs_no_scaler(npu, tree, tmp_path, load):
    result = npu(tree, "--amp", "--amp-dtype", "bfloat16", cwd=tmp_path, device_list="0,1")
    assert result.returncode == 0, result.stderr
    assert load(tmp_path)["amp"] == {}


# Checkpoints


def test_checkpoints_move_between_npu_and_cpu(npu, run, small, tree, tmp_path):
    """npu → cpu → npu: each evaluates the other's checkpoint to the accuracy that was logged, and trains on."""

    def accuracy(result):
        assert result.returncode == 0, result.stderr
        return re.findall(r"^ \*   (Acc@1 .*)$", result.stdout, re.MULTILINE)[-1]

    def on_cpu(*flags, **options):
        return run(tree, "--resume", "auto", *flags, *small(arch="resnet18", **options), cwd=tmp_path)

    def on_npu(*flags, **options):
        return npu(tree, "--resume", "auto", *flags, cwd=tmp_path, **options)

    trained = accuracy(on_npu("--amp", device_list="0,1"))
    assert accuracy(on_cpu("--evaluate")) == trained
    trained = accuracy(on_cpu(epochs=2))
    assert accuracy(on_npu("--evaluate")) == trained
    assert "=> loaded checkpoint" in on_npu(epochs=3).stdout


def test_checkpoint_of_npu_tensors_is_read(npu, run, small, tree, tmp_path):
    """A script migrated by the guide saves what it has: tensors on the device, names with module., its scaler."""
    code = """
import torch, torch_npu, torchvision
from torch_npu.npu import amp
model = torch.nn.ModuleDict({"module": torchvision.models.resnet18(num_classes=3)}).npu()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scaler = amp.GradScaler()
scaler.scale(model["module"](torch.ones(2, 3, 32, 32).npu()).sum()).backward()
scaler.step(optimizer)
scaler.update()
state = {"epoch": 1, "arch": "resnet18", "state_dict": model.state_dict(), "best_acc1": torch.tensor(5.0).npu()}
torch.save({**state, "optimizer": optimizer.state_dict(), "amp": scaler.state_dict()}, "guide.pth.tar")
"""
    saved = run(cwd=tmp_path, command=["-c", code], env=environment())
    assert saved.returncode == 0, saved.stderr
    for result in (
        run(tree, "--resume", "guide.pth.tar", *small(arch="resnet18", epochs=2), cwd=tmp_path),
        npu(tree, "--resume", "guide.pth.tar", "--amp", cwd=tmp_path, epochs=2, loss_scale=-1),
    ):
        assert result.returncode == 0, result.stderr
        assert "=> loaded checkpoint 'guide.pth.tar' (epoch 1)\n" in result.stdout


# Failures


FAILURES = {
    "killed": ({"SIMCANN_DIE_IN_COLLECTIVE": "1:6"}, "rank 1 (npu 1) was killed by SIGKILL"),
    "out of memory": ({"SIMCANN_MEMORY_MB": "60"}, "out of memory; lower --batch-size"),
    "operator fails": ({"SIMCANN_FAIL_OPERATOR": "aclnnConvolution:30"}, "aclnnConvolution"),
    "too few devices": ({"SIMCANN_DEVICES": "1"}, "--device_list 0,1: no npu 1 here; there is only 0"),
    "no devices": ({"SIMCANN_DEVICES": "0"}, "--device_list 0,1: no npu 0, 1 here; there is none"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_ends_all_with_one_message(failure, npu, tree, tmp_path):
    simcann, message = FAILURES[failure]
    before = segments()
    result = npu(tree, cwd=tmp_path, device_list="0,1", workers=2, simcann=simcann)
    assert result.returncode == 1, result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("main.py: error: ")]
    assert len(errors) == 1, result.stderr
    assert message in errors[0]
    assert segments() == before
    assert processes_of(tmp_path) == []


def test_a_rank_that_raises(npu, tree, tmp_path):
    """A broken image is one rank's; its message names the file, and the other rank says nothing."""
    broken = tmp_path / "tree"
    subprocess.run(["cp", "-r", tree, broken], check=True)
    image = next((broken / "train/cat").iterdir())
    image.write_bytes(b"no image")
    result = npu(broken, cwd=tmp_path, device_list="0,1", workers=2)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if "error" in line and "Warning" not in line]
    assert len(errors) == 1, result.stderr
    assert str(image) in errors[0]
    assert processes_of(tmp_path) == []


def test_an_operator_that_is_unknown(npu, tmp_path, tree):
    code = "import torch, main\nmain.accuracy = lambda output, target, topk: torch.linalg.qr(output)\nmain.main()"
    result = npu(tree, cwd=tmp_path, code=code)
    assert result.returncode == 1
    message = r"^main.py: error: rank 0 \(npu 0\), epoch 0, step 0: .*[Qq]r"
    assert re.search(message, result.stderr, re.MULTILINE), result.stderr


def test_a_killed_parent_leaves_no_process(start, small, tree, tmp_path):
    options = small(device="npu", device_list="0,1", epochs=1000, arch="resnet18", workers=2)
    process = start(tree, *options, cwd=tmp_path, env=environment())
    for line in process.stdout:
        if line.startswith("Epoch: [0][2/"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = 60
    while processes_of(tmp_path) and deadline:
        deadline -= 1
        signal.sigtimedwait([], 1)
    assert processes_of(tmp_path) == []


# The interface


def test_what_main_uses_of_torch_npu_exists(run, tmp_path):
    """Every dotted name below torch_npu and torch.npu in main.py, and the options that GradScaler is given."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / "main.py").read_text())):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.match(r"torch_npu\.|torch\.npu\.", name):
                names.add(name)
    assert {"torch.npu.device_count", "torch_npu.npu.amp.GradScaler"} <= names
    code = f"""
import inspect, json, torch, torch_npu
names = {sorted(names)!r}
signature = inspect.signature(torch_npu.npu.amp.GradScaler).parameters
values = [eval(name) for name in names]
print(json.dumps([len(values), sorted(signature), torch_npu.npu.utils.is_support_inf_nan()]))
"""
    result = run(cwd=tmp_path, command=["-c", code], env=environment())
    assert result.returncode == 0, result.stderr
    count, signature, supported = json.loads(result.stdout.splitlines()[-1])
    assert count == len(names)
    assert {"init_scale", "enabled"} <= set(signature)
    assert supported


def test_a_chip_without_inf_gets_torch_npus_own_scaler(run, tmp_path):
    code = "import main; main.prepare_npu(); print(main.npu_grad_scaler(init_scale=2.0).__module__)"
    env = {**environment(), "PYTHONPATH": str(ROOT), "SIMCANN_CHIP": "Ascend910A"}
    result = run(cwd=tmp_path, command=["-c", code], env=env)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "torch_npu.npu.amp.grad_scaler"
