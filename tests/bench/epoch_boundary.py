#!/usr/bin/env python3
"""The wait for the first batch after each change between training and validation: main.load_batches against a new
DataLoader for each pass, as in the PyTorch example.

    python3 tests/bench/epoch_boundary.py

Both load the same batches with the same number of workers, for a device that takes the same time for each. Nothing is
computed: the process that waits sleeps in between, as while a device works.
"""

import argparse
import itertools
import multiprocessing
import statistics
import time

import bench
import torch

import main


def first_and_other(waits, passes):
    """Split the waits of a run into those for the first batch of a pass and those within a pass. The run's own first
    batch counts as neither."""
    starts = set(itertools.accumulate(passes[:-1]))
    first = [wait for i, wait in enumerate(waits) if i in starts]
    return first, [wait for i, wait in enumerate(waits) if i and i not in starts]


def timed(batches, step_seconds):
    """Go through batches, with a step after each. Returns the waits, the workers of each batch and the targets."""
    waits, workers, targets = [], [], []
    while True:
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return waits, workers, targets
        waits.append(time.perf_counter() - start)
        workers.append(frozenset(process.pid for process in multiprocessing.active_children()))
        targets.append(batch[1])
        time.sleep(step_seconds)


def run():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=4, help="epochs")
    parser.add_argument("--steps", type=int, default=20, help="training steps an epoch")
    parser.add_argument("--batch-size", type=int, default=4, help="images a step")
    parser.add_argument("--image-size", type=int, default=64, help="side of the generated images")
    parser.add_argument("--workers", type=int, default=2, help="data loading processes")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="time that a step takes")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other would wait for other jobs too

    size = "--image-size", options.image_size, "--resize-size", options.image_size
    data = "--dummy", options.steps * options.batch_size, "--batch-size", options.batch_size
    args = bench.options(*size, *data, "--epochs", options.epochs, "--workers", options.workers)
    datasets = main.open_datasets(args)
    keys = list(main.run_order(datasets, args))
    passes = [list(batches) for _, batches in itertools.groupby(keys, key=lambda key: key[:2])]

    def new_loaders():
        for batches in passes:
            loading = {"num_workers": options.workers, "multiprocessing_context": "fork"}
            yield from torch.utils.data.DataLoader(main.Batches(datasets, args), None, sampler=batches, **loading)

    ours = main.load_batches(datasets, torch.device("cpu"), torch.distributed.HashStore(), args)
    counts = [len(batches) for batches in passes]
    measured = {}
    for name, batches in ("main.py", ours), ("a new DataLoader a pass", new_loaders()):
        waits, workers, targets = timed(batches, options.step_seconds)
        measured[name] = *first_and_other(waits, counts), len(set().union(*workers)), targets
    if not all(map(torch.equal, *(targets for *_, targets in measured.values()))):
        bench.refuse("the two load different batches")

    rows, cost = [], {}
    for name, (first, other, processes, _) in measured.items():
        waits = statistics.median(first), statistics.median(other), max(first)
        cost[name] = (waits[0] - waits[1]) / options.step_seconds
        rows.append([name, *(f"{1e3 * wait:.2f} ms" for wait in waits), processes, f"{cost[name]:.2f}"])
    head = ["first batch, median", "other batches, median", "first batch, longest", "workers in all", "cost in steps"]
    bench.report(
        "epoch_boundary",
        [f"{len(counts) - 1} changes, waits", *head],
        rows,
        workers_in_all=bench.at_most(options.workers, measured["main.py"][2]),
        cost_in_steps=bench.at_most(0.25, cost["main.py"]),
        new_loader_cost_in_steps=round(cost["a new DataLoader a pass"], 3),
    )


if __name__ == "__main__":
    run()
