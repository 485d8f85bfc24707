"""What the test files share: ways to run main.py, and folders of images.

Nothing here needs a network, an accelerator or more than one core; sockets are opened on loopback alone.
"""

import contextlib
import io
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # or torch would import a torch_npu that finds no CANN, and fail
os.environ["OMP_NUM_THREADS"] = "1"  # equal sums everywhere: how they are split over threads changes the last bits
for launcher in "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT":
    os.environ.pop(launcher, None)

import numpy as np
import PIL.Image
import pytest
import torch

import main

torch.set_num_threads(1)

# What patched() may be given: steps of a fifth of a second leave time to act in between; they change no number.
SLOW = """
accuracy = main.accuracy
def slowly(*args, **options):
    time.sleep(0.2)
    return accuracy(*args, **options)
main.accuracy = slowly
"""

TIMEOUT = 240  # of one command: none needs a tenth of it, unless it hangs


def small_options(**changes):
    """Return options for a run of seconds. The model has both batch norm and dropout."""
    options = {
        "--arch": "mobilenet_v3_small",
        "--device": "cpu",
        "--workers": 0,
        "--image-size": 32,
        "--resize-size": 36,
        "--batch-size": 8,
        "--epochs": 1,
        "--lr": 0.01,
        "--seed": 7,
        "--print-freq": 1,
    }
    options |= {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [str(part) for option in options.items() for part in option]


@pytest.fixture(scope="session")
def root():
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def small():
    """small(**changes): the options of a small run, for instance small(epochs=2)."""
    return small_options


@pytest.fixture(scope="session")
def start():
    """start(*options, cwd=…): start main.py, or another command, as a process of its own."""
    started = []

    def start_process(*options, cwd, command=(ROOT / "main.py",), env=None):
        line = [sys.executable, *map(str, command), *map(str, options)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        started.append(subprocess.Popen(line, cwd=cwd, env={**os.environ, **(env or {})}, **pipes))
        return started[-1]

    yield start_process
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its session is its own: nobody else is in this group


def finish_process(process):
    """Wait for a started process and return what it said."""
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        pytest.fail(f"no end within {TIMEOUT} s: {process.args}\n{stdout}\n{stderr}")
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture(scope="session")
def finish():
    """finish(process): wait for what start() returned."""
    return finish_process


@pytest.fixture(scope="session")
def run(start):
    """run(*options, cwd=…): run main.py as a process of its own and return its CompletedProcess."""
    return lambda *options, **how: finish_process(start(*options, **how))


def read_process(process, text=None, count=1):
    """Read what a started process prints, up to the count-th line with `text`, or to the end. Returns whether that
    line came."""
    process.lines = getattr(process, "lines", [])
    guard = threading.Timer(TIMEOUT, os.killpg, [process.pid, signal.SIGKILL])
    guard.start()
    try:
        for line in process.stdout:
            process.lines.append(line)
            count -= text is not None and text in line
            if not count:
                return True
    finally:
        guard.cancel()
    return False


@pytest.fixture(scope="session")
def reading():
    """reading(process, text, count=1): the same as follow(), but for a run that may end before. Returns if it came."""
    return read_process


@pytest.fixture(scope="session")
def follow():
    """follow(process, text, count=1): read what a started process prints up to the count-th line with `text`."""

    def read(process, text, count=1):
        assert read_process(process, text, count), ("".join(process.lines), process.stderr.read())

    return read


@pytest.fixture(scope="session")
def ended():
    """ended(process): read on to the end. Returns a CompletedProcess with all that a started process has printed.

    All that hold its standard output have ended then: its children, too.
    """

    def read(process):
        read_process(process)
        stderr = process.stderr.read()
        return subprocess.CompletedProcess(process.args, process.wait(TIMEOUT), "".join(process.lines), stderr)

    return read


@pytest.fixture(scope="session")
def children():
    """children(process): the process ids of the ranks, in order, that main.py or torchrun has started."""

    def find(process):
        started = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        lines = {int(pid): pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started}
        return sorted(pid for pid, line in lines.items() if b"spawn_main" in line or b"--device" in line)

    return find


@pytest.fixture(scope="session")
def nobody_in():
    """nobody_in(folder): wait until no process has that working folder; fail if that takes half a minute."""

    def processes(folder):
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "cwd") == str(folder):
                    yield process.name, (process / "cmdline").read_bytes()

    def wait(folder):
        end = time.monotonic() + 30
        while (left := list(processes(folder))) and time.monotonic() < end:
            time.sleep(0.1)
        assert left == []

    return wait


@pytest.fixture(scope="session")
def patched():
    """patched(folder, code): a script that runs main.py in all its processes after `code` has changed the module main;
    to be started with env={"PYTHONPATH": root}."""

    def write(folder, code):
        path = folder / "patched.py"
        path.write_text(f'import os, signal, time\nimport main\n{code}\nif __name__ == "__main__":\n    main.main()\n')
        return path

    return write


@pytest.fixture(scope="session")
def simulated():
    """The environment of simulated NPUs."""
    sys.path.insert(0, str(ROOT / "tests/simcann"))
    from run import environment

    return environment()


@pytest.fixture(scope="session")
def outcome(load, read_log):
    """outcome(folder): all that a run has left in its output folder, but for what the clock says."""

    def without_clock(checkpoint):
        # As text, for an epoch of which all steps overflowed has nan for figures, which equals nothing.
        rows = [
            {k: repr(v) for k, v in row.items() if k not in ("seconds", "img_per_s")} for row in checkpoint["history"]
        ]
        ranks = [{**rank, "figures": rank["figures"][1:]} for rank in checkpoint["ranks"]]
        return {**checkpoint, "history": rows, "ranks": ranks}

    def read(folder):
        rows = [{k: v for k, v in row.items() if k not in ("seconds", "img_per_s")} for row in read_log(folder)]
        checkpoints = [without_clock(load(folder, name)) for name in (main.CHECKPOINT, main.MODEL_BEST)]
        return {"log": rows, "checkpoint": checkpoints[0], "best": checkpoints[1]}

    return read


@pytest.fixture(scope="session")
def call():
    """call(*options, cwd=…): the same within this process, without the seconds that importing torch takes."""

    def call_main(*options, cwd, env=None):
        command = ["main.py", *map(str, options)]
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        with contextlib.ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for number in signal.SIGTERM, signal.SIGINT:
                stack.callback(signal.signal, number, signal.getsignal(number))
            patch.setattr(sys, "argv", command)
            patch.chdir(cwd)
            environ = dict(os.environ)
            stack.callback(lambda: (os.environ.clear(), os.environ.update(environ)))
            os.environ.update(env or {})
            stack.enter_context(contextlib.redirect_stdout(streams[0]))
            stack.enter_context(contextlib.redirect_stderr(streams[1]))
            stack.enter_context(warnings.catch_warnings())
            end = stack.enter_context(pytest.raises(SystemExit))
            main.main()
        stdout, stderr = (stream.buffer.getvalue().decode() for stream in streams)
        return subprocess.CompletedProcess(command, end.value.code or 0, stdout, stderr)

    return call_main


@pytest.fixture(scope="session")
def one_error():
    """one_error(result, *needed, status=1, warned=False): assert that a run failed with a single line that holds all
    of `needed`; with `warned`, a warning may precede it."""

    def check(result, *needed, status=1, warned=False):
        assert result.returncode == status, result.stderr
        lines = result.stderr.splitlines()
        if warned:
            lines = [line for line in lines if not line.startswith("main.py: warning: ")]
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("main.py: error: ")
        for text in needed:
            assert str(text) in lines[0]
        assert "Traceback" not in result.stdout

    return check


@pytest.fixture(scope="session")
def free_port():
    """free_port(): a port of loopback that nobody listens on."""

    def find():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return listener.getsockname()[1]

    return find


def draw(label, seed, size):
    """Return a picture whose colour tells its class, under noise of its own."""
    noise = np.random.default_rng(seed)
    colour = np.array([(200, 60, 40), (40, 180, 70), (60, 70, 190)])[label]
    return PIL.Image.fromarray((colour + noise.integers(-40, 41, (*size, 3))).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def make_tree():
    """make_tree(folder, train=24, val=11): fill a folder with train/ and val/, three classes of PNG and JPEG files."""

    def make(folder, train=24, val=11):
        for split, count in ("train", train), ("val", val):
            for i in range(count):
                label = i % 3
                path = folder / split / ("cat", "dog", "emu")[label] / f"{i:03}.{('png', 'JPEG')[i // 3 % 2]}"
                path.parent.mkdir(parents=True, exist_ok=True)
                draw(label, [i, split == "val"], (36 + i % 9, 44 - i % 7)).save(path)
        return folder

    return make


@pytest.fixture(scope="session")
def tree(tmp_path_factory, make_tree):
    """A tree of 24 training and 11 validation images. 11 is a prime: no batch size and no number of processes divides
    it, and an accuracy over any other number of images shows."""
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def two(run, tree, tmp_path_factory):
    """One epoch in two processes that main.py starts."""
    folder = tmp_path_factory.mktemp("two")
    return run(tree, *small_options(workers=2), "--device_list", "0,1", cwd=folder), folder


@pytest.fixture(scope="session")
def read_log():
    """read_log(folder): log.csv as a list of dicts of strings."""

    def read(folder):
        names, *rows = (line.split(",") for line in (folder / "log.csv").read_text().splitlines())
        return [dict(zip(names, row, strict=True)) for row in rows]

    return read


@pytest.fixture(scope="session")
def load():
    """load(folder, name="checkpoint.pth.tar"): a checkpoint, read as a stranger would."""

    def read(folder, name="checkpoint.pth.tar"):
        return torch.load(folder / name, map_location="cpu", weights_only=True)

    return read


def flatten(state, prefix=""):
    """Yield (name, value) of all that nested dicts and lists hold."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else None
    if items is None:
        yield prefix, state
    else:
        for key, value in items:
            yield from flatten(value, f"{prefix}/{key}")


@pytest.fixture(scope="session")
def differences():
    """differences(a, b): the names of what is not equal bit for bit in two nested dicts."""

    def compare(a, b):
        a, b = dict(flatten(a)), dict(flatten(b))
        equal = {
            name
            for name in a.keys() & b.keys()
            if type(a[name]) is type(b[name])
            and (torch.equal(a[name], b[name]) if isinstance(a[name], torch.Tensor) else a[name] == b[name])
        }
        return sorted((a.keys() | b.keys()) - equal)

    return compare
