"""The command line, and the map from a device list to processes."""

import argparse

import pytest
import torch

import main


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", {0: 0}),
        ("5", {0: 5}),
        ("0,1,2,3,4,5,6,7", {i: i for i in range(8)}),
        ("3,1,2", {0: 1, 1: 2, 2: 3}),
        ("10,9", {0: 9, 1: 10}),  # as numbers, not as text
        ("4, 6", {0: 4, 1: 6}),
    ],
)
def test_map_is_ascending(text, expected):
    process_device_map = main.device_id_to_process_device_map(text)
    assert process_device_map == expected
    assert list(process_device_map) == list(range(len(expected)))


@pytest.mark.parametrize("text", ["", ",", "0,,1", "0,", "a", "0,0", "1,2,1", "-1", "0;1", "0 1", "1.0", "0x1", "²"])
def test_map_refuses(text):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        main.device_id_to_process_device_map(text)
    assert repr(text) in str(error.value)


def test_defaults_are_the_examples():
    args = main.parse_args([])
    expected = {
        "data": "imagenet",
        "arch": "resnet18",
        "workers": 4,
        "epochs": 90,
        "start_epoch": 0,
        "batch_size": 256,
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "print_freq": 10,
        "evaluate": False,
        "pretrained": False,
        "world_size": -1,
        "rank": -1,
        "seed": None,
        "gpu": None,
        "multiprocessing_distributed": False,
    }
    assert {name: getattr(args, name) for name in expected} == expected
    assert not args.resume
    assert not args.dummy


def test_other_defaults():
    args = main.parse_args([])
    assert (args.device, args.dist_backend, args.process_device_map) == ("npu", "hccl", None)
    assert (args.amp, args.amp_dtype, args.loss_scale) == (False, torch.float16, 1024)
    assert (args.image_size, args.resize_size, args.crop_scale, args.hflip) == (224, 256, [0.08, 1.0], 0.5)
    assert (args.lr_scheduler, args.lr_step_size, args.lr_gamma, args.warmup_epochs) == ("step", 30, 0.1, 0)
    assert (args.label_smoothing, args.no_decay_norm) == (0, False)
    assert (args.addr, args.port, args.nodes, args.node_rank) == ("127.0.0.1", None, 1, 0)
    assert args.output_dir == "."


def test_the_guides_command():
    command = (
        "--workers 160 --lr 0.8 --arch resnet50 --dist-url tcp://127.0.0.1:29501 --dist-backend hccl "
        "--multiprocessing-distributed --device_list 0,1,2,3,4,5,6,7 --world-size 1 --batch-size 2048 --epochs 90 "
        "--rank 0 --amp"
    )
    args = main.parse_args(command.split())
    assert (args.workers, args.lr, args.arch, args.batch_size, args.epochs) == (160, 0.8, "resnet50", 2048, 90)
    assert (args.addr, args.port, args.dist_backend) == ("127.0.0.1", 29501, "hccl")
    assert args.process_device_map == {i: i for i in range(8)}
    assert (args.device, args.amp, args.amp_dtype, args.nodes, args.node_rank) == ("npu", True, torch.float16, 1, 0)


@pytest.mark.parametrize(
    ("option", "value", "name", "expected"),
    [
        ("--device_list", "0,1", "process_device_map", {0: 0, 1: 1}),
        ("--loss_scale", "128", "loss_scale", 128),
        ("--batch_size", "64", "batch_size", 64),
        ("--weight_decay", "0.5", "weight_decay", 0.5),
        ("--lr_step_size", "3", "lr_step_size", 3),
        ("--print_freq", "7", "print_freq", 7),
        ("--output_dir", "an_output_dir", "output_dir", "an_output_dir"),
        ("--learning_rate", "0.2", "lr", 0.2),
        ("--world_size", "1", "world_size", 1),
        ("--dist_url", "tcp://10.0.0.1:7", "addr", "10.0.0.1"),
    ],
)
def test_both_spellings(option, value, name, expected):
    for spelling in option, option.replace("_", "-"):
        assert getattr(main.parse_args([spelling, value]), name) == expected
        assert getattr(main.parse_args([f"{spelling}={value}"]), name) == expected  # the value keeps its underscores


