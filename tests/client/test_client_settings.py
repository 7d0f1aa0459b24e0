"""Limits, preferences, identifiers and attributes; stream memory operations; batched copies; on an emulated H200.

Figures are those that driver 580 was recorded to give on an H200.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client._api import settings
from tests.client.conftest import ok

Limit = cuda.CUlimit
STACK, FIFO, HEAP, DEPTH, PENDING, FETCH, PERSISTING, SHARED, CIG, FALLBACK = (Limit(index) for index in range(10))
Id = cuda.CUstreamAttrID
KERNEL = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry k() { .shared .b8 s[40]; ret; }
"""


def _name(answer: tuple[Any, ...]) -> str:
    return str(answer[0].name).removeprefix("CUDA_ERROR_").removeprefix("CUDA_")


# --- contexts


def test_contexts_have_the_limits_of_an_h200(context: Any) -> None:
    limits = {item.name: cuda.cuCtxGetLimit(item) for item in Limit}
    values = {name.removeprefix("CU_LIMIT_"): value for name, (code, value) in limits.items() if not int(code)}
    assert values == {
        "STACK_SIZE": 1024,
        "PRINTF_FIFO_SIZE": 1 << 20,
        "MALLOC_HEAP_SIZE": 8388608,
        "DEV_RUNTIME_PENDING_LAUNCH_COUNT": 2048,
        "MAX_L2_FETCH_GRANULARITY": 64,
        "PERSISTING_L2_CACHE_SIZE": 11796480,
        "SHMEM_SIZE": 232448,
        "CIG_ENABLED": 0,
    }
    for lacking in (DEPTH, FALLBACK):
        assert _name(cuda.cuCtxGetLimit(lacking)) == _name(cuda.cuCtxSetLimit(lacking, 1)) == "UNSUPPORTED_LIMIT"
    for wrong in (-1, 11, 99):
        assert _name(cuda.cuCtxGetLimit(wrong)) == _name(cuda.cuCtxSetLimit(wrong, 1)) == "INVALID_VALUE"


