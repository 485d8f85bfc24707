"""Checkpoints: how they are written, what is read, and that a resumed run ends like one that never stopped."""

import os
import stat

import pytest
import torch
import torchvision

import main

# ----------------------------------------------------------------------------------------------------------- writing


def test_write_whole(tmp_path):
    path = tmp_path / "file"
    (tmp_path / "file.tmp").write_text("of a killed run")
    for text in b"one", b"two":
        main.write_whole(str(path), lambda file, text=text: file.write(text))
        assert path.read_bytes() == text
    assert os.listdir(tmp_path) == ["file"]


def test_write_whole_into_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main.write_whole("file", lambda file: file.write(b"text"))
    assert (tmp_path / "file").read_bytes() == b"text"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos 64 vs 0")])
def test_write_whole_that_fails(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def write(file):
        file.write(b"half of the n")
        raise error

    with pytest.raises(main.RunError) as failure:
        main.write_whole(str(path), write)
    assert repr(str(path)) in str(failure.value)
    assert str(error.args[-1]) in str(failure.value)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_write_whole_that_is_interrupted(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(file):
        file.write(b"half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        main.write_whole(str(path), write)
    assert path.read_text() == "old"
    main.write_whole(str(path), lambda file: file.write(b"new"))
    assert path.read_text() == "new"


def test_write_whole_respects_the_umask(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        main.write_whole(str(path), lambda file: file.write(b"text"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["file", "file.tmp"])
def test_write_whole_follows_no_link(tmp_path, name):
    (tmp_path / "precious").write_text("precious")
    os.symlink(tmp_path / "precious", tmp_path / name)
    main.write_whole(str(tmp_path / "file"), lambda file: file.write(b"text"))
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_save_checkpoint_keeps_the_best(tmp_path, load):
    for epoch, is_best in enumerate([True, False, True, False]):
        main.save_checkpoint({"epoch": epoch, "weight": torch.full((3,), float(epoch))}, is_best, str(tmp_path))
    assert load(tmp_path)["epoch"] == 3
    assert load(tmp_path, "model_best.pth.tar")["epoch"] == 2
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.pth.tar", "model_best.pth.tar"]


# ---------------------------------------------------------------------------------------------------------- resuming


@pytest.fixture(scope="module")
def straight(call, small, tree, tmp_path_factory):
    """Two epochs in one go."""
    folder = tmp_path_factory.mktemp("straight")
    assert call(tree, *small(epochs=2), cwd=folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def first_epoch(call, small, tree, tmp_path_factory):
    """The first of two."""
    folder = tmp_path_factory.mktemp("first")
    result = call(tree, *small(epochs=1), "--resume", "auto", cwd=folder)
    assert result.returncode == 0
    assert "=> no checkpoint at './checkpoint.pth.tar' yet" in result.stdout
    return folder


def copy_of(folder, target, change=lambda checkpoint: None):
    """Write a changed copy of a folder's checkpoint into another folder, and return the checkpoint's path."""
    checkpoint = torch.load(folder / "checkpoint.pth.tar", weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, target / "checkpoint.pth.tar")
    return target / "checkpoint.pth.tar"


def figures(rows):
    """Return the rows of a log.csv without what the clock says."""
    return [{name: value for name, value in row.items() if name not in ("seconds", "img_per_s")} for row in rows]


def without_times(checkpoint):
    return {**checkpoint, "history": figures(checkpoint["history"])}


def test_resumed_is_as_good_as_straight(
    straight, first_epoch, call, small, tree, tmp_path, load, read_log, differences
):
    """Bit for bit, even if no seed is given the second time: it is in the checkpoint."""
    copy_of(first_epoch, tmp_path)
    options = small(epochs=2)
    del options[options.index("--seed") : options.index("--seed") + 2]
    result = call(tree, *options, "--resume", "auto", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "=> loaded checkpoint './checkpoint.pth.tar' (epoch 1)" in result.stdout
    assert "Epoch: [0]" not in result.stdout
    assert differences(without_times(load(tmp_path)), without_times(load(straight))) == []
    assert figures(read_log(tmp_path)) == figures(read_log(straight))


def test_two_processes_resume(two, run, small, tree, tmp_path, load, differences):
    """What dropout draws differs between the processes, and is drawn again the same."""
    for folder in "straight", "resumed":
        (tmp_path / folder).mkdir()
    copy_of(two[1], tmp_path / "resumed")
    for folder in "straight", "resumed":
        options = [*small(epochs=2), "--device_list", "0,1", "--resume", "auto", "--output-dir", folder]
        result = run(tree, *options, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
    assert differences(*(without_times(load(tmp_path / name)) for name in ("straight", "resumed"))) == []


def test_learning_rate_goes_on(call, small, tree, tmp_path, read_log):
    """It follows from the options and the step alone."""
    for epochs in 1, 3:
        options = small(epochs=epochs, arch="squeezenet1_1", lr_step_size=1, lr_gamma=0.5)
        assert call(tree, *options, "--resume", "auto", cwd=tmp_path).returncode == 0
    assert [float(row["lr"]) for row in read_log(tmp_path)] == [0.01, 0.005, 0.0025]


def test_nothing_left_to_do(straight, call, small, tree, tmp_path):
    path = copy_of(straight, tmp_path)
    before = path.read_bytes()
    result = call(tree, *small(epochs=2), "--resume", "auto", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "all 2 epochs are done" in result.stdout
    assert "Epoch: [" not in result.stdout
    assert path.read_bytes() == before


def as_the_example_saves_it(checkpoint):
    """From DistributedDataParallel, with a tensor for the best accuracy and a scheduler; no seed, history, classes."""
    checkpoint["state_dict"] = {f"module.{name}": value for name, value in checkpoint["state_dict"].items()}
    checkpoint["best_acc1"] = torch.tensor(checkpoint["best_acc1"])
    checkpoint["scheduler"] = {"step_size": 30, "gamma": 0.1, "base_lrs": [0.01], "last_epoch": 1, "_step_count": 2}
    for group in checkpoint["optimizer"]["param_groups"]:
        group["initial_lr"] = 0.01
    for key in checkpoint.keys() - {"epoch", "arch", "state_dict", "best_acc1", "optimizer", "scheduler"}:
        del checkpoint[key]


def as_the_guide_saves_it(checkpoint):
    """The same, but with a scaler's state and without a scheduler."""
    as_the_example_saves_it(checkpoint)
    del checkpoint["scheduler"]
    checkpoint["amp"] = {
        "scale": 4.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 5,
    }


@pytest.mark.parametrize("form", [as_the_example_saves_it, as_the_guide_saves_it])
def test_others_checkpoints_are_resumed(form, straight, first_epoch, call, small, tree, tmp_path, load, differences):
    path = copy_of(first_epoch, tmp_path, form)
    (tmp_path / "out").mkdir()
    result = call(tree, *small(epochs=2), "--resume", path, "--output-dir", "out", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    mine, expected = load(tmp_path / "out"), load(straight)
    for key in "epoch", "state_dict", "optimizer":
        assert differences(mine[key], expected[key]) == []
    assert mine["best_acc1"] == pytest.approx(expected["best_acc1"])  # theirs is a float32


FLOAT16 = ["--amp", "--amp-dtype", "float16"]


@pytest.mark.parametrize(("loss_scale", "expected"), [("-1", 4.0), ("16", 16.0)])
def test_the_loss_scale_of_a_checkpoint(loss_scale, expected, call, small, tree, tmp_path, load):
    """A dynamic scale goes on from the one in the checkpoint, a static one is what the option says."""
    options = small(arch="squeezenet1_1")
    assert call(tree, *options, "--output-dir", "first", cwd=tmp_path).returncode == 0
    path = copy_of(tmp_path / "first", tmp_path, as_the_guide_saves_it)
    more = [*FLOAT16, "--loss-scale", loss_scale, "--epochs", 2, "--resume", path, "--output-dir", "out"]
    result = call(tree, *options, *more, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    amp = load(tmp_path / "out")["amp"]
    assert amp["scale"] == expected
    if loss_scale == "-1":
        assert amp["_growth_tracker"] == 8  # 5 steps there, 3 here


def test_a_dynamic_loss_scale_is_saved(call, small, tree, tmp_path, load):
    """It begins so high that steps overflow; whatever is skipped, the weights stay finite."""
    options = [*small(arch="squeezenet1_1", epochs=2), *FLOAT16, "--loss-scale", -1]
    assert call(tree, *options, cwd=tmp_path).returncode == 0
    checkpoint = load(tmp_path)
    assert checkpoint["amp"]["scale"] <= 65536
    assert {"growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"} <= checkpoint["amp"].keys()
    assert all(value.isfinite().all() for value in checkpoint["state_dict"].values())


@pytest.mark.parametrize("arch", ["mnasnet0_5", "googlenet"])
def test_other_models_round_trip(arch, call, small, tree, tmp_path, load, differences):
    """MNASNet's state_dict has a version that load_state_dict asks for; GoogLeNet trains without its other heads."""
    small_ones = small(arch=arch, image_size=64, resize_size=64, batch_size=12)
    for epochs in 1, 2:
        result = call(tree, *small_ones, "--epochs", epochs, "--resume", "auto", cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
    options = {"aux_logits": False, "init_weights": False} if arch == "googlenet" else {}
    model = torchvision.models.get_model(arch, num_classes=3, **options)
    model.load_state_dict(load(tmp_path)["state_dict"])
    assert differences(dict(model.state_dict()), dict(load(tmp_path)["state_dict"])) == []


def test_other_class_names_are_a_warning(first_epoch, call, small, tree, tmp_path):
    path = copy_of(first_epoch, tmp_path, lambda checkpoint: checkpoint.update(classes=["cat", "cow", "emu"]))
    result = call(tree, *small(), "--evaluate", "--resume", path, cwd=tmp_path)
    assert result.returncode == 0
    assert result.stderr.startswith("main.py: warning: ")
    assert result.stderr.count("\n") == 1
    assert str(path) in result.stderr
