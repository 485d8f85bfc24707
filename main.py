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
import gc
import importlib.util
import io
import math
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
import warnings
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
from torch.nn.parallel import DistributedDataParallel
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import RandomResizedCrop

IMAGENET_TRAIN, IMAGENET_VAL, IMAGENET_CLASSES = 1_281_167, 50_000, 1_000
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHECKPOINT, MODEL_BEST = "checkpoint.pth.tar", "model_best.pth.tar"
PADDING = -1  # the index that fills up the last validation batches
IGNORED = -100  # the target of padding: cross_entropy skips it, and no prediction ever equals it


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
            bounds = f"{'above' if above else 'at least'} {low}" + (f" and at most {high}" if high < math.inf else "")
            raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
        return value

    convert.__name__ = kind.__name__  # what argparse calls the type when text is no number
    return convert


def loss_scale(text):
    """Return the loss scale that `text` names: -1 for a dynamic one, otherwise a positive constant."""
    return -1.0 if float(text) == -1 else number(float, 0, above=True)(text)


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
    positive, natural, fraction = number(int, 1), number(int, 0), number(float, 0, 1)
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
    add("--pin-memory", action=argparse.BooleanOptionalAction, default=None,
        help="page-locked host batches, copied while the device computes")

    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=positive, default=90, metavar="N", help="epochs in all")
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
    add("--device", type=lambda name: {"cuda": "gpu"}.get(name, name), choices=list(PLATFORMS), default="npu",
        help="kind of device; cuda means gpu")
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
    add("--multiprocessing-distributed", action="store_true", help="accepted; the device list says it")

    add = parser.add_argument_group("running").add_argument
    add("--resume", default=None, metavar="PATH",
        help="checkpoint to go on from; auto: the output folder's, if there is one")
    add("-e", "--evaluate", action="store_true", help="evaluate on val/ and end")
    add("--output-dir", default=".", metavar="DIR", help="folder for checkpoints and log.csv")
    add("-p", "--print-freq", type=positive, default=10, metavar="N", help="steps between log lines")
    # fmt: on

    args = parser.parse_args(argv)
    if args.no_accel:
        args.device = "cpu"
    platform = PLATFORMS[args.device]
    if args.gpu is not None:
        args.process_device_map = {0: args.gpu}
    if args.pin_memory is None:
        args.pin_memory = platform.pin_memory
    args.amp_dtype = getattr(torch, args.amp_dtype) if args.amp_dtype else platform.amp_dtype
    args.dist_backend = args.dist_backend or platform.backend
    if args.crop_scale[0] > args.crop_scale[1]:
        parser.error(f"argument --crop-scale: MIN {args.crop_scale[0]} is above MAX {args.crop_scale[1]}")
    if args.warmup_epochs >= args.epochs and args.warmup_epochs:
        parser.error(f"argument --warmup-epochs: {args.warmup_epochs} of {args.epochs} epochs leave none to train")
    if args.dist_url == "env://":  # what the example reads there
        args.dist_url = f"tcp://{os.environ.get('MASTER_ADDR', args.addr)}:{os.environ.get('MASTER_PORT', '29500')}"
        if args.world_size == -1 and "LOCAL_RANK" not in os.environ:
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
    sys.stdout.reconfigure(line_buffering=True)  # a log file shows a line when it is printed
    args = parse_args()
    try:
        status = join_torchrun(args) if "LOCAL_RANK" in os.environ else launch(args)
    except RunError as error:
        status = fail(error)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def launch(args):
    """Prepare this machine's part of the run, start its processes and wait for them. Returns the exit status."""
    if args.node_rank > 0:
        be_silent()
    choose_devices(args)
    args.processes = len(args.process_device_map)
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
    processes = mp.spawn(run_process, (args, datasets), nprocs=args.processes, join=False).processes
    try:
        # Asked, not waited for: a killed process's data loading workers would hold up its end for seconds.
        while not any(codes := [process.exitcode for process in processes]) and None in codes:
            time.sleep(0.1)
        for process_id, code in enumerate(codes):
            if code and code < 0:
                signal_name = signal.Signals(-code).name
                return fail(f"{who(process_id, args)} was killed by {signal_name}; go on with --resume auto")
        return next(filter(None, codes), 0)  # whoever failed has said why
    finally:
        for process in processes:
            process.kill()
            process.join()


