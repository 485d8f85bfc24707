#!/usr/bin/env python3
"""Train an image classifier on Ascend NPUs, on GPUs or on a CPU, from a folder of images or with no data at all.

    python3 main.py /data/imagenet -a resnet50 --amp --device_list 0,1,2,3,4,5,6,7
    python3 main.py /data/imagenet -a resnet50 --amp --device gpu
    python3 main.py --dummy 512 --device cpu --epochs 1

It does the PyTorch ImageNet example's job, moved to Ascend. The move is DEVICE_TABLE, the map from a device list to
processes, and the start of the process group; no other line asks which device it runs on.
"""

import argparse
import contextlib
import copy
import dataclasses
import datetime
import difflib
import errno
import fcntl
import gc
import importlib.util
import io
import math
import multiprocessing.util
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
import warnings
import zipfile
from functools import partial

# torch_npu is imported for --device npu alone: where it is installed and CANN is not, `import torch` would load it
# and fail. Set before torch is imported, inherited by every process.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import numpy as np
import PIL.Image
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision
import torchvision.transforms.v2.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torchvision.datasets.folder import IMG_EXTENSIONS

IMAGENET_TRAIN, IMAGENET_VAL, IMAGENET_CLASSES = 1_281_167, 50_000, 1_000
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHECKPOINT, MODEL_BEST, LOG = "checkpoint.pth.tar", "model_best.pth.tar", "log.csv"
LOG_COLUMNS = (
    "epoch lr train_loss train_acc1 train_acc5 val_loss val_acc1 val_acc5 img_per_s seconds".split()  # noqa: SIM905
)
PADDING = -1  # the index that fills up the last validation batches
JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of segments that tell an image's size
JPEG_SEGMENTS = {*range(0xC0, 0xD0), 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE}  # those that may stand before it, and it
IGNORED = -100  # the target of padding: cross_entropy skips it, and no prediction ever equals it
MAX_BAD_IMAGES = 0.01  # with --bad-images skip, the part of a set from which on it is the set that is bad
MAX_SKIPPED_STEPS = 100  # in a row, for gradients that overflow
TORCHRUN = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "GROUP_RANK"  # what it sets for its processes
STOP_SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
STOP_SECONDS = 30  # that all processes have to stop in; after that they are killed


class RunError(Exception):
    """A failure that its message explains in one line, remedy included; shown without a traceback."""


# ---------------------------------------------------------------------------------------------------------- options


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and that takes --device_list for --device-list and so on."""

    def parse_known_args(self, args=None, namespace=None):
        args = sys.argv[1:] if args is None else args
        dashed = [re.sub(r"^--[^=]+", lambda option: option[0].replace("_", "-"), arg) for arg in args]
        return super().parse_known_args(dashed, namespace)

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def number(kind, low, high=math.inf, *, above=False):
    """Return an argparse type: a finite `kind` from `low` to `high`, without `low` itself if `above`."""

    def convert(text):
        value = kind(text)
        if not (low < value if above else low <= value) or value > high or not math.isfinite(value):
            most = f"at most {high}" if high < math.inf else "finite"
            raise argparse.ArgumentTypeError(f"must be {'above' if above else 'at least'} {low} and {most}, not {text}")
        return value

    convert.__name__ = kind.__name__  # what argparse calls the type when text is no number
    return convert


def loss_scale(text):
    """Return the loss scale that `text` names: -1 for a dynamic one, otherwise a positive constant."""
    with contextlib.suppress(ValueError, argparse.ArgumentTypeError):
        return -1.0 if float(text) == -1 else number(float, 0, above=True)(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0, or -1 for a dynamic scale; not {text!r}")


def architecture(text):
    """Return `text` if torchvision has a classification model of that name; the error names the nearest ones."""
    names = torchvision.models.list_models(module=torchvision.models)
    if text not in names:
        near = difflib.get_close_matches(text.lower(), names) or ["resnet18", "resnet50"]
        raise argparse.ArgumentTypeError(f"torchvision has no model {text!r}; did you mean {', '.join(near)}?")
    return text


def device_id_to_process_device_map(device_list):
    """Return {process id: device id} for a list such as "0,1,2,3", devices in ascending order.

    The process ids are 0, 1, 2 … on this node. Raises argparse.ArgumentTypeError for anything but a comma-separated
    list of distinct device numbers.
    """
    devices = device_list.split(",")
    if not all(device.strip().isdecimal() for device in devices):
        raise argparse.ArgumentTypeError(
            f"must be device numbers with commas between, like 0,1,2,3; not {device_list!r}"
        )
    devices = sorted(int(device) for device in devices)
    if len(set(devices)) < len(devices):
        raise argparse.ArgumentTypeError(f"names a device twice: {device_list!r}; it gets one process")
    return dict(enumerate(devices))


def parse_args(argv=None):
    """Return the options as a Namespace; wrong usage ends the program with one line and status 2."""
    parser = OneLineParser(
        prog="main.py",
        description="Train an image classifier on Ascend NPUs, GPUs or a CPU. --batch-size and --workers are "
        "totals for one machine. Every option may be written with - or _.",
    )
    positive, natural, fraction = number(int, 1, 2**31 - 1), number(int, 0, 2**31 - 1), number(float, 0, 1)
    non_negative = number(float, 0)

    # fmt: off
    add = parser.add_argument_group("model and data").add_argument
    add("data", metavar="DIR", nargs="?", default="imagenet", help="folder that holds train/ and val/")
    add("-a", "--arch", type=architecture, default="resnet18", help="torchvision classification model")
    add("--pretrained", action="store_true", help="start from torchvision's weights")
    add("--dummy", type=positive, nargs="?", const=IMAGENET_TRAIN, metavar="N",
        help="no DIR: N generated images, or as many as ImageNet has")
    add("-j", "--workers", type=natural, default=4, metavar="N", help="data loading processes")
    add("--image-size", type=positive, default=224, metavar="PX", help="side of the training images")
    add("--resize-size", type=positive, default=256, metavar="PX",
        help="shorter side of a validation image before the centre crop")
    add("--crop-scale", type=number(float, 0, 1, above=True), nargs=2, default=[0.08, 1.0], metavar=("MIN", "MAX"),
        help="area of a random crop, as a part of the image")
    add("--hflip", type=fraction, default=0.5, metavar="P", help="probability of a horizontal flip")
    add("--bad-images", choices=["error", "skip"], default="error",
        help="what an image that can't be read does: end the run, or give way to its neighbour")
    add("--pin-memory", action=argparse.BooleanOptionalAction, default=None,
        help="page-locked host batches, copied while the device computes")

    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=number(int, 1, 100_000), default=90, metavar="N", help="epochs in all")
    add("--start-epoch", type=natural, default=0, metavar="N", help="first epoch, if not resumed")
    add("-b", "--batch-size", type=positive, default=256, metavar="N", help="images a step")
    add("--lr", "--learning-rate", type=non_negative, default=0.1, help="peak learning rate")
    add("--momentum", type=fraction, default=0.9, metavar="M", help="momentum")
    add("--wd", "--weight-decay", dest="weight_decay", type=non_negative, default=1e-4, metavar="W",
        help="weight decay")
    add("--no-decay-norm", action="store_true", help="no weight decay on biases and norm layers")
    add("--lr-scheduler", choices=["step", "cosine"], default="step", help="learning-rate schedule")
    add("--lr-step-size", type=positive, default=30, metavar="N", help="step: epochs between drops")
    add("--lr-gamma", type=non_negative, default=0.1, metavar="G", help="step: factor of a drop")
    add("--warmup-epochs", type=natural, default=0, metavar="N", help="epochs of linear warm-up")
    add("--label-smoothing", type=fraction, default=0.0, metavar="E", help="label smoothing")
    add("--amp", action="store_true", help="automatic mixed precision")
    add("--amp-dtype", choices=["float16", "bfloat16"], default=None,
        help="its type (default: float16, on cpu bfloat16)")
    add("--loss-scale", type=loss_scale, default=1024.0, metavar="S",
        help="float16: constant loss scale, or -1 for a dynamic one")
    add("--seed", type=number(int, 0, 2**63 - 1), default=None, help="seed (default: a random one)")

    add = parser.add_argument_group("devices and processes").add_argument
    add("--device", type=lambda name: {"cuda": "gpu"}.get(name, name), choices=list(PLATFORMS), default=None,
        help="kind of device (default: npu); cuda means gpu")
    add("--device-list", dest="process_device_map", type=device_id_to_process_device_map, default=None,
        metavar="LIST", help="devices, one process each (default: npu 0,1,2,3,4,5,6,7; gpu all; cpu 0)")
    add("--gpu", type=natural, default=None, metavar="N", help="the same as --device-list N")
    add("--no-accel", action="store_true", help="the same as --device cpu")
    add("--dist-backend", choices=["hccl", "nccl", "gloo"], default=None,
        help="process-group backend (default: npu hccl, gpu nccl, cpu gloo)")
    add("--world-size", type=number(int, -1), default=-1, metavar="N", help="number of machines")
    add("--rank", type=number(int, -1), default=-1, metavar="R", help="this machine's number, from 0")
    add("--dist-url", default=None, metavar="URL", help="tcp://ADDR:PORT, for --addr and --port")
    add("--addr", default="127.0.0.1", help="address of machine 0")
    add("--port", type=number(int, 1, 65535), default=None, help="its port (default: a free one)")
    add("--dist-timeout", type=positive, default=600, metavar="S", help="seconds that a process waits for the others")
    add("--grad-compress", choices=["fp16", "bf16"], default=None,
        help="type in which gradients cross the network (default: float32)")
    add("--multiprocessing-distributed", action="store_true", help="accepted; the device list says it")

    add = parser.add_argument_group("running").add_argument
    add("--resume", default=None, metavar="PATH",
        help="checkpoint to go on from; auto: the output folder's, if there is one")
    add("-e", "--evaluate", action="store_true", help="evaluate on val/ and end")
    add("--output-dir", default=".", metavar="DIR", help="folder for checkpoints and log.csv")
    add("--save-steps", type=positive, default=None, metavar="N", help="save a checkpoint every N steps as well")
    add("-p", "--print-freq", type=positive, default=10, metavar="N", help="steps between log lines")
    # fmt: on

    args = parser.parse_args(argv)
    if args.no_accel and args.device not in (None, "cpu"):
        parser.error(f"argument --no-accel: means --device cpu, not {args.device}; give one of them")
    args.device = "cpu" if args.no_accel else args.device or "npu"
    platform = PLATFORMS[args.device]
    if args.gpu is not None and args.process_device_map:
        parser.error(f"argument --gpu: {args.gpu} is a --device-list of its own; give one of them")
    if args.gpu is not None:
        args.process_device_map = {0: args.gpu}
    if args.dist_backend not in (None, platform.backend, "gloo"):
        parser.error(f"argument --dist-backend: {args.dist_backend} is not for --device {args.device}; leave it out")
    if args.pin_memory is None:
        args.pin_memory = platform.pin_memory
    args.amp_dtype = getattr(torch, args.amp_dtype) if args.amp_dtype else platform.amp_dtype
    args.dist_backend = args.dist_backend or platform.backend
    if args.crop_scale[0] > args.crop_scale[1]:
        parser.error(f"argument --crop-scale: MIN {args.crop_scale[0]} is above MAX {args.crop_scale[1]}")
    if args.warmup_epochs >= args.epochs and args.warmup_epochs:
        parser.error(f"argument --warmup-epochs: {args.warmup_epochs} of {args.epochs} epochs leave none to train")
    if args.start_epoch >= args.epochs and not args.resume:
        parser.error(f"argument --start-epoch: {args.start_epoch} of {args.epochs} epochs leave none to train")
    for option, value in ("--resume", args.resume), ("--output-dir", args.output_dir), ("--addr", args.addr):
        if value == "":
            parser.error(f"argument {option}: is empty; leave it out for its default")
    if args.dist_url == "env://":  # what the example reads there
        args.dist_url = f"tcp://{os.environ.get('MASTER_ADDR', args.addr)}:{os.environ.get('MASTER_PORT', '29500')}"
        if args.world_size == -1 and not under_torchrun():
            try:
                args.world_size, args.rank = (int(os.environ.get(name, -1)) for name in ("WORLD_SIZE", "RANK"))
            except ValueError as error:
                parser.error(f"environment variables WORLD_SIZE and RANK: {error}")
    if args.dist_url:
        url = re.fullmatch(r"tcp://\[?([^]/]+?)\]?:(\d+)", args.dist_url)
        if not url or not 0 < int(url[2]) < 65536:
            parser.error(f"argument --dist-url: must look like tcp://127.0.0.1:29500, not {args.dist_url!r}")
        args.addr, args.port = url[1], int(url[2])
    args.nodes, args.node_rank = max(args.world_size, 1), max(args.rank, 0)
    if args.node_rank >= args.nodes:
        parser.error(f"argument --rank: {args.rank} is no machine of --world-size {args.nodes}; they count from 0")
    if args.nodes > 1 and (args.rank < 0 or args.port is None):
        parser.error("argument --world-size: several machines also need --rank, --addr and --port on each of them")
    return args


# ---------------------------------------------------------------------------------------------------------- devices


def prepare_npu():
    """Import torch_npu, which adds the device type npu and the backend hccl to torch. Returns the number of NPUs.

    Raises RunError without torch_npu or without CANN.
    """
    if importlib.util.find_spec("torch_npu") is None:
        raise RunError("--device npu needs torch_npu: pip install -r requirements.txt, or choose --device gpu or cpu")
    try:
        import torch_npu  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise RunError(
            f"--device npu: torch_npu finds no working CANN ({first_line(error)}); install CANN and the driver and "
            "'source /usr/local/Ascend/ascend-toolkit/set_env.sh', or choose --device gpu or cpu"
        ) from error
    return torch.npu.device_count()


def prepare_gpu():
    """Let cuDNN find its fastest algorithms by trial, since shapes never change. Returns the number of GPUs."""
    if not torch.cuda.is_available():
        raise RunError(f"--device gpu: torch {torch.__version__} finds no usable GPU; choose --device npu or cpu")
    torch.backends.cudnn.benchmark = True
    return torch.cuda.device_count()


def prepare_cpu():
    """Returns the most CPU "devices" that there may be: each is a process, and the processes share the cores."""
    return 1024


def npu_grad_scaler(**options):
    """Return torch's GradScaler where the chip computes inf and nan. Chips before A2 saturate instead and raise a flag
    that only torch_npu's own scaler reads."""
    import torch_npu

    if torch_npu.npu.utils.is_support_inf_nan():
        return GradScaler("npu", **options)
    return torch_npu.npu.amp.GradScaler(**options)