@pytest.mark.parametrize(
    ("limit", "value", "result", "then"),
    [
        (STACK, 0, "SUCCESS", 0),
        (STACK, 4096, "SUCCESS", 4096),
        (STACK, 1 << 63, "INVALID_VALUE", 1024),
        (FIFO, 4096, "SUCCESS", 4096),
        (FIFO, 1 << 63, "SUCCESS", 150109880320 // 8),
        (HEAP, 1 << 24, "SUCCESS", 1 << 24),
        (PENDING, 100, "SUCCESS", 100),
        (FETCH, 129, "INVALID_VALUE", 64),
        (PERSISTING, 39321600, "SUCCESS", 39321600),
        (PERSISTING, 39321601, "INVALID_VALUE", 11796480),
        (SHARED, 0, "NOT_PERMITTED", 232448),
        (CIG, 0, "NOT_PERMITTED", 0),
    ],
)
def test_limits_that_are_set(context: Any, limit: Any, value: int, result: str, then: int) -> None:
    assert _name(cuda.cuCtxSetLimit(limit, value)) == result
    assert ok(cuda.cuCtxGetLimit(limit)) == then
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert ok(cuda.cuCtxGetLimit(limit)) == ok(cuda.cuCtxGetLimit(limit))


def test_preferences_are_kept_and_checked(context: Any) -> None:
    assert ok(cuda.cuCtxGetCacheConfig()) == cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_NONE
    ok(cuda.cuCtxSetCacheConfig(cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_EQUAL))
    assert ok(cuda.cuCtxGetCacheConfig()) == cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_EQUAL
    assert _name(cuda.cuCtxSetCacheConfig(4)) == "INVALID_VALUE"
    ok(cuda.cuCtxSetSharedMemConfig(cuda.CUsharedconfig.CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE))
    assert ok(cuda.cuCtxGetSharedMemConfig()) == cuda.CUsharedconfig.CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE
    assert _name(cuda.cuCtxSetSharedMemConfig(3)) == "INVALID_VALUE"
    for answer in (cuda.cuCtxResetPersistingL2Cache(), cuda.cuProfilerStart(), cuda.cuProfilerStop()):
        assert _name(answer) == "SUCCESS"


def test_identifiers_are_unique(context: Any) -> None:
    stream = ok(cuda.cuStreamCreate(0))
    second = ok(cuda.cuCtxCreate(None, 0, 1))
    ids = [ok(cuda.cuCtxGetId(context)), ok(cuda.cuCtxGetId(second)), ok(cuda.cuStreamGetId(stream))]
    ids += [ok(cuda.cuStreamGetId(item)) for item in (0, 2)]
    ids.append(ok(cuda.cuStreamGetId(ok(cuda.cuStreamCreate(0)))))
    assert ok(cuda.cuCtxGetId(None)) == ids.pop(1) == ids[2]  # the legacy stream's is its context's
    assert len(set(ids)) == len(ids)
    assert int(ok(cuda.cuStreamGetDevice(stream))) == 0
    assert int(ok(cuda.cuStreamGetDevice(0))) == 1
    assert _name(cuda.cuCtxGetId(12345)) == "INVALID_CONTEXT"
    assert _name(cuda.cuStreamGetId(12345)) == _name(cuda.cuStreamGetDevice(12345)) == "INVALID_HANDLE"


def test_settings_need_a_context(devices: None) -> None:
    for answer in (
        cuda.cuCtxGetLimit(STACK),
        cuda.cuCtxSetLimit(STACK, 1),
        cuda.cuCtxGetCacheConfig(),
        cuda.cuCtxSetCacheConfig(0),
        cuda.cuCtxGetSharedMemConfig(),
        cuda.cuCtxSetSharedMemConfig(0),
        cuda.cuCtxResetPersistingL2Cache(),
        cuda.cuCtxGetId(0),
        cuda.cuProfilerStart(),
        cuda.cuProfilerStop(),
        cuda.cuStreamGetId(0),
        cuda.cuStreamGetDevice(0),
        cuda.cuStreamGetAttribute(0, Id.CU_LAUNCH_ATTRIBUTE_PRIORITY),
        cuda.cuStreamWaitValue32(0, 16, 0, 0),
        cuda.cuStreamWriteValue32(0, 16, 0, 0),
        cuda.cuFlushGPUDirectRDMAWrites(0, 0),
    ):
        assert _name(answer) == "INVALID_CONTEXT"


# --- devices, events


def test_devices_report_capability_and_identifiers(context: Any) -> None:
    assert ok(cuda.cuDeviceComputeCapability(0)) == (9, 0)
    assert _name(cuda.cuDeviceComputeCapability(7)) == _name(cuda.cuDeviceGetLuid(7)) == "INVALID_DEVICE"
    assert cuda.cuDeviceGetLuid(0) == (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED, None, None)
    assert _name(cuda.cuFlushGPUDirectRDMAWrites(0, 0)) == "NOT_SUPPORTED"


def test_flags_of_recording(context: Any) -> None:
    event = ok(cuda.cuEventCreate(0))
    ok(cuda.cuEventRecordWithFlags(event, 0, 0))
    ok(cuda.cuEventSynchronize(event))
    for flags, name in ((1, "ILLEGAL_STATE"), (2, "INVALID_VALUE")):
        assert _name(cuda.cuEventRecordWithFlags(event, 0, flags)) == name
    assert _name(cuda.cuEventRecordWithFlags(12345, 0, 0)) == "INVALID_HANDLE"


# --- attributes of streams


def test_attributes_of_streams(context: Any) -> None:
    stream, other = ok(cuda.cuStreamCreateWithPriority(0, -2)), ok(cuda.cuStreamCreate(0))
    policy, priority = Id.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, Id.CU_LAUNCH_ATTRIBUTE_PRIORITY
    assert ok(cuda.cuStreamGetAttribute(stream, priority)).priority == -2
    assert int(ok(cuda.cuStreamGetAttribute(stream, policy)).syncPolicy) == 1
    value = cuda.CUstreamAttrValue()
    value.syncPolicy = cuda.CUsynchronizationPolicy.CU_SYNC_POLICY_BLOCKING_SYNC
    ok(cuda.cuStreamSetAttribute(stream, policy, value))
    ok(cuda.cuStreamCopyAttributes(other, stream))
    for item in (stream, other):
        assert ok(cuda.cuStreamGetAttribute(item, policy)).syncPolicy == value.syncPolicy
    assert ok(cuda.cuStreamGetAttribute(other, priority)).priority == 0
    assert _name(cuda.cuStreamSetAttribute(stream, priority, value)) == "NOT_SUPPORTED"
    assert _name(cuda.cuStreamSetAttribute(stream, policy, None)) == "INVALID_VALUE"
    cooperative = Id.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert _name(cuda.cuStreamGetAttribute(stream, cooperative)) == "INVALID_VALUE"
    assert _name(cuda.cuStreamSetAttribute(stream, cooperative, value)) == "INVALID_VALUE"
    with pytest.raises(TypeError):
        cuda.cuStreamSetAttribute(stream, policy, 1)
    ok(cuda.cuStreamDestroy(stream))
    for answer in (
        cuda.cuStreamGetAttribute(stream, policy),
        cuda.cuStreamSetAttribute(stream, policy, value),
        cuda.cuStreamCopyAttributes(other, stream),
    ):
        assert _name(answer) == "INVALID_HANDLE"


# --- stream memory operations


def _word(address: Any, size: int = 4) -> int:
    word = np.zeros(1, f"u{size}")
    ok(cuda.cuMemcpyDtoH(word, address, size))
    return int(word[0])


def test_a_stream_writes_words(context: Any) -> None:
    stream, address = ok(cuda.cuStreamCreate(0)), ok(cuda.cuMemAlloc(64))
    ok(cuda.cuStreamWriteValue32(stream, address, 0xDEADBEEF, 0))
    ok(cuda.cuStreamWriteValue64(stream, int(address) + 8, 0x1122334455667788, 0))
    ok(cuda.cuStreamSynchronize(stream))
    assert _word(address) == 0xDEADBEEF
    assert _word(int(address) + 8, 8) == 0x1122334455667788


@pytest.mark.parametrize(
    ("flags", "value", "short", "enough"),
    [(0, 5, 4, 6), (0, 2, 0xFFFFFFFF, 2), (1, 5, 6, 5), (2, 6, 9, 4), (3, 0xF0, 0xFFFFFF0F, 0)],
)
@pytest.mark.parametrize("bits", [32, 64])
def test_a_stream_waits_for_a_word(context: Any, flags: int, value: int, short: int, enough: int, bits: int) -> None:
    stream, address, out = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(8)), ok(cuda.cuMemAlloc(4))
    writer = ok(cuda.cuStreamCreate(1))
    wait, write = (getattr(cuda, f"cuStream{operation}Value{bits}") for operation in ("Wait", "Write"))
    if bits == 64 and short > 1 << 31:
        short |= 0xFFFFFFFF << 32
    if flags == 3 and bits == 64:
        value, short = value | 1 << 40, 0xFFFFFEFFFFFFFF0F | 1 << 40
    ok(cuda.cuMemsetD32(out, 0, 1))
    ok(write(writer, address, short, 0))
    ok(cuda.cuStreamSynchronize(writer))
    ok(wait(stream, address, value, flags))
    ok(cuda.cuStreamWriteValue32(stream, out, 1, 0))
    assert _name(cuda.cuStreamQuery(stream)) == "NOT_READY"
    assert _word_on(writer, out) == 0
    ok(write(writer, address, enough, 0))
    ok(cuda.cuStreamSynchronize(stream))
    assert _word(out) == 1


