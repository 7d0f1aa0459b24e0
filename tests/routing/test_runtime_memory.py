"""Memory that a program of the CUDA runtime shares with kernels: page-locked, registered and managed memory."""

from __future__ import annotations

import pytest

from tests.routing.conftest import Run
from tests.routing.test_runtime import BEGINNING

SLOW = (
    BEGINNING
    + """
from cuda.bindings import driver

image = b'''
.version 8.0
.target sm_80
.address_size 64
.visible .entry slow(.param .u64 place)
{
    .reg .pred %p; .reg .b32 %i; .reg .b64 %d;
    ld.param.u64 %d, [place];
    mov.u32 %i, 20000;
AGAIN:
    sub.u32 %i, %i, 1;
    setp.ne.u32 %p, %i, 0;
    @%p bra AGAIN;
    st.global.u32 [%d], 42;
    ret;
}
\\0'''
kernel = ok(runtime.cudaLibraryGetKernel(ok(runtime.cudaLibraryLoadData(image, [], [], 0, [], [], 0)), b"slow"))

def write_slowly(place):
    arguments = (place,), (ctypes.c_void_p,)
    ok(driver.cuLaunchKernel(driver.CUfunction(int(kernel)), 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0))

def read(place):
    return ctypes.c_uint32.from_address(place).value

shared = int(ok(runtime.cudaHostAlloc(64, 0))), int(ok(runtime.cudaMallocManaged(64, 1)))
"""
)


def test_a_copy_of_host_memory_comes_after_the_kernels_that_write_it(run: Run) -> None:
    program = """
extent, side = runtime.cudaExtent(), runtime.cudaPitchedPtr()
extent.width, extent.height, extent.depth = 4, 1, 1
back = ctypes.c_uint32()
for place in shared:
    write_slowly(place)
    ok(runtime.cudaMemcpy(ctypes.addressof(back), place, 4, Kind.cudaMemcpyHostToHost))
    print(back.value)
"""
    assert run(program, begin=SLOW).stdout.split() == ["42", "42"]


@pytest.mark.parametrize("fill", [
    "runtime.cudaMemset(place, 1, 4)",
    "runtime.cudaMemset2D(place, 8, 1, 4, 2)",
    "runtime.cudaMemset3D(pitched(place), 1, extent)",
])  # fmt: skip
def test_the_program_sees_what_a_fill_without_a_stream_has_written(run: Run, fill: str) -> None:
    program = f"""
extent = runtime.cudaExtent()
extent.width, extent.height, extent.depth = 4, 2, 2

def pitched(place):
    side = runtime.cudaPitchedPtr()
    side.ptr, side.pitch, side.xsize, side.ysize = place, 8, 4, 2
    return side

for place in shared:
    write_slowly(place)
    ok({fill})
    print(hex(read(place)))
"""
    assert run(program, begin=SLOW).stdout.split() == ["0x1010101"] * 2


@pytest.mark.parametrize("flags", range(4))
def test_registered_memory_is_mapped_and_portable_whatever_its_flags(run: Run, flags: int) -> None:
    program = f"""
import mmap

own = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
place = ctypes.addressof(ctypes.c_char.from_buffer(own))
ok(runtime.cudaHostRegister(place, 4096, {flags}))
before = ok(runtime.cudaPointerGetAttributes(place))
print(int(before.type), before.device, int(before.devicePointer), int(before.hostPointer) == place)
device = int(ok(runtime.cudaHostGetDevicePointer(place, 0)))
write_slowly(device)
ok(runtime.cudaDeviceSynchronize())
print(read(place))
after = ok(runtime.cudaPointerGetAttributes(device))
print(int(after.type), int(after.devicePointer) == device, int(after.hostPointer) == place)
ok(runtime.cudaHostUnregister(place))
"""
    assert run(program, begin=SLOW).stdout.splitlines() == ["1 0 0 True", "42", "1 True True"]


def test_failures_because_of_a_null_output_are_last_errors(run: Run) -> None:
    program = """
library = ctypes.CDLL("libcudart.so.13")
print(library.cudaMalloc(None, 4), library.cudaPeekAtLastError(), library.cudaGetLastError())
print(library.cudaGetDeviceCount(None), library.cudaGetLastError(), library.cudaGetLastError())
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["1 1 1", "1 1 0"]


def test_the_outputs_of_an_arrays_description_are_optional(run: Run) -> None:
    program = """
library = ctypes.CDLL("libcudart.so.13")
channels = ok(runtime.cudaCreateChannelDesc(32, 0, 0, 0, runtime.cudaChannelFormatKind.cudaChannelFormatKindFloat))
array = ctypes.c_void_p(int(ok(runtime.cudaMallocArray(channels, 16, 8, 0))))
extent = (ctypes.c_size_t * 3)()
print(library.cudaArrayGetInfo(None, extent, None, array), list(extent))
print(library.cudaArrayGetInfo(None, None, None, array))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["0 [16, 8, 0]", "0"]