def cpu_has_bfloat16():
    """Return whether this CPU has bfloat16 units, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", cpuinfo.read()))
    except OSError:
        return True


SLOW_AMP = "this CPU has no bfloat16 units: --amp is about ten times slower here than without"

# All that differs between the kinds of device: this table is the migration.
# fmt: off
DEVICE_TABLE = {
    #                 npu                      gpu                    cpu
    "device":        ("npu:{}",                "cuda:{}",             "cpu"),           # torch.device of a number
    "devices":       ("0,1,2,3,4,5,6,7",       None,                  "0"),             # --device_list; None: all
    "prepare":       (prepare_npu,             prepare_gpu,           prepare_cpu),
    "backend":       ("hccl",                  "nccl",                "gloo"),
    "loopback":      ("HCCL_IF_IP=127.0.0.1",  "NCCL_SOCKET_IFNAME=lo", ""),          # keeps its sockets there
    "neighbours":    (True,                    False,                 False),           # better as a group
    "target_dtype":  (torch.int32,             torch.int64,           torch.int64),     # of class labels
    "pin_memory":    (True,                    True,                  False),
    "memory_format": (torch.contiguous_format, torch.channels_last,   torch.channels_last),  # torch_npu takes no other
    "fused_sgd":     (None,                    True,                  True),            # None: torch's choice
    "amp_dtype":     (torch.float16,           torch.float16,         torch.bfloat16),
    "amp_note":      ("",                      "",                    "" if cpu_has_bfloat16() else SLOW_AMP),
    "grad_scaler":   (npu_grad_scaler,         partial(GradScaler, "cuda"), partial(GradScaler, "cpu")),
}
# fmt: on
PLATFORMS = {
    name: types.SimpleNamespace(**{row: cells[column] for row, cells in DEVICE_TABLE.items()})
    for column, name in enumerate(["npu", "gpu", "cpu"])
}


def choose_devices(args):
    """Fill in args.process_device_map and check it against the machine. Raises RunError if a device isn't there."""
    platform = PLATFORMS[args.device]
    count = platform.prepare()
    if args.process_device_map is None:
        everything = ",".join(map(str, range(count)))
        args.process_device_map = device_id_to_process_device_map(platform.devices or everything)
    devices = list(args.process_device_map.values())
    chosen = f"--device_list {','.join(map(str, devices))}"
    missing = [str(device) for device in devices if device >= count]
    if missing:
        there = ["none", "only 0"][count] if count < 2 else f"0 to {count - 1}"
        raise RunError(f"{chosen}: no {args.device} {', '.join(missing)} here; there is {there}")
    if platform.neighbours and devices[-1] - devices[0] >= len(devices):
        warn(f"{chosen}: these are not neighbours, between which {platform.backend} is fastest")


# ----------------------------------------------------------------------------------------------------------- launch


def main():
    """Start one process a device, or be one of torchrun's. Ends with status 0, 1 (the run failed) or 2 (usage)."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (None where a shell has closed it)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # a log file shows each line at once
    warnings.filterwarnings("ignore", module="PIL")  # of what is odd in an image and does no harm
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    args = parse_args()
    args.lock = None
    try:
        status = join_torchrun(args) if under_torchrun() else launch(args)
    except RunError as error:
        status = fail(error)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        if args.lock is not None:
            os.close(args.lock)
    sys.exit(status)


def launch(args):
    """Prepare this machine's part of the run, start its processes and wait for them. Returns the exit status."""
    if args.node_rank > 0:
        be_silent()
    choose_devices(args)
    args.processes = len(args.process_device_map)
    args.places = torch.tensor([[-1, 0, 0]] * args.processes).share_memory_()  # of all processes, for where()
    args.rank_batch = args.batch_size // args.processes
    datasets = prepare_node(args)
    if args.processes * args.nodes == 1:
        return run_process(0, args, datasets)
    if args.addr in ("127.0.0.1", "localhost", "::1"):
        interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        for setting in f"GLOO_SOCKET_IFNAME={interface} {PLATFORMS[args.device].loopback}".split():
            os.environ.setdefault(*setting.split("="))
    store = open_store(args)
    args.port = store.port
    stop = StopSignal()
    multiprocessing.util.get_temp_dir()  # one for all processes, which this one removes however they end
    processes = mp.spawn(run_process, (args, datasets), nprocs=args.processes, join=False).processes
    try:
        return watch(processes, stop, args)
    finally:
        for process in processes:
            process.kill()
            process.join()


