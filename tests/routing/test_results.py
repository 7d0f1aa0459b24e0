"""What routed calls answer when they fail, what they say about it, and how arguments and outputs are passed."""

from __future__ import annotations

import re

import pytest

from tests.routing.conftest import Run

REFUSED = "pympsd: cuArrayGetPlane: CUDA_ERROR_NOT_SUPPORTED: pympsd does not have cuArrayGetPlane yet"


def test_a_function_that_pympsd_lacks_is_not_supported_and_named_once(run: Run) -> None:
    program = """
context()
print(int(cuda.cuArrayGetPlane(0, 0)[0]), int(cuda.cuArrayGetPlane(0, 0)[0]))
print(int(cuda.cuMemFree(4660)[0]))
"""
    done = run(program)
    assert (done.stdout, done.stderr) == ("801 801\n1\n", f"{REFUSED}\n")
    silent = run(program, PYMPSD_EXPLAIN="0")
    assert (silent.stdout, silent.stderr) == (done.stdout, "")


def test_what_pympsd_does_not_support_of_a_function_is_reported_once(run: Run) -> None:
    program = """
context()
properties = cuda.CUmemPoolProps()
properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
properties.usage = 1
print(int(cuda.cuMemPoolCreate(properties)[0]), int(cuda.cuMemPoolCreate(properties)[0]))
"""
    done = run(program)
    assert done.stdout == "801 801\n"
    reason = "pympsd: cuMemPoolCreate: CUDA_ERROR_NOT_SUPPORTED: cuMemPoolCreate: usage must be 0, not 0x1\n"
    assert done.stderr == reason


def test_a_module_of_pympsd_that_cannot_be_imported_is_named(run: Run) -> None:
    program = """
sys.modules["pympsd_client.routing.driver"] = None
print(int(cuda.cuInit(0)[0]), int(cuda.cuInit(0)[0]))
"""
    done = run(program)
    assert done.stdout == "999 999\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "pympsd: cuInit: CUDA_ERROR_UNKNOWN: pympsd itself does not work here: ModuleNotFoundError: "
    )
    assert "pympsd_client.routing.driver" in line


def test_failed_calls_are_explained(run: Run) -> None:
    program = """
context()
for _ in range(2):
    cuda.cuArrayGetPlane(0, 0)
    cuda.cuMemFree(4660)
event = ok(cuda.cuEventCreate(0))
cuda.cuLaunchKernel(4660, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
"""
    output = run(program, PYMPSD_EXPLAIN="1").stderr.splitlines()
    freed = "pympsd: cuMemFree: CUDA_ERROR_INVALID_VALUE: 0x1234 is not the start of an allocation of this process"
    assert output[:4] == [REFUSED, freed, REFUSED, freed]
    assert re.match("pympsd: cuLaunchKernel: CUDA_ERROR_INVALID_HANDLE: 0x1234 is not a kernel", output[4])


def test_null_outputs_are_not_written(run: Run) -> None:
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
print(pointer(b"cuModuleGetGlobal", P, P, P, ctypes.c_char_p)(ctypes.addressof(size), None, int(module), b"none"))
print(pointer(b"cuModuleGetFunction", P, P, ctypes.c_char_p)(ctypes.addressof(size), int(module), None))
least = ctypes.c_int(7)
print(pointer(b"cuCtxGetStreamPriorityRange", P, P)(ctypes.addressof(least), None), least.value)
"""
    assert run(program).stdout.split() == ["1", "1", "1", "500", "1", "0", "0"]


def test_outputs_that_may_be_null(run: Run) -> None:
    """What an H100 with driver 580 returned: the outputs whose places are given are written."""
    program = """
popped = context()
def pointer(name, *types):
    address = ok(cuda.cuGetProcAddress(name, 13000, 0))[0]
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(address)
P, N = ctypes.c_void_p, ctypes.c_size_t
size = N()
at = ctypes.addressof(size)
info = pointer(b"cuMemGetInfo", P, P)
print(info(None, at), size.value > 0, info(at, None), info(None, None))
memory = int(ok(cuda.cuMemAlloc(256)))
where = pointer(b"cuMemGetAddressRange", P, P, P)
print(where(None, at, memory), size.value, where(at, None, memory), size.value == memory, where(None, None, memory))
function = int(ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(VECTOR_ADD)), b"vector_add")))
parameter = pointer(b"cuFuncGetParamInfo", P, N, P, P)
print(parameter(function, 1, at, None), size.value, parameter(function, 1, None, at))
stream, graph = ok(cuda.cuStreamCreate(1)), ok(cuda.cuGraphCreate(0))
executable = ok(cuda.cuGraphInstantiate(graph, 0))
print(pointer(b"cuGraphExecUpdate", P, P, P)(int(executable), int(graph), None))
ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
print(pointer(b"cuStreamEndCapture", P, P)(int(stream), None))
potential = pointer(b"cuOccupancyMaxPotentialBlockSize", P, P, P, P, N, ctypes.c_int)
print(potential(None, at, function, None, 0, 0), potential(at, None, function, None, 0, 0))
pop = pointer(b"cuCtxPopCurrent", P)
print(pop(None), int(ok(cuda.cuCtxGetCurrent())), pop(None))
"""
    assert run(program).stdout.splitlines() == [
        "0 True 0 0",
        "0 256 0 True 0",
        "0 8 1",
        "0",
        "0",
        "1 1",
        "0 0 201",
    ]


def test_addresses_of_functions(run: Run) -> None:
    program = """