def _word_on(stream: Any, address: Any) -> int:
    word = np.zeros(1, "u4")
    ok(cuda.cuMemcpyDtoHAsync(word, address, 4, stream))
    ok(cuda.cuStreamSynchronize(stream))
    return int(word[0])


def test_stream_memory_operations_refuse_wrong_words(context: Any) -> None:
    address = int(ok(cuda.cuMemAlloc(64)))
    for bits in (32, 64):
        wait, write = (getattr(cuda, f"cuStream{operation}Value{bits}") for operation in ("Wait", "Write"))
        for call in (wait, write):
            for wrong in (0, address + 1, address + bits // 16):
                assert _name(call(0, wrong, 0, 0)) == "INVALID_VALUE"
            assert _name(call(12345, address, 0, 0)) == "INVALID_HANDLE"
        assert _name(write(0, address, 0, 2)) == _name(wait(0, address, 0, 4)) == "INVALID_VALUE"
        assert _name(wait(0, address, 0, 1 << 30)) == "NOT_SUPPORTED"
        with pytest.raises(OverflowError):
            write(0, address, 1 << bits, 0)


def test_a_batch_runs_several_operations(context: Any) -> None:
    address = ok(cuda.cuMemAlloc(64))
    write, wait, barrier = (cuda.CUstreamBatchMemOpParams() for _ in range(3))
    Type = cuda.CUstreamBatchMemOpType
    write.writeValue.operation = Type.CU_STREAM_MEM_OP_WRITE_VALUE_32
    write.writeValue.address, write.writeValue.value = address, cuda.cuuint32_t(8)
    wait.waitValue.operation, wait.waitValue.flags = Type.CU_STREAM_MEM_OP_WAIT_VALUE_32, 1
    wait.waitValue.address, wait.waitValue.value = address, cuda.cuuint32_t(8)
    barrier.memoryBarrier.operation = Type.CU_STREAM_MEM_OP_BARRIER
    ok(cuda.cuMemsetD32(address, 0, 16))
    assert _name(cuda.cuStreamBatchMemOp(0, 2, [write, barrier], 0)) == "NOT_SUPPORTED"
    assert _word(address) == 0
    ok(cuda.cuStreamBatchMemOp(0, 2, [write, wait], 0))
    assert _word(address) == 8
    assert _name(cuda.cuStreamBatchMemOp(0, 3, [write, wait], 0)) == "INVALID_VALUE"
    assert _name(cuda.cuStreamBatchMemOp(0, 0, [], 1)) == "INVALID_VALUE"
    ok(cuda.cuStreamBatchMemOp(0, 0, [], 0))


# --- batched copies


def test_a_batch_of_copies(context: Any) -> None:
    stream = ok(cuda.cuStreamCreate(0))
    content = np.arange(256, dtype=np.uint8)
    source, destination = ok(cuda.cuMemAlloc(256)), ok(cuda.cuMemAlloc(256))
    ok(cuda.cuMemcpyHtoD(source, content, 256))
    froms = [cuda.CUdeviceptr(int(source) + at) for at in (0, 128)]
    tos = [cuda.CUdeviceptr(int(destination) + at) for at in (128, 0)]
    ok(cuda.cuMemcpyBatchAsync(tos, froms, (128, 128), 2, [], (), 0, stream))
    ok(cuda.cuStreamSynchronize(stream))
    copied = np.zeros(256, np.uint8)
    ok(cuda.cuMemcpyDtoH(copied, destination, 256))
    assert (copied == np.concatenate([content[128:], content[:128]])).all()
    for wrong in (
        (tos, froms, (128, 128), 2, [], (), 0, 0),
        (tos, froms, (128,), 2, [], (), 0, stream),
        (tos, froms, (128, 0), 2, [], (), 0, stream),
        ([], [], (), 0, [], (), 0, stream),
    ):
        assert _name(cuda.cuMemcpyBatchAsync(*wrong)) == "INVALID_VALUE"
    assert _name(cuda.cuMemcpyBatchAsync(tos, froms, (1, 1), 2, [], (), 0, 12345)) == "INVALID_HANDLE"


def _operation(extent: tuple[int, int, int], *operands: tuple[Any, ...]) -> Any:
    """Return a CUDA_MEMCPY3D_BATCH_OP; operands are source and destination: memory or an array, and its sizes."""
    description, Type = cuda.CUDA_MEMCPY3D_BATCH_OP(), cuda.CUmemcpy3DOperandType
    description.extent.width, description.extent.height, description.extent.depth = extent
    for side, (operand, *sizes) in zip((description.src, description.dst), operands, strict=True):
        if isinstance(operand, cuda.CUarray):
            side.type, side.op.array.array = Type.CU_MEMCPY_OPERAND_TYPE_ARRAY, operand
            side.op.array.offset.x, side.op.array.offset.y, side.op.array.offset.z = sizes
        else:
            side.type, side.op.ptr.ptr = Type.CU_MEMCPY_OPERAND_TYPE_POINTER, operand
            side.op.ptr.rowLength, side.op.ptr.layerHeight = sizes
    return description


def _array_of(channels: int) -> Any:
    description = cuda.CUDA_ARRAY3D_DESCRIPTOR()
    description.Width, description.Height, description.Depth = 8, 4, 2
    description.Format, description.NumChannels = cuda.CUarray_format.CU_AD_FORMAT_FLOAT, channels
    return ok(cuda.cuArray3DCreate(description))


def test_a_batch_of_copies_of_rows_and_slices(context: Any) -> None:
    stream, array, other = ok(cuda.cuStreamCreate(0)), _array_of(1), _array_of(1)
    content = np.arange(2 * 5 * 6, dtype=np.float32).reshape(2, 5, 6)
    source, destination = ok(cuda.cuMemAlloc(content.nbytes)), ok(cuda.cuMemAlloc(2 * 3 * 4 * 4))
    ok(cuda.cuMemcpyHtoD(source, content, content.nbytes))
    extent = (4, 3, 2)
    operations = [
        _operation(extent, (source, 6, 5), (array, 3, 1, 0)),
        _operation(extent, (array, 3, 1, 0), (other, 0, 0, 0)),
        _operation(extent, (other, 0, 0, 0), (destination, 0, 0)),
    ]
    ok(cuda.cuMemcpy3DBatchAsync(3, operations, 0, stream))
    ok(cuda.cuStreamSynchronize(stream))
    copied = np.zeros((2, 3, 4), np.float32)
    ok(cuda.cuMemcpyDtoH(copied, destination, copied.nbytes))
    assert (copied == content[:, :3, :4]).all()
    bytes_only = _operation((16, 2, 1), (source, 24, 5), (destination, 0, 0))  # elements of memory are bytes
    ok(cuda.cuMemcpy3DBatchAsync(1, [bytes_only], 0, stream))
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuMemcpyDtoH(copied, destination, copied.nbytes))
    assert (copied[0, :2] == content[0, :2, :4]).all()