def watch(processes, stop, args):
    """Wait until all processes end or one fails, and pass a signal on to them. Returns the exit status."""
    passed_on = False
    # Asked, not waited for: a killed process's data loading workers would hold up its end for seconds.
    while not any(codes := [process.exitcode for process in processes]) and None in codes:
        time.sleep(0.1)
        if stop.number and not passed_on:
            passed_on = True
            for process in processes:
                if process.exitcode is None:
                    os.kill(process.pid, stop.number)
        if time.monotonic() > stop.since + STOP_SECONDS:
            fail(f"the processes did not stop within {STOP_SECONDS} s and were killed; the last checkpoint is whole")
            return 128 + stop.number
    for process_id, code in enumerate(codes):
        if code and code < 0 and -code != stop.number:
            name = signal.Signals(-code).name
            if name == "SIGABRT":  # HCCL and NCCL abort a process that has waited for too long
                name += f", perhaps as no answer came within --dist-timeout {args.dist_timeout} s"
            return fail(f"{who(process_id, args)} was killed by {name}, {where(process_id, args)}: see --resume auto")
    # Whoever failed has said why.
    return next((code for code in codes if code and code > 0), 128 + stop.number if stop.number else 0)


class StopSignal:
    """Hears SIGTERM, SIGHUP and Ctrl-C. The first one asks for an orderly stop, the next one ends the process.

    Within a second of the first, others are taken for the same request: terminals, launchers and batch systems send
    one to each process of a group and pass it on besides. hosts is the group of all ranks, None if there is one alone.
    """

    def __init__(self, hosts=None):
        self.number, self.since = 0, math.inf
        self.hosts, self.votes, self.count = hosts, torch.zeros(1, dtype=torch.int32), None
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it for SIGHUP
                signal.signal(number, self.receive)

    def receive(self, number, _):
        if not self.number:
            self.number, self.since = number, time.monotonic()
        elif time.monotonic() > self.since + 1:
            raise SystemExit(128 + number)

    def agreed(self):
        """Return the signal on which to stop now, 0 for none: for all ranks, which call this once a step, the same.

        The votes of a step are counted while the next one is computed, so nobody waits.
        """
        if self.hosts is None:
            return self.number
        if self.count:
            self.count.wait()
        agreed = int(self.votes)
        self.votes = torch.tensor([self.number], dtype=torch.int32)
        self.count = dist.all_reduce(self.votes, dist.ReduceOp.MAX, group=self.hosts, async_op=True)
        return agreed


def under_torchrun():
    """Return whether torchrun has started this process. Other launchers set some of its variables."""
    return all(name in os.environ for name in TORCHRUN)


def join_torchrun(args):
    """Be one of torchrun's processes; the first on a machine prepares it for all. Returns the exit status."""
    process_id, args.processes, args.nodes, args.node_rank = (int(os.environ[name]) for name in TORCHRUN)
    args.rank_batch = args.batch_size // args.processes
    args.places = torch.tensor([[-1, 0, 0]] * args.processes)
    args.process_device_map = args.process_device_map or {i: i for i in range(args.processes)}
    if len(args.process_device_map) != args.processes:
        devices = ",".join(map(str, args.process_device_map.values()))
        raise RunError(f"--device_list {devices}: torchrun starts {args.processes} processes; give as many devices")
    end_with_parent()
    store, _, _ = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=args.dist_timeout)))
    key = f"datasets of node {args.node_rank}"
    if process_id == 0:
        choose_devices(args)
        datasets = prepare_node(args)
        file = os.memfd_create("datasets")  # in memory, mapped by the others: one copy on a machine, no leftovers
        with open(file, "wb", closefd=False) as stream:
            torch.save([args.resume, *map(vars, datasets)], stream)
        store.set(key, f"/proc/{os.getpid()}/fd/{file}")
    else:
        args.resume, *mapped = torch.load(store.get(key).decode(), mmap=True, weights_only=True)
        datasets = [(DummyImages if args.dummy else ImageFolder)(**fields) for fields in mapped]
    return run_process(process_id, args, datasets, store)


def open_store(args):
    """Return the key-value store through which all processes meet. Machine 0 hosts it, on args.addr alone.

    Raises RunError if the port is taken, if the machines don't meet, or if their numbers of devices differ.
    """
    try:
        if args.node_rank == 0:
            family = socket.AF_INET6 if ":" in args.addr else socket.AF_INET
            listener = socket.create_server((args.addr, args.port or 0), family=family)
            args.port = listener.getsockname()[1]
            # torch would listen on every interface; handed a socket, it listens where that one does. The newer of its
            # two servers takes none in torch 2.7.
            host = {"is_master": True, "wait_for_workers": False, "use_libuv": False}
            store = connect(args, master_listen_fd=listener.detach(), **host)
        else:
            store = connect(args)
        store.set(f"devices of machine {args.node_rank}", str(args.processes))
        counts = [int(store.get(f"devices of machine {i}")) for i in range(args.nodes)]
        store.set(f"machine {args.node_rank} has met all", "")
        for i in range(args.nodes if args.node_rank == 0 else 0):  # the store ends with its host: not before all know
            store.get(f"machine {i} has met all")
    except OSError as error:
        remedy = "choose another --port, or leave it out for a free one" if args.port else "check --addr"
        raise RunError(f"cannot listen on {args.addr}:{args.port or 0} ({error.strerror}): {remedy}") from error
    except dist.DistError as error:
        raise RunError(
            f"not all {args.nodes} machines met at {args.addr}:{args.port} within {args.dist_timeout} s: start the "
            "same command with --rank 0, 1, … on them, and check --addr, --port and the firewall"
        ) from error
    if len(set(counts)) > 1:
        raise RunError(f"the machines have {counts} devices: give each a --device_list of the same length")
    return store


def connect(args, **options):
    """Return a TCPStore at args.addr and args.port: a client, unless the options say otherwise."""
    timeout = datetime.timedelta(seconds=args.dist_timeout)
    return dist.TCPStore(args.addr, args.port, timeout=timeout, **options)


def run_process(process_id, args, datasets, store=None):
    """Run main_worker and tell people if it fails, once for all processes. Returns the exit status."""
    args.rank, args.world_size = args.node_rank * args.processes + process_id, args.nodes * args.processes
    args.global_batch = args.rank_batch * args.world_size
    args.rank_workers = math.ceil(args.workers / args.processes)
    args.process_id, args.hosts = process_id, None
    message, details, status = None, "", 1
    if args.rank > 0:  # rank 0 alone prints
        be_silent()
    try:
        if args.world_size > 1 and store is None:
            end_with_parent()
            store = connect(args)
        main_worker(process_id, args, datasets, store or dist.HashStore())
        status = 0
    except RunError as error:
        message = str(error)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as end:
        status = end.code
    except Exception as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # DataLoader's handler would raise here too
        message, details = explain(error, store, args)
    with contextlib.suppress(dist.DistError):  # where the store is gone, so is whoever spoke
        if message and (store is None or store.add("failures", 1) == 1):
            fail(message, details)
    gc.collect()  # DataLoader's iterator ends the workers when it goes
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():  # still busy, and deaf to SIGTERM
        worker.kill()
    if store and status:
        os._exit(status)  # an orderly end can wait for ever for ranks that are gone
    return status


def explain(error, store, args):
    """Return a message for an exception that nothing foresaw, and its details. It may wait for other ranks' causes."""
    place = f"{who(args.process_id, args)}, {where(args.process_id, args)}"
    if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC):  # print()'s
        be_silent()  # or Python tells of it a second time
        return f"cannot print ({error.strerror}), so the run ended: see --resume auto", ""
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return f"{place}: out of memory; lower --batch-size", f"{first_line(error)}\n"
    time.sleep(0.5)  # a dying process lets go of its pipes before it is gone
    if args.places[args.process_id][0] >= 0 and len(multiprocessing.active_children()) < args.rank_workers:
        remedy = "memory or /dev/shm may have run out: fewer --workers, a smaller --batch-size or a larger /dev/shm"
        return f"{place}: a data loading process was killed ({first_line(error)}); {remedy}", ""
    message, details = f"{place}: {type(error).__name__}: {first_line(error)}", traceback.format_exc()
    if store:
        # When a process dies, the others fail in their next collective, and when one is stuck, their time runs out.
        with contextlib.suppress(dist.DistError):
            store.set(f"rank {args.rank} failed", "")
            time.sleep(2)  # let the first cause be told
            stuck = [str(rank) for rank in range(args.world_size) if not store.check([f"rank {rank} failed"])]
            if stuck and re.search("timed? ?out", str(error), re.IGNORECASE):
                return f"{place}: no answer from rank {', '.join(stuck)} for {args.dist_timeout} s (--dist-timeout)", ""
    return message, details


def end_with_parent():
    """Let the system kill this process when its parent ends, even by SIGKILL. Linux alone can do this."""
    mp._prctl_pr_set_pdeathsig(signal.SIGKILL)  # there is no public name


def be_silent():
    """Leave standard output and warnings to another process."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    warnings.simplefilter("ignore")


def who(process_id, args):
    """Return a process's rank and device, such as "rank 1 (npu 1)"."""
    rank = args.node_rank * args.processes + process_id
    return f"rank {rank} ({args.device} {args.process_device_map[process_id]})"


