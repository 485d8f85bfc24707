#!/usr/bin/env python3
"""The memory of their own that data loading workers gain over one pass of an index of images, main.py's against a list
of (path, label) as torchvision's ImageFolder keeps it.

    python3 tests/bench/index_memory.py

Two processes, as for two devices, run main.load_batches with their workers over an index of files that don't exist:
every path and label is fetched, only reading and cropping are left out.
"""

import argparse
import multiprocessing
import os
import re
import types
from unittest import mock

import bench
import torch

import main

MB = 1e6
BATCH = 256
PIXEL = torch.zeros(3, 1, 1, dtype=torch.uint8)


class FakeFolders:
    """Stands in for os.scandir: `files` images in folders of ImageNet's names, none of which exists."""

    def __init__(self, files, classes):
        self.files, self.classes = files, classes

    def entries(self, folder):
        name = os.path.basename(folder)
        if name == "train":
            return [(f"n{label:08}", True) for label in range(self.classes)]
        label = int(name[1:])
        numbers = range(self.files * label // self.classes, self.files * (label + 1) // self.classes)
        return [(f"{name}_{i}.JPEG", False) for i in numbers]

    def __call__(self, folder):
        return Listing(
            types.SimpleNamespace(
                name=name, path=os.path.join(folder, name), is_dir=lambda *_, at=at, **__: at, is_junction=lambda: False
            )
            for name, at in self.entries(folder)
        )


class Listing:
    """What os.scandir returns: an iterator and a context manager."""

    def __init__(self, entries):
        self.entries = entries

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.entries)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def packed(images):
    """Return main.py's index as it is."""
    return images


class Tuples:
    """An index as torchvision's ImageFolder keeps it."""

    def __init__(self, packed):
        self.classes = packed.classes
        self.samples = [(packed.path(i), packed.label(i)) for i in range(len(packed))]

    def __len__(self):
        return len(self.samples)

    def label(self, i):
        return self.samples[i][1]

    def read(self, i):
        return main.read_image(self.samples[i][0])


def private_bytes(process):
    """Return how much memory a process has that no other one shares."""
    with open(f"/proc/{process}/smaps_rollup") as rollup:
        return 1024 * sum(map(int, re.findall(r"^Private_(?:Clean|Dirty): +(\d+)", rollup.read(), re.MULTILINE)))


def shared_segments(process):
    """Return {inode: (bytes, this process's proportional share of them)} of the segments that torch shares."""
    with open(f"/proc/{process}/smaps") as file:
        found = re.findall(r"^(\w+)-(\w+) \S+ \S+ \S+ (\d+) +/dev/shm/torch_.*?^Pss: +(\d+)", file.read(), re.M | re.S)
    return {inode: (int(end, 16) - int(start, 16), 1024 * int(share)) for start, end, inode, share in found}


def loading(options, rank):
    """Return main.py's options for images of one pixel, which take no time."""
    size = "--image-size", 1, "--resize-size", 1, "--batch-size", BATCH * options.ranks
    return bench.options(*size, "--workers", options.workers, "--epochs", 1, rank=rank, ranks=options.ranks)


def be_rank(rank, images, kind, options, barrier, results):
    """Be one device's process: read one epoch, then stay for the look at its memory."""
    images = kind(images)
    args = loading(options, rank)
    with (
        mock.patch.object(main, "read_image", lambda path: PIXEL),
        mock.patch.object(main, "train_transform", lambda image, *_: image),
    ):
        batches = main.load_batches([images, images], torch.device("cpu"), torch.distributed.HashStore(), args)
        next(batches)
        workers = [process.pid for process in multiprocessing.active_children()]
        before = {worker: private_bytes(worker) for worker in workers}
        for _ in range(len(images) // args.global_batch - 1):
            next(batches)
        results.put((os.getpid(), before))
        barrier.wait()
        batches.close()


def one_pass(images, kind, options):
    """Return the bytes that each worker of all ranks gained, and how often the node holds the packed index."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(options.ranks + 1), context.Queue()
    run = torch.multiprocessing.spawn(be_rank, (images, kind, options, barrier, results), options.ranks, join=False)
    ranks = [results.get() for _ in range(options.ranks)]
    gains = [private_bytes(worker) - known for _, before in ranks for worker, known in before.items()]
    index = shared_segments(os.getpid())
    processes = [os.getpid(), *(process for rank, before in ranks for process in (rank, *before))]
    shares = [
        share for process in processes for inode, (_, share) in shared_segments(process).items() if inode in index
    ]
    barrier.wait()
    run.join()
    return gains, sum(shares) / sum(size for size, _ in index.values())


def run():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--images", type=int, default=main.IMAGENET_TRAIN, help="entries of the index")
    parser.add_argument("--ranks", type=int, default=2, help="processes, as for so many devices")
    parser.add_argument("--workers", type=int, default=4, help="their data loading workers in all")
    options = parser.parse_args()

    with mock.patch("os.scandir", FakeFolders(options.images, classes=1000)):
        index = main.scan_folder("/nowhere/train")
    if len(index) != options.images:
        bench.refuse(f"the index has {len(index)} entries, not {options.images}")
    gains, copies = one_pass(index, packed, options)
    tuple_gains, _ = one_pass(index, Tuples, options)
    size = sum(size for size, _ in shared_segments(os.getpid()).values())

    def megabytes(size):
        return f"{size / MB:.1f} MB"

    bench.report(
        "index_memory",
        [f"{options.images} images, {len(gains)} workers of {options.ranks} ranks", "main.py", "list of tuples"],
        [
            ["private memory that a worker gained, most", megabytes(max(gains)), megabytes(max(tuple_gains))],
            ["private memory that a worker gained, least", megabytes(min(gains)), megabytes(min(tuple_gains))],
            ["the index in shared memory", megabytes(size), "none"],
            ["copies of it in all processes' memory", f"{copies:.2f}", "1 a process"],
        ],
        worker_gain_mb=bench.at_most(10, max(gains) / MB),
        index_copies=bench.at_most(1, copies),
        tuples_gain_mb=round(max(tuple_gains) / MB, 1),
        images=options.images,
    )


if __name__ == "__main__":
    run()
