"""SIGTERM and Ctrl-C, runs that share a folder, ranks that are stuck or killed, and disks that are full: what a run
then says, with which status it ends, what it leaves, and that it goes on from there as if nothing had been."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from conftest import SLOW

# A step that never ends.
HANG = 'main.check_numbers = lambda *_: [print("hanging", flush=True), time.sleep(600)]'
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def unowned():
    """The entries of /dev/shm that no process has mapped; a living process's are its own business."""
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped += maps.read_text()
    return {name for name in os.listdir("/dev/shm") if name not in mapped}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, nobody_in):
    """After each test: no process that works in its folder, so no socket either, no file half written, and nothing in
    /dev/shm."""
    before = unowned()
    yield
    nobody_in(tmp_path)
    assert list(tmp_path.rglob("*.tmp")) == []
    end = time.monotonic() + 10
    while (new := unowned() - before) and time.monotonic() < end:
        time.sleep(0.2)
    assert new == set()


@pytest.fixture(scope="module")
def options(small, tree):
    """options(*flags, **changes): six steps of four images and three validation steps an epoch."""
    return lambda *flags, **changes: [tree, *flags, *small(**{"batch_size": 4, "epochs": 2, **changes})]


@pytest.fixture(scope="module")
def straight(call, run, options, outcome, tmp_path_factory, request):
    """straight(device, devices): what a run leaves that nothing happens to."""
    known = {}

    def get(device, devices):
        if (device, devices) not in known:
            folder = tmp_path_factory.mktemp("straight")
            env = request.getfixturevalue("simulated") if device == "npu" else {}
            begin = call if (device, devices) == ("cpu", "0") else run
            result = begin(*options(device=device, device_list=devices), cwd=folder, env=env)
            assert result.returncode == 0, result.stderr
            known[device, devices] = outcome(folder)
        return known[device, devices]

    return get


@pytest.fixture
def begin(start, patched, options, root, tmp_path, request):
    """begin(*flags, code=SLOW, launcher=[], **options): start a run in the test's folder."""

    def start_run(*flags, code=SLOW, launcher=(), env=None, **changes):
        env = {"PYTHONPATH": str(root), **(env or {})}
        if changes.get("device") == "npu":
            env |= request.getfixturevalue("simulated") | {"PYTHONPATH": str(root)} | env
        return start(*options(*flags, **changes), cwd=tmp_path, command=[*launcher, patched(tmp_path, code)], env=env)

    return start_run


def errors(result):
    return [line for line in result.stderr.splitlines() if line.startswith("main.py: error: ")]


# ----------------------------------------------------------------------------------------------------- an orderly stop


def to_the_parent(process, ranks, number):
    process.send_signal(number)


def to_one_rank(process, ranks, number):
    os.kill(ranks[-1], number)


def to_all_at_once(process, ranks, number):
    os.killpg(process.pid, number)


LONG = pytest.mark.long
STOPS = {
    "cpu 1 SIGTERM": ("cpu", "0", to_the_parent, signal.SIGTERM),
    "cpu 1 SIGINT": ("cpu", "0", to_the_parent, signal.SIGINT),
    "cpu 2 SIGTERM": ("cpu", "0,1", to_the_parent, signal.SIGTERM),
    "cpu 2 SIGTERM to a rank": ("cpu", "0,1", to_one_rank, signal.SIGTERM),
    "cpu 2 SIGINT to the terminal's group": ("cpu", "0,1", to_all_at_once, signal.SIGINT),
    "npu 2 SIGTERM to the group": ("npu", "0,1", to_all_at_once, signal.SIGTERM),
}


