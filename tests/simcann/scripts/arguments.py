"""Calls an operator with argument lists that are not the ones it has. Prints what it answers."""

import ctypes

import torch_npu  # noqa: F401  (loads the libraries)

opapi = ctypes.CDLL("libopapi.so")
acl = ctypes.CDLL("libascendcl.so")
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
for create in (opapi.aclCreateTensor, opapi.aclCreateScalar):
    create.restype = ctypes.c_void_p

FLOAT = 0
memory = (ctypes.c_float * 4)()
sizes, strides = (ctypes.c_int64 * 1)(4), (ctypes.c_int64 * 1)(1)
tensor = ctypes.c_void_p(
    opapi.aclCreateTensor(
        sizes, ctypes.c_uint64(1), FLOAT, strides, ctypes.c_int64(0), 2, sizes, ctypes.c_uint64(1), memory
    )
)
scalar = ctypes.c_void_p(opapi.aclCreateScalar(memory, FLOAT))
size, executor = ctypes.c_uint64(0), ctypes.c_void_p(None)
results = (ctypes.byref(size), ctypes.byref(executor))


def call(name, function, *arguments):
    status = function(*arguments)
    print(f"{name}: {status} {acl.aclGetRecentErrMsg().decode()}", flush=True)


relu = opapi.aclnnReluGetWorkspaceSize  # (self, out, workspace size, executor)
call("scalar", relu, tensor, scalar, *results)
call("null", relu, None, tensor, *results)
call("number", relu, ctypes.c_void_p(1234), tensor, *results)
call("too few", relu, tensor, *results)
call("too many", relu, tensor, tensor, tensor, *results)
opapi.aclDestroyTensor(tensor)
call("destroyed", relu, tensor, tensor, *results)
call("executor", opapi.aclnnRelu, None, ctypes.c_uint64(0), ctypes.c_void_p(1234), None)
