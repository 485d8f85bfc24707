"""Every collective over hccl on simulated NPUs, compared with gloo on the CPU. Prints "ok NAME" for each."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_npu  # noqa: F401

RANKS = 3
REDUCIBLE = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64, torch.uint8]
MOVABLE = [*REDUCIBLE, torch.bool, torch.float64]
LARGE = 1_500_001  # more than fits the shared memory at a time, and not a round number


def data(rank, dtype, size=7):
    """Small whole numbers: their sums are exact in any order."""
    return (torch.arange(size).add(rank * 3 + 1) % 5).to(dtype)


def all_reduce(rank, device, dtype, op, size=7):
    tensor = data(rank, dtype, size).to(device)
    dist.all_reduce(tensor, op=op)
    return tensor


def reduce(rank, device, dtype):
    tensor = data(rank, dtype).to(device)
    dist.reduce(tensor, dst=1)
    return tensor if rank == 1 else tensor.new_zeros(1)


def broadcast(rank, device, dtype):
    tensor = data(rank, dtype).to(device)
    dist.broadcast(tensor, src=2)
    return tensor


def all_gather(rank, device, dtype):
    tensor = data(rank, dtype).to(device)
    parts = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def all_gather_into_tensor(rank, device, dtype):
    tensor = data(rank, dtype).to(device)
    whole = tensor.new_empty(RANKS * tensor.numel())
    dist.all_gather_into_tensor(whole, tensor)
    return whole


def reduce_scatter(rank, device, dtype):
    whole = data(rank, dtype, RANKS * 7).to(device)
    if device == "cpu":
        dist.all_reduce(whole)
        return whole.chunk(RANKS)[rank]
    part = whole.new_empty(7)
    dist.reduce_scatter(part, list(whole.chunk(RANKS)))
    return part


def reduce_scatter_tensor(rank, device, dtype):
    whole = data(rank, dtype, RANKS * 7).to(device)
    if device == "cpu":
        dist.all_reduce(whole)
        return whole.chunk(RANKS)[rank]
    part = whole.new_empty(7)
    dist.reduce_scatter_tensor(part, whole)
    return part


def scatter(rank, device, dtype):
    part = torch.empty(7, dtype=dtype, device=device)
    parts = list(data(rank, dtype, RANKS * 7).to(device).chunk(RANKS)) if rank == 1 else None
    dist.scatter(part, parts, src=1)
    return part


def gather(rank, device, dtype):
    tensor = data(rank, dtype).to(device)
    parts = [torch.empty_like(tensor) for _ in range(RANKS)] if rank == 2 else None
    dist.gather(tensor, parts, dst=2)
    return torch.cat(parts) if parts else tensor


def all_to_all_single(rank, device, dtype):
    tensor = data(rank, dtype, RANKS * 2).to(device)
    result = torch.empty_like(tensor)
    dist.all_to_all_single(result, tensor)
    return result


def all_to_all_uneven(rank, device, dtype):
    """Rank r sends s + 1 elements to rank s."""
    tensor = data(rank, dtype, 6).to(device)
    result = tensor.new_empty(RANKS * (rank + 1))
    dist.all_to_all_single(result, tensor, [rank + 1] * RANKS, [1, 2, 3])
    return result


def send_recv(rank, device, dtype):
    tensor = data(rank, dtype).to(device)
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
    return tensor


def batch_isend_irecv(rank, device, dtype):
    tensor = data(rank, dtype).to(device)
    result = torch.empty_like(tensor)
    after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    operations = [dist.P2POp(dist.isend, tensor, after), dist.P2POp(dist.irecv, result, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return result


def compare(rank, name, collective, *arguments):
    expected = collective(rank, "cpu", *arguments)
    result = collective(rank, f"npu:{rank}", *arguments).cpu()
    assert torch.equal(result, expected), f"{name}, rank {rank}: {result} instead of {expected}"
    if rank == 0:
        print("ok", name, flush=True)


def reductions(rank):
    ops = {op: getattr(dist.ReduceOp, op) for op in ("SUM", "PRODUCT", "MIN", "MAX")}
    for name, op in ops.items():
        for dtype in REDUCIBLE:
            compare(rank, f"all_reduce {name} {dtype}", all_reduce, dtype, op)
    compare(rank, "all_reduce large", all_reduce, torch.int32, dist.ReduceOp.SUM, LARGE)
    average = all_reduce(rank, f"npu:{rank}", torch.float32, dist.ReduceOp.AVG).cpu()
    expected = sum(data(peer, torch.float32) for peer in range(RANKS)) / RANKS
    assert torch.allclose(average, expected), f"AVG: {average} instead of {expected}"


def interleaved_groups(rank):
    """Two groups with the same ranks, used in opposite orders: neither may hold up the other."""
    first, second = dist.new_group(backend="hccl"), dist.new_group(backend="hccl")
    tensors = [torch.ones(1000, device=f"npu:{rank}") * (i + 1) for i in range(6)]
    for group in (first, second):
        dist.all_reduce(torch.ones(1, device=f"npu:{rank}"), group=group)  # creates the communicator
    works = []
    for i in range(0, len(tensors), 2):
        order = [(first, i), (second, i + 1)]
        for group, number in order if rank else reversed(order):
            works.append(dist.all_reduce(tensors[number], group=group, async_op=True))
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        assert tensor.eq(RANKS * (i + 1)).all().item(), f"group {i % 2}: {tensor}"


def work(rank, store):
    torch.npu.set_device(rank)
    dist.init_process_group("cpu:gloo,npu:hccl", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    reductions(rank)
    for collective in (
        broadcast,
        all_gather,
        all_gather_into_tensor,
        scatter,
        gather,
        send_recv,
        batch_isend_irecv,
    ):
        for dtype in MOVABLE:
            compare(rank, f"{collective.__name__} {dtype}", collective, dtype)
    for collective in (reduce, reduce_scatter, reduce_scatter_tensor, all_to_all_single, all_to_all_uneven):
        compare(rank, collective.__name__, collective, torch.float32)
    interleaved_groups(rank)
    dist.barrier()
    if rank == 0:
        print("ok interleaved groups", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=RANKS)
