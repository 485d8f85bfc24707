#!/usr/bin/env python3
"""The time to find all training images, main.py's scan_folder against torchvision's ImageFolder, and how often main.py
does it for eight ranks.

    python3 tests/bench/startup.py --files 1281167

Both scan a tree of empty files with ImageNet's names, and must find the same. The ranks are counted in a run of
main.py on a small tree: Python reports every folder that any of its processes lists.
"""

import argparse
import collections
import os
import statistics
import subprocess
import sys
import tempfile
import time

import bench
import numpy as np
import PIL.Image
import torch
import torchvision

import main

# Imported by every Python process that finds it, this writes down each folder that is listed.
WATCH = """
import os, sys
def watch(event, args):
    if event == "os.scandir":
        with open(os.environ["LISTED_FOLDERS"], "a") as file:
            file.write(f"{os.getpid()} {args[0]}\\n")
sys.addaudithook(watch)
"""


def make_tree(folder, files, classes):
    """Fill a folder with `files` empty files in `classes` folders, named as ImageNet's."""
    for label in range(classes):
        name = f"n{1440764 + 13 * label:08}"
        os.mkdir(os.path.join(folder, name))
        for i in range(files * label // classes, files * (label + 1) // classes):
            os.mknod(os.path.join(folder, name, f"{name}_{i * 7919 % files}.JPEG"))


def same_images(folder):
    """Refuse if the two don't find the same images with the same labels."""
    ours, theirs = main.scan_folder(folder), torchvision.datasets.ImageFolder(folder)
    if ours.classes != theirs.classes or len(ours) != len(theirs):
        bench.refuse("main.py and torchvision find other classes, or another number of images")
    step = max(1, len(ours) // 10_000)
    if any((ours.path(i), ours.label(i)) != theirs.samples[i] for i in range(0, len(ours), step)):
        bench.refuse("main.py and torchvision find the images in another order")


def scans(ranks, classes=3):
    """Return how often main.py's processes list the folders of its data, on average, and how many processes do."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(2 * ranks * classes):
            path = os.path.join(folder, "data", ("train", "val")[i % 2], str(i // 2 % classes), f"{i}.png")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            PIL.Image.fromarray(np.full((32, 32, 3), 40 * (i // 2 % classes), np.uint8)).save(path)
        with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
            file.write(WATCH)
        listed = os.path.join(folder, "listed")
        devices = ",".join(map(str, range(ranks)))
        command = f"-a shufflenet_v2_x0_5 --device cpu --device_list {devices} --workers 0 --epochs 1"
        command += f" --image-size 32 --resize-size 32 --batch-size {ranks * classes} --seed 1"
        result = subprocess.run(
            [sys.executable, bench.ROOT / "main.py", os.path.join(folder, "data"), *command.split()],
            env={**os.environ, "PYTHONPATH": folder, "LISTED_FOLDERS": listed, "OMP_NUM_THREADS": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if result.returncode:
            bench.refuse(f"main.py with {ranks} ranks failed: {main.first_line(result.stderr)}")
        with open(listed) as file:
            calls = [
                line.split(maxsplit=1) for line in file.read().splitlines() if os.path.join(folder, "data") in line
            ]
    times = collections.Counter(path for _, path in calls)
    return sum(times.values()) / len(times), len({process for process, _ in calls})


def run():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--files", type=int, default=300_000, help="images in the tree; ImageNet has 1281167")
    parser.add_argument("--classes", type=int, default=1000, help="class folders")
    parser.add_argument("--rounds", type=int, default=5, help="scans by each")
    parser.add_argument("--ranks", type=int, default=8, help="processes of the run that is watched")
    parser.add_argument("--folder", help="where to make the tree (default: the system's temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        make_tree(folder, options.files, options.classes)
        same_images(folder)
        contenders = {
            "main.py": lambda _: main.scan_folder(folder),
            "torchvision": lambda _: torchvision.datasets.ImageFolder(folder),
        }
        # One thread's own time: nothing of other jobs is in it, and no waiting for the disk, read a moment ago.
        seconds = bench.take_turns(contenders, options.rounds, clock=time.thread_time)
    one_rank, processes = scans(1)
    all_ranks, processes = scans(options.ranks)
    relative = 1 / bench.times_as_fast(seconds, "main.py", "torchvision")
    bench.report(
        "startup",
        ["", "figure"],
        [
            [f"processor time for {options.files} files, main.py", f"{statistics.median(seconds['main.py']):.2f} s"],
            [
                f"processor time for {options.files} files, torchvision",
                f"{statistics.median(seconds['torchvision']):.2f} s",
            ],
            ["main.py's time, torchvision's being 1", f"{relative:.2f}"],
            ["scans of the data with 1 rank", f"{one_rank:g}"],
            [f"scans of the data with {options.ranks} ranks", f"{all_ranks:g}, by {processes} process"],
        ],
        against_torchvision=bench.at_most(1.0, relative),
        scans=bench.at_most(1, all_ranks),
        files=options.files,
        ranks=options.ranks,
    )


if __name__ == "__main__":
    run()
