"""What routed calls answer when they fail, what they say about it, and how arguments and outputs are passed."""

from __future__ import annotations

import re

from tests.routing.conftest import Run


def test_a_function_that_pympsd_lacks_is_not_supported(run: Run) -> None:
    program = """
context()
print(int(cuda.cuArrayGetPlane(0, 0)[0]), int(cuda.cuArrayGetPlane(0, 0)[0]))
print(int(cuda.cuMemFree(4660)[0]))
"""
    silent = run(program)
    assert (silent.stdout, silent.stderr) == ("801 801\n1\n", "")


def test_failed_calls_are_explained(run: Run) -> None:
    program = """
context()
for _ in range(2):
    cuda.cuArrayGetPlane(0, 0)
    cuda.cuMemFree(4660)
event = ok(cuda.cuEventCreate(0))
cuda.cuLaunchKernel(4660, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
"""
    said = run(program, PYMPSD_EXPLAIN="1").stderr.splitlines()
    refused = "pympsd: cuArrayGetPlane: CUDA_ERROR_NOT_SUPPORTED: pympsd does not have cuArrayGetPlane yet"
    freed = "pympsd: cuMemFree: CUDA_ERROR_INVALID_VALUE: 0x1234 is not the start of an allocation of this process"
    assert said[:3] == [refused, freed, freed]  # what is missing is named once
    assert re.match("pympsd: cuLaunchKernel: CUDA_ERROR_INVALID_HANDLE: 0x1234 is no kernel", said[3])


def test_null_outputs(run: Run) -> None:
    # As C calls them: cuda.bindings itself always passes a place for an output.
    program = """
context()
def pointer(name, *types):
    address = ok(cuda.cuGetProcAddress(name, 13000, 0))[0]
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(address)
P = ctypes.c_void_p
print(pointer(b"cuMemAlloc", P, ctypes.c_size_t)(None, 16))
print(pointer(b"cuDeviceGetCount", P)(None))
size, module = ctypes.c_size_t(), ok(cuda.cuModuleLoadData(VECTOR_ADD))
print(pointer(b"cuModuleGetGlobal", P, P, P, ctypes.c_char_p)(None, None, int(module), b"none"))
print(pointer(b"cuModuleGetFunction", P, P, ctypes.c_char_p)(ctypes.addressof(size), int(module), None))
least = ctypes.c_int(7)
print(pointer(b"cuCtxGetStreamPriorityRange", P, P)(ctypes.addressof(least), None), least.value)
"""
    assert run(program).stdout.split() == ["1", "1", "500", "1", "0", "0"]


def test_addresses_of_functions(run: Run) -> None:
    program = """
found = ok(cuda.cuGetProcAddress(b"cuInit", 13000, 0))
print(found[0] != 0, int(found[1]))
for name in (b"cuNothing", b"cudaMalloc", b"cuArrayGetPlane"):
    print(int(cuda.cuGetProcAddress(name, 13000, 0)[0]))
"""
    assert run(program).stdout.split() == ["True", "0", "500", "500", "500"]


def test_counts_beyond_reason_are_refused_and_not_read(run: Run) -> None:
    program = """
context()
def function(name):
    return ctypes.CFUNCTYPE(ctypes.c_int)(int(ok(cuda.cuGetProcAddress(name, 13000, 0))[0]))
data, huge = ctypes.create_string_buffer(256), ctypes.c_uint(2**32 - 1)
print(function(b"cuPointerGetAttributes")(huge, data, data, ctypes.c_uint64(0)))
print(function(b"cuStreamBatchMemOp")(ctypes.c_uint64(0), huge, data, 0))
"""
    assert run(program).stdout.split() == ["1", "1"]