def join_torchrun(args):
    """Be one of torchrun's processes; the first on a machine prepares it for all. Returns the exit status."""
    names = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "GROUP_RANK"
    process_id, args.processes, args.nodes, args.node_rank = (int(os.environ[name]) for name in names)
    args.rank_batch = args.batch_size // args.processes
    args.process_device_map = args.process_device_map or {i: i for i in range(args.processes)}
    if len(args.process_device_map) != args.processes:
        devices = ",".join(map(str, args.process_device_map.values()))
        raise RunError(f"--device_list {devices}: torchrun starts {args.processes} processes; give as many devices")
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
    args.position, args.hosts = "before the first step", None
    details, status = "", 1
    if args.rank > 0:  # rank 0 alone prints
        be_silent()
    try:
        if args.world_size > 1 and store is None:
            end_with_parent()
            store = connect(args)
        main_worker(process_id, args, datasets, store)
        return 0
    except RunError as error:
        message = str(error)
    except torch.OutOfMemoryError as error:
        message = f"{who(process_id, args)} ran out of memory, {args.position}: lower --batch-size"
        details = f"{first_line(error)}\n"
    except KeyboardInterrupt:
        message, status = None, 128 + signal.SIGINT
    except Exception as error:
        message = f"{who(process_id, args)} failed, {args.position}: {type(error).__name__}: {first_line(error)}"
        details = traceback.format_exc()
        if store:  # When a process dies, the others fail in their next collective. Let the first one speak.
            time.sleep(2)
    with contextlib.suppress(dist.DistError):  # where the store is gone, so is whoever spoke
        if message and (store is None or store.add("failures", 1) == 1):
            fail(message, details)
    if store:
        # An orderly end can wait for ever for processes that are gone; only the loader's workers must be told.
        gc.collect()
        os._exit(status)
    return status


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
    used, step = args.rank_batch * args.processes, args.rank_batch * args.processes * args.nodes
    if used != args.batch_size:
        warn(f"--batch-size {args.batch_size} is not a multiple of {args.processes} devices: using {used}")
    if len(train_images) < step and not args.evaluate:
        most = len(train_images) // args.nodes
        raise RunError(f"{len(train_images)} training images don't make one step of {step}: --batch-size {most} would")
    try:
        os.makedirs(args.output_dir, exist_ok=True)
        tempfile.TemporaryFile(dir=args.output_dir).close()
    except OSError as error:
        raise RunError(f"--output-dir {args.output_dir!r} cannot be written to: {error.strerror}") from error
    if args.resume == "auto":
        args.resume = os.path.join(args.output_dir, CHECKPOINT)
        if not os.path.lexists(args.resume):
            print(f"=> no checkpoint at '{args.resume}' yet: starting from the beginning")
            args.resume = None
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
    and the validation images; store is where the processes meet, None if there is one alone.
    """
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

    checkpoint = open_checkpoint(args)
    args.seed = agree_on_seed(checkpoint.get("seed") if args.seed is None else args.seed, datasets, args)
    print(f"=> seed {args.seed}")
    print(f"=> {'using pre-trained' if args.pretrained else 'creating'} model '{args.arch}'")
    torch.manual_seed(args.seed)
    model = create_model(args, len(datasets[0].classes))
    model.load_state_dict(fitting_weights(model, checkpoint, args))
    model.to(device, memory_format=platform.memory_format)
    optimizer = create_optimizer(model, args, platform)
    scaler = platform.grad_scaler(
        init_scale=args.loss_scale if args.loss_scale > 0 else 2.0**16,
        enabled=args.amp and args.amp_dtype is torch.float16,
    )
    best_acc1, history = -math.inf, []
    if args.resume:
        args.start_epoch, best_acc1, history = resume(checkpoint, optimizer, scaler, args)

    batches = load_batches(datasets, device, args)
    steps = len(datasets[0]) // (args.rank_batch * args.world_size)
    if args.evaluate:
        validate(batches, len(datasets[1]), model, device, args)
        return
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    ddp = model
    if args.world_size > 1:
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        ddp.broadcast_buffers = False  # average_buffers() does better, once an epoch
    for epoch in range(args.start_epoch, args.epochs):
        start = time.time()
        trained, speed = train(batches, steps, ddp, criterion, optimizer, scaler, epoch, device, args)
        average_buffers(model, args.world_size)
        evaluated = validate(batches, len(datasets[1]), model, device, args)
        seconds = round(time.time() - start, 1)
        history.append({"epoch": epoch, **trained, **evaluated, "img_per_s": speed, "seconds": seconds})

        is_best = evaluated["val_acc1"] > best_acc1
        best_acc1 = max(evaluated["val_acc1"], best_acc1)
        if args.rank == 0:
            state = {
                "epoch": epoch + 1,
                "arch": args.arch,
                "state_dict": model.state_dict(),
                "best_acc1": best_acc1,
                "optimizer": optimizer.state_dict(),
                "amp": scaler.state_dict(),
                "classes": datasets[0].classes,
                "seed": args.seed,
                "history": history,
            }
            save_checkpoint(to_cpu(state), is_best, args.output_dir)
            write_log(history, args.output_dir)
    if args.start_epoch >= args.epochs:
        print(f"=> all {args.epochs} epochs are done: a higher --epochs would train on")
    speed = f"{history[-1]['img_per_s']:.0f} img/s, " if history else ""
    print(f"=> best Acc@1 {best_acc1:.3f}, {speed}checkpoint '{os.path.join(args.output_dir, CHECKPOINT)}'")
    if args.world_size > 1:
        dist.destroy_process_group()


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

    paths uint8 [bytes], all paths below root one after another; ends int64 [N], where each of them ends; labels
    int32 [N], the numbers of their classes.
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
        path = self.paths[self.ends[i - 1] if i else 0 : self.ends[i]]
        return os.path.join(self.root, os.fsdecode(path.numpy().tobytes()))

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
    paths, lengths, labels = bytearray(), [], []
    for name in found:
        known, label = len(labels), classes.index(name)
        for root, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(IMG_EXTENSIONS):
                    path = os.fsencode(os.path.join(root, file)[below:])
                    paths += path
                    lengths.append(len(path))
                    labels.append(label)
        if len(labels) == known:
            kinds = " ".join(IMG_EXTENSIONS)
            raise RunError(f"class folder {os.path.join(folder, name)!r} holds no image ({kinds}): fill or remove it")
    paths, ends = torch.frombuffer(paths, dtype=torch.uint8), torch.tensor(lengths).cumsum(0)
    packed = paths.clone(), ends, torch.tensor(labels, dtype=torch.int32)
    return ImageFolder(folder, classes, *(tensor.share_memory_() for tensor in packed))


def read_image(path):
    """Return the image in a file as uint8 [3, H, W], whatever its format. Raises RunError if it can't be read.

    torchvision decodes what it knows, to PIL's values and faster; PIL reads the rest.
    """
    try:
        data = np.fromfile(path, dtype=np.uint8)
        try:
            image = torchvision.io.decode_image(torch.from_numpy(data), torchvision.io.ImageReadMode.RGB)
        except RuntimeError:
            return F.pil_to_tensor(PIL.Image.open(io.BytesIO(data)).convert("RGB"))
        if image.dtype is not torch.uint8:  # a 16-bit PNG
            image = (image.int() >> 8).byte()
        return image if image.dim() == 3 else image[0]  # an animation's first frame
    except Exception as error:
        raise RunError(f"{path!r} cannot be read as an image ({first_line(error)}): mend or remove it") from error


def train_transform(image, seed, args):
    """Return a random part of an image (uint8 [3, H, W]), perhaps flipped, as uint8 [3, image_size, image_size]."""
    with torch.random.fork_rng(devices=[]):  # without workers, the model draws in this process too
        torch.default_generator.manual_seed(seed)
        crop = RandomResizedCrop.get_params(image, args.crop_scale, [3 / 4, 4 / 3])
        flip = torch.rand(()) < args.hflip
    image = F.resized_crop(image, *crop, [args.image_size, args.image_size], antialias=True)
    return F.horizontal_flip(image) if flip else image


def val_transform(image, args):
    """Return the middle of a resized image (uint8 [3, H, W]) as uint8 [3, image_size, image_size]."""
    image = F.resize(image, [max(args.resize_size, args.image_size)], antialias=True)
    return F.center_crop(image, [args.image_size, args.image_size])


def mix(*numbers):
    """Return a 63-bit seed that depends on each of some whole numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def train_batches(count, batch_size, rank, world_size, seed, epoch):
    """Yield one rank's batches of an epoch as lists of batch_size indices.

    The ranks' batches of a step together are the next piece of one permutation of range(count), which depends on seed
    and epoch alone. What is left at the end, less than a piece, is dropped.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, epoch)))
    for step in range(count // (batch_size * world_size)):
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
            for indices in train_batches(len(datasets[0]), *share, args.seed, epoch):
                yield 0, epoch, indices
        for indices in val_batches(len(datasets[1]), *share):
            yield 1, epoch, indices


class Batches(torch.utils.data.Dataset):
    """Turns what run_order yields into images uint8 [B, 3, S, S] and targets [B], IGNORED for padding.

    An image's augmentation is drawn from (seed, epoch, index): which worker reads it makes no difference. A RunError
    takes a batch's place, because on its way from a worker an exception would lose its form.
    """

    def __init__(self, datasets, args):
        self.datasets = datasets
        self.args = argparse.Namespace(**{**vars(args), "hosts": None})  # a process group stays in its process

    def __getitem__(self, key):
        number, epoch, indices = key
        images = torch.zeros(len(indices), 3, self.args.image_size, self.args.image_size, dtype=torch.uint8)
        targets = torch.full((len(indices),), IGNORED, dtype=PLATFORMS[self.args.device].target_dtype)
        try:
            for slot, i in enumerate(indices):
                if i != PADDING:
                    image = self.datasets[number].read(i)
                    training = (mix(self.args.seed, epoch, i),) if number == 0 else ()
                    images[slot] = (train_transform if training else val_transform)(image, *training, self.args)
                    targets[slot] = self.datasets[number].label(i)
        except RunError as error:
            return error
        return images, targets


def load_batches(datasets, device, args):
    """Yield this rank's batches in run_order, on the device: images, normalised float32 [B, 3, S, S]; targets [B],
    IGNORED for padding; and the number of images without padding. Raises RunError for an image that can't be read."""
    workers = math.ceil(args.workers / args.processes)
    loader = torch.utils.data.DataLoader(
        Batches(datasets, args),
        sampler=run_order(datasets, args),
        batch_size=None,  # run_order yields whole batches
        num_workers=workers,
        # A spawned process would spawn its workers too: seconds and a whole torch for each, where a fork shares both.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        worker_init_fn=start_worker,
        pin_memory=args.pin_memory,
    )
    mean, std = (255 * torch.tensor(values, device=device).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    for batch in loader:
        if isinstance(batch, RunError):
            raise batch
        count = int((batch[1] != IGNORED).sum())  # still on the host
        # The images cross as uint8, a quarter of the bytes, while the device computes.
        images, targets = (tensor.to(device, non_blocking=True) for tensor in batch)
        images = (images.float() - mean) / std
        yield images.contiguous(memory_format=PLATFORMS[args.device].memory_format), targets, count


def start_worker(_):
    """Leave Ctrl-C to the process that a worker works for, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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


def train(batches, steps, model, criterion, optimizer, scaler, epoch, device, args):
    """Train for one epoch of `steps` steps. Returns its figures over all ranks, named as in log.csv, and its img/s."""
    progress = ProgressMeter(steps, f"Epoch: [{epoch}]", device)
    model.train()
    for i in range(steps):
        step, args.position = epoch * steps + i, f"epoch {epoch}, step {i}"
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
            skipped = progress.read()
            if skipped:
                print(f"=> gradients overflowed, steps skipped: {skipped}; loss scale {scaler.get_scale():g}")
        if i % args.print_freq == 0:
            speed = count * args.world_size / progress.batch_time.val
            left = datetime.timedelta(seconds=int((args.epochs * steps - step - 1) * progress.batch_time.avg))
            progress.display(i + 1, f"{speed:.0f} img/s", f"lr {lr:.4g}", f"{left} left")
    loss, acc1, acc5, images = progress.means(args.hosts)
    speed = round(images / progress.batch_time.sum, 1)
    return {"lr": lr, "train_loss": loss, "train_acc1": acc1, "train_acc5": acc5}, speed


def overflow(scaler, optimizer):
    """Return a device scalar that is above 0 if the scaler has just skipped the step; nothing is read."""
    if not scaler.is_enabled():
        return 0
    return sum(scaler._found_inf_per_device(optimizer).values())  # there is no public name


def validate(batches, count, model, device, args):
    """Evaluate the model on all `count` validation images. Returns its exact figures, as log.csv names them."""
    steps = math.ceil(count / (args.rank_batch * args.world_size))
    progress = ProgressMeter(steps, "Test: ", device)
    model.eval()
    with torch.no_grad():
        for i in range(steps):
            args.position = f"validation step {i}"
            images, targets, image_count = next(batches)
            with torch.autocast(device.type, dtype=args.amp_dtype, enabled=args.amp):
                output = model(images)
            loss = nn.functional.cross_entropy(output.float(), targets, reduction="sum")
            progress.add(image_count, loss, output, targets)
            if i % args.print_freq == 0 or i == steps - 1:
                progress.read()
            if i % args.print_freq == 0:
                progress.display(i + 1)
    loss, acc1, acc5, _ = progress.means(args.hosts)
    print(f" *   Acc@1 {acc1:.3f} Acc@5 {acc5:.3f}")
    return {"val_loss": loss, "val_acc1": acc1, "val_acc5": acc5}


def accuracy(output, target, topk=(1,)):
    """Return for each k how many targets are among the k highest outputs, as float32 [len(topk)] on the device.

    output float [B, C], target int [B]. IGNORED is never among them; with fewer than k classes, all others are.
    """
    _, pred = output.topk(min(max(topk), output.size(1)), dim=1)
    correct = pred.eq(target.view(-1, 1))
    return torch.stack([correct[:, :k].sum().float() for k in topk])


def average_buffers(model, world_size):
    """Replace the batch-norm statistics by their means over all ranks, so that every rank has the same model."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if world_size > 1 and buffers:
        means = nn.utils.parameters_to_vector(buffers)
        dist.all_reduce(means)
        nn.utils.vector_to_parameters(means / world_size, buffers)


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
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        reason = getattr(error, "strerror", None) or first_line(error)
        raise RunError(f"cannot write {path!r} ({reason}); what was there before is untouched") from error


def save_checkpoint(state, is_best, output_dir):
    """Write the checkpoint, and if it is the best one yet a copy of it."""
    checkpoint = os.path.join(output_dir, CHECKPOINT)
    write_whole(checkpoint, lambda file: torch.save(state, file))
    if is_best:
        with open(checkpoint, "rb") as source:
            write_whole(os.path.join(output_dir, MODEL_BEST), lambda file: shutil.copyfileobj(source, file))


def open_checkpoint(args):
    """Return what the run starts from, on the host: a checkpoint of this script, of the PyTorch example or of one
    migrated by the guide; {"state_dict"} of published weights; or {}.

    No code in it is run. Raises RunError if it can't be had or is of another architecture.
    """
    source = f"--resume {args.resume!r}"
    if not args.resume:
        return {"state_dict": published_weights(args.arch)} if args.pretrained else {}
    try:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=True)
    except OSError as error:
        raise RunError(f"{source}: {error.strerror}; leave --resume out to train from the beginning") from error
    except Exception as error:  # what a damaged file raises depends on the damage
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise RunError(f"{source} holds more than numbers, or none; code in a checkpoint is never run") from error
        raise RunError(f"{source} is no checkpoint, or a damaged one ({first_line(error)})") from error
    kinds = {"epoch": int, "arch": str, "state_dict": dict, "best_acc1": (float, int, torch.Tensor), "optimizer": dict}
    content = {"history": [], **checkpoint} if isinstance(checkpoint, dict) else {}
    wrong = [key for key, kind in {**kinds, "history": list}.items() if not isinstance(content.get(key), kind)]
    if wrong or not content["optimizer"].get("param_groups"):
        raise RunError(
            f"{source} is no checkpoint of a training run: {', '.join(wrong or ['optimizer'])} missing or odd"
        )
    if checkpoint["arch"] != args.arch:
        raise RunError(f"{source} holds a {checkpoint['arch']}: give --arch {checkpoint['arch']}")
    return checkpoint