KINDS = """
HostToHost 0 0 0 0
HostToDevice 1 0 1 0
DeviceToHost 1 1 0 0
DeviceToDevice 1 1 1 0
Default 0 0 0 0
"""
"""For each cudaMemcpyKind the results of copies host to host, to the device, from the device, and on the device.

Recorded: H200, driver 580.159, CUDA 13.0.
"""


def test_device_memory_is_found_by_its_address_whatever_the_kind_of_the_copy(run: Run) -> None:
    program = """
device, host = int(ok(runtime.cudaMalloc(64))), (ctypes.c_ubyte * 64)(*range(64))
at = ctypes.addressof(host)
ok(runtime.cudaMemcpy(device, at, 64, Kind.cudaMemcpyHostToDevice))
pairs = (at + 8, at), (device, at), (at + 4, device), (device + 8, device)
for name in ("HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default"):
    kind = getattr(Kind, f"cudaMemcpy{name}")
    results = [int(runtime.cudaMemcpy(to, source, 2, kind)[0]) for to, source in pairs]
    assert results == [int(runtime.cudaMemcpy2D(to, 8, source, 8, 1, 2, kind)[0]) for to, source in pairs]
    print(name, *results)
ok(runtime.cudaMemset(device, 77, 8))
ok(runtime.cudaMemcpy(device + 8, device, 8, Kind.cudaMemcpyHostToHost))
ok(runtime.cudaMemcpy(at, device + 8, 8, Kind.cudaMemcpyHostToHost))
print(set(host[:8]))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [*KINDS.split("\n")[1:-1], "{77}"]


def test_allocations_and_copies_of_nothing(run: Run) -> None:
    """Recorded: H200, driver 580.159, CUDA 13.0."""
    program = """
print(int(ok(runtime.cudaMalloc(0))), int(ok(runtime.cudaMallocHost(0))), int(ok(runtime.cudaHostAlloc(0, 0))))
print(int(ok(runtime.cudaMallocManaged(0, 1))))
print(int(runtime.cudaMemcpy(0, 0, 0, Kind.cudaMemcpyHostToDevice)[0]), int(runtime.cudaFreeHost(0)[0]))
library = ctypes.CDLL("libcudart.so.13")
library.cudaMemcpy.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
print(library.cudaMemcpy(None, None, 0, 7), library.cudaMemcpy(None, None, 1, 7))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["0 0 0", "0", "0 0", "0 21"]


def test_rows_that_do_not_fit_their_pitch(run: Run) -> None:
    """Recorded: H200, driver 580.159, CUDA 13.0."""
    program = """
device, host = int(ok(runtime.cudaMalloc(1024))), (ctypes.c_ubyte * 1024)()
at, kind = ctypes.addressof(host), Kind.cudaMemcpyHostToDevice
for *pitches, width, height in ((16, 32, 32, 2), (64, 16, 32, 2), (0, 64, 16, 1), (16, 16, 0, 2), (32, 32, 32, 2)):
    print(int(runtime.cudaMemcpy2D(device, pitches[0], at, pitches[1], width, height, kind)[0]), end=" ")

def slices(pitch, rows, *extent):
    copy = runtime.cudaMemcpy3DParms()
    copy.srcPtr, copy.dstPtr, copy.extent = runtime.cudaPitchedPtr(), runtime.cudaPitchedPtr(), runtime.cudaExtent()
    for side, place, sizes in ((copy.srcPtr, at, (pitch, rows)), (copy.dstPtr, device, (20, 6))):
        side.ptr, side.pitch, side.ysize = place, *sizes
    copy.extent.width, copy.extent.height, copy.extent.depth = extent
    copy.kind = kind
    return int(runtime.cudaMemcpy3D(copy)[0])

print(slices(20, 6, 21, 6, 4), slices(20, 6, 20, 7, 4), slices(20, 0, 20, 6, 4), slices(0, 6, 20, 6, 4))
print(slices(20, 0, 20, 6, 1), slices(20, 6, 20, 6, 4), slices(20, 6, 20, 6, 0), slices(20, 6, 20, 6, 100))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["12 12 0 0 0 12 12 12 12", "0 0 0 1"]


def test_a_fill_beyond_an_allocation_sets_nothing(run: Run) -> None:
    program = """
extent = runtime.cudaExtent()
extent.width, extent.height, extent.depth = 4, 3, 2
memory = ok(runtime.cudaMalloc3D(extent))
ok(runtime.cudaMemset3D(memory, 7, extent))
extent.depth = 3
print(int(runtime.cudaMemset3D(memory, 1, extent)[0]))
byte = ctypes.c_ubyte()
ok(runtime.cudaMemcpy(ctypes.addressof(byte), int(memory.ptr), 1, Kind.cudaMemcpyDeviceToHost))
print(byte.value)
"""
    assert run(program, begin=BEGINNING).stdout.split() == ["1", "7"]


def test_flags_of_memory_and_devices(run: Run) -> None:
    """Recorded: H200, driver 580.159, CUDA 13.0."""
    program = """
