#!/usr/bin/env python3
"""From image file to training sample on one core: main.py's loader worker against the PyTorch example's PIL chain, and
against decoding alone.

    python3 tests/bench/input_pipeline.py DIR

All read the same files. The PIL chain draws as it always does, and then cuts and flips what main.py drew: both resize
the same pixels, and their samples are compared before anything is timed.
"""

import argparse
import os
import statistics
import tempfile
import time
from unittest import mock

import bench
import PIL.Image
import torch
import torchvision
from torchvision import transforms

import main


class SameCrop(transforms.RandomResizedCrop):
    """Draws a part of the image, and takes the one that it was told."""

    def get_params(self, image, scale, ratio):
        super().get_params(image, scale, ratio)
        return self.part


class SameFlip(transforms.RandomHorizontalFlip):
    """Draws whether to flip, and does what it was told."""

    def forward(self, image):
        torch.rand(1)
        return transforms.functional.hflip(image) if self.flips else image


class Example:
    """The PyTorch example's way from a file to a sample."""

    def __init__(self, size):
        self.crop, self.flip = SameCrop(size), SameFlip()
        normalize = transforms.Normalize(main.IMAGENET_MEAN, main.IMAGENET_STD)
        self.transform = transforms.Compose([self.crop, self.flip, transforms.ToTensor(), normalize])

    def read(self, path):
        with open(path, "rb") as file:
            return PIL.Image.open(file).convert("RGB")

    def sample(self, path, part, flips):
        self.crop.part, self.flip.flips = part, flips
        return self.transform(self.read(path))


def draw_all(batches, keys):
    """Return main.py's batches of images, and the part of each image that it drew."""
    parts, random_part = [], main.random_part

    def record(*how):
        parts.append(random_part(*how))
        return parts[-1]

    with mock.patch.object(main, "random_part", record):
        drawn = [batches[key] for key in keys]
    for batch in drawn:
        if isinstance(batch, Exception):
            bench.refuse(batch)
    return torch.cat([images for images, *_ in drawn]).permute(0, 3, 1, 2), parts


def same_samples(samples, parts, images, example, size):
    """Return which samples main.py flipped. Refuses if one is not what PIL makes of the same part of the image."""
    flips = []
    for i, (sample, part) in enumerate(zip(samples, parts, strict=True)):
        pil = transforms.functional.resized_crop(example.read(images.path(i)), *part, [size, size])
        theirs = transforms.functional.pil_to_tensor(pil).int()
        straight, flipped = ((sample - other).abs().max().item() for other in (theirs, theirs.flip(-1)))
        if min(straight, flipped) > 2:
            bench.refuse(f"{images.path(i)!r}: main.py's sample is {min(straight, flipped)} levels off PIL's")
        flips.append(flipped < straight)
    return flips


def run():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", metavar="DIR", help="folder of images, searched with all folders below it")
    parser.add_argument("--images", type=int, default=200, help="images to use, at most")
    parser.add_argument("--size", type=int, default=224, help="side of a sample in pixels")
    parser.add_argument("--batch", type=int, default=20, help="images a turn")
    parser.add_argument("--passes", type=int, default=10, help="times that each image is read")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as DataLoader does in its workers

    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(options.data), os.path.join(folder, "all"))
        try:
            images = main.scan_folder(folder)
        except main.RunError:
            bench.refuse(f"{options.data!r} holds no images")
        args = bench.options("--image-size", options.size)
        batches, example = main.Batches([images], args), Example(options.size)
        numbers = range(min(len(images), options.images))
        keys = [(0, 0, list(numbers[i : i + options.batch])) for i in numbers[:: options.batch]]
        samples, parts = draw_all(batches, keys)
        if samples.shape[2:] != (options.size, options.size):
            bench.refuse(f"main.py's samples have the shape {list(samples.shape[1:])}")
        flips = same_samples(samples.int(), parts, images, example, options.size)

        def indices(turn):
            return keys[turn % len(keys)][2]

        def decode(turn):
            for i in indices(turn):
                torchvision.io.decode_image(images.path(i), torchvision.io.ImageReadMode.RGB)

        contenders = {
            "main.py": lambda turn: batches[keys[turn % len(keys)]],
            "PIL chain": lambda turn: [example.sample(images.path(i), parts[i], flips[i]) for i in indices(turn)],
            "PIL chain, collated": lambda turn: torch.utils.data.default_collate(
                [(example.sample(images.path(i), parts[i], flips[i]), images.label(i)) for i in indices(turn)]
            ),
            "decoding alone": decode,
        }
        # The thread's own time: another job's turns on this core are not in it.
        seconds = bench.take_turns(contenders, options.passes * len(keys), clock=time.thread_time)
    rows = []
    for name, times in seconds.items():
        each = statistics.median(times) / options.batch
        rows.append([name, f"{each * 1e3:.2f} ms", f"{bench.times_as_fast(seconds, 'main.py', name):.2f}×"])
    bench.report(
        "input_pipeline",
        ["from file to sample, one thread", "median an image", "main.py is as fast"],
        rows,
        against_pil=bench.at_least(1.75, bench.times_as_fast(seconds, "main.py", "PIL chain")),
        against_pil_collated=round(bench.times_as_fast(seconds, "main.py", "PIL chain, collated"), 3),
        against_decoding=bench.at_least(0.70, bench.times_as_fast(seconds, "main.py", "decoding alone")),
        images=len(numbers),
        size=options.size,
    )


if __name__ == "__main__":
    run()