@pytest.mark.parametrize(
    "stop", [pytest.param(stop, marks=LONG if stop in ("cpu 1 SIGINT", "cpu 2 SIGTERM") else ()) for stop in STOPS]
)
def test_a_signal_stops_and_saves(
    stop, begin, follow, ended, children, call, run, options, straight, outcome, differences, load, tmp_path, request
):
    device, devices, send, number = STOPS[stop]
    process = begin(device=device, device_list=devices, workers=2)
    follow(process, "Epoch: [0][2/6]")
    send(process, children(process), number)
    sent = time.monotonic()
    result = ended(process)
    assert time.monotonic() < sent + 30
    assert (result.returncode, errors(result)) == (128 + number, [])
    assert "Traceback" not in result.stderr
    step = int(re.search(rf"^=> stopped by {number.name}, epoch 0, step (\d+): ", result.stdout, re.MULTILINE)[1])
    assert (load(tmp_path)["epoch"], load(tmp_path)["images"]) == (0, 4 * (step + 1))
    shown = re.findall(r"^Epoch: \[0\]\[(\d)/6\]", result.stdout, re.MULTILINE)
    assert shown == [str(i + 1) for i in range(step + 1)]

    env = request.getfixturevalue("simulated") if device == "npu" else {}
    resumed = call if (device, devices) == ("cpu", "0") else run
    result = resumed(*options("--resume", "auto", device=device, device_list=devices), cwd=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    assert f"(epoch 0, step {step + 1})\n" in result.stdout
    assert differences(outcome(tmp_path), straight(device, devices)) == []


@pytest.mark.parametrize("send", [to_the_parent, pytest.param(to_one_rank, marks=LONG)])
def test_torchrun_stops_and_saves(
    send, begin, follow, ended, children, run, options, straight, outcome, differences, tmp_path
):
    process = begin(launcher=TORCHRUN, device_list="0,1")
    follow(process, "Epoch: [0][2/6]")
    send(process, children(process), signal.SIGTERM)
    result = ended(process)
    assert result.returncode != 0
    assert errors(result) == []
    assert result.stdout.count("=> stopped by SIGTERM, epoch 0, step ") == 1
    result = run(*options("--resume", "auto", device_list="0,1"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert differences(outcome(tmp_path), straight("cpu", "0,1")) == []


def test_a_signal_in_validation(begin, follow, ended, call, options, straight, outcome, differences, tmp_path):
    """All training steps are done; validation is what is repeated."""
    process = begin()
    follow(process, "Test: [1/3]")
    process.terminate()
    result = ended(process)
    assert (result.returncode, errors(result)) == (143, [])
    assert re.search(r"^=> stopped by SIGTERM, epoch 0, validation step [12]: ", result.stdout, re.MULTILINE)
    result = call(*options("--resume", "auto"), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Epoch: [0]" not in result.stdout
    assert differences(outcome(tmp_path), straight("cpu", "0")) == []


@pytest.mark.parametrize("devices", ["0", pytest.param("0,1", marks=LONG)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_step_ends_at_once(number, devices, begin, follow, ended, tmp_path):
    code = 'main.create_optimizer = lambda *_: [print("starting", flush=True), time.sleep(600)]'
    process = begin(code=code, device_list=devices)
    follow(process, "starting")
    process.send_signal(number)
    sent = time.monotonic()
    result = ended(process)
    assert time.monotonic() < sent + 15
    assert result.returncode in (-number, 128 + number)
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "checkpoint.pth.tar").exists()


@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_a_second_signal_ends_at_once(devices, begin, follow, ended):
    """Within a second it is taken for the first one, sent twice."""
    process = begin(code=HANG, device_list=devices)
    follow(process, "hanging")
    process.terminate()
    time.sleep(0.3)
    process.terminate()
    time.sleep(1.5)
    assert process.poll() is None
    process.terminate()
    sent = time.monotonic()
    result = ended(process)
    assert time.monotonic() < sent + 15
    assert (result.returncode, errors(result)) == (143, [])
    assert "Traceback" not in result.stderr


def test_what_does_not_stop_is_killed(begin, follow, ended, one_error):
    """All ranks are in a step that never ends; the parent waits so long and no longer."""
    process = begin(code=HANG + "\nmain.STOP_SECONDS = 3", device_list="0,1")
    follow(process, "hanging")
    process.terminate()
    one_error(ended(process), "did not stop within 3 s", "killed", status=143)


@LONG
def test_a_signal_at_the_end_is_no_failure(begin, follow, ended):
    """The run is about to end by itself, in every rank; whichever comes first, nothing is lost and nobody complains."""
    process = begin(epochs=1, device_list="0,1")
    follow(process, "=> best Acc@1")
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    result = ended(process)
    assert result.returncode in (0, 143, -signal.SIGTERM)
    assert errors(result) == []


# ------------------------------------------------------------------------------------------------------------ run_8p.sh


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGTERM, to_the_parent), pytest.param(signal.SIGINT, to_all_at_once, marks=LONG)],
)
def test_run_8p_stops_and_saves(number, send, start, follow, ended, small, tree, root, tmp_path, simulated, load):
    command = ["-c", "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])", root / "run_8p.sh"]
    few = small(arch="shufflenet_v2_x0_5", device="npu", device_list="0,1", workers=2, batch_size=4, epochs=100)
    env = {**simulated, "LOG_FILE": str(tmp_path / "log")}
    process = start(tree, *few, cwd=tmp_path, command=command, env=env)
    follow(process, "Epoch: [0][2/6]")
    send(process, [], number)
    result = ended(process)
    assert result.returncode == 128 + number, result.stdout + result.stderr
    assert f"=> stopped by {number.name}, " in result.stdout
    assert "best Acc@1" not in result.stdout
    assert f"=> stopped by {number.name}, " in (tmp_path / "log").read_text()
    assert load(tmp_path)["images"] or load(tmp_path)["epoch"]


# --------------------------------------------------------------------------------------------- one run in a folder


def test_a_second_run_in_the_folder_is_refused(begin, follow, ended, call, options, tmp_path, one_error):
    """By any name of it; the first run goes on, and evaluating writes nothing, so it may be done meanwhile."""
    os.symlink(tmp_path, tmp_path / "link")
    process = begin(epochs=50, save_steps=1)
    follow(process, "Epoch: [0][2/6]")
    for folder in ".", "link":
        result = call(*options("--output-dir", folder, "--resume", "auto"), cwd=tmp_path)
        one_error(result, f"--output-dir {folder!r}", "another run's")
    assert call(*options("--evaluate", "--resume", "auto"), cwd=tmp_path).returncode == 0
    process.terminate()
    result = ended(process)
    assert (result.returncode, result.stderr) == (143, "")


@pytest.mark.parametrize("launcher", [[], pytest.param(TORCHRUN, marks=LONG)])
def test_of_two_runs_of_two_processes_one_is_refused(launcher, begin, follow, ended, tmp_path):
    first = begin(device_list="0,1", epochs=50)
    follow(first, "Epoch: [0][1/6]")
    second = begin(device_list="0,1", launcher=launcher)
    refused = ended(second)
    assert refused.returncode == 1
    assert ["another run's" in line for line in errors(refused)] == [True]
    first.terminate()
    assert ended(first).returncode == 143


def test_a_killed_run_leaves_no_lock(begin, follow, ended, call, options, straight, outcome, differences, tmp_path):
    """Nor do its data loading processes, which it may well have been killed for."""
    process = begin(workers=2, save_steps=1)
    follow(process, "Epoch: [0][3/6]")
    process.kill()
    process.wait()
    result = call(*options("--resume", "auto", workers=2), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert differences(outcome(tmp_path), straight("cpu", "0")) == []
    assert ended(process).returncode == -signal.SIGKILL


# ------------------------------------------------------------------------------------------- ranks, stuck and killed


@pytest.mark.parametrize("device", ["cpu", pytest.param("npu", marks=LONG)])
def test_a_stuck_rank_ends_the_run(device, begin, follow, ended, children):
    process = begin("--dist-timeout", "5", device=device, device_list="0,1", epochs=50)
    follow(process, "Epoch: [0][3/6]")
    os.kill(children(process)[1], signal.SIGSTOP)
    stopped = time.monotonic()
    result = ended(process)
    assert time.monotonic() < stopped + 60
    (error,) = errors(result)
    # On an NPU, HCCL's watchdog may be first, and aborts the process that waits.
    late = r"no answer from rank 1 for 5 s \(--dist-timeout\)|killed by SIGABRT, .*within --dist-timeout 5 s"
    assert re.search(late, error), result.stderr
    assert re.search(rf"rank 0 \({device} 0\)", error)
    assert re.search(r"epoch \d+, (validation )?step \d+", error)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr


def test_a_stuck_npu_ends_the_run(begin, ended):
    """All hosts wait for their devices then: none of them knows which one hangs."""
    env = {"SIMCANN_HANG_IN_COLLECTIVE": "1:9"}
    result = ended(begin("--dist-timeout", "5", device="npu", device_list="0,1", epochs=50, env=env))
    (error,) = errors(result)
    assert re.search(r"rank \d \(npu \d\).* epoch 0, (validation )?step \d+", error), result.stderr
    assert "--dist-timeout" in error
    assert result.returncode == 1


def test_a_killed_rank_is_named(begin, follow, ended, children, one_error):
    process = begin(device_list="0,1", epochs=50, workers=2)
    follow(process, "Epoch: [0][3/6]")
    os.kill(children(process)[1], signal.SIGKILL)
    result = ended(process)
    one_error(result, "rank 1 (cpu 1) was killed by SIGKILL, epoch 0, step ", "--resume auto")


@LONG
def test_a_killed_rank_of_torchrun_is_told(begin, follow, ended, children):
    """By the rank that is left; torchrun itself names the signal."""
    process = begin(device_list="0,1", epochs=50, launcher=TORCHRUN)
    follow(process, "Epoch: [0][3/6]")
    os.kill(children(process)[1], signal.SIGKILL)
    result = ended(process)
    assert result.returncode != 0
    assert "-9" in result.stderr


@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_a_killed_loading_process_is_named(devices, begin, follow, ended, children, one_error):
    process = begin(device_list=devices, epochs=50, workers=devices.count(",") + 1)
    follow(process, "Epoch: [0][3/6]")
    rank = children(process)[-1] if devices != "0" else process.pid
    line = Path(f"/proc/{rank}/cmdline").read_bytes()
    started = Path(f"/proc/{rank}/task/{rank}/children").read_text().split()
    loaders = [int(pid) for pid in started if Path(f"/proc/{pid}/cmdline").read_bytes() == line]  # forked
    os.kill(loaders[0], signal.SIGKILL)
    number = devices.count(",")
    one_error(ended(process), f"rank {number} (cpu {number}), epoch ", "data loading process was killed", "--workers")


# ---------------------------------------------------------------------------------------------------- disks and files


@pytest.fixture(scope="module")
def trained(call, options, tmp_path_factory):
    """The folder of a run of one epoch."""
    folder = tmp_path_factory.mktemp("trained")
    assert call(*options(epochs=1), cwd=folder).returncode == 0
    return folder


def test_a_file_size_limit_keeps_the_last_checkpoint(trained, begin, ended, tmp_path, one_error):
    shutil.copy(trained / "checkpoint.pth.tar", tmp_path)
    before = (tmp_path / "checkpoint.pth.tar").read_bytes()
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))"
    result = ended(begin("--resume", "auto", code=code, save_steps=3))
    one_error(result, "checkpoint.pth.tar", "cannot write", "untouched")
    assert (tmp_path / "checkpoint.pth.tar").read_bytes() == before


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 MB."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", tmp_path / "disk"]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield tmp_path / "disk"
    subprocess.run(["umount", tmp_path / "disk"], check=True)