def published_weights(arch):
    """Return the state_dict of torchvision's best weights for `arch`. Raises RunError if they can't be had."""
    weights = torchvision.models.get_model_weights(arch).DEFAULT
    try:
        return weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        cache = os.path.join(torch.hub.get_dir(), "checkpoints")
        reason = f"cannot download {weights.url} ({first_line(error)})"
        raise RunError(f"--pretrained: {reason}; without a network, put that file into {cache!r}") from error


def resume(checkpoint, optimizer, scaler, args):
    """Restore optimizer and scaler. Returns the next epoch, the best Acc@1 in % and the rows of log.csv so far.

    Learning rate, momentum, weight decay and a static loss scale are the options', not the checkpoint's.
    """
    print(f"=> loading checkpoint '{args.resume}'")
    groups, saved = optimizer.state_dict()["param_groups"], checkpoint["optimizer"]
    if [len(group["params"]) for group in saved["param_groups"]] != [len(group["params"]) for group in groups]:
        raise RunError(f"--resume {args.resume!r} and this run differ in --no-decay-norm: choose the same")
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
    lay_out_momentum(optimizer)
    if scaler.is_enabled() and args.loss_scale < 0 and checkpoint.get("amp"):
        scaler.load_state_dict({"dynamic": True, **checkpoint["amp"]})  # torch_npu's own scaler asks for that key
    print(f"=> loaded checkpoint '{args.resume}' (epoch {checkpoint['epoch']})")
    return checkpoint["epoch"], float(checkpoint["best_acc1"]), list(checkpoint.get("history", []))