def test_no_copy_of_a_wrong_batch_is_made(context: Any) -> None:
    stream, array, wide = ok(cuda.cuStreamCreate(0)), _array_of(1), _array_of(2)
    memory = ok(cuda.cuMemAlloc(512))
    ok(cuda.cuMemsetD8(memory, 7, 512))
    good = _operation((16, 1, 1), (memory, 0, 0), (cuda.CUdeviceptr(int(memory) + 256), 0, 0))
    ok(cuda.cuMemsetD8(memory, 9, 16))
    for wrong in (
        _operation((1, 1, 0), (memory, 0, 0), (memory, 0, 0)),
        _operation((4, 1, 1), (memory, 3, 0), (memory, 0, 0)),
        _operation((4, 2, 1), (memory, 0, 1), (memory, 0, 0)),
        _operation((4, 1, 1), (array, 5, 0, 0), (memory, 0, 0)),
        _operation((4, 1, 1), (array, 0, 0, 0), (wide, 0, 0, 0)),
        _operation((1024, 1, 1), (memory, 0, 0), (memory, 0, 0)),
        _operation((16, 1, 1), (memory, 0, 0), (cuda.CUdeviceptr(0x1000), 0, 0)),
        cuda.CUDA_MEMCPY3D_BATCH_OP(),
    ):
        assert _name(cuda.cuMemcpy3DBatchAsync(2, [good, wrong], 0, stream)) == "INVALID_VALUE"
    for count, flags, where in ((0, 0, stream), (2, 0, stream), (1, 1, stream), (1, 0, 0)):
        assert _name(cuda.cuMemcpy3DBatchAsync(count, [good], flags, where)) == "INVALID_VALUE"
    ok(cuda.cuStreamSynchronize(stream))
    copied = np.zeros(1, np.uint8)
    ok(cuda.cuMemcpyDtoH(copied, int(memory) + 256, 1))
    assert copied[0] == 7