def test_a_full_disk_keeps_the_last_checkpoint(small_disk, trained, call, options, tmp_path, one_error, load):
    shutil.copy(trained / "checkpoint.pth.tar", small_disk)
    before = (small_disk / "checkpoint.pth.tar").read_bytes()
    (small_disk / "filler").write_bytes(bytes(36_000_000 - len(before)))
    flags = ["--resume", "auto", "--output-dir", small_disk]
    result = call(*options(*flags, save_steps=3), cwd=tmp_path)
    one_error(result, "checkpoint.pth.tar", "cannot write", "No space left on device", "untouched")
    assert (small_disk / "checkpoint.pth.tar").read_bytes() == before
    (small_disk / "filler").unlink()
    assert call(*options(*flags, save_steps=3), cwd=tmp_path).returncode == 0
    assert load(small_disk)["epoch"] == 2


def overwritten(whole, part):
    middle = len(whole) // 2  # among the numbers of a tensor
    return whole[:middle] + part + whole[middle + len(part) :]


DAMAGES = {
    "empty": lambda whole: b"",
    "cut short": lambda whole: whole[:-1000],
    "half": lambda whole: whole[: len(whole) // 2],
    "zeros at its end": lambda whole: whole[: len(whole) // 2].ljust(len(whole), b"\0"),
    "a block of zeros": lambda whole: overwritten(whole, bytes(4096)),
    "one bit": lambda whole: overwritten(whole, bytes([whole[len(whole) // 2] ^ 64])),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("best", [True, False])
def test_a_damaged_checkpoint_is_not_gone_on_from(best, damage, trained, call, options, tmp_path, one_error):
    damaged = DAMAGES[damage]((trained / "checkpoint.pth.tar").read_bytes())
    (tmp_path / "checkpoint.pth.tar").write_bytes(damaged)
    if best:
        shutil.copy(trained / "model_best.pth.tar", tmp_path)
    result = call(*options("--resume", "auto"), cwd=tmp_path)
    one_error(result, "checkpoint.pth.tar", "move the file away", *["model_best.pth.tar"] if best else [])
    assert (tmp_path / "checkpoint.pth.tar").read_bytes() == damaged


def test_the_remedies_for_a_damaged_checkpoint_work(trained, call, options, tmp_path):
    (tmp_path / "checkpoint.pth.tar").write_bytes(b"")
    shutil.copy(trained / "model_best.pth.tar", tmp_path)
    result = call(*options("--resume", "./model_best.pth.tar"), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "(epoch 1)" in result.stdout


def test_auto_does_not_begin_anew_beside_a_best_model(trained, call, options, tmp_path, one_error):
    shutil.copy(trained / "model_best.pth.tar", tmp_path)
    one_error(call(*options("--resume", "auto"), cwd=tmp_path), "checkpoint.pth.tar' is missing", "model_best.pth.tar")
    assert os.listdir(tmp_path) == ["model_best.pth.tar"]


@pytest.mark.parametrize("name", ["checkpoint.pth.tar", "model_best.pth.tar", "log.csv", "checkpoint.pth.tar.tmp"])
def test_what_a_link_points_to_stays_as_it_is(name, call, options, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "precious").write_bytes(b"precious")
    os.symlink(tmp_path / "precious", tmp_path / "out" / name)
    assert call(*options("--output-dir", "out", epochs=1), cwd=tmp_path).returncode == 0
    assert (tmp_path / "precious").read_bytes() == b"precious"
    written = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in written] == ["checkpoint.pth.tar", "log.csv", "model_best.pth.tar"]
    assert not any(path.is_symlink() for path in written)


def test_a_link_to_a_checkpoint_is_gone_on_from(trained, call, options, load, tmp_path):
    os.symlink(trained / "checkpoint.pth.tar", tmp_path / "checkpoint.pth.tar")
    before = (trained / "checkpoint.pth.tar").read_bytes()
    result = call(*options("--resume", "auto"), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert (trained / "checkpoint.pth.tar").read_bytes() == before
    assert load(tmp_path)["epoch"] == 2


def test_a_link_to_nothing_is_no_new_beginning(call, options, tmp_path, one_error):
    os.symlink(tmp_path / "gone", tmp_path / "checkpoint.pth.tar")
    one_error(call(*options("--resume", "auto"), cwd=tmp_path), "checkpoint.pth.tar", "No such file")


def test_files_have_the_umasks_mode(call, options, tmp_path):
    before = os.umask(0o027)
    try:
        assert call(*options("--output-dir", "out", epochs=1), cwd=tmp_path).returncode == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == dict.fromkeys(["checkpoint.pth.tar", "log.csv", "model_best.pth.tar"], 0o640)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