def write_log(history, output_dir):
    """Write log.csv, a row an epoch, from the rows that the checkpoint holds too, so the two never disagree."""
    lines = [history[0].keys(), *(row.values() for row in history)]
    text = "".join(",".join(map(str, line)) + "\n" for line in lines)
    write_whole(os.path.join(output_dir, "log.csv"), lambda file: file.write(text.encode()))


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
    meter's latest value is the mean since the read before.
    """

    def __init__(self, num_batches, prefix, device):
        self.num_batches, self.prefix = num_batches, prefix
        self.batch_time, self.data_time = AverageMeter("Time", "6.3f"), AverageMeter("Data", "6.3f")
        self.losses = AverageMeter("Loss", ".4e")
        self.top1, self.top5 = AverageMeter("Acc@1", "6.2f", 100), AverageMeter("Acc@5", "6.2f", 100)
        self.sums = torch.zeros(4, device=device)  # loss, hits among 1 and among 5, skipped steps
        self.images, self.steps, self.waited = 0, 0, 0.0
        self.last_read = self.last_step = time.time()

    def data_arrived(self):
        self.waited += time.time() - self.last_step

    def add(self, images, loss_sum, output, targets, skipped=0):
        """Add a step: the number of its images, and device tensors."""
        with torch.no_grad():
            self.sums[0] += loss_sum
            self.sums[1:3] += accuracy(output, targets, topk=(1, 5))
            self.sums[3] += skipped
        self.images += images
        self.steps += 1
        self.last_step = time.time()

    def read(self):
        """Bring the meters up to date. Returns the number of steps skipped since the read before."""
        loss, top1, top5, skipped = self.sums.tolist()
        self.sums.zero_()
        now = time.time()
        self.losses.update(loss, self.images)
        self.top1.update(top1, self.images)
        self.top5.update(top5, self.images)
        self.batch_time.update(now - self.last_read, self.steps)
        self.data_time.update(self.waited, self.steps if self.waited else 0)  # not shown where it isn't measured
        self.images, self.steps, self.waited = 0, 0, 0.0
        self.last_read = self.last_step = now
        return int(skipped)

    def means(self, hosts):
        """Return loss, Acc@1 and Acc@5 in % over all ranks' images, and the number of those images. hosts is the group
        of all processes, None if there is one alone."""
        sums = [self.losses.sum, self.top1.sum, self.top5.sum, self.losses.count]
        sums = torch.tensor(sums, dtype=torch.float64)
        if hosts:
            dist.all_reduce(sums, group=hosts)
        loss, top1, top5, images = sums.tolist()
        return loss / images, top1 / images, top5 / images, int(images)

    def display(self, batch, *more):
        width = len(str(self.num_batches))
        meters = [self.batch_time, self.data_time, self.losses, self.top1, self.top5]
        shown = [str(meter) for meter in meters if meter.count]
        print("\t".join([f"{self.prefix}[{batch:{width}d}/{self.num_batches}]", *shown, *more]))


if __name__ == "__main__":
    main()
