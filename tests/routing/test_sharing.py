"""Two programs of cuda.bindings, which know nothing of pympsd, share memory and events of one device."""

from __future__ import annotations

import pytest

from tests.routing.conftest import Run

IPC = """
import multiprocessing
from cuda.bindings import runtime

def raw(handle):
    return ctypes.string_at(handle.getPtr(), 64)

def made(kind, data):
    handle = kind()
    ctypes.memmove(handle.getPtr(), data, 64)
    return handle

def child(inbox, outbox):
    context()
    data, foreign = inbox.get(timeout=60), cuda.CUresult.CUDA_ERROR_MAP_FAILED
    memory = int(ok(cuda.cuIpcOpenMemHandle(made(cuda.CUipcMemHandle, data), 1)))
    event = ok(cuda.cuIpcOpenEventHandle(made(cuda.CUipcEventHandle, inbox.get(timeout=60))))
    ok(cuda.cuEventSynchronize(event))
    back = bytearray(8)
    ok(cuda.cuMemcpyDtoH(back, memory, 8))
    ok(cuda.cuMemcpyHtoD(memory, b"from the child", 14))
    outbox.put(bytes(back))
    assert inbox.get(timeout=60) == "freed"
    back = bytearray(14)
    ok(cuda.cuMemcpyDtoH(back, memory, 14))
    ok(cuda.cuIpcCloseMemHandle(memory))
    again = cuda.cuIpcOpenMemHandle(made(cuda.CUipcMemHandle, data), 1)
    outbox.put((bytes(back), again[0] == foreign))
    handle = runtime.cudaIpcMemHandle_t()
    ctypes.memmove(handle.getPtr(), inbox.get(timeout=60), 64)
    place = int(ok(runtime.cudaIpcOpenMemHandle(handle, 1)))
    ok(runtime.cudaMemset(place, 9, 100))
    ok(runtime.cudaDeviceSynchronize())
    ok(runtime.cudaIpcCloseMemHandle(place))

if __name__ == "__main__":
    context()
    memory = int(ok(cuda.cuMemAlloc(100)))
    ok(cuda.cuMemcpyHtoD(memory, b"a parent", 8))
    event = ok(cuda.cuEventCreate(6))
    ok(cuda.cuEventRecord(event, 0))
    start = multiprocessing.get_context("spawn")
    inbox, outbox = start.Queue(), start.Queue()
    process = start.Process(target=child, args=(inbox, outbox))
    process.start()
    inbox.put(raw(ok(cuda.cuIpcGetMemHandle(memory))))
    inbox.put(raw(ok(cuda.cuIpcGetEventHandle(event))))
    print(outbox.get(timeout=60))
    back = bytearray(14)
    ok(cuda.cuMemcpyDtoH(back, memory, 14))
    print(bytes(back))
    ok(cuda.cuMemFree(memory))
    inbox.put("freed")
    print(*outbox.get(timeout=60))
    place = int(ok(runtime.cudaMalloc(100)))
    handle = ok(runtime.cudaIpcGetMemHandle(place))
    inbox.put(ctypes.string_at(handle.getPtr(), 64))
    process.join()
    back = bytearray(100)
    ok(cuda.cuMemcpyDtoH(back, place, 100))
    print(process.exitcode, set(back))
"""


def test_memory_and_events(run: Run) -> None:
    assert run(IPC).stdout.splitlines() == ["b'a parent'", "b'from the child'", "b'from the child' True", "0 {9}"]


POOLS = """
import multiprocessing
from multiprocessing.reduction import DupFd
from cuda.bindings import runtime

KIND = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

def child(place, passed, inbox, outbox):
    ok(cuda.cuInit(0))
    fd = passed.detach()
    pool = ok(cuda.cuMemPoolImportFromShareableHandle(fd, KIND, 0))
    os.close(fd)
    data = cuda.CUmemPoolPtrExportData()
    ctypes.memmove(data.getPtr(), inbox.get(timeout=60), 64)
    memory = int(ok(cuda.cuMemPoolImportPointer(pool, data)))
    assert ok(cuda.cuDevicePrimaryCtxGetState(0))[1] == 1
    context()
    back = bytearray(8)
    ok(cuda.cuMemcpyDtoH(back, memory, 8))
    if place == "HOST_NUMA":
        assert ctypes.string_at(memory, 8) == bytes(back)
    ok(cuda.cuMemcpyHtoD(memory, b"from the child", 14))
    ok(cuda.cuMemFreeAsync(memory, 0))
    ok(cuda.cuMemPoolDestroy(pool))
    ok(cuda.cuCtxSynchronize())
    ok(cuda.cuDevicePrimaryCtxRelease(0))
    assert ok(cuda.cuDevicePrimaryCtxGetState(0))[1] == 0
    outbox.put(bytes(back))

if __name__ == "__main__":
    context()
    place = os.environ["PLACE"]
    properties = cuda.CUmemPoolProps()
    properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = getattr(cuda.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{place}")
    properties.handleTypes = KIND
    pool = ok(cuda.cuMemPoolCreate(properties))
    memory = int(ok(cuda.cuMemAllocFromPoolAsync(100, pool, 0)))
    ok(cuda.cuMemcpyHtoD(memory, b"a parent", 8))
    of_runtime = runtime.cudaMemAllocationHandleType.cudaMemHandleTypePosixFileDescriptor
    fd = ok(runtime.cudaMemPoolExportToShareableHandle(int(pool), of_runtime, 0))
    start = multiprocessing.get_context("spawn")
    multiprocessing.set_start_method("spawn")
    inbox, outbox = start.Queue(), start.Queue()
    process = start.Process(target=child, args=(place, DupFd(fd), inbox, outbox))
    process.start()
    data = ok(runtime.cudaMemPoolExportPointer(memory))
    inbox.put(ctypes.string_at(data.getPtr(), 64))
    print(outbox.get(timeout=60))
    process.join()
    back = bytearray(14)
    ok(cuda.cuMemcpyDtoH(back, memory, 14))
    print(process.exitcode, bytes(back))
"""


@pytest.mark.parametrize("place", ["DEVICE", "HOST_NUMA"])
def test_programs_share_pools(run: Run, place: str) -> None:
    assert run(POOLS, PLACE=place).stdout.splitlines() == ["b'a parent'", "0 b'from the child'"]
