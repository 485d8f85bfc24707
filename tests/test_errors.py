"""Whatever goes wrong: one line that says what and what to do, an exit status, and no process left behind."""

import importlib.util
import math
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

import main

# --------------------------------------------------------------------------------------------------------- the images


def test_no_such_folder(call, small, tmp_path, one_error):
    one_error(call("nowhere", *small(), cwd=tmp_path), "'nowhere/train'", "No such file or directory", "--dummy")


@pytest.mark.parametrize("missing", ["train", "val"])
def test_no_train_or_val(missing, call, small, make_tree, tmp_path, one_error):
    folder = make_tree(tmp_path / "tree")
    (folder / missing).rename(tmp_path / "elsewhere")
    one_error(call(folder, *small(), cwd=tmp_path), repr(str(folder / missing)), "train/ and val/")


def test_images_without_class_folders(call, small, make_tree, tmp_path, one_error):
    folder = make_tree(tmp_path / "tree")
    one_error(call(folder / "train" / "cat", *small(), cwd=tmp_path), "train/ and val/")


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_class_folder(split, call, small, make_tree, tmp_path, one_error):
    folder = make_tree(tmp_path / "tree")
    for path in (folder / split / "dog").iterdir():
        path.rename(path.with_suffix(".txt"))
    one_error(call(folder, *small(), cwd=tmp_path), repr(str(folder / split / "dog")), "no image")


def test_a_class_that_training_lacks(call, small, make_tree, tmp_path, one_error):
    folder = make_tree(tmp_path / "tree")
    (folder / "val" / "dog").rename(folder / "val" / "doge")
    one_error(call(folder, *small(), cwd=tmp_path), "'doge'", "train/")


def test_too_few_images(call, small, tree, tmp_path, one_error):
    one_error(call(tree, *small(batch_size=25), cwd=tmp_path), "24 training images", "25", "--batch-size 24")


def test_too_few_images_for_all_machines(call, small, tree, tmp_path, free_port, one_error):
    several = ["--world-size", 2, "--rank", 0, "--port", free_port()]
    one_error(call(tree, *small(batch_size=13), *several, cwd=tmp_path), "26", "--batch-size 12")


def test_a_batch_smaller_than_the_devices(call, small, tree, tmp_path, one_error):
    result = call(tree, *small(batch_size=2), "--device_list", "0,1,2", cwd=tmp_path)
    one_error(result, "--batch-size 2", "3 devices")


def test_a_batch_that_the_devices_do_not_divide(call, small, tree, tmp_path, one_error):
    """A warning says what is used instead; the other error ends the run before it starts."""
    result = call(tree, *small(batch_size=80), "--device_list", "0,1,2", cwd=tmp_path)
    one_error(result, "78", warned=True)
    assert "--batch-size 80 is not a multiple of 3 devices: using 78" in result.stderr


@pytest.mark.parametrize("options", [[], ["--device_list", "0,1"]])
def test_a_broken_image(options, run, small, make_tree, tmp_path, one_error):
    """In the middle of training, found by a loading worker; one line, whichever process met it."""
    folder = make_tree(tmp_path / "tree", train=48)
    (folder / "train" / "emu" / "020.png").write_bytes(b"<html>404 Not Found</html>")
    result = run(folder, *small(workers=2), *options, cwd=tmp_path)
    one_error(result, repr(str(folder / "train" / "emu" / "020.png")), "remove it")
    assert not (tmp_path / "checkpoint.pth.tar").exists()


def test_images_too_small_for_the_model(call, small, tree, tmp_path, one_error):
    result = call(tree, *small(arch="alexnet", image_size=16), cwd=tmp_path)
    one_error(result, "--arch alexnet", "--image-size 16")


# -------------------------------------------------------------------------------------------------------- the devices


def no_torch_npu(name, find_spec=importlib.util.find_spec):
    return None if name == "torch_npu" else find_spec(name)


