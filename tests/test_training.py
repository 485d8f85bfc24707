"""Training from end to end on a CPU, in every way that processes can be started, and the arithmetic under it."""

import math
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import main

# ------------------------------------------------------------------------------------------- schedule, meters, figures


def schedule(**changes):
    options = {"lr": 0.8, "epochs": 90, "warmup_epochs": 0, "lr_scheduler": "step", "lr_step_size": 30, "lr_gamma": 0.1}
    return types.SimpleNamespace(**{**options, **changes})


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.8), (29, 0.8), (30, 0.08), (59, 0.08), (60, 0.008), (89, 0.008), (90, 0.0008)]
)
def test_learning_rate_in_steps(epoch, expected):
    for step in 0, 9:
        assert main.learning_rate(epoch * 10 + step, 10, schedule()) == pytest.approx(expected, rel=1e-12)


def test_learning_rate_in_other_steps():
    args = schedule(lr=1.0, lr_step_size=2, lr_gamma=0.5)
    rates = [main.learning_rate(step, 3, args) for step in range(15)]
    assert rates == [1] * 6 + [0.5] * 6 + [0.25] * 3


def test_learning_rate_of_a_cosine():
    args = schedule(lr_scheduler="cosine", epochs=4)
    rates = [main.learning_rate(step, 5, args) for step in range(20)]
    assert rates[0] == 0.8
    assert rates[5] == pytest.approx(0.4 * (1 + math.sqrt(0.5)))
    assert rates[10] == pytest.approx(0.4)
    assert rates[15] == pytest.approx(0.4 * (1 - math.sqrt(0.5)))
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[19] < 0.01


@pytest.mark.parametrize(("scheduler", "after"), [("step", 0.8), ("cosine", 0.8)])
def test_learning_rate_warms_up(scheduler, after):
    """Linearly, to the peak in the last step of the warm-up."""
    args = schedule(lr_scheduler=scheduler, warmup_epochs=2, epochs=6)
    rates = [main.learning_rate(step, 4, args) for step in range(24)]
    assert rates[:8] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert rates[8] == pytest.approx(after)
    assert rates[16] == pytest.approx(0.8 if scheduler == "step" else 0.4)


@pytest.mark.parametrize("classes", [1, 2, 4, 5, 6, 100])
def test_accuracy_counts_hits(classes):
    generator = torch.Generator().manual_seed(classes)
    output = torch.randn(64, classes, generator=generator)
    target = torch.randint(classes, (64,), generator=generator)
    target[::7] = main.IGNORED
    hits = {1: 0, 3: 0, 5: 0}
    for row, label in zip(output.tolist(), target.tolist(), strict=True):
        best = sorted(range(classes), key=lambda c: row[c], reverse=True)
        for k in hits:
            hits[k] += label in best[:k]
    counted = main.accuracy(output, target, topk=(1, 3, 5))
    assert counted.dtype is torch.float32
    assert counted.tolist() == list(hits.values())
    assert main.accuracy(output, target).tolist() == [hits[1]]
    assert main.accuracy(output, target.int(), topk=(5, 1)).tolist() == [hits[5], hits[1]]


def test_average_meter():
    meter = main.AverageMeter("Acc@1", "6.2f", 100)
    assert str(meter) == "Acc@1   0.00 (  0.00)"
    meter.update(2, 8)
    assert (meter.val, meter.avg) == (25, 25)
    meter.update(8, 8)
    assert (meter.val, meter.avg, meter.count) == (100, 62.5, 16)
    assert str(meter) == "Acc@1 100.00 ( 62.50)"
    meter.update(0, 0)
    assert meter.avg == 62.5