def where(process_id, args):
    """Return how far a process of this machine has come, such as "epoch 3, step 17"."""
    epoch, validating, step = args.places[process_id].tolist()
    return f"epoch {epoch}, {'validation ' if validating else ''}step {step}" if epoch >= 0 else "before the first step"


def fail(message, details=""):
    """Print an error as all errors of this program look, and return the exit status that goes with it."""
    sys.stderr.write(f"{details}main.py: error: {message}\n")
    return 1


def warn(message):
    sys.stderr.write(f"main.py: warning: {message}\n")


def first_line(error):
    """Return the first line of an exception's text that holds something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def prepare_node(args):
    """Do once per machine what all its processes need, and find what would fail before any of them starts.

    Returns the training and the validation images. Raises RunError.
    """
    train_images, _ = datasets = open_datasets(args)
    if args.batch_size < args.processes:
        raise RunError(f"--batch-size {args.batch_size} is less than one image for each of {args.processes} devices")
    used = args.rank_batch * args.processes
    step = used * args.nodes
    if used != args.batch_size:
        warn(f"--batch-size {args.batch_size} is not a multiple of {args.processes} devices: using {used}")
    if len(train_images) < step and not args.evaluate:
        most = len(train_images) // args.nodes
        raise RunError(f"{len(train_images)} training images don't make one step of {step}: --batch-size {most} would")
    if args.node_rank == 0 and not args.evaluate:
        claim_output_folder(args)
    choose_checkpoint(args)
    if args.evaluate and not (args.resume or args.pretrained):
        warn("--evaluate without --resume or --pretrained evaluates a model that was never trained")
    if args.amp and PLATFORMS[args.device].amp_note:
        warn(PLATFORMS[args.device].amp_note)
    model = try_model(args, len(train_images.classes))
    checkpoint = open_checkpoint(args)
    fitting_weights(model, checkpoint, args)
    if checkpoint.get("classes", train_images.classes) != train_images.classes:
        warn(f"{args.resume!r} was trained on classes of other names than those in {args.data!r}")
    return datasets


def claim_output_folder(args):
    """Make the output folder, for this run alone until the process ends. Raises RunError."""
    option = f"--output-dir {args.output_dir!r}"
    try:
        os.makedirs(args.output_dir, exist_ok=True)
        tempfile.TemporaryFile(dir=args.output_dir).close()
        args.lock = os.open(args.output_dir, os.O_RDONLY)  # closed when the process ends, however it ends
    except OSError as error:
        raise RunError(f"{option} cannot be written to: {error.strerror}") from error
    for name in CHECKPOINT, f"{CHECKPOINT}.tmp", MODEL_BEST, f"{MODEL_BEST}.tmp", LOG, f"{LOG}.tmp":
        if os.path.isdir(os.path.join(args.output_dir, name)):
            raise RunError(f"{option} has a folder {name!r}, where a file is to be written: choose another one")
    patience = time.monotonic() + 2  # a killed run's data loading processes hold the lock too, and end a little later
    while True:
        try:
            return fcntl.flock(args.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > patience:
                raise RunError(f"{option} is another run's, which goes on: choose another one, or end that") from error
            time.sleep(0.1)
        except OSError as error:
            return warn(f"{option} cannot be locked ({error.strerror}): see that no other run writes there")


def choose_checkpoint(args):
    """Replace --resume auto by the output folder's checkpoint, None if there is none yet. Raises RunError."""
    checkpoint, best = (os.path.join(args.output_dir, name) for name in (CHECKPOINT, MODEL_BEST))
    if args.resume == "auto" and os.path.lexists(checkpoint):
        args.resume = checkpoint
    elif args.resume == "auto" and os.path.lexists(best):
        raise RunError(f"--resume auto: {checkpoint!r} is missing, but there is {best!r}: --resume that, or move it")
    elif args.resume == "auto":
        print(f"=> no checkpoint at {checkpoint!r} yet: starting from the beginning")
        args.resume = None
    elif not args.resume and not args.evaluate and os.path.lexists(checkpoint):
        warn(f"{checkpoint!r} will be replaced; --resume auto would go on from it")