own = (ctypes.c_ubyte * 64)()
place = ctypes.addressof(own)
ok(runtime.cudaHostRegister(place, 64, 0))
print(ok(runtime.cudaHostGetFlags(place)), ok(runtime.cudaHostGetFlags(ok(runtime.cudaHostAlloc(64, 0)))))
print(ok(runtime.cudaHostGetFlags(ok(runtime.cudaHostAlloc(64, 7)))), ok(runtime.cudaGetDeviceFlags()))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["2 2", "7 8"]


def test_freeing_nothing_reports_an_earlier_fault(run: Run) -> None:
    """Recorded: H200, driver 580.159, CUDA 13.0."""
    program = """
write_slowly(64)
print(int(runtime.cudaDeviceSynchronize()[0]), int(runtime.cudaFree(0)[0]), int(runtime.cudaFreeHost(0)[0]))
"""
    assert run(program, begin=SLOW).stdout.split() == ["700"] * 3


def test_a_program_that_only_loads_code_accesses_its_managed_variables(run: Run) -> None:
    program = """
context()
code = ok(cuda.cuModuleLoadData(b'''
.version 8.0
.target sm_80
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 counter = 5;
\\0'''))
place, _ = ok(cuda.cuModuleGetGlobal(code, b"counter"))
print(ctypes.c_uint32.from_address(int(place)).value)
"""
    assert run(program).stdout == "5\n"


def test_copies_of_host_memory_are_captured(run: Run) -> None:
    """Recorded: H200, driver 580.159, CUDA 13.0."""
    program = """
host, stream = (ctypes.c_uint32 * 3)(), ok(runtime.cudaStreamCreate())
at = ctypes.addressof(host)
ok(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal))
ok(runtime.cudaMemcpyAsync(at, shared[0], 4, Kind.cudaMemcpyHostToHost, stream))
ok(runtime.cudaMemcpyAsync(at + 4, at, 4, Kind.cudaMemcpyDefault, stream))
ok(runtime.cudaMemcpy2DAsync(at + 8, 4, at + 4, 4, 4, 1, Kind.cudaMemcpyHostToHost, stream))
graph = ok(runtime.cudaStreamEndCapture(stream))
ready = ok(runtime.cudaGraphInstantiate(graph, 0))
write_slowly(shared[0])
print(list(host))
ok(runtime.cudaGraphLaunch(ready, stream))
ok(runtime.cudaStreamSynchronize(stream))
print(list(host))
"""
    assert run(program, begin=SLOW).stdout.splitlines() == ["[0, 0, 0]", "[42, 42, 42]"]


def test_nodes_beyond_an_allocation_are_refused_when_they_are_added(run: Run) -> None:
    """Recorded of copies: H200, driver 580.159, CUDA 13.0."""
    program = """
graph, host, memory = ok(runtime.cudaGraphCreate(0)), (ctypes.c_ubyte * 128)(), int(ok(runtime.cudaMalloc(64)))
copy = memory, ctypes.addressof(host), 65, Kind.cudaMemcpyHostToDevice
fill = runtime.cudaMemsetParams()
fill.dst, fill.elementSize, fill.width, fill.height, fill.pitch = memory, 4, 8, 2, 36
print(int(runtime.cudaGraphAddMemcpyNode1D(graph, None, 0, *copy)[0]))
print(int(runtime.cudaGraphAddMemsetNode(graph, None, 0, fill)[0]))
fill.pitch = 32
ok(runtime.cudaGraphAddMemsetNode(graph, None, 0, fill))
"""
    assert run(program, begin=BEGINNING).stdout.split() == ["1", "1"]


def test_launches_wait_for_their_kernels_if_cuda_launch_blocking_requests_it(run: Run) -> None:
    program = """
stream = ok(runtime.cudaStreamCreateWithFlags(1))
ok(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed))
ok(runtime.cudaStreamEndCapture(stream))
for _ in range(3):  # repeated launches take a shorter way
    ctypes.c_uint32.from_address(shared[0]).value = 0
    write_slowly(shared[0])
    print(read(shared[0]))
arguments = (64,), (ctypes.c_void_p,)
print(int(driver.cuLaunchKernel(driver.CUfunction(int(kernel)), 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0)[0]))
"""
    done = run(program, begin=SLOW, CUDA_LAUNCH_BLOCKING="1")
    assert done.stdout.split() == ["42", "42", "42", "700"]


def test_a_reset_frees_page_locked_memory(run: Run) -> None:
    """Recorded: H200, driver 580.159, CUDA 13.0."""
    program = """
import mmap

own = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
host, place = int(ok(runtime.cudaHostAlloc(64, 0))), ctypes.addressof(ctypes.c_char.from_buffer(own))
ok(runtime.cudaHostRegister(place, 4096, 0))
ok(runtime.cudaDeviceReset())
ok(runtime.cudaFree(0))
print(int(ok(runtime.cudaPointerGetAttributes(host)).type), int(runtime.cudaFreeHost(host)[0]))
ok(runtime.cudaHostUnregister(place))
"""
    assert run(program, begin=BEGINNING).stdout.split() == ["0", "1"]