@pytest.mark.parametrize("spelling", ["--no_decay_norm", "--no-decay-norm"])
def test_both_spellings_of_a_switch(spelling):
    assert main.parse_args([spelling]).no_decay_norm is True


def test_short_options():
    args = main.parse_args(["DIR", "-a", "resnet50", "-j", "3", "-b", "32", "-p", "5", "-e"])
    assert (args.data, args.arch, args.workers, args.batch_size, args.print_freq) == ("DIR", "resnet50", 3, 32, 5)
    assert args.evaluate is True
    assert main.parse_args(["--wd", "0.25"]).weight_decay == 0.25


@pytest.mark.parametrize(
    ("options", "device", "backend", "devices", "dtype"),
    [
        ("--device npu", "npu", "hccl", None, torch.float16),
        ("--device gpu", "gpu", "nccl", None, torch.float16),
        ("--device cuda", "gpu", "nccl", None, torch.float16),
        ("--device cpu", "cpu", "gloo", None, torch.bfloat16),
        ("--no-accel", "cpu", "gloo", None, torch.bfloat16),
        ("--no_accel --device_list 0,1", "cpu", "gloo", {0: 0, 1: 1}, torch.bfloat16),
        ("--gpu 3", "npu", "hccl", {0: 3}, torch.float16),
        ("--device gpu --gpu 1 --dist-backend gloo", "gpu", "gloo", {0: 1}, torch.float16),
        ("--device cpu --amp-dtype float16", "cpu", "gloo", None, torch.float16),
        ("--amp-dtype bfloat16", "npu", "hccl", None, torch.bfloat16),
    ],
)
def test_devices(options, device, backend, devices, dtype):
    args = main.parse_args(options.split())
    assert (args.device, args.dist_backend, args.process_device_map) == (device, backend, devices)
    assert args.amp_dtype is dtype


def test_pinned_memory_follows_the_device():
    assert main.parse_args([]).pin_memory is True
    assert main.parse_args(["--no-pin-memory"]).pin_memory is False
    assert main.parse_args(["--device", "cpu"]).pin_memory is False
    assert main.parse_args(["--device", "cpu", "--pin-memory"]).pin_memory is True


@pytest.mark.parametrize(("text", "expected"), [("-1", -1), ("1024", 1024), ("0.5", 0.5), ("65536.0", 65536)])
def test_loss_scale(text, expected):
    assert main.parse_args(["--loss-scale", text]).loss_scale == expected


def test_dummy_counts():
    assert main.parse_args(["--dummy"]).dummy == 1_281_167
    assert main.parse_args(["--dummy", "12"]).dummy == 12


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--dist-url tcp://127.0.0.1:29501", ("127.0.0.1", 29501, 1, 0)),
        ("--dist-url tcp://[::1]:29501", ("::1", 29501, 1, 0)),
        ("--dist-url tcp://node0:1 --world-size 4 --rank 3", ("node0", 1, 4, 3)),
        ("--addr 10.1.2.3 --port 65535 --world-size 2 --rank 0", ("10.1.2.3", 65535, 2, 0)),
    ],
)
def test_machines(options, expected):
    args = main.parse_args(options.split())
    assert (args.addr, args.port, args.nodes, args.node_rank) == expected