def test_npu_without_torch_npu(call, small, tree, tmp_path, one_error, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", no_torch_npu)
    result = call(tree, *small(device="npu"), cwd=tmp_path)
    one_error(result, "--device npu", "torch_npu", "pip install", "--device gpu or cpu")


@pytest.mark.skipif(
    importlib.util.find_spec("torch_npu") is None or "ASCEND_HOME_PATH" in os.environ,
    reason="needs torch_npu and no CANN",
)
def test_npu_without_cann(run, small, tree, tmp_path, one_error):
    result = run(tree, *small(device="npu"), cwd=tmp_path)
    one_error(result, "--device npu", "CANN", "set_env.sh", "--device gpu or cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["gpu", "cuda"])
def test_gpu_without_a_gpu(device, call, small, tree, tmp_path, one_error):
    one_error(call(tree, *small(device=device), cwd=tmp_path), "--device gpu", "no usable GPU", "cpu")


@pytest.mark.parametrize(
    ("count", "devices", "needed"),
    [
        (8, "0,8,9", ["--device_list 0,8,9", "npu 8, 9", "0 to 7"]),
        (1, "1", ["--device_list 1", "only 0"]),
        (0, "0,1", ["--device_list 0,1", "none"]),
        (4, None, ["--device_list 0,1,2,3,4,5,6,7", "npu 4, 5, 6, 7", "0 to 3"]),
    ],
)
def test_devices_that_are_not_there(count, devices, needed, call, small, tree, tmp_path, one_error, monkeypatch):
    monkeypatch.setattr(main.PLATFORMS["npu"], "prepare", lambda: count)
    options = ["--device_list", devices] if devices else []
    one_error(call(tree, *small(device="npu"), *options, cwd=tmp_path), *needed)


def test_no_such_cpu_process(call, small, tree, tmp_path, one_error):
    one_error(call(tree, *small(), "--device_list", "4096", cwd=tmp_path), "--device_list 4096")


def test_devices_that_are_no_neighbours(call, small, tmp_path, one_error, monkeypatch):
    """A warning; what ends the run is the missing folder."""
    monkeypatch.setattr(main.PLATFORMS["npu"], "prepare", lambda: 8)
    for devices, warned in ("0,1,2", False), ("2,3", False), ("0,2", True), ("7,1,0", True):
        result = call("nowhere", *small(device="npu"), "--device_list", devices, cwd=tmp_path)
        one_error(result, "nowhere", warned=True)
        assert ("not neighbours" in result.stderr) is warned


# ------------------------------------------------------------------------------------------------------- the processes


def test_a_port_that_is_taken(call, small, tree, tmp_path, one_error):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for option in ["--port", port], ["--dist-url", f"tcp://127.0.0.1:{port}"]:
            result = call(tree, *small(), "--device_list", "0,1", *option, cwd=tmp_path)
            one_error(result, f"127.0.0.1:{port}", "in use", "--port")


def test_machines_that_do_not_meet(call, small, tree, tmp_path, free_port, one_error):
    port = free_port()
    for rank in 0, 1:
        several = ["--world-size", 2, "--rank", rank, "--port", port, "--dist-timeout", 1]
        one_error(call(tree, *small(), *several, cwd=tmp_path), f"127.0.0.1:{port}", "within 1 s", "--rank 0, 1")


def test_machines_with_unequal_devices(start, finish, small, tree, tmp_path, free_port, one_error):
    several = ["--world-size", 2, "--port", free_port()]
    started = [
        start(tree, *small(), *several, "--rank", rank, "--device_list", devices, cwd=tmp_path)
        for rank, devices in enumerate(["0,1", "0"])
    ]
    for process in started:
        one_error(finish(process), "[2, 1] devices", "--device_list")


def test_torchrun_with_another_device_list(run, small, tree, root, tmp_path):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 1, root / "main.py"]
    result = run(tree, *small(), "--device_list", "0,1", cwd=tmp_path, command=command)
    assert result.returncode != 0
    assert [line for line in result.stderr.splitlines() if line.startswith("main.py: error: --device_list 0,1: ")]


def descendants(pid):
    """Return the process ids of all that a process has started, and they in turn."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def listeners(pids):
    """Return the addresses, as /proc shows them, on which some processes listen for TCP connections."""
    sockets = set()
    for pid in pids:
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(fd))
            except FileNotFoundError:
                continue
    found = []
    for table in "/proc/net/tcp", "/proc/net/tcp6":
        if os.path.exists(table):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                _, address, _, state, *_, inode = line.split()[:10]
                if state == "0A" and f"socket:[{inode}]" in sockets:
                    found.append(address.split(":")[0])
    return found


def running(pid):
    """Return whether a process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def killed(start, finish, small, tmp_path_factory):
    """A run of two processes, looked at in the middle and then robbed of one of them."""
    folder = tmp_path_factory.mktemp("killed")
    options = small(arch="squeezenet1_1", epochs=90, workers=2)
    process = start("--dummy", 800, *options, "--device_list", "0,1", cwd=folder)
    for line in process.stdout:
        if line.startswith("Epoch: [0]["):
            break
    children = descendants(process.pid)
    own = map(int, pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    ranks = sorted(pid for pid in own if b"spawn_main" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
    seen = listeners([process.pid, *children])
    os.kill(ranks[-1], signal.SIGKILL)
    result = finish(process)
    end = time.monotonic() + 60
    while any(map(running, children)) and time.monotonic() < end:
        time.sleep(0.1)
    return result, ranks, seen, [pid for pid in children if running(pid)]


def test_a_killed_process_ends_the_run(killed, one_error):
    result, ranks, _, left = killed
    assert len(ranks) == 2
    one_error(result, "rank 1 (cpu 1)", "SIGKILL", "--resume auto")
    assert left == []


def test_nothing_listens_beyond_loopback(killed):
    _, _, seen, _ = killed
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert seen  # the store, at least
    assert set(seen) <= loopback


def test_interrupted(start, finish, small, tmp_path):
    """Ctrl-C reaches all processes of the terminal."""
    process = start("--dummy", 800, *small(epochs=90, workers=2), "--device_list", "0,1", cwd=tmp_path)
    for line in process.stdout:
        if line.startswith("Epoch: [0]["):
            break
    children = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    result = finish(process)
    assert result.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in result.stderr
    end = time.monotonic() + 60
    while any(map(running, children)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(running, children))


# ------------------------------------------------------------------------------------------------------ the checkpoint


@pytest.fixture(scope="module")
def trained(call, small, tree, tmp_path_factory):
    """The checkpoint of a small run."""
    folder = tmp_path_factory.mktemp("trained")
    assert call(tree, *small(arch="squeezenet1_1"), cwd=folder).returncode == 0
    return folder / "checkpoint.pth.tar"


def refused(call, small, tree, path, cwd, **changes):
    before = path.read_bytes() if path.is_file() else None
    result = call(tree, *small(arch="squeezenet1_1", epochs=2, **changes), "--resume", path, cwd=cwd)
    assert before == (path.read_bytes() if path.is_file() else None)
    return result


def test_resume_of_a_missing_file(call, small, tree, tmp_path, one_error):
    result = refused(call, small, tree, tmp_path / "none.pth.tar", tmp_path)
    one_error(result, "--resume", "none.pth.tar", "No such file", "leave --resume out")


def test_resume_of_a_folder(call, small, tree, tmp_path, one_error):
    one_error(refused(call, small, tree, tmp_path, tmp_path), "--resume", repr(str(tmp_path)))


@pytest.mark.parametrize("kind", ["empty", "text", "half", "image", "flipped"])
def test_resume_of_a_damaged_file(kind, trained, call, small, tree, tmp_path, one_error):
    whole = trained.read_bytes()
    contents = {
        "empty": b"",
        "text": b"epoch,lr\n0,0.1\n",
        "half": whole[: len(whole) // 2],
        "image": (tree / "train" / "cat" / "000.png").read_bytes(),
        "flipped": whole[:64] + bytes(255 - byte for byte in whole[64:4096]) + whole[4096:],
    }
    path = tmp_path / "damaged.pth.tar"
    path.write_bytes(contents[kind])
    one_error(refused(call, small, tree, path, tmp_path), "--resume", "damaged.pth.tar")


@pytest.mark.parametrize("state", [{"state_dict": {}}, [1, 2], {"weight": torch.zeros(2)}, 7])
def test_resume_of_another_kind_of_file(state, call, small, tree, tmp_path, one_error):
    torch.save(state, tmp_path / "other.pth.tar")
    result = refused(call, small, tree, tmp_path / "other.pth.tar", tmp_path)
    one_error(result, "--resume", "other.pth.tar", "no checkpoint", "optimizer")


def test_resume_of_plain_weights(trained, call, small, tree, tmp_path, one_error):
    torch.save(torch.load(trained, weights_only=True)["state_dict"], tmp_path / "weights.pth")
    one_error(refused(call, small, tree, tmp_path / "weights.pth", tmp_path), "weights.pth", "state_dict")


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("form", ["zip", "pickle"])
def test_code_in_a_checkpoint_does_not_run(form, trained, call, small, tree, tmp_path, one_error):
    canary, path = tmp_path / "canary", tmp_path / "evil.pth.tar"
    state = {**torch.load(trained, weights_only=True), "scheduler": Canary(canary)}
    if form == "zip":
        torch.save(state, path)
    else:
        path.write_bytes(pickle.dumps({"epoch": 1, "arch": "squeezenet1_1", "scheduler": Canary(canary)}, 2))
    one_error(refused(call, small, tree, path, tmp_path), "--resume", "evil.pth.tar")
    assert not canary.exists()
    torch.load(path, weights_only=False) if form == "zip" else pickle.loads(path.read_bytes())
    assert canary.exists()  # it would have


def test_resume_of_another_arch(trained, call, small, tree, tmp_path, one_error):
    result = call(tree, *small(arch="squeezenet1_0"), "--resume", trained, cwd=tmp_path)
    one_error(result, "--resume", "--arch squeezenet1_1")


def test_resume_of_another_class_count(trained, call, small, make_tree, tmp_path, one_error):
    folder = make_tree(tmp_path / "tree")
    for split in "train", "val":
        (folder / split / "fox").mkdir()
        (folder / split / "cat" / "000.png").rename(folder / split / "fox" / "000.png")
    result = call(folder, *small(arch="squeezenet1_1", epochs=2), "--resume", trained, cwd=tmp_path)
    one_error(result, "--resume", "3 classes", "4")


def change(trained, target, **changes):
    torch.save({**torch.load(trained, weights_only=True), **changes}, target)
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"state_dict": {}},
        {"state_dict": None},
        {"state_dict": {"features.0.weight": 3}},
        {"optimizer": None},
        {"optimizer": {"state": {}, "param_groups": []}},
        {"epoch": "one"},
        {"best_acc1": None},
        {"history": 3},
        {"history": [1, 2]},
        {"history": [{"epoch": 0, "a,b": 1}]},
        {"state_dict": {0: torch.zeros(2)}},
        {"epoch": -1},
        {"seed": "abc"},
        {"seed": 2**70},
        {"best_acc1": torch.zeros(2)},
        {"best_acc1": math.inf},
        {"optimizer": {"state": [], "param_groups": [{"params": [0]}]}},
        {"optimizer": {"state": {}, "param_groups": [1]}},
        {"images": 8},
        {"images": 8, "ranks": [3]},
    ],
    ids=str,
)
def test_resume_of_a_checkpoint_with_a_wrong_part(changes, trained, call, small, tree, tmp_path, one_error):
    path = change(trained, tmp_path / "odd.pth.tar", **changes)
    one_error(refused(call, small, tree, path, tmp_path), "--resume", "odd.pth.tar")


def test_resume_with_another_weight_decay(trained, call, small, tree, tmp_path, one_error):
    result = call(tree, *small(arch="squeezenet1_1", epochs=2), "--no-decay-norm", "--resume", trained, cwd=tmp_path)
    one_error(result, "--no-decay-norm")


# ------------------------------------------------------------------------------------------------------- the output


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/nothing here"])
def test_an_output_folder_that_cannot_be(folder, call, small, tree, tmp_path, one_error):
    (tmp_path / "file").write_text("")
    result = call(tree, *small(), "--output-dir", folder, cwd=tmp_path)
    one_error(result, f"--output-dir {folder!r}", "cannot be written")


def test_a_checkpoint_that_cannot_be_written(call, small, tree, tmp_path, one_error):
    """A folder is in its place: the run ends before it has begun."""
    (tmp_path / "out" / "checkpoint.pth.tar" / "in the way").mkdir(parents=True)
    result = call(tree, *small(arch="squeezenet1_1"), "--output-dir", "out", cwd=tmp_path)
    one_error(result, "'out'", "a folder 'checkpoint.pth.tar'")
    assert os.listdir(tmp_path / "out") == ["checkpoint.pth.tar"]


def in_a_shell(shell, root, small, cwd):
    command = f"set -o pipefail; {sys.executable} {root / 'main.py'} --dummy 16 {' '.join(small())} {shell}"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("shell", ["| true", "> /dev/full"])
def test_nobody_reads_the_output(shell, root, small, tmp_path):
    """What it printed is lost; why it ended is not."""
    result = in_a_shell(shell, root, small, tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
    assert result.stderr.startswith("main.py: error: cannot print (")


@pytest.mark.parametrize("shell", [">&-", "| cat"])
def test_output_that_cannot_be_shown(shell, root, small, tmp_path):
    """It is closed, or takes ASCII alone."""
    result = in_a_shell(shell, root, small, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "checkpoint.pth.tar").exists()


def test_a_variable_of_another_launcher(call, small, tmp_path):
    result = call("--dummy", 16, *small(), cwd=tmp_path, env={"LOCAL_RANK": "0"})
    assert (result.returncode, result.stderr) == (0, "")


def test_wrong_usage_ends_with_status_2(run, tmp_path, one_error):
    """As a process of its own: what a shell sees."""
    one_error(run("--arch", "resnet81", cwd=tmp_path), "--arch", "resnet81", "resnet18", status=2)


def test_no_folder_ends_with_status_1(run, tmp_path, one_error):
    one_error(run("--device", "cpu", cwd=tmp_path), "'imagenet/train'")
