"""Two ranks reduce tensors until one fails as the environment says. Prints what they saw."""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

RANKS = 2


def work(rank, store):
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    try:
        for _ in range(10):
            tensor = torch.ones(4, device=f"npu:{rank}")
            dist.all_reduce(tensor)
            torch.npu.synchronize()
    except RuntimeError as error:
        print(f"rank {rank} saw: {error}", flush=True)
        os._exit(3)
    print(f"rank {rank} finished", flush=True)


def main():
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=work, args=(rank, sys.argv[1])) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    ranks[0].join()
    ranks[1].join(1)
    print("rank 1 still runs" if ranks[1].is_alive() else "rank 1 has ended", flush=True)
    ranks[1].kill()
    ranks[1].join()
    print("exit statuses", [process.exitcode for process in ranks])


if __name__ == "__main__":
    main()