def test_outputs_of_each_kind(run: Run) -> None:
    program = """
made = context()
print(ok(cuda.cuDeviceGetName(8, 0)))
print(len(ok(cuda.cuDeviceGetUuid(0)).bytes), any(ok(cuda.cuDeviceGetUuid(0)).bytes))
print(ok(cuda.cuGetErrorName(cuda.CUresult.CUDA_ERROR_NOT_FOUND)), len(ok(cuda.cuMemGetInfo())))
start, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
ok(cuda.cuEventRecord(start, 0)); ok(cuda.cuEventRecord(end, 0)); ok(cuda.cuEventSynchronize(end))
print(ok(cuda.cuEventElapsedTime(start, end)) >= 0)
print(int(ok(cuda.cuCtxGetCurrent())) == int(made), ok(cuda.cuDevicePrimaryCtxGetState(0)))
affinity = ok(cuda.cuCtxGetExecAffinity(cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT))
print(affinity.param.smCount.val > 0)
"""
    assert run(program).stdout.splitlines() == [
        "b'NVIDIA \\x00'", "16 True", "b'CUDA_ERROR_NOT_FOUND' 2", "True", "True (0, 1)", "True",
    ]  # fmt: skip


def test_structures_and_arrays_as_inputs(run: Run) -> None:
    program = """
context()
parameters, affinity = cuda.CUctxCreateParams(), cuda.CUexecAffinityParam()
affinity.type = cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
affinity.param.smCount.val = 2
parameters.execAffinityParams, parameters.numExecAffinityParams = [affinity], 1
ok(cuda.cuCtxCreate(parameters, 0, 0))
print(2 <= ok(cuda.cuCtxGetExecAffinity(affinity.type)).param.smCount.val < 60)
log = bytearray(200)
option = cuda.CUjit_option
answer = cuda.cuModuleLoadDataEx(
    b"nonsense\\0", 2, [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES], [log, 200]
)
print(int(answer[0]), b"nonsense" in log)
memory, rows = ok(cuda.cuMemAlloc(64)), (ctypes.c_char * 64)(*range(64))
copy = cuda.CUDA_MEMCPY2D()
copy.srcMemoryType, copy.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_HOST, cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
copy.srcHost, copy.dstDevice, copy.srcPitch, copy.WidthInBytes, copy.Height = ctypes.addressof(rows), memory, 16, 4, 4
ok(cuda.cuMemcpy2D(copy))
back = (ctypes.c_char * 16)()
ok(cuda.cuMemcpyDtoH(ctypes.addressof(back), memory, 16))
print(list(back.raw))
"""
    rows = [row * 16 + at for row in range(4) for at in range(4)]
    assert run(program).stdout.splitlines() == ["True", "218 True", str(rows)]


def test_a_host_function_in_c(run: Run) -> None:
    program = """
context()
seen = []
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append((data, int(cuda.cuMemFree(0)[0]))))
stream = ok(cuda.cuStreamCreate(0))
ok(cuda.cuLaunchHostFunc(stream, cuda.CUhostFn(_ptr=ctypes.addressof(function)), 77))
ok(cuda.cuStreamSynchronize(stream))
print(seen)
"""
    assert run(program).stdout == "[(77, 800)]\n"


def test_attributes_of_an_address(run: Run) -> None:
    program = """
context()
memory, attribute = ok(cuda.cuMemAlloc(64)), cuda.CUpointer_attribute
kinds = [attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]
print([int(one) for one in ok(cuda.cuPointerGetAttributes(2, kinds, memory))])
print(int(ok(cuda.cuPointerGetAttribute(kinds[0], memory))))
"""
    assert run(program).stdout.splitlines() == ["[2, 0]", "2"]


def test_a_launch_whose_attributes_are_null(run: Run) -> None:
    program = """
context()
address = ok(cuda.cuGetProcAddress(b"cuLaunchKernelEx", 13000, 0))[0]
launch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(address)
config = (ctypes.c_uint64 * 7)(1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32, 0, 0, 0, 2)  # numAttrs is 2, attrs NULL
print(launch(ctypes.addressof(config), 16, None, None))
"""
    assert run(program).stdout == "1\n"


def test_checks_that_another_thread_makes_fail_meanwhile_are_made_again(run: Run) -> None:
    program = """
from pympsd_client._objects.process import process
from pympsd_client.routing import driver as routed
context()
ok(cuda.cuCtxGetCurrent())
kept, process.connection = process.connection, None  # as another thread does after the checks
routed._checked()
print(int(cuda.cuCtxGetCurrent()[0]))
process.connection = kept
print(int(cuda.cuCtxGetCurrent()[0]), int(cuda.cuCtxGetCurrent()[0]))
"""
    done = run(program)
    assert (done.stdout, done.stderr) == ("3\n0 0\n", "")
