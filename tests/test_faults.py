"""Runs that are killed, wherever that happens, and resumed: they end with the same bits as a run that never was.

The moments are drawn from a fixed seed: a line of output to wait for and a part of a second after it, so that they fall
into the start-up, training steps, validation and the writing of checkpoints. A small sample is drawn each time, the
whole of it by  python3 -m pytest tests/test_faults.py -m long
"""

import math
import os
import random
import re
import shutil
import signal
import time

import pytest
import torch
from conftest import SLOW

import main

SEED = 20
# It overflows for some steps and doubles every third step that does not, so that the scaler's state makes a difference.
DYNAMIC_SCALE = """
grad_scaler = main.PLATFORMS["npu"].grad_scaler
main.PLATFORMS["npu"].grad_scaler = lambda **options: grad_scaler(
    **{**options, "init_scale": 2.0**16, "growth_interval": 3}
)
"""
CONFIGURATIONS = {
    f"{device} {devices.count(',') + 1} {precision}": (device, devices, precision)
    for device in ("cpu", "npu")
    for devices in ("0", "0,1")
    for precision in ("fp32", "amp")
}


@pytest.fixture(scope="module")
def options(small, tree):
    """options(**changes): six steps of four images and three validation steps an epoch."""
    return lambda *flags, **changes: [tree, *flags, *small(**{"batch_size": 4, "epochs": 2, **changes})]


