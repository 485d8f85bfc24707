"""What the benchmarks share: main.py's options, taking turns, a table and a line of JSON."""

import json
import math
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

import main


def options(*argv, rank=0, ranks=1):
    """Return main.py's options as one of `ranks` processes on this machine's CPU has them when it trains."""
    args = main.parse_args(["--device", "cpu", "--seed", "1", *map(str, argv)])
    args.processes = args.world_size = ranks
    args.process_id = args.rank = rank
    args.global_batch, args.rank_batch = args.batch_size, args.batch_size // ranks
    args.rank_workers = math.ceil(args.workers / ranks)
    args.start_step, args.hosts = 0, None
    args.places = torch.zeros(ranks, 3, dtype=torch.int64)
    return args


def take_turns(contenders, rounds, clock=time.perf_counter):
    """Return {name: seconds of each round} of functions that are called with the round's number, in turn, so that
    what else the machine does meets all of them alike. A round before the first is not counted."""
    seconds = {name: [] for name in contenders}
    for i in range(-1, rounds):
        for name, run in contenders.items():
            start = clock()
            run(max(i, 0))
            if i >= 0:
                seconds[name].append(clock() - start)
    return seconds


def times_as_fast(seconds, name, other):
    """Return the median over the rounds of how many times as fast as `other` `name` was."""
    return statistics.median(b / a for a, b in zip(seconds[name], seconds[other], strict=True))


def at_least(target, value):
    return {"value": round(value, 3), "target": f">= {target}", "met": value >= target}


def at_most(target, value):
    return {"value": round(value, 3), "target": f"<= {target}", "met": value <= target}


def report(benchmark, head, rows, **figures):
    """Print a table, then all figures as one line of JSON."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        print("|", " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), "|")
    print(json.dumps({"benchmark": benchmark, **figures}))


def refuse(reason):
    """End the benchmark: what it would compare is not the same work, or cannot be had."""
    sys.exit(f"{Path(sys.argv[0]).name}: error: {reason}")