def test_machines_from_the_environment(monkeypatch):
    for name, value in {"MASTER_ADDR": "node7", "MASTER_PORT": "1234", "WORLD_SIZE": "3", "RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    args = main.parse_args(["--dist-url", "env://"])
    assert (args.addr, args.port, args.nodes, args.node_rank) == ("node7", 1234, 3, 2)
    assert main.parse_args([]).nodes == 1  # unless asked, they are not looked at


def refused(options, capsys):
    """Return the one line with which main.py refuses some options."""
    with pytest.raises(SystemExit) as end:
        main.parse_args(options)
    stdout, stderr = capsys.readouterr()
    assert end.value.code == 2
    assert stdout == ""
    assert stderr.startswith("main.py: error: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")
    return stderr


@pytest.mark.parametrize(
    "text",
    [
        "--dummy 0",
        "--workers -1",
        "--image-size 0",
        "--resize-size 0",
        "--hflip 1.5",
        "--hflip -0.5",
        "--epochs 0",
        "--start-epoch -1",
        "--batch-size 0",
        "--batch-size 1.5",
        "--lr -0.1",
        "--lr nan",
        "--lr inf",
        "--lr fast",
        "--momentum 1.1",
        "--weight-decay -1",
        "--lr-step-size 0",
        "--lr-gamma -1",
        "--warmup-epochs -1",
        "--label-smoothing 2",
        "--loss-scale 0",
        "--loss-scale -2",
        "--loss-scale nan",
        "--loss-scale big",
        "--seed -1",
        "--seed 9223372036854775808",
        "--gpu -1",
        "--world-size -2",
        "--rank -2",
        "--port 0",
        "--port 65536",
        "--dist-timeout 0",
        "--print-freq 0",
        "--device tpu",
        "--dist-backend mpi",
        "--amp-dtype float64",
        "--lr-scheduler linear",
        "--device-list 0,,1",
        "--device-list a",
        "--device-list 0,0",
        "--device-list -1",
        "--arch resnet81",
        "--dist-url file:///tmp/rendezvous",
        "--dist-url tcp://node0",
        "--dist-url tcp://node0:0",
        "--dist-url tcp://node0:65536",
        "--dist-url tcp://node0:99999999",
    ],
)
def test_wrong_value(text, capsys):
    """The line names the option, as --help spells it, and the value."""
    option, value = text.split(" ")
    line = refused([option, value], capsys)
    assert option in line
    assert value in line


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("--crop-scale 0 1", ["--crop-scale", "0"]),
        ("--crop-scale 0.5 1.5", ["--crop-scale", "1.5"]),
        ("--crop-scale 0.9 0.5", ["--crop-scale", "0.9", "0.5"]),
        ("--warmup-epochs 90", ["--warmup-epochs", "90"]),
        ("--rank 1", ["--rank", "1"]),
        ("--rank 2 --world-size 2 --port 5", ["--rank", "2"]),
        ("--world-size 2 --port 5", ["--rank"]),
        ("--world-size 2 --rank 0", ["--port"]),
        ("--start-epoch 90", ["--start-epoch", "90"]),
        ("--gpu 0 --device_list 0,1", ["--gpu", "--device-list"]),
        ("--no-accel --device gpu", ["--no-accel", "gpu"]),
        ("--device cpu --dist-backend nccl", ["--dist-backend", "nccl", "cpu"]),
        ("--resume ", ["--resume", "empty"]),
        ("--addr ", ["--addr", "empty"]),
        ("--loss_scale -2", ["--loss-scale", "-1", "-2"]),
        ("--lr inf", ["--lr", "finite", "inf"]),
        ("--epochs 9999999999", ["--epochs", "100000"]),
        ("--colour red", ["--colour"]),
        ("--lr", ["--lr"]),
        ("one two", ["two"]),
        ("--arch Resnet50", ["resnet50"]),
        ("--arch efficientnet", ["efficientnet_b"]),
        ("--arch qqqq", ["resnet18"]),
        ("--arch resnet50\nresnet18", ["resnet50"]),
    ],
)
def test_wrong_usage(text, needed, capsys):
    line = refused(text.split(" "), capsys)
    for word in needed:
        assert word in line


def test_wrong_environment(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert "WORLD_SIZE" in refused(["--dist-url", "env://"], capsys)


def test_help_groups_all_options(capsys):
    with pytest.raises(SystemExit) as end:
        main.parse_args(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    for group in "model and data", "training", "devices and processes", "running":
        assert f"\n{group}:\n" in text
    for option in "--arch", "--device-list", "--loss-scale", "--resume", "--warmup-epochs", "--no-pin-memory":
        assert option in text
