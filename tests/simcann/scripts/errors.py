"""What goes wrong on one device, and what it looks like in Python. Each line begins with a name."""

import ctypes
import json
import os

import torch
import torch_npu  # noqa: F401


def attempt(name, function):
    try:
        print(f"{name}: no error, {function()}", flush=True)
    except Exception as error:
        print(f"{name}: {type(error).__name__} {' '.join(str(error).split())}", flush=True)


def counters():
    function = ctypes.CDLL("libascendcl.so").simcann_counters_json
    function.restype = ctypes.c_char_p
    return json.loads(function())


x = torch.arange(16.0, device="npu:0").reshape(4, 4)
attempt("unknown", lambda: torch.linalg.qr(x))
attempt("memory", lambda: torch.empty(1 << 30, dtype=torch.uint8, device="npu:0"))
attempt("device", lambda: torch.zeros(1, device="npu:2"))
attempt("alive", lambda: (x + 1).sum().item())

x = x * 1.0
before = counters()
for _ in range(5):
    x = x * 1.0
    x.sum().item()
after = counters()
attempt("muls", lambda: after["operators"]["aclnnMuls"] - before["operators"]["aclnnMuls"])
attempt("copies", lambda: after["copies"]["device_to_host"] - before["copies"]["device_to_host"])
attempt("waits", lambda: after["host_waits"]["stream"] - before["host_waits"]["stream"])

# The device finds this out after the launch, and the host at its next wait. Nothing works any more then.
attempt("index", lambda: x[torch.tensor([100], device="npu:0")].cpu())
os._exit(5)