# --- occupancy and attributes of kernels


@pytest.fixture
def function(context: Any) -> Any:
    return ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL)), b"k"))


def test_dynamic_shared_memory_that_is_available(function: Any) -> None:
    available = cuda.cuOccupancyAvailableDynamicSMemPerBlock
    assert ok(available(function, 1, 1024)) == 49112  # what the kernel may have, its own 40 bytes taken off
    ok(
        cuda.cuFuncSetAttribute(
            function, cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232408
        )
    )
    assert ok(available(function, 1, 1024)) == 232408
    assert ok(available(function, 4, 256)) == 233472 // 4 - 1024 - 40
    for blocks, threads in ((0, 1), (3, 1024), (1, 1025), (1, 0), (33, 32), (-1, 32)):
        assert _name(available(function, blocks, threads)) == "INVALID_VALUE"


def _config(grid: int, block: int, cluster: int | None) -> Any:
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    if cluster is not None:
        attribute = cuda.CUlaunchAttribute()
        attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
    return config


@pytest.mark.parametrize(
    ("cluster", "block", "expected"),
    [
        (1, 32, 1056), (1, 128, 1056), (1, 1024, 264), (2, 32, 528), (2, 1024, 132),
        (4, 32, 248), (4, 1024, 62), (8, 128, 124), (8, 1024, 30),
    ],
)  # fmt: skip
def test_clusters_that_are_active(function: Any, cluster: int, block: int, expected: int) -> None:
    assert ok(cuda.cuOccupancyMaxActiveClusters(function, _config(16, block, cluster))) == expected