def open_datasets(args):
    """Return the training and the validation images. Raises RunError for a folder that is no ImageFolder tree."""
    if args.dummy:
        count = max(1, args.dummy * IMAGENET_VAL // IMAGENET_TRAIN)
        classes = [f"class{i}" for i in range(min(IMAGENET_CLASSES, max(2, args.dummy // 50)))]
        return [DummyImages(number, args.image_size, classes, first) for number, first in ((args.dummy, 1), (count, 0))]
    train_images = scan_folder(os.path.join(args.data, "train"))
    return train_images, scan_folder(os.path.join(args.data, "val"), train_images.classes)


def try_model(args, num_classes):
    """Return the model without memory for its weights. Raises RunError if it can't take the batches it will get."""
    try:
        with torch.device("meta"):
            model = create_model(args, num_classes).train(not args.evaluate)
            model(torch.empty(args.rank_batch, 3, args.image_size, args.image_size))
        return model
    except (RuntimeError, ValueError, AssertionError) as error:
        size = f"{args.rank_batch} images a device of --image-size {args.image_size}"
        raise RunError(f"--arch {args.arch} cannot take {size}: {first_line(error)}") from error


def main_worker(process_id, args, datasets, store):
    """Train, or evaluate, as one process on one device.

    process_id counts from 0 on this machine, args.rank among all args.world_size processes; datasets are the training
    and the validation images; store is where the processes meet.
    """
    platform = PLATFORMS[args.device]
    device = start_device(process_id, args, store)
    checkpoint = open_checkpoint(args)
    args.seed = agree_on_seed(checkpoint.get("seed") if args.seed is None else args.seed, datasets, args)
    steps = len(datasets[0]) // args.global_batch
    print(f"=> seed {args.seed}")
    print(f"=> {'using pre-trained' if args.pretrained else 'creating'} model '{args.arch}'")
    torch.manual_seed(args.seed)
    model = create_model(args, len(datasets[0].classes))
    model.load_state_dict(fitting_weights(model, checkpoint, args))
    model.to(device, memory_format=platform.memory_format)
    ddp = data_parallel(model, device, args)  # before resume(): it gives all ranks rank 0's batch-norm statistics
    optimizer = create_optimizer(model, args, platform)
    scaler = platform.grad_scaler(
        init_scale=args.loss_scale if args.loss_scale > 0 else 2.0**16,
        enabled=args.amp and args.amp_dtype is torch.float16,
    )
    if args.amp:
        scale = f", loss scale {scaler.get_scale():g}, {type(scaler).__module__}" if scaler.is_enabled() else ""
        print(f"=> mixed precision: {str(args.amp_dtype).removeprefix('torch.')}{scale}")
    saver = Saver(model, optimizer, scaler, datasets[0].classes, args)
    args.start_step, figures = 0, None
    if args.resume:
        args.start_epoch, args.start_step, figures = resume(checkpoint, saver, steps, args)

    batches = load_batches(datasets, device, store, args)
    if args.evaluate:
        validate(batches, len(datasets[1]), model, device, args)
        return
    saver.stop = StopSignal(args.hosts)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    for epoch in range(args.start_epoch, args.epochs):
        progress = ProgressMeter(steps, f"Epoch: [{epoch}]", device, args.start_step, figures)
        start = time.time() - progress.batch_time.sum
        trained, speed = train(batches, ddp, criterion, optimizer, scaler, progress, epoch, saver, device, args)
        average_buffers(model, args)
        after_step = partial(saver.after_step, epoch, steps, progress)
        evaluated = validate(batches, len(datasets[1]), model, device, args, epoch, after_step)
        seconds = round(time.time() - start, 1)
        saver.after_epoch(epoch, {"epoch": epoch, **trained, **evaluated, "img_per_s": speed, "seconds": seconds})
        args.start_step, figures = 0, None
    if args.start_epoch >= args.epochs:
        print(f"=> all {args.epochs} epochs are done: a higher --epochs would train on")
    if saver.history:
        speed = f"{saver.history[-1]['img_per_s']:.0f} img/s"
        print(f"=> best Acc@1 {saver.best_acc1:.3f}, {speed}, checkpoint '{os.path.join(args.output_dir, CHECKPOINT)}'")
    if args.world_size > 1:
        dist.barrier(args.hosts)  # until the last votes are counted everywhere
        dist.destroy_process_group()


def start_device(process_id, args, store):
    """Take the process's device and, if there are several, join their process group. Returns the device."""
    platform = PLATFORMS[args.device]
    platform.prepare()
    device = torch.device(platform.device.format(args.process_device_map[process_id]))
    torch.get_device_module(device).set_device(device)
    torch.set_num_threads(max(1, torch.get_num_threads() // args.processes))
    if args.world_size > 1:
        timeout = datetime.timedelta(seconds=args.dist_timeout)
        group = {"store": store, "rank": args.rank, "world_size": args.world_size, "timeout": timeout}
        dist.init_process_group(args.dist_backend, **group)
        # What steers the run goes from host to host, so that it never waits in the devices' queues.
        args.hosts = dist.new_group(backend="gloo", timeout=timeout)
    print(f"=> using {args.world_size} × {args.device}" + (f" over {args.dist_backend}" if args.world_size > 1 else ""))
    return device


def agree_on_seed(seed, datasets, args):
    """Return rank 0's seed, drawn if None. Raises RunError unless all processes see the same data and batch size."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    views = [None] * args.world_size
    view = [len(datasets[0]), len(datasets[1]), len(datasets[0].classes), args.batch_size]
    if args.world_size == 1:
        return seed
    dist.all_gather_object(views, [view, seed], group=args.hosts)
    for rank, (other, _) in enumerate(views):
        if other != views[0][0]:
            names = "training images, validation images, classes, --batch-size"
            raise RunError(f"not all machines have the same {names}: {other} at rank {rank}, {views[0][0]} at rank 0")
    return views[0][1]


# ------------------------------------------------------------------------------------------------------------- data


@dataclasses.dataclass
class ImageFolder:
    """The files of an ImageFolder tree, packed so that all processes of a machine share one copy.

    paths uint8 [bytes], all paths below root, a zero after each; ends int64 [N], where the zeros are; labels int32 [N],
    the numbers of their classes.
    """

    root: str
    classes: list[str]
    paths: torch.Tensor
    ends: torch.Tensor
    labels: torch.Tensor

    def __len__(self):
        return len(self.labels)

    def label(self, i):
        return int(self.labels[i])

    def path(self, i):
        ends = self.ends.numpy()
        path = self.paths.numpy()[ends[i - 1] + 1 if i else 0 : ends[i]]
        return os.path.join(self.root, os.fsdecode(path.tobytes()))

    def read(self, i):
        """Return image i as uint8 [3, H, W]."""
        return read_image(self.path(i))


@dataclasses.dataclass
class DummyImages:
    """Generated images: those of a class share a pattern of 4 × 4 coloured squares, so there is something to learn,
    under noise of their own. `stream` sets validation noise apart from training noise."""

    count: int
    size: int
    classes: list[str]
    stream: int

    def __len__(self):
        return self.count

    def label(self, i):
        return i % len(self.classes)

    def read(self, i):
        """Return image i as uint8 [3, size, size]."""
        colours = np.random.default_rng(self.label(i)).integers(0, 192, (3, 4, 4), dtype=np.uint8)
        place = np.arange(self.size) * 4 // self.size
        noise = np.random.default_rng([self.stream, i]).integers(0, 64, (3, self.size, self.size), dtype=np.uint8)
        return torch.from_numpy(colours[:, place][:, :, place] + noise)


def scan_folder(folder, classes=None):
    """Return the ImageFolder of a folder that holds a folder of images for each class, in torchvision's order.

    The classes are the folders' names, sorted, unless given. Raises RunError for a missing folder, a class without
    images, or one that is not among those given.
    """
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        needed = "DIR must hold train/ and val/, each with a folder of images for each class"
        raise RunError(f"{folder!r}: {error.strerror}; {needed}, or use --dummy") from error
    strange = sorted(set(found) - set(classes or found))
    if strange:
        raise RunError(f"{folder!r} has a class {strange[0]!r} that train/ lacks: add it there or remove it here")
    if not found:
        raise RunError(f"{folder!r} holds no folders: its images must lie in a folder for each class")
    classes = classes or found
    below = len(os.path.join(folder, ""))  # where a path below it begins
    paths, counts = bytearray(), []
    for name in found:
        counts.append(0)
        for root, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
            images = sorted(file for file in files if file.lower().endswith(IMG_EXTENSIONS))
            paths += os.fsencode("".join(f"{root[below:]}/{image}\0" for image in images))
            counts[-1] += len(images)
        if not counts[-1]:
            kinds = " ".join(IMG_EXTENSIONS)
            raise RunError(f"class folder {os.path.join(folder, name)!r} holds no image ({kinds}): fill or remove it")
    paths = torch.frombuffer(paths, dtype=torch.uint8).clone()
    labels = torch.tensor([classes.index(name) for name in found], dtype=torch.int32)
    packed = paths, (paths == 0).nonzero().flatten(), labels.repeat_interleave(torch.tensor(counts))
    return ImageFolder(folder, classes, *(tensor.share_memory_() for tensor in packed))


def read_image(path):
    """Return the image in a file as uint8 [3, H, W], whatever its format. Raises RunError if it can't be read.

    torchvision decodes what it knows, to PIL's values and faster; PIL reads the rest.
    """
    try:
        data = read_bytes(path)
        if jpeg_pixels(data) > PIL.Image.MAX_IMAGE_PIXELS:
            PIL.Image.open(io.BytesIO(data))  # refuses a few bytes that claim to be a huge image
        try:
            image = torchvision.io.decode_image(torch.from_numpy(data), torchvision.io.ImageReadMode.RGB)
        except RuntimeError:
            image = PIL.Image.open(io.BytesIO(data))
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"pixels of mode {image.mode}, not of 8 bits") from None  # convert() would clip them
            return F.pil_to_tensor(image.convert("RGB"))
        if image.dtype is not torch.uint8:  # a 16-bit PNG
            image = (image.int() >> 8).byte()
        return image if image.dim() == 3 else image[0]  # an animation's first frame
    except Exception as error:
        what = "no image format" if isinstance(error, PIL.UnidentifiedImageError) else first_line(error)
        raise RunError(f"{path!r} cannot be read as an image ({what}): mend or remove it") from error


def read_bytes(path):
    """Return a file's bytes as uint8 [N]. Raises OSError. np.fromfile takes longer, and waits for ever for a pipe."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = np.empty(os.fstat(file).st_size, dtype=np.uint8)
        return data[: os.readv(file, [data])]
    finally:
        os.close(file)


def jpeg_pixels(data):
    """Return the number of pixels that a JPEG's header tells (ITU-T T.81, B.1), infinity if data (uint8 [N]) doesn't
    begin as a usual one does. PIL tells it too, in ten times the time.
    """
    head, at = memoryview(data), 2
    with contextlib.suppress(IndexError):
        while head[at] == 0xFF and head[at + 1] in JPEG_SEGMENTS:
            if head[at + 1] in JPEG_FRAMES:
                return int.from_bytes(head[at + 5 : at + 7], "big") * int.from_bytes(head[at + 7 : at + 9], "big")
            at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return math.inf


def train_transform(image, seed, args):
    """Return a random part of an image (uint8 [3, H, W]), perhaps flipped, as uint8 [3, image_size, image_size]."""
    draw = random.Random(seed)  # the model draws from torch's generator, in this process where there are no workers
    top, left, height, width = random_part(*image.shape[1:], args.crop_scale, draw)
    # What torchvision's resized_crop() does, in fewer passes over the pixels: the kernel takes channels last as it is.
    part = image[None, :, top : top + height, left : left + width].contiguous(memory_format=torch.channels_last)
    part = nn.functional.interpolate(part, [args.image_size] * 2, mode="bilinear", antialias=True)[0]
    return part.flip(-1) if draw.random() < args.hflip else part


def random_part(height, width, scale, draw):
    """Return top, left, height and width of a part of an image, drawn as torchvision's RandomResizedCrop draws it.

    Its area is even in `scale` of the image's, the log of its aspect ratio even from 3:4 to 4:3; if ten draws don't fit
    into the image, its middle within these ratios. torchvision's own makes twenty calls into torch for that.
    """
    for _ in range(10):
        area, ratio = height * width * draw.uniform(*scale), math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, height - h), draw.randint(0, width - w), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def val_transform(image, args):
    """Return the middle of a resized image (uint8 [3, H, W]) as uint8 [3, image_size, image_size]."""
    height, width = image.shape[1:]
    image = F.center_crop(image, [min(height, 8 * width), min(width, 8 * height)])  # a sliver would become huge
    image = F.resize(image, [max(args.resize_size, args.image_size)], antialias=True)
    return F.center_crop(image, [args.image_size, args.image_size])


def mix(*numbers):
    """Return a 63-bit seed that depends on each of some whole numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def train_batches(count, batch_size, rank, world_size, seed, epoch, first_step=0):
    """Yield one rank's batches of an epoch from first_step on as lists of batch_size indices.

    The ranks' batches of a step together are the next piece of one permutation of range(count), which depends on seed
    and epoch alone. What is left at the end, less than a piece, is dropped.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, epoch)))
    for step in range(first_step, count // (batch_size * world_size)):
        start = (step * world_size + rank) * batch_size
        yield order[start : start + batch_size].tolist()


def val_batches(count, batch_size, rank, world_size):
    """Yield one rank's batches of a validation pass as lists of batch_size indices.

    All ranks yield equally many. Over all of them each index stands once; PADDING fills the rest.
    """
    for step in range(math.ceil(count / (batch_size * world_size))):
        start = (step * world_size + rank) * batch_size
        yield [i if i < count else PADDING for i in range(start, start + batch_size)]


def run_order(datasets, args):
    """Yield (dataset number, epoch, indices) of all this rank's batches in the order of their use, so that the loader's
    workers never stop: for each epoch the training batches, then the validation batches."""
    share = args.rank_batch, args.rank, args.world_size
    for epoch in [0] if args.evaluate else range(args.start_epoch, args.epochs):
        if not args.evaluate:
            first_step = args.start_step if epoch == args.start_epoch else 0
            for indices in train_batches(len(datasets[0]), *share, args.seed, epoch, first_step):
                yield 0, epoch, indices
        for indices in val_batches(len(datasets[1]), *share):
            yield 1, epoch, indices


class Batches(torch.utils.data.Dataset):
    """Turns what run_order yields into images uint8 [B, S, S, 3], channels last as decoders give them; targets [B],
    IGNORED for padding; and a list of (dataset number, index, what is wrong) for the images that can't be read.

    An image's augmentation is drawn from (seed, epoch, index): which worker reads it makes no difference. A RunError
    takes a batch's place, because on its way from a worker an exception would lose its form.
    """

    def __init__(self, datasets, args):
        self.datasets = datasets
        self.args = argparse.Namespace(**{**vars(args), "hosts": None})  # a process group stays in its process

    def __getitem__(self, key):
        number, epoch, indices = key
        images = torch.empty(len(indices), self.args.image_size, self.args.image_size, 3, dtype=torch.uint8)
        targets = torch.full((len(indices),), IGNORED, dtype=PLATFORMS[self.args.device].target_dtype)
        bad = []
        try:
            for slot, i in enumerate(indices):
                image, source = self.read(number, i, bad) if i != PADDING else (None, i)
                if image is None:
                    images[slot] = 0
                else:
                    training = (f"{self.args.seed} {epoch} {i}",) if number == 0 else ()
                    image = (train_transform if training else val_transform)(image, *training, self.args)
                    images[slot] = image.permute(1, 2, 0)
                    targets[slot] = self.datasets[number].label(source)
        except RunError as error:
            return error
        return images, targets, bad

    def read(self, number, i, bad):
        """Return image i, uint8 [3, H, W], and i. With --bad-images skip, one that can't be read is added to `bad`; in
        training its nearest neighbour that can be read takes its place, in validation None."""
        dataset = self.datasets[number]
        for distance in range(len(dataset)):
            for source in (i + distance, i - distance) if distance else (i,):
                if 0 <= source < len(dataset):
                    try:
                        return dataset.read(source), source
                    except RunError as error:
                        if self.args.bad_images == "error":
                            raise
                        bad.append((number, source, str(error)))
                        if number == 1:
                            return None, i
        raise RunError(f"none of {len(dataset)} images can be read; the last one: {bad[-1][2]}")


def load_batches(datasets, device, store, args):
    """Yield this rank's batches in run_order, on the device: images, normalised float32 [B, 3, S, S]; targets [B],
    IGNORED for padding; and the number of images without padding. Raises RunError for an image that can't be read."""
    loader = torch.utils.data.DataLoader(
        Batches(datasets, args),
        sampler=run_order(datasets, args),
        batch_size=None,  # run_order yields whole batches
        num_workers=args.rank_workers,
        # A spawned process would spawn its workers too: seconds and a whole torch for each, where a fork shares both.
        multiprocessing_context="fork" if args.rank_workers and sys.platform == "linux" else None,
        worker_init_fn=start_worker,
        pin_memory=args.pin_memory,
    )
    mean, std = (255 * torch.tensor(values, device=device).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    for batch in loader:
        if isinstance(batch, RunError):
            raise batch
        images, targets, bad = batch
        name_bad_images(bad, datasets, store)
        count = int((targets != IGNORED).sum())  # still on the host
        # The images cross as uint8, a quarter of the bytes, while the device computes.
        images, targets = (tensor.to(device, non_blocking=True) for tensor in (images, targets))
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=PLATFORMS[args.device].memory_format)
        yield (images.float() - mean) / std, targets, count


def name_bad_images(bad, datasets, store):
    """Warn of each image once in all ranks, which count them in the store. Raises RunError if they are too many."""
    for number, i, what in bad:
        if store.add(f"bad image {number}, {i}", 1) == 1:
            warn(what)
            count, most = store.add(f"bad images {number}", 1), MAX_BAD_IMAGES * len(datasets[number])
            if count > most:
                kind = ("training", "validation")[number]
                raise RunError(f"more than {MAX_BAD_IMAGES:.0%} of the {kind} images can't be read; the last: {what}")


def start_worker(_):
    """Leave signals to the process that a worker works for, and end with it, however it ends, without a word."""
    sys.excepthook = lambda *_: None  # multiprocessing's threads would tell that the process is gone
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


# -------------------------------------------------------------------------------------- model, optimizer, schedule


def create_model(args, num_classes):
    """Return a torchvision model with random weights and num_classes outputs."""
    options = {}
    if args.arch in ("googlenet", "inception_v3"):
        # Without the auxiliary heads. The published weights were trained on inputs from -1 to 1.
        options = {"aux_logits": False, "init_weights": True, "transform_input": args.pretrained}
    elif args.arch.startswith("vit_"):
        options = {"image_size": args.image_size}
    elif args.arch.startswith("maxvit"):
        options = {"input_size": (args.image_size, args.image_size)}
    return torchvision.models.get_model(args.arch, weights=None, num_classes=num_classes, **options)


def fitting_weights(model, checkpoint, args):
    """Return the state_dict that the model starts from: its own without a checkpoint, otherwise the checkpoint's, but
    for the head of pre-trained weights where it is of another width. Raises RunError if they don't fit."""
    own = model.state_dict()
    weights = checkpoint.get("state_dict", own)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, "module.")  # DistributedDataParallel's
    for name in list(weights):  # the published DenseNets have older ones
        weights[re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", name)] = weights.pop(name)
    for name in own.keys() - weights.keys():  # what was saved before torch 0.4.1 has no counters in batch norm
        if name.endswith("num_batches_tracked"):
            weights[name] = own[name]
    source = f"--resume {args.resume!r}" if args.resume else "--pretrained"
    if args.pretrained and not args.resume:
        for name in list(weights):
            if name.lower().startswith("aux"):
                del weights[name]
            elif weights[name].shape[:1] == (IMAGENET_CLASSES,) and weights[name].shape[1:] == own[name].shape[1:]:
                weights[name] = weights[name] if own[name].shape == weights[name].shape else own[name]
    for name in sorted(weights.keys() | own.keys()):
        theirs, ours = (tuple(state[name].shape) if name in state else None for state in (weights, own))
        if theirs and ours and theirs[0] != ours[0] and theirs[1:] == ours[1:]:
            raise RunError(f"{source} is of {theirs[0]} classes, the training data has {ours[0]} ({name})")
        if theirs != ours:
            raise RunError(f"{source} does not fit --arch {args.arch}: {name} is {theirs} there and {ours} here")
    return weights


def create_optimizer(model, args, platform):
    """Return SGD over the model's parameters; with --no-decay-norm, biases and norm layers (1-d) without decay."""
    groups = [{"params": list(model.parameters())}]
    if args.no_decay_norm:
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    decay, fused = args.weight_decay, platform.fused_sgd
    optimizer = torch.optim.SGD(groups, args.lr, args.momentum, weight_decay=decay, fused=fused)
    lay_out_momentum(optimizer)
    return optimizer


def lay_out_momentum(optimizer):
    """Give each parameter a momentum buffer in its own memory layout, zeros if it has none.

    A fused kernel takes the layouts to be equal, which they are not when a checkpoint was loaded. And if the very first
    step overflows and is skipped, it would go on from a buffer that nobody has set.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            known = optimizer.state[parameter].get("momentum_buffer")
            buffer = torch.zeros_like(parameter)
            optimizer.state[parameter]["momentum_buffer"] = buffer if known is None else buffer.copy_(known)


def data_parallel(model, device, args):
    """Return the model in DistributedDataParallel, which averages gradients over all ranks; alone if there is one."""
    if args.world_size == 1 or args.evaluate:
        return model
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    ddp.broadcast_buffers = False  # average_buffers() does better, once an epoch
    if args.grad_compress:
        ddp.register_comm_hook(None, getattr(default_hooks, f"{args.grad_compress}_compress_hook"))
    # After its first backward it lays out its buckets anew, so from then on it sums in another order. A resumed run
    # shall sum as one that was never interrupted: both have that first time here.
    statistics = [buffer.clone() for buffer in model.buffers()]
    ddp(torch.zeros(min(2, args.rank_batch), 3, args.image_size, args.image_size, device=device)).sum().backward()
    model.zero_grad()
    for buffer, before in zip(model.buffers(), statistics, strict=True):
        buffer.copy_(before)
    return ddp


def learning_rate(step, steps_per_epoch, args):
    """Return the learning rate of a step, counted from the run's beginning. It depends on nothing else, so there is no
    scheduler to save.

    Linear warm-up (Goyal et al. 2017, https://arxiv.org/abs/1706.02677), then a factor of lr_gamma every lr_step_size
    epochs, or half a cosine down to 0 (Loshchilov & Hutter 2016, https://arxiv.org/abs/1608.03983).
    """
    warmup = args.warmup_epochs * steps_per_epoch
    if step < warmup:
        return args.lr * (step + 1) / warmup
    if args.lr_scheduler == "step":
        return args.lr * args.lr_gamma ** (step // steps_per_epoch // args.lr_step_size)
    return args.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (args.epochs * steps_per_epoch - warmup)))


# --------------------------------------------------------------------------------------------------- train, validate


def train(batches, model, criterion, optimizer, scaler, progress, epoch, saver, device, args):
    """Train to the end of an epoch. Returns its figures over all ranks, named as in log.csv, and its img/s."""
    steps = progress.num_batches
    model.train()
    for i in range(progress.first_step, steps):
        step, args.places[args.process_id] = epoch * steps + i, torch.tensor([epoch, 0, i])
        images, targets, count = next(batches)
        progress.data_arrived()
        lr = learning_rate(step, steps, args)
        for group in optimizer.param_groups:
            group["lr"] = lr
        # Dropout and the like are drawn from (seed, rank, step), so a resumed run draws the same.
        torch.manual_seed(mix(args.seed, args.rank, step))

        with torch.autocast(device.type, dtype=args.amp_dtype, enabled=args.amp):
            output = model(images)
            loss = criterion(output, targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        progress.add(count, loss * count, output, targets, overflow(scaler, optimizer))
        # Given a static scale, the scaler keeps it, and has skipped a step that overflowed all the same.
        scaler.update(None if args.loss_scale < 0 else args.loss_scale)

        if i % args.print_freq == 0 or i == steps - 1:
            check_numbers(progress, scaler, args)
        if i % args.print_freq == 0:
            speed = count * args.world_size / progress.batch_time.val
            left = datetime.timedelta(seconds=int((args.epochs * steps - step - 1) * progress.batch_time.avg))
            progress.display(i + 1, f"{speed:.0f} img/s", f"lr {lr:.4g}", f"{left} left")
        saver.after_step(epoch, i + 1, progress, due=args.save_steps and (i + 1) % args.save_steps == 0)
    loss, acc1, acc5, images = progress.means(args.hosts)
    speed = round(images / progress.batch_time.sum, 1)
    lr = learning_rate((epoch + 1) * steps - 1, steps, args)
    return {"lr": lr, "train_loss": loss, "train_acc1": acc1, "train_acc5": acc5}, speed


def check_numbers(progress, scaler, args):
    """Bring the meters up to date. Say that steps were skipped, if it wasn't said of the step before them.

    Raises RunError if there is no end to that, or if the loss is not finite.
    """
    skipped, in_a_row, steps = progress.read()
    place = where(args.process_id, args)
    if skipped and in_a_row <= steps:
        print(f"=> gradients overflowed, steps skipped: {skipped}; loss scale {scaler.get_scale():g}")
    if in_a_row >= MAX_SKIPPED_STEPS:
        scale = f"loss scale {scaler.get_scale():g}"
        raise RunError(f"{place}: {in_a_row} steps in a row overflowed ({scale}): lower --lr, or --loss_scale -1")
    if not math.isfinite(progress.losses.val):
        remedy = "lower --lr or choose --warmup-epochs; the last checkpoint is from before"
        raise RunError(f"{place}: the loss is {progress.losses.val}: {remedy}")


def overflow(scaler, optimizer):
    """Return a device scalar, 1 if the scaler has just skipped the step and 0 if not, None without a scaler."""
    if not scaler.is_enabled():
        return None
    # There is no public name. Of torch_npu's own scaler it is one number in one dimension, and 2 for an overflow.
    return sum(scaler._found_inf_per_device(optimizer).values()).sum().clamp(max=1)


def validate(batches, count, model, device, args, epoch=0, after_step=lambda: None):
    """Evaluate the model on all `count` validation images. Returns its exact figures, as log.csv names them."""
    steps = math.ceil(count / args.global_batch)
    progress = ProgressMeter(steps, "Test: ", device)
    model.eval()
    with torch.no_grad():
        for i in range(steps):
            args.places[args.process_id] = torch.tensor([epoch, 1, i])
            images, targets, image_count = next(batches)
            with torch.autocast(device.type, dtype=args.amp_dtype, enabled=args.amp):
                output = model(images)
            loss = nn.functional.cross_entropy(output.float(), targets, reduction="sum")
            progress.add(image_count, loss, output, targets)
            if i % args.print_freq == 0 or i == steps - 1:
                progress.read()
            if i % args.print_freq == 0:
                progress.display(i + 1)
            after_step()
    loss, acc1, acc5, images = progress.means(args.hosts)
    print(f" *   Acc@1 {acc1:.3f} Acc@5 {acc5:.3f}")
    if images < count:
        print(f"=> of {count} validation images, {count - images} can't be read and are not in these figures")
    return {"val_loss": loss, "val_acc1": acc1, "val_acc5": acc5}


def accuracy(output, target, topk=(1,)):
    """Return for each k how many targets are among the k highest outputs, as float32 [len(topk)] on the device.

    output float [B, C], target int [B]. IGNORED is never among them; with fewer than k classes, all others are.
    """
    _, pred = output.topk(min(max(topk), output.size(1)), dim=1)
    correct = pred.eq(target.view(-1, 1))
    return torch.stack([correct[:, :k].sum().float() for k in topk])


def average_buffers(model, args):
    """Replace the batch-norm statistics by their means over all ranks, so that every rank has the same model.

    Summed by the hosts in float64, means of equal numbers are exactly these numbers: it can be done twice.
    """
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if args.hosts and buffers:
        means = torch.cat([buffer.flatten() for buffer in buffers]).cpu().double()
        dist.all_reduce(means, group=args.hosts)
        nn.utils.vector_to_parameters((means / args.world_size).to(buffers[0]), buffers)


# ------------------------------------------------------------------------------------------------------ checkpoints


def to_cpu(state):
    """Return nested dicts and lists with all tensors in host memory, in plain layout."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().contiguous()
    if isinstance(state, dict):
        copied = copy.copy(state)  # with a state_dict's _metadata, the versions that load_state_dict asks for
        copied.update({key: to_cpu(value) for key, value in state.items()})
        return copied
    return [to_cpu(value) for value in state] if isinstance(state, list) else state


def write_whole(path, write):
    """Let write(file) fill a file that appears at `path` whole or not at all. Raises RunError if that fails."""
    temporary = f"{path}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # a killed run's
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        os.fsync(folder)  # or the new name might not survive a power cut
        os.close(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError is torch.save's
        cause = error  # torch.save's own tells where, the one before it what
        while cause and not isinstance(cause, OSError):
            cause = cause.__context__
        reason = cause.strerror if cause else first_line(error)
        raise RunError(f"cannot write {path!r} ({reason}); what was there before is untouched") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def save_checkpoint(state, is_best, output_dir):
    """Write the checkpoint and, if it is the best one yet, the same as model_best.

    The checkpoint comes last: a run that is killed in between repeats the epoch, and writes both again.
    """
    for name in [MODEL_BEST, CHECKPOINT] if is_best else [CHECKPOINT]:
        write_whole(os.path.join(output_dir, name), partial(torch.save, state))


class Saver:
    """Saves the run, from parts of all ranks: at the end of an epoch, every --save-steps steps, and when it is to stop.

    It also keeps what only checkpoints and the log need: the best Acc@1 in % and the rows of log.csv.
    """

    def __init__(self, model, optimizer, scaler, classes, args):
        self.model, self.optimizer, self.scaler, self.classes, self.args = model, optimizer, scaler, classes, args
        self.best_acc1, self.history, self.stop = -math.inf, [], None

    def after_step(self, epoch, steps, progress, due=False):
        """Save if it is due or the run is to stop, and in that case end the process.

        All ranks call this after each step. steps are the epoch's training steps so far and progress their meter.
        """
        number = self.stop.agreed()
        if due or number:
            self.save(epoch, steps, progress)
        if number:
            name = signal.Signals(number).name
            print(f"=> stopped by {name}, {where(0, self.args)}: --resume auto goes on from here")
            if self.args.hosts:
                dist.barrier(self.args.hosts)  # the first process to end ends all: not before the checkpoint is there
            raise SystemExit(128 + number)

    def after_epoch(self, epoch, row):
        """Save the epoch, whose row of log.csv this is."""
        is_best = row["val_acc1"] > self.best_acc1
        self.best_acc1 = max(row["val_acc1"], self.best_acc1)
        self.history.append(row)
        self.save(epoch + 1, is_best=is_best)

    def save(self, epoch, steps=0, progress=None, is_best=False):
        """Write a checkpoint to go on from in an epoch, after so many steps. Raises RunError for what isn't finite."""
        args, ranks = self.args, []
        if steps:  # within an epoch, batch-norm statistics and figures are each rank's own
            part = {"figures": progress.state(), "buffers": to_cpu(dict(self.model.named_buffers()))}
            ranks = [part] * args.world_size
            if args.hosts:
                dist.gather_object(part, ranks if args.rank == 0 else None, group=args.hosts)
        if args.rank > 0:
            return
        state = {
            "epoch": epoch,
            "arch": args.arch,
            "state_dict": self.model.state_dict(),
            "best_acc1": self.best_acc1,
            "optimizer": self.optimizer.state_dict(),
            "amp": self.scaler.state_dict(),
            "classes": self.classes,
            "seed": args.seed,
            "history": self.history,
            "images": steps * args.global_batch,  # of the epoch, trained on by all ranks together
            "ranks": ranks,
        }
        state = to_cpu(state)
        for name, weights in state["state_dict"].items():
            if not weights.isfinite().all():
                place = where(args.process_id, args)
                raise RunError(f"{place}: {name} is not finite: lower --lr; the last checkpoint is from before")
        if self.history:
            write_log(self.history, args.output_dir)
        save_checkpoint(state, is_best, args.output_dir)


def open_checkpoint(args):
    """Return what the run starts from, on the host: a checkpoint of this script, of the PyTorch example or of one
    migrated by the guide; {"state_dict"} of published weights; or {}.

    No code in it is run. Raises RunError if it can't be had or is of another architecture.
    """
    source = f"--resume {args.resume!r}"
    if not args.resume:
        return {"state_dict": published_weights(args.arch)} if args.pretrained else {}
    try:
        if zipfile.is_zipfile(args.resume) and (part := zipfile.ZipFile(args.resume).testzip()):
            raise ValueError(f"wrong checksum of {part}")  # torch.load doesn't look
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=True)
    except OSError as error:
        raise RunError(f"{source}: {error.strerror}; leave --resume out to train from the beginning") from error
    except Exception as error:  # what a damaged file raises depends on the damage
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise RunError(f"{source} holds more than numbers, or none; code in a checkpoint is never run") from error
        best = os.path.join(os.path.dirname(args.resume), MODEL_BEST)
        remedy = f"--resume {best!r}, or move the file away" if os.path.exists(best) else "move the file away"
        raise RunError(f"{source} is no checkpoint, or a damaged one ({first_line(error)}): {remedy}") from error
    optional = {"history": [], "images": 0, "ranks": [], "seed": None}
    content = {**optional, **checkpoint} if isinstance(checkpoint, dict) else {}
    fitting = {
        "epoch": lambda epoch: isinstance(epoch, int) and epoch >= 0,
        "arch": lambda arch: isinstance(arch, str) and arch.isidentifier(),
        "state_dict": lambda weights: is_dict(weights, torch.Tensor),
        "best_acc1": lambda best: float(best) <= 100,
        "optimizer": lambda optimizer: is_dict(optimizer, (list, dict)) and optimizer["param_groups"],
        "history": lambda rows: all(sorted(row) == sorted(LOG_COLUMNS) and is_dict(row, (int, float)) for row in rows),
        "images": lambda images: isinstance(images, int) and images >= 0,
        "ranks": lambda ranks: (
            all(len(part["figures"]) == 9 and is_dict(part["buffers"], torch.Tensor) for part in ranks)
            and (ranks or not content["images"])
        ),
        "seed": lambda seed: seed is None or (isinstance(seed, int) and 0 <= seed < 2**63),
    }
    wrong = []
    for key, fits in fitting.items():
        try:
            wrong += [] if fits(content[key]) else [key]
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError):
            wrong.append(key)
    if wrong:
        raise RunError(f"{source} is no checkpoint of a training run: {', '.join(wrong)} missing or odd")
    if content["arch"] != args.arch:
        raise RunError(f"{source} holds a {content['arch']}: give --arch {content['arch']}")
    return content


def is_dict(value, kinds):
    """Return whether a value is a dict from names to things of some kinds."""
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, kinds) for k, v in value.items())


def published_weights(arch):
    """Return the state_dict of torchvision's best weights for `arch`. Raises RunError if they can't be had."""
    weights = torchvision.models.get_model_weights(arch).DEFAULT
    file = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(weights.url))
    try:
        return weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except Exception as error:
        reason = f"cannot {'read' if os.path.exists(file) else 'download'} {weights.url} ({first_line(error)})"
        raise RunError(f"--pretrained: {reason}; without a network, put that file, whole, at {file!r}") from error


def resume(checkpoint, saver, steps, args):
    """Restore all but the model's weights. Returns where to go on: the epoch, the number of its steps that are done,
    and this rank's figures of them, None if there are none.

    Learning rate, momentum, weight decay and a static loss scale are the options', not the checkpoint's.
    """
    print(f"=> loading checkpoint {args.resume!r}")
    optimizer, scaler = saver.optimizer, saver.scaler
    groups, saved = optimizer.state_dict()["param_groups"], checkpoint["optimizer"]
    try:
        same = [len(group["params"]) for group in saved["param_groups"]] == [len(group["params"]) for group in groups]
        if not same:
            raise RunError(f"--resume {args.resume!r} and this run differ in --no-decay-norm: choose the same")
        optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
        lay_out_momentum(optimizer)
        if scaler.is_enabled() and args.loss_scale < 0 and checkpoint.get("amp"):
            scaler.load_state_dict({"dynamic": True, **checkpoint["amp"]})  # torch_npu's own scaler asks for that key
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        raise RunError(f"--resume {args.resume!r}: its optimizer or amp does not fit ({first_line(error)})") from error
    saver.best_acc1, saver.history = float(checkpoint["best_acc1"]), list(checkpoint["history"])
    epoch, images, ranks = checkpoint["epoch"], checkpoint["images"], checkpoint["ranks"]
    step, figures = images // args.global_batch, None
    if images:
        if images % args.global_batch or step > steps or args.seed != checkpoint["seed"]:
            raise RunError(f"--resume {args.resume!r} is from within an epoch: choose the same data, batch and seed")
        for name, buffer in saver.model.named_buffers():
            buffer.copy_(ranks[args.rank % len(ranks)]["buffers"][name])
        figures = ProgressMeter.share([part["figures"] for part in ranks], args.rank, args.world_size)
    print(f"=> loaded checkpoint {args.resume!r} (epoch {epoch}{f', step {step}' if step else ''})")
    return epoch, step, figures


def write_log(history, output_dir):
    """Write log.csv, a row an epoch, from the rows that the checkpoint holds too, so the two never disagree."""
    lines = [LOG_COLUMNS, *([row[column] for column in LOG_COLUMNS] for row in history)]
    text = "".join(",".join(map(str, line)) + "\n" for line in lines)
    write_whole(os.path.join(output_dir, LOG), lambda file: file.write(text.encode()))


# --------------------------------------------------------------------------------------------- meters and log lines


class AverageMeter:
    """Keeps the latest mean of a quantity and the mean of all."""

    def __init__(self, name, fmt, unit=1):
        self.name, self.fmt, self.unit = name, fmt, unit
        self.val = self.sum = self.count = 0

    def update(self, total, count):
        """Add `count` things that make up `total`."""
        self.val = self.unit * total / max(count, 1)
        self.sum += self.unit * total
        self.count += count

    @property
    def avg(self):
        return self.sum / max(self.count, 1)

    def __str__(self):
        return f"{self.name} {self.val:{self.fmt}} ({self.avg:{self.fmt}})"


class ProgressMeter:
    """Counts and shows how a pass over the data goes, in the PyTorch example's format.

    Loss and hits are summed on the device. read() fetches them, and only there does the host wait for the device; a
    meter's latest value is the mean since the read before. first_step and figures, what state() returned, let a
    meter go on where another one was.
    """

    def __init__(self, num_batches, prefix, device, first_step=0, figures=None):
        self.num_batches, self.prefix, self.first_step = num_batches, prefix, first_step
        self.batch_time, self.data_time = AverageMeter("Time", "6.3f"), AverageMeter("Data", "6.3f")
        self.losses = AverageMeter("Loss", ".4e")
        self.top1, self.top5 = AverageMeter("Acc@1", "6.2f", 100), AverageMeter("Acc@5", "6.2f", 100)
        seconds, *figures = figures or [0.0] * 9
        for meter, total in zip([self.losses, self.top1, self.top5], figures[:3], strict=True):
            meter.sum, meter.count = total, figures[3]
        self.batch_time.sum, self.batch_time.count = seconds, first_step
        self.sums = torch.tensor(figures[4:], device=device)  # loss, hits among 1 and among 5, images since read()
        self.skipped = torch.zeros(2, device=device)  # steps since read(), steps in a row
        self.steps, self.waited = 0, 0.0
        self.last_read = self.last_step = time.time()

    def state(self):
        """Return the figures so far: the seconds, then sums, those since read() apart, so that nothing changes."""
        seconds = self.batch_time.sum + time.time() - self.last_read
        return [seconds, self.losses.sum, self.top1.sum, self.top5.sum, self.losses.count, *self.sums.tolist()]

    @staticmethod
    def share(figures, rank, world_size):
        """Return a rank's part of the figures of all ranks, which may have been more or fewer: their sum is kept."""
        own = [sum(column) for column in zip(*figures[rank::world_size], strict=True)] or [0.0] * 9
        return [figures[0][0], *own[1:]]

    def data_arrived(self):
        self.waited += time.time() - self.last_step

    def add(self, images, loss_sum, output, targets, skipped=None):
        """Add a step: the number of its images, and device tensors. One that was skipped counts as such alone: nothing
        was learnt, and its loss may be infinite."""
        with torch.no_grad():
            count = torch.full((1,), float(images), device=self.sums.device)
            figures = torch.cat([loss_sum.view(1).float(), accuracy(output, targets, topk=(1, 5)), count])
            if skipped is not None:
                figures = figures.where(skipped == 0, torch.zeros_like(figures))
                self.skipped = torch.stack([self.skipped[0] + skipped, (self.skipped[1] + skipped) * skipped])
            self.sums += figures
        self.steps += 1
        self.last_step = time.time()

    def read(self):
        """Bring the meters up to date. Returns the number of steps skipped since the read before, the number of skipped
        steps in a row up to now, and the number of steps since the read before."""
        loss, top1, top5, images, skipped, in_a_row = torch.cat([self.sums, self.skipped]).tolist()
        self.sums.zero_()
        self.skipped[0] = 0
        now, steps = time.time(), self.steps
        if images:
            self.losses.update(loss, int(images))
            self.top1.update(top1, int(images))
            self.top5.update(top5, int(images))
        self.batch_time.update(now - self.last_read, steps)
        self.data_time.update(self.waited, steps if self.waited else 0)  # not shown where it isn't measured
        self.steps, self.waited = 0, 0.0
        self.last_read = self.last_step = now
        return int(skipped), int(in_a_row), steps

    def means(self, hosts):
        """Return loss, Acc@1 and Acc@5 in % over all ranks' images, and the number of those images. hosts is the group
        of all processes, None if there is one alone."""
        sums = [self.losses.sum, self.top1.sum, self.top5.sum, self.losses.count]
        sums = torch.tensor(sums, dtype=torch.float64)
        if hosts:
            dist.all_reduce(sums, group=hosts)
        loss, top1, top5, images = sums.tolist()
        return *(total / (images or math.nan) for total in (loss, top1, top5)), int(images)

    def display(self, batch, *more):
        width = len(str(self.num_batches))
        meters = [self.batch_time, self.data_time, self.losses, self.top1, self.top5]
        shown = [str(meter) for meter in meters if meter.count]
        print("\t".join([f"{self.prefix}[{batch:{width}d}/{self.num_batches}]", *shown, *more]))


if __name__ == "__main__":
    main()