@pytest.fixture(scope="module")
def straight(call, options, tmp_path_factory):
    """What a run of two epochs in one process leaves that nothing happens to."""
    folder = tmp_path_factory.mktemp("straight")
    result = call(*options(), cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    return folder


# ------------------------------------------------------------------------------------------------------ random moments


class Harness:
    """Starts runs of a configuration and kills them."""

    def __init__(self, start, read, ended, children, nobody_in, simulated, options, script, root):
        self.start, self.read, self.ended, self.children = start, read, ended, children
        self.nobody_in, self.simulated, self.options, self.script, self.root = (
            nobody_in,
            simulated,
            options,
            script,
            root,
        )
        self.tried = self.killed = self.late = self.differing = 0

    def begin(self, configuration, folder):
        device, devices, precision = CONFIGURATIONS[configuration]
        amp = ["--amp", "--loss_scale", "-1"] if precision == "amp" else []
        env = {"PYTHONPATH": str(self.root), **(self.simulated() if device == "npu" else {})}
        options = self.options("--resume", "auto", *amp, device=device, device_list=devices, save_steps=2)
        return self.start(*options, cwd=folder, command=[self.script], env=env)

    def kill(self, process, draw):
        """Kill a run at a moment that is drawn. Returns whether it was still there, and what was done."""
        line, seconds, victim = (
            draw.randrange(1, 28),
            draw.random() * 0.3,
            draw.choice(["parent", "parent", "all", "rank"]),
        )
        for _ in range(line):
            if not self.read(process, "\n"):
                return False, "ended before"
        time.sleep(seconds)
        ranks = self.children(process) if process.poll() is None else []
        if process.poll() is not None:
            return False, "ended before"
        if victim == "rank" and ranks:
            os.kill(draw.choice(ranks), signal.SIGKILL)
        else:
            process.send_signal(signal.SIGKILL)
            for rank in ranks if victim == "all" else ():
                os.kill(rank, signal.SIGKILL)
        return True, f"{victim} killed {seconds:.2f} s after {process.lines[-1]!r}"

    def survive(self, configuration, folder, draw):
        """Begin a run, kill it, once or twice, and resume it to its end. Returns what happened to it."""
        story, kills = [], draw.choice([1, 1, 2])
        for _ in range(kills):
            process = self.begin(configuration, folder)
            killed, what = self.kill(process, draw)
            result = self.ended(process)
            self.nobody_in(folder)
            story.append(what)
            self.tried += 1
            self.killed += killed and result.returncode != 0
            assert result.returncode in ((-signal.SIGKILL, 1) if killed else (0,)), (story, result.stderr)
        result = self.ended(self.begin(configuration, folder))
        assert result.returncode == 0, (story, result.stderr)
        assert list(folder.glob("*.tmp")) == [], story
        return story


@pytest.fixture(scope="module")
def harness(start, reading, ended, children, nobody_in, request, options, patched, root, tmp_path_factory):
    script = patched(tmp_path_factory.mktemp("script"), DYNAMIC_SCALE)
    simulated = lambda: request.getfixturevalue("simulated")  # noqa: E731
    return Harness(start, reading, ended, children, nobody_in, simulated, options, script, root)


@pytest.fixture(scope="module")
def never_killed(harness, outcome, tmp_path_factory):
    """never_killed(configuration): what such a run leaves that nothing happens to."""
    known = {}

    def get(configuration):
        if configuration not in known:
            folder = tmp_path_factory.mktemp("never_killed")
            result = harness.ended(harness.begin(configuration, folder))
            assert result.returncode == 0, result.stderr
            known[configuration] = outcome(folder)
        return known[configuration]

    return get


@pytest.mark.parametrize("configuration", ["cpu 1 amp", "cpu 2 fp32", "npu 1 fp32", "npu 2 amp"])
def test_killed_and_resumed(configuration, harness, never_killed, outcome, differences, tmp_path):
    story = harness.survive(configuration, tmp_path, random.Random(f"{SEED} {configuration}"))
    assert differences(outcome(tmp_path), never_killed(configuration)) == [], story


@pytest.mark.long
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_killed_and_resumed_at_many_moments(
    configuration, number, harness, never_killed, outcome, differences, tmp_path, record_testsuite_property, capsys
):
    expected = never_killed(configuration)
    story = harness.survive(configuration, tmp_path, random.Random(f"{SEED} {configuration} {number}"))
    unequal = differences(outcome(tmp_path), expected)
    harness.differing += bool(unequal)
    with capsys.disabled():
        print(f"\n{configuration}: {'; '.join(story)}: {len(unequal)} differences")
        print(f"so far: runs {harness.tried}, killed {harness.killed}, end unlike the straight run {harness.differing}")
    assert unequal == [], story


# ----------------------------------------------------------------------------------------------------- certain moments


# Each is code that runs within os.fsync, os.replace or torch.save, of which a checkpoint makes several calls.
MOMENTS = {
    "model_best half written": ("torch.save", 'target.name.endswith("best.pth.tar.tmp")'),
    "checkpoint half written": ("torch.save", 'target.name.endswith("checkpoint.pth.tar.tmp") and state["epoch"] == 1'),
    "log.csv not yet there": ("os.replace", 'target.endswith("log.csv")'),
    "model_best there, checkpoint not": (
        "os.replace",
        'target.endswith("checkpoint.pth.tar") and os.path.exists(best)',
    ),
    "log.csv there, model_best not": ("os.replace", 'target.endswith("best.pth.tar")'),
}
KILL = {
    "os.replace": """
replace, best = os.replace, "model_best.pth.tar"
def kill(source, target):
    if {condition}:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = kill
""",
    "torch.save": """
save = main.torch.save
def kill(state, target):
    if {condition}:
        target.write(bytes(100_000))
        target.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    save(state, target)
main.torch.save = kill
""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_it_writes(
    moment, run, call, patched, options, root, straight, outcome, differences, tmp_path, load, read_log
):
    function, condition = MOMENTS[moment]
    script = patched(tmp_path, KILL[function].format(condition=condition))
    result = run(*options(save_steps=4), cwd=tmp_path, command=[script], env={"PYTHONPATH": str(root)})
    assert result.returncode == -signal.SIGKILL, result.stderr
    for path in tmp_path.glob("*.pth.tar"):
        load(tmp_path, path.name)  # whole
    result = call(*options("--resume", "auto", save_steps=4), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert differences(outcome(tmp_path), outcome(straight)) == []
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.pth.tar", "log.csv", "model_best.pth.tar", "patched.py"]


def test_killed_in_validation(start, follow, ended, call, options, straight, outcome, differences, tmp_path):
    process = start(*options(save_steps=6), cwd=tmp_path)
    follow(process, "Test: [2/3]")
    process.kill()
    assert ended(process).returncode == -signal.SIGKILL
    result = call(*options("--resume", "auto", save_steps=6), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert differences(outcome(tmp_path), outcome(straight)) == []


# ------------------------------------------------------------------------------------------- resumed in another manner


@pytest.fixture
def stop_at(monkeypatch):
    """stop_at(epoch, step): send SIGTERM to a run in this process in that training step."""

    def patch(epoch, step):
        check_numbers = main.check_numbers

        def stop(progress, scaler, args):
            if args.places[args.process_id].tolist() == [epoch, 0, step]:
                os.kill(os.getpid(), signal.SIGTERM)
            check_numbers(progress, scaler, args)

        monkeypatch.setattr(main, "check_numbers", stop)

    return patch


def test_saved_steps_do_not_change_a_run(call, options, straight, outcome, differences, tmp_path):
    assert call(*options(save_steps=1), cwd=tmp_path).returncode == 0
    assert differences(outcome(tmp_path), outcome(straight)) == []


@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (0, 2), (0, 5), (1, 3), (1, 5)])
def test_stopped_at_any_step(epoch, step, call, options, stop_at, straight, outcome, load, differences, tmp_path):
    stop_at(epoch, step)
    result = call(*options(), cwd=tmp_path)
    assert result.returncode == 143
    assert f"=> stopped by SIGTERM, epoch {epoch}, step {step}: " in result.stdout
    assert (load(tmp_path)["epoch"], load(tmp_path)["images"]) == (epoch, 4 * (step + 1))
    stop_at(-1, 0)
    result = call(*options("--resume", "auto"), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert differences(outcome(tmp_path), outcome(straight)) == []


def test_other_workers_on_resume(call, options, stop_at, straight, outcome, differences, tmp_path):
    stop_at(0, 3)
    assert call(*options(workers=1), cwd=tmp_path).returncode == 143
    assert call(*options("--resume", "auto", workers=2), cwd=tmp_path).returncode == 0
    assert differences(outcome(tmp_path), outcome(straight)) == []


def test_other_print_freq_on_resume(call, options, stop_at, straight, load, differences, tmp_path):
    """Weights and all that belongs to them are the same; the figures are summed in another order."""
    stop_at(0, 3)
    assert call(*options(), cwd=tmp_path).returncode == 143
    assert call(*options("--resume", "auto", print_freq=4), cwd=tmp_path).returncode == 0
    resumed, expected = load(tmp_path), load(straight)
    for part in "state_dict", "optimizer", "best_acc1":
        assert differences({part: resumed[part]}, {part: expected[part]}) == []
    for mine, theirs in zip(resumed["history"], expected["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        assert mine["train_acc1"] == theirs["train_acc1"]


# Each process notes the images it reads, and how many images the figures of an epoch are of; it is stopped in step 2.
SPY = """
def note(name, numbers):
    with open(f"{name} {os.environ['TURN']}", "a") as file:
        print(*numbers, file=file)

get, means, check = main.Batches.__getitem__, main.ProgressMeter.means, main.check_numbers

def spy_get(self, key):
    if key[:2] == (0, 0):
        note("read", key[2])
    return get(self, key)

def spy_means(self, hosts):
    found = means(self, hosts)
    note("counted", found[-1:])
    return found

def stop(progress, scaler, args):
    if os.environ["TURN"] == "1" and args.rank == 0 and args.places[0].tolist() == [0, 0, 2]:
        os.kill(os.getpid(), signal.SIGTERM)
    check(progress, scaler, args)

main.Batches.__getitem__, main.ProgressMeter.means, main.check_numbers = spy_get, spy_means, stop
"""


@pytest.mark.parametrize(("first", "second"), [("0", "0,1"), ("0,1", "0")])
def test_another_number_of_processes_on_resume(first, second, run, patched, options, root, load, read_log, tmp_path):
    """It goes on at the same image of the same permutation, and the epoch's figures are of each image once."""
    script = patched(tmp_path, SPY)
    for turn, devices in ("1", first), ("2", second):
        env = {"PYTHONPATH": str(root), "TURN": turn}
        given = options("--resume", "auto", device_list=devices, epochs=1)
        result = run(*given, cwd=tmp_path, command=[script], env=env)
        assert result.returncode == {"1": 143, "2": 0}[turn], result.stderr
        if turn == "1":
            images = load(tmp_path)["images"]
    assert 12 <= images <= 20
    before, after = ([int(i) for i in (tmp_path / f"read {turn}").read_text().split()] for turn in ("1", "2"))
    (order,) = main.train_batches(24, 24, 0, 1, 7, 0)
    assert sorted(before) == sorted(order[:images])
    assert sorted(after) == sorted(order[images:])
    assert f"Epoch: [0][{images // 4 + 1}/6]" in result.stdout
    assert set((tmp_path / "counted 2").read_text().split()) == {"24", "11"}
    (row,) = read_log(tmp_path)
    assert float(row["train_acc1"]) * 24 / 100 == pytest.approx(round(float(row["train_acc1"]) * 24 / 100))


@pytest.mark.long
def test_three_processes_resume(start, follow, ended, patched, options, root, outcome, differences, tmp_path):
    """Three summands are the fewest whose order makes a difference."""
    script = patched(tmp_path, SLOW)
    env = {"PYTHONPATH": str(root)}
    found = []
    for name in "straight", "resumed":
        given = options("--resume", "auto", "--output-dir", name, device_list="0,1,2", batch_size=6)
        if name == "resumed":
            process = start(*given, cwd=tmp_path, command=[script], env=env)
            follow(process, "Epoch: [0][2/4]")
            process.terminate()
            result = ended(process)
            assert result.returncode == 143, result.stderr
            assert re.search("=> stopped by SIGTERM, epoch 0, step [123]: ", result.stdout)
        result = ended(start(*given, cwd=tmp_path))
        assert result.returncode == 0, result.stderr
        found.append(outcome(tmp_path / name))
    assert differences(*found) == []


# --------------------------------------------------------------------------------------- numbers that are not finite


def test_a_loss_that_is_not_finite_ends_the_run(call, options, straight, tmp_path, one_error, load):
    shutil.copy(straight / "checkpoint.pth.tar", tmp_path)
    result = call(*options("--resume", "auto", epochs=3, save_steps=1, lr=1e38), cwd=tmp_path)
    one_error(result, "epoch 2, step ", "lower --lr")
    assert all(value.isfinite().all() for value in load(tmp_path)["state_dict"].values())


@pytest.mark.parametrize("at", ["a step", "the end of an epoch"])
def test_weights_that_are_not_finite_are_not_saved(at, call, options, straight, tmp_path, one_error, monkeypatch):
    """The loss need not tell: here it is the statistics of a batch norm."""
    shutil.copy(straight / "checkpoint.pth.tar", tmp_path)
    before = (tmp_path / "checkpoint.pth.tar").read_bytes()
    create_model = main.create_model

    def create(args, classes):
        model = create_model(args, classes)
        norm = next(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
        norm.register_forward_hook(lambda *_: [norm.running_var.data.fill_(math.inf), None][1])
        return model

    monkeypatch.setattr(main, "create_model", create)
    monkeypatch.setattr(main, "validate", lambda *_: {"val_loss": 0.0, "val_acc1": 99.0, "val_acc5": 100.0})
    result = call(*options("--resume", "auto", epochs=3, save_steps=2 if at == "a step" else 100), cwd=tmp_path)
    one_error(result, "running_var is not finite")
    assert (tmp_path / "checkpoint.pth.tar").read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint.pth.tar"]


def test_overflow_without_end_ends_the_run(call, options, tmp_path, one_error, monkeypatch):
    """A static scale that is too high, said once and given up after so many steps."""
    monkeypatch.setattr(main, "MAX_SKIPPED_STEPS", 5)
    float16 = ["--amp", "--amp-dtype", "float16", "--loss-scale", "1e30"]
    result = call(*options(*float16, arch="squeezenet1_1"), cwd=tmp_path)
    one_error(result, "5 steps in a row overflowed", "--loss_scale -1", "epoch 0, step 4", warned=True)
    assert result.stdout.count("gradients overflowed") == 1
    assert not (tmp_path / "checkpoint.pth.tar").exists()