def test_sizes_of_clusters(function: Any) -> None:
    assert ok(cuda.cuOccupancyMaxPotentialClusterSize(function, _config(8, 128, None))) == 8
    for size in (3, 16):  # 16 blocks in the grid; 16 are not portable
        assert _name(cuda.cuOccupancyMaxActiveClusters(function, _config(16, 32, size))) == "INVALID_CLUSTER_SIZE"
    allowed = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    ok(cuda.cuFuncSetAttribute(function, allowed, 1))
    assert ok(cuda.cuOccupancyMaxPotentialClusterSize(function, _config(8, 128, None))) == 16
    for call in (cuda.cuOccupancyMaxPotentialClusterSize, cuda.cuOccupancyMaxActiveClusters):
        assert _name(call(function, None)) == "INVALID_VALUE"
        assert _name(call(12345, _config(8, 128, None))) == "INVALID_HANDLE"


def test_attributes_of_kernels(function: Any) -> None:
    names = cuda.CUfunction_attribute
    attributes = {
        item.name.removeprefix("CU_FUNC_ATTRIBUTE_"): cuda.cuFuncGetAttribute(item, function) for item in names
    }
    assert attributes.pop("MAX")[0] == cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    assert all(not int(code) for code, _ in attributes.values())
    assert (attributes["PTX_VERSION"][1], attributes["BINARY_VERSION"][1]) == (90, 90)
    settable = {
        "MAX_DYNAMIC_SHARED_SIZE_BYTES", "PREFERRED_SHARED_MEMORY_CARVEOUT", "REQUIRED_CLUSTER_WIDTH",
        "REQUIRED_CLUSTER_HEIGHT", "REQUIRED_CLUSTER_DEPTH", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
        "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
    }  # fmt: skip
    for name in attributes:
        number = getattr(names, f"CU_FUNC_ATTRIBUTE_{name}")
        assert (_name(cuda.cuFuncSetAttribute(function, number, 1)) == "SUCCESS") is (name in settable), name
        if name in settable:
            assert ok(cuda.cuFuncGetAttribute(number, function)) == 1


def test_addresses_of_c(function: Any) -> None:
    """Structures as routed programs give them: by their addresses."""
    from pympsd_client._api import stream, stream_memory
    from pympsd_client._arguments.values import InMemory

    address = int(ok(cuda.cuMemAlloc(8)))
    operations = (ctypes.c_uint64 * 12)(2, address, 77, 0, 0, 0, 1, address, 77, 1, 0, 0)
    stream_memory.batch(0, 2, InMemory(ctypes.addressof(operations)), 0)
    assert _word(address) == 77
    value = (ctypes.c_int * 16)(2)
    policy = int(Id.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
    stream.set_attribute(0, policy, InMemory(ctypes.addressof(value)))
    assert stream.attribute(0, policy)[:4] == b"\2\0\0\0"


def test_settings_of_core_dumps_are_kept(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_global_dumps", {})
    setting = cuda.CUcoredumpSettings
    file, pipe, host = setting.CU_COREDUMP_FILE, setting.CU_COREDUMP_PIPE, setting.CU_COREDUMP_TRIGGER_HOST
    done = (cuda.CUresult.CUDA_SUCCESS,)
    invalid, forbidden = cuda.CUresult.CUDA_ERROR_INVALID_VALUE, cuda.CUresult.CUDA_ERROR_NOT_PERMITTED
    assert ok(cuda.cuCoredumpGetAttributeGlobal(host)) is True
    assert ok(cuda.cuCoredumpGetAttributeGlobal(file)).startswith(b"core.cuda.")
    assert cuda.cuCoredumpSetAttributeGlobal(file, b"one") == done
    assert cuda.cuCoredumpSetAttributeGlobal(pipe, b"two") == done
    assert cuda.cuCoredumpSetAttributeGlobal(host, False) == done
    assert [ok(cuda.cuCoredumpGetAttribute(item)) for item in (file, pipe, host)] == [b"one", b"two", False]
    assert cuda.cuCoredumpSetAttribute(file, b"own") == done
    assert ok(cuda.cuCoredumpGetAttribute(file)) == b"own"
    assert ok(cuda.cuCoredumpGetAttributeGlobal(file)) == b"one"
    assert cuda.cuCoredumpSetAttribute(pipe, b"own") == (forbidden,)
    for wrong in (0, 99):
        assert cuda.cuCoredumpGetAttribute(wrong) == (invalid, None)
        assert cuda.cuCoredumpSetAttributeGlobal(wrong, True) == (invalid,)
    assert cuda.cuCoredumpSetAttributeGlobal(file, b"x" * 1024) == (invalid,)
    with pytest.raises(TypeError):
        cuda.cuCoredumpSetAttributeGlobal(file, "text")
