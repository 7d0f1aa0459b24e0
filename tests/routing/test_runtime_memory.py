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