found = ok(cuda.cuGetProcAddress(b"cuInit", 13000, 0))
print(found[0] != 0, int(found[1]))
for name in (b"cuNothing", b"cudaMalloc"):
    print(int(cuda.cuGetProcAddress(name, 13000, 0)[0]))
lacking = int(ok(cuda.cuGetProcAddress(b"cuArrayGetPlane", 13000, 0))[0])
print(ctypes.CFUNCTYPE(ctypes.c_int)(lacking)())
"""
    assert run(program).stdout.split() == ["True", "0", "500", "500", "801"]


def test_counts_beyond_reason_are_refused_and_not_read(run: Run) -> None:
    program = """
context()
def function(name):
    return ctypes.CFUNCTYPE(ctypes.c_int)(int(ok(cuda.cuGetProcAddress(name, 13000, 0))[0]))
data, huge = ctypes.create_string_buffer(256), ctypes.c_uint(2**32 - 1)
print(function(b"cuPointerGetAttributes")(huge, data, data, ctypes.c_uint64(0)))
print(function(b"cuStreamBatchMemOp")(ctypes.c_uint64(0), huge, data, 0))
many, zeros, name = ctypes.c_uint(2**31 - 1), bytes(4096), ctypes.create_string_buffer(4096)
print(function(b"cuLinkCreate")(many, zeros, zeros, data), function(b"cuDeviceGetName")(name, many, 0))
graph = ctypes.c_void_p(int(ok(cuda.cuGraphCreate(0))))
print(function(b"cuGraphGetNodes")(graph, data, zeros), function(b"cuGraphGetNodes")(graph, None, data))
print(function(b"cuDevSmResourceSplitByCount")(data, zeros, zeros, None, 0, 8))
"""
    assert run(program).stdout.split() == ["1", "1", "1", "0", "1", "0", "1"]


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


@pytest.mark.parametrize("module", ["driver", "runtime"])
def test_a_callback_that_is_null_is_an_error_at_the_call(run: Run, module: str) -> None:
    null = {
        "driver": "cuda.cuStreamAddCallback(stream, cuda.CUstreamCallback(0), 0, 0)",
        "runtime": "runtime.cudaStreamAddCallback(stream, runtime.cudaStreamCallback_t(0), 0, 0)",
    }
    program = f"""
from cuda.bindings import runtime
context()
stream = ok(cuda.cuStreamCreate(0))
print(int({null[module]}[0]))
seen = []
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
function = kind(lambda stream, status, data: seen.append((status, data)))
ok(cuda.cuStreamAddCallback(stream, cuda.CUstreamCallback(_ptr=ctypes.addressof(function)), 77, 0))
ok(cuda.cuStreamSynchronize(stream))
print(seen)
"""
    assert run(program).stdout == "1\n[(0, 77)]\n"


def test_a_batch_of_copies_from_memory_that_is_not_registered(run: Run) -> None:
    program = """
context()
stream, memory = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(64))
host, back = (ctypes.c_ubyte * 64)(*range(64)), (ctypes.c_ubyte * 64)()
def at(array, offset=0):
    return cuda.CUdeviceptr(ctypes.addressof(array) + offset)
hints = [cuda.CUmemcpyAttributes()]
ok(cuda.cuMemcpyBatchAsync([memory], [at(host)], [64], 1, hints, [0], 1, stream))
ok(cuda.cuMemcpyBatchAsync([at(back), at(back, 8)], [memory, memory], [4, 4], 2, hints, [0], 1, stream))
ok(cuda.cuStreamSynchronize(stream))
print(list(back[:12]))
"""
    assert run(program).stdout == "[0, 1, 2, 3, 0, 0, 0, 0, 0, 1, 2, 3]\n"


def test_after_a_fault_an_upload_returns_its_error(run: Run) -> None:
    program = """
made = context()
image = b'''
.version 7.0
.target sm_60
.address_size 64
.visible .entry fault() { .reg .b64 %a; mov.u64 %a, 8; st.global.u64 [%a], %a; ret; }
\\0'''
function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"fault"))
graph, stream = ok(cuda.cuGraphCreate(0)), ok(cuda.cuStreamCreate(1))
ok(cuda.cuGraphAddEmptyNode(graph, [], 0))
ready = ok(cuda.cuGraphInstantiate(graph, 0))
ok(cuda.cuGraphUpload(ready, stream))
ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
print(int(cuda.cuStreamSynchronize(stream)[0]), int(cuda.cuGraphUpload(ready, stream)[0]))
"""
    assert run(program).stdout == "700 700\n"


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
routed._skip_checks()
print(int(cuda.cuCtxGetCurrent()[0]))
process.connection = kept
print(int(cuda.cuCtxGetCurrent()[0]), int(cuda.cuCtxGetCurrent()[0]))
"""
    done = run(program)
    assert (done.stdout, done.stderr) == ("3\n0 0\n", "")
