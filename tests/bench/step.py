#!/usr/bin/env python3
"""A training step of ResNet-18 on the CPU: main.train against a plain loop (NCHW, SGD a parameter at a time, loss and
accuracy read every step).

    python3 tests/bench/step.py

Both start from the same weights, take the same batch and use the same number of threads; after the same number of steps
their losses must agree.
"""

import argparse
import contextlib
import io
import itertools
import statistics
import time
import types

import bench
import torch
from torch import nn

import main


class Plain:
    """The loop as one writes it first."""

    def __init__(self, model, batch, args):
        self.model, (self.images, self.targets) = model, batch
        self.optimizer = torch.optim.SGD(
            model.parameters(), args.lr, args.momentum, weight_decay=args.weight_decay, foreach=False, fused=False
        )

    def train(self, steps):
        """Return the mean loss."""
        self.model.train()
        losses = []
        for _ in range(steps):
            output = self.model(self.images)
            loss = nn.functional.cross_entropy(output, self.targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            for hits in main.accuracy(output, self.targets, topk=(1, 5)):
                hits.item()
        return statistics.mean(losses)


class Ours:
    """main.train with what main_worker gives it on a CPU."""

    def __init__(self, model, batch, args, compiled=False):
        platform = main.PLATFORMS["cpu"]
        self.model, self.args = model.to(memory_format=platform.memory_format), args
        self.optimizer = main.create_optimizer(self.model, args, platform)
        images, targets = batch
        images = images.contiguous(memory_format=platform.memory_format)
        self.batches = itertools.repeat((images, targets, len(images)))
        self.call = torch.compile(model) if compiled else model

    def train(self, steps):
        """Return the mean loss."""
        cpu = torch.device("cpu")
        progress = main.ProgressMeter(steps, "", cpu)
        scaler = main.PLATFORMS["cpu"].grad_scaler(enabled=False)
        saver = types.SimpleNamespace(after_step=lambda *step, due: None)
        criterion = nn.CrossEntropyLoss()
        with contextlib.redirect_stdout(io.StringIO()):
            figures, _ = main.train(
                self.batches, self.call, criterion, self.optimizer, scaler, progress, 0, saver, cpu, self.args
            )
        return figures["train_loss"]


def run():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", default="resnet18", help="model")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step")
    parser.add_argument("--image-size", type=int, default=224, help="side of an image in pixels")
    parser.add_argument("--steps", type=int, default=1, help="steps a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--threads", type=int, default=1, help="threads of both; with one, its own time is taken")
    parser.add_argument("--compile", action="store_true", help="a third contender: main.train with torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    args = bench.options("--arch", options.arch, "--batch-size", options.batch_size, "--image-size", options.image_size)
    torch.manual_seed(1)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    batch = images, torch.randint(0, 1000, (options.batch_size,))
    weights = main.create_model(args, 1000).state_dict()

    def new(kind, **how):
        model = main.create_model(args, 1000)
        model.load_state_dict(weights)
        return kind(model, batch, args, **how)

    contenders = {"main.py": new(Ours), "plain loop": new(Plain)}
    if options.compile:
        contenders["main.py, torch.compile"] = new(Ours, compiled=True)
    losses = {name: contender.train(2) for name, contender in contenders.items()}
    if max(losses.values()) > 1.001 * min(losses.values()):
        bench.refuse(f"after the same two steps the losses differ: {losses}")

    # One thread's own time has nothing of other jobs in it. Threads that wait for each other have no such time.
    seconds = bench.take_turns(
        {name: lambda _, contender=contender: contender.train(options.steps) for name, contender in contenders.items()},
        options.rounds,
        clock=time.process_time if options.threads == 1 else time.perf_counter,
    )
    rows = [
        [name, f"{min(times) / options.steps:.3f} s", f"{bench.times_as_fast(seconds, name, 'plain loop'):.2f}×"]
        for name, times in seconds.items()
    ]
    figures = {"against_plain_loop": bench.at_least(1.10, bench.times_as_fast(seconds, "main.py", "plain loop"))}
    if options.compile:
        figures["compiled"] = round(bench.times_as_fast(seconds, "main.py, torch.compile", "main.py"), 3)
    bench.report(
        "step",
        [
            f"{options.arch}, batch {options.batch_size}, {options.threads} threads",
            "best step",
            "as fast as the plain loop",
        ],
        rows,
        **figures,
        threads=options.threads,
    )


if __name__ == "__main__":
    run()