def test_weight_decay_of_norm_layers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    optimizers = {}
    for option in [], ["--no-decay-norm"]:
        args = main.parse_args(["--device", "cpu", "--weight-decay", "0.5", *option])
        optimizers[bool(option)] = main.create_optimizer(model, args, main.PLATFORMS["cpu"])
    assert {group["weight_decay"] for group in optimizers[False].param_groups} == {0.5}
    decays = {p: group["weight_decay"] for group in optimizers[True].param_groups for p in group["params"]}
    assert {name: decays[p] for name, p in model.named_parameters()} == {
        "0.weight": 0.5,
        "0.bias": 0,
        "1.weight": 0,
        "1.bias": 0,
        "3.weight": 0.5,
        "3.bias": 0,
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_skipped_first_step_leaves_no_trace(momentum):
    """The optimizer goes on as if that step had not been: a fused one must not find a momentum that nobody has set."""
    args = main.parse_args(["--device", "cpu", "--lr", "0.1", "--momentum", str(momentum), "--weight-decay", "0"])
    layer = nn.Linear(64, 64, bias=False)
    before = layer.weight.detach().clone()
    optimizer = main.create_optimizer(layer, args, main.PLATFORMS["cpu"])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for grad in gradient * math.inf, gradient, gradient:
        scaler.scale(torch.zeros(()))
        layer.weight.grad = grad * scaler.get_scale()
        torch.full((64, 64), math.nan)  # freed at once: what nobody has set is likely to be this
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(layer.weight.detach(), before - 0.1 * (2 + momentum) * gradient)


@pytest.mark.parametrize(
    ("arch", "size"),
    [("googlenet", 96), ("inception_v3", 96), ("vit_b_16", 32), ("maxvit_t", 224), ("swin_t", 64), ("resnet18", 32)],
)
def test_any_model_gives_one_output(arch, size):
    """Those with auxiliary heads train without them; those that need to know the image size are told."""
    args = main.parse_args(["--arch", arch, "--image-size", str(size)])
    with torch.device("meta"):
        model = main.create_model(args, 7).train()
        assert model(torch.empty(4, 3, size, size)).shape == (4, 7)


# ------------------------------------------------------------------------------------------------------- one process


@pytest.fixture(scope="module")
def one(run, small, tree, tmp_path_factory):
    """Two epochs in one process, with two loading workers."""
    folder = tmp_path_factory.mktemp("one")
    return run(tree, *small(epochs=2, workers=2), cwd=folder), folder


NUMBER = r" *\d+\.\d+"
METERS = rf"(?:\tData {NUMBER} \({NUMBER}\))?\tLoss \d\.\d{{4}}e[+-]\d\d \(\d\.\d{{4}}e[+-]\d\d\)" + "".join(
    rf"\tAcc@{k} [ \d]{{3}}\.\d\d \([ \d]{{3}}\.\d\d\)" for k in (1, 5)
)
TIME = rf"\tTime {NUMBER} \({NUMBER}\)"
TRAIN_LINE = re.compile(rf"Epoch: \[(\d+)\]\[( *\d+)/(\d+)\]{TIME}{METERS}\t\d+ img/s\tlr 0\.01\t\d+:\d\d:\d\d left")
VAL_LINE = re.compile(rf"Test: \[( *\d+)/(\d+)\]{TIME}{METERS}")
SUMMARY = re.compile(r" \*   Acc@1 (\d+\.\d{3}) Acc@5 (\d+\.\d{3})")


def progress(result):
    """Return the positions and the accuracies that a run's log lines show, every line of them well formed."""
    found = []
    for line in result.stdout.splitlines():
        if line.startswith("Epoch: "):
            epoch, step, steps = TRAIN_LINE.fullmatch(line).groups()
            found.append(("train", int(epoch), int(step), int(steps)))
        elif line.startswith("Test: "):
            step, steps = VAL_LINE.fullmatch(line).groups()
            found.append(("val", int(step), int(steps)))
        elif line.startswith(" *"):
            found.append(("accuracy", *map(float, SUMMARY.fullmatch(line).groups())))
        else:
            assert line.startswith("=> ")
    return found


def without_accuracy(found):
    return [line[:1] if line[0] == "accuracy" else line for line in found]


def epoch_lines(epoch):
    return [("train", epoch, step, 3) for step in (1, 2, 3)] + [("val", 1, 2), ("val", 2, 2), ("accuracy",)]


def assert_of_11_images(percent):
    assert percent * 11 / 100 == pytest.approx(round(percent * 11 / 100), abs=0.001)


def test_one_process_shows_its_progress(one):
    result, _ = one
    assert result.returncode == 0
    assert result.stderr == ""
    found = progress(result)
    assert without_accuracy(found) == epoch_lines(0) + epoch_lines(1)
    for line in found:
        if line[0] == "accuracy":
            assert_of_11_images(line[1])
            assert line[2] == 100  # there are but three classes
    lines = result.stdout.splitlines()
    assert lines[:2] == ["=> using 1 × cpu", "=> seed 7"]
    assert re.fullmatch(r"=> best Acc@1 \d+\.\d{3}, \d+ img/s, checkpoint '\./checkpoint\.pth\.tar'", lines[-1])


def test_one_process_writes_a_log(one, read_log):
    result, folder = one
    rows = read_log(folder)
    names = "epoch lr train_loss train_acc1 train_acc5 val_loss val_acc1 val_acc5 img_per_s seconds"
    assert list(rows[0]) == names.split()
    assert [(row["epoch"], row["lr"]) for row in rows] == [("0", "0.01"), ("1", "0.01")]
    shown = [line[1] for line in progress(result) if line[0] == "accuracy"]
    assert [float(row["val_acc1"]) for row in rows] == pytest.approx(shown, abs=0.001)
    for row in rows:
        assert_of_11_images(float(row["val_acc1"]))
        assert all(math.isfinite(float(value)) for value in row.values())
        assert float(row["train_acc1"]) * 24 / 100 == pytest.approx(round(float(row["train_acc1"]) * 24 / 100))


def test_one_process_writes_its_files_and_no_others(one):
    _, folder = one
    names = {path.name for path in folder.iterdir()}
    assert names == {"checkpoint.pth.tar", "model_best.pth.tar", "log.csv"}


def test_checkpoint_has_the_examples_keys(one, load):
    _, folder = one
    checkpoint = load(folder)
    assert {"epoch", "arch", "state_dict", "best_acc1", "optimizer", "amp"} <= checkpoint.keys()
    assert (checkpoint["epoch"], checkpoint["arch"]) == (2, "mobilenet_v3_small")
    assert len(checkpoint["optimizer"]["state"]) > 0
    assert not [name for name in checkpoint["state_dict"] if name.startswith("module.")]


LOAD_IN_PLAIN_TORCHVISION = """
import sys, torch, torchvision
for path in sys.argv[1:]:
    checkpoint = torch.load(path, weights_only=True)
    model = torchvision.models.get_model(checkpoint["arch"], num_classes=3)
    print(model.load_state_dict(checkpoint["state_dict"]))
    print(model.eval()(torch.zeros(1, 3, 32, 32)).isfinite().all())
"""


def test_checkpoints_load_in_plain_torchvision(one):
    _, folder = one
    command = [sys.executable, "-c", LOAD_IN_PLAIN_TORCHVISION, "checkpoint.pth.tar", "model_best.pth.tar"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert result.stderr == ""
    assert result.stdout.splitlines() == ["<All keys matched successfully>", "tensor(True)"] * 2


def figures(rows):
    """Return the rows of a log.csv without what the clock says."""
    return [{name: value for name, value in row.items() if name not in ("seconds", "img_per_s")} for row in rows]


def test_loading_workers_change_nothing(one, call, small, tree, tmp_path, load, read_log, differences):
    """Nor does how often the figures are read; weights, momentum and figures are equal bit for bit."""
    assert call(tree, *small(epochs=2, print_freq=2), cwd=tmp_path).returncode == 0
    mine, theirs = load(tmp_path), load(one[1])
    for key in "state_dict", "optimizer", "best_acc1":
        assert differences(mine[key], theirs[key]) == []
    assert [row["val_loss"] for row in read_log(tmp_path)] == [row["val_loss"] for row in read_log(one[1])]


def test_evaluation_gives_the_logged_accuracy(one, call, small, tree, tmp_path, read_log):
    """Whatever the batch size, and without writing anything."""
    _, folder = one
    best = max(float(row["val_acc1"]) for row in read_log(folder))
    for batch_size in 3, 8, 64:
        options = ["--evaluate", "--resume", folder / "model_best.pth.tar"]
        result = call(tree, *small(batch_size=batch_size), *options, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        found = progress(result)
        assert len(found) == math.ceil(11 / batch_size) + 1
        assert found[-1][1] == pytest.approx(best, abs=0.001)
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------------- two processes


@pytest.fixture(scope="module")
def torchrun(run, small, tree, root, tmp_path_factory):
    """The same with processes that torchrun starts."""
    folder = tmp_path_factory.mktemp("torchrun")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, root / "main.py"]
    return run(tree, *small(workers=2), cwd=folder, command=command), folder


@pytest.fixture(scope="module")
def machines(start, finish, small, tree, free_port, tmp_path_factory):
    """The same with two commands, as if on two machines with a process each."""
    folders = [tmp_path_factory.mktemp(f"machine{rank}") for rank in range(2)]
    options = [*small(batch_size=4), "--world-size", 2, "--addr", "127.0.0.1", "--port", free_port()]
    started = [start(tree, *options, "--rank", rank, cwd=folder) for rank, folder in enumerate(folders)]
    return [(finish(process), folder) for process, folder in zip(started, folders, strict=True)]


def test_two_processes_print_once(two, read_log):
    result, folder = two
    assert (result.returncode, result.stderr) == (0, "")
    found = progress(result)
    assert without_accuracy(found) == [*epoch_lines(0)[:3], ("val", 1, 2), ("val", 2, 2), ("accuracy",)]
    assert_of_11_images(found[-1][1])
    assert result.stdout.count("=> using 2 × cpu over gloo") == 1
    assert result.stdout.count("=> best Acc@1") == 1
    assert len(read_log(folder)) == 1


def test_torchrun_gives_the_same(two, torchrun, load, differences):
    result, folder = torchrun
    assert result.returncode == 0, result.stderr
    assert without_accuracy(progress(result)) == without_accuracy(progress(two[0]))
    for key in "state_dict", "optimizer", "best_acc1", "seed":
        assert differences(load(folder)[key], load(two[1])[key]) == []
    names = {path.name for path in folder.iterdir()}
    assert names == {"checkpoint.pth.tar", "model_best.pth.tar", "log.csv"}


def test_two_machines_give_the_same(two, machines, load, differences):
    """The first machine alone prints and writes."""
    (first, folder), (second, other_folder) = machines
    assert (first.returncode, first.stderr) == (0, "")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert without_accuracy(progress(first)) == without_accuracy(progress(two[0]))
    for key in "state_dict", "optimizer", "best_acc1", "seed":
        assert differences(load(folder)[key], load(two[1])[key]) == []
    assert list(other_folder.iterdir()) == []


def test_two_processes_checkpoint_evaluates_alike_in_one(two, call, small, tree, tmp_path):
    """The batch-norm statistics that all processes validated with are those in the file."""
    result = call(tree, *small(), "--evaluate", "--resume", two[1] / "checkpoint.pth.tar", cwd=tmp_path)
    assert progress(result)[-1] == progress(two[0])[-1]


TINY_MODEL = """
import sys
sys.path.insert(0, {root!r})
from torch import nn
from torchvision.models._api import register_model

import main

class Statistics(nn.BatchNorm2d):
    def forward(self, images):
        super().forward(images)
        return images

def tiny(*, weights=None, num_classes=1000):
    layers = Statistics(3, affine=False), nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8 * 14 * 14, num_classes))

tiny.__module__ = "torchvision.models.tiny"
register_model()(tiny)

if __name__ == "__main__":
    main.main()
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, root):
    """main.py with one more model: torchvision has none of this size without batch norm and dropout, which make one
    process with the whole batch differ from two with half of it each. It keeps statistics and doesn't use them."""
    script = tmp_path_factory.mktemp("tiny") / "tiny.py"
    script.write_text(TINY_MODEL.format(root=str(root)))
    return script


def test_two_processes_train_like_one(tiny, run, small, tree, tmp_path, load, read_log):
    """The same images in each step and the mean of the gradients over the processes: all that differs is the order in
    which float32 sums are made, a relative error of 1e-7 each, which six steps at this learning rate hardly enlarge.

    The mean of the batch-norm means of two halves is that of the whole; variances are not like that.
    """
    rows, weights = [], []
    for devices in "0", "0,1":
        folder = tmp_path / devices
        options = [*small(arch="tiny", epochs=2, hflip=0), "--crop-scale", 1, 1, "--device_list", devices]
        result = run(tree, *options, "--output-dir", folder, cwd=tmp_path, command=[tiny])
        assert (result.returncode, result.stderr) == (0, "")
        assert_of_11_images(progress(result)[-1][1])
        rows.append(figures(read_log(folder)))
        weights.append(load(folder)["state_dict"])
        del weights[-1]["0.running_var"]
    for ones, twos in zip(*rows, strict=True):
        assert {name: float(value) for name, value in twos.items()} == pytest.approx(
            {name: float(value) for name, value in ones.items()}, rel=1e-4
        )
    assert rows[0][0]["train_loss"] != rows[0][1]["train_loss"]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- more options


def test_digits_are_learnt(root, run, small, tmp_path, read_log):
    """Real images, a real model: far above the 10 % of guessing in a few seconds."""
    command = [root / "tests" / "digits.py"]
    assert run("digits", cwd=tmp_path, command=command).stdout.startswith("wrote 1797 images")
    options = small(arch="shufflenet_v2_x0_5", epochs=2, batch_size=32, workers=2, lr=0.02, hflip=0, resize_size=32)
    result = run("digits", *options, "--crop-scale", 0.7, 1, "--lr-scheduler", "cosine", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    first, last = read_log(tmp_path)
    assert float(last["train_loss"]) < float(first["train_loss"])
    assert float(last["val_acc1"]) > 50


def test_dummy_images_train(call, small, tmp_path, read_log):
    result = call("--dummy", 96, *small(epochs=3, lr=0.02), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    losses = [float(row["train_loss"]) for row in read_log(tmp_path)]
    assert losses[2] < 0.7 * losses[0]


def test_bfloat16_on_a_cpu(call, small, tree, tmp_path, read_log, load):
    """Without a loss scale; on a CPU without bfloat16 units there is a warning."""
    result = call(tree, *small(arch="squeezenet1_1"), "--amp", cwd=tmp_path)
    warning = main.PLATFORMS["cpu"].amp_note
    assert result.returncode == 0
    assert result.stderr == (f"main.py: warning: {warning}\n" if warning else "")
    assert math.isfinite(float(read_log(tmp_path)[0]["train_loss"]))
    checkpoint = load(tmp_path)
    assert checkpoint["amp"] == {}
    assert {value.dtype for value in checkpoint["state_dict"].values()} == {torch.float32}


FLOAT16 = ["--amp", "--amp-dtype", "float16"]


def test_a_static_loss_scale_stays_and_skips_overflows(call, small, tree, tmp_path, load, differences):
    """At a scale of 1e30 every gradient overflows: no step is made, no weight becomes nan, and the log says so."""
    options = small(arch="squeezenet1_1", lr=0.1)
    weights = {}
    for scale in 1e30, 256:
        result = call(tree, *options, *FLOAT16, "--loss-scale", scale, "--output-dir", f"{scale}", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        checkpoint = load(tmp_path / f"{scale}")
        assert checkpoint["amp"]["scale"] == pytest.approx(scale)
        weights[scale] = checkpoint["state_dict"]
        assert ("skipped" in result.stdout) == (scale == 1e30)
    torch.manual_seed(7)
    untrained = torchvision.models.squeezenet1_1(num_classes=3).state_dict()
    assert differences(weights[1e30], untrained) == []
    assert len(differences(weights[256], untrained)) == len(untrained)
    assert all(value.isfinite().all() for value in weights[256].values())


def test_no_learning_rate_no_change(call, small, tree, tmp_path, load, differences):
    """The seed alone decides the first weights; at a learning rate of 0 they stay."""
    assert call(tree, *small(arch="squeezenet1_1", lr=0), "--no-decay-norm", cwd=tmp_path).returncode == 0
    torch.manual_seed(7)
    assert differences(load(tmp_path)["state_dict"], torchvision.models.squeezenet1_1(num_classes=3).state_dict()) == []


def test_weight_decay_without_norm_layers(call, small, tree, tmp_path, load):
    """Decay alone would take 0.9 of a weight in each of three steps; batch-norm weights are left out of that."""
    weights = []
    for option, folder in ("--no-decay-norm", "kept"), ("--amp-dtype=bfloat16", "decayed"):  # no effect without --amp
        options = [*small(weight_decay=90, momentum=0), option, "--output-dir", folder]
        assert call(tree, *options, cwd=tmp_path).returncode == 0
        weights.append(load(tmp_path / folder)["state_dict"]["features.0.1.weight"])
    kept, decayed = weights
    assert (kept - 1).abs().max() < 0.2
    assert decayed.abs().max() < 0.2


def test_a_seed_is_drawn_and_shown(call, small, tree, tmp_path, load):
    options = small(arch="squeezenet1_1")
    del options[options.index("--seed") : options.index("--seed") + 2]
    seeds = []
    for folder in "a", "b":
        result = call(tree, *options, "--output-dir", folder, cwd=tmp_path)
        seeds.append(int(re.search(r"^=> seed (\d+)$", result.stdout, re.MULTILINE)[1]))
        assert load(tmp_path / folder)["seed"] == seeds[-1]
    assert seeds[0] != seeds[1]


def test_best_model_is_the_best(call, small, tree, tmp_path, load, read_log):
    """model_best is the checkpoint of the first epoch with the highest accuracy, not of the last."""
    assert call(tree, *small(arch="shufflenet_v2_x0_5", epochs=4, lr=0.2), cwd=tmp_path).returncode == 0
    accuracies = [float(row["val_acc1"]) for row in read_log(tmp_path)]
    best = load(tmp_path, "model_best.pth.tar")
    assert best["epoch"] == accuracies.index(max(accuracies)) + 1
    assert best["best_acc1"] == load(tmp_path)["best_acc1"] == max(accuracies)
    assert load(tmp_path)["epoch"] == 4


# ---------------------------------------------------------------------------------------------------- published weights


@pytest.fixture(scope="module")
def no_network(tmp_path_factory):
    """An environment whose downloads end at a port where nobody listens, and an empty cache."""
    proxies = dict.fromkeys(["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy"], "http://127.0.0.1:9")
    return {"TORCH_HOME": str(tmp_path_factory.mktemp("torch")), **proxies, "no_proxy": "", "NO_PROXY": ""}


def test_published_weights_without_a_network(no_network, call, small, tree, tmp_path, one_error):
    result = call(tree, *small(arch="resnet18"), "--pretrained", cwd=tmp_path, env=no_network)
    one_error(result, "--pretrained", "https://download.pytorch.org/models/resnet18", no_network["TORCH_HOME"])


def put_published(folder, arch, weights):
    """Put weights where torchvision keeps the published ones of a model."""
    name = torchvision.models.get_model_weights(arch).DEFAULT.url.rsplit("/", 1)[1]
    (folder / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(weights, folder / "hub" / "checkpoints" / name)


@pytest.mark.parametrize("arch", ["densenet121", "resnet18"])
def test_published_weights_of_older_forms(arch, no_network, call, small, tmp_path):
    """The published DenseNets have a dot more in their names, older files no counters in batch norm."""
    weights = torchvision.models.get_model(arch).state_dict()
    old = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", name): value
        for name, value in weights.items()
        if "num_batches_tracked" not in name
    }
    assert old.keys() != weights.keys()
    put_published(tmp_path, arch, old)
    environment = {**no_network, "TORCH_HOME": str(tmp_path)}
    result = call("--dummy", 8, *small(arch=arch), "--evaluate", "--pretrained", cwd=tmp_path, env=environment)
    assert (result.returncode, result.stderr) == (0, "")


def test_published_weights_that_are_damaged(no_network, call, small, tree, tmp_path, one_error):
    put_published(tmp_path, "resnet18", {})
    file = next((tmp_path / "hub" / "checkpoints").iterdir())
    file.write_bytes(b"")
    environment = {**no_network, "TORCH_HOME": str(tmp_path)}
    result = call(tree, *small(arch="resnet18"), "--pretrained", cwd=tmp_path, env=environment)
    one_error(result, "--pretrained: cannot read", file)


def test_published_weights_get_a_new_head(no_network, call, small, tree, tmp_path, load, differences):
    """From the cache; the file's name is the one that torchvision looks for."""
    weights = torchvision.models.squeezenet1_1().state_dict()
    put_published(tmp_path, "squeezenet1_1", weights)
    environment = {**no_network, "TORCH_HOME": str(tmp_path)}
    result = call(tree, *small(arch="squeezenet1_1", lr=0), "--pretrained", cwd=tmp_path, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert "=> using pre-trained model 'squeezenet1_1'" in result.stdout
    trained = load(tmp_path)["state_dict"]
    assert differences(trained, weights) == ["/classifier.1.bias", "/classifier.1.weight"]
    assert trained["classifier.1.weight"].shape == (3, 512, 1, 1)
    assert np.isclose(trained["classifier.1.weight"].std().item(), 0.01, rtol=0.2)  # as torchvision draws it
