"""Green contexts: resources and how they are split, what runs in such contexts, events, bad input."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._api.green_context import split_by_count
from pympsd_client._arguments.bindings import make_struct
from pympsd_client._arguments.resources import SmResource, sm_resource
from tests.client.conftest import ok
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_pools import Held
from tests.client.test_client_virtual_memory import bytes_at
from tests.support.client_kernels import BASIC

R = cuda.CUresult
DONE = (R.CUDA_SUCCESS,)
INVALID = R.CUDA_ERROR_INVALID_VALUE
INVALID_CONTEXT = R.CUDA_ERROR_INVALID_CONTEXT
CONFIGURATION = R.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
TYPE = R.CUDA_ERROR_INVALID_RESOURCE_TYPE
SM = cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM


def whole(device: int = 0) -> Any:
    return ok(cuda.cuDeviceGetDevResource(device, SM))


def part(count: int = 16) -> Any:
    """Return a resource of a number of SMs."""
    parts, _, _ = ok(cuda.cuDevSmResourceSplitByCount(1, whole(), 0, count))
    return parts[0]


def green(count: int = 16) -> Any:
    """Return a green context of a number of SMs."""
    description = ok(cuda.cuDevResourceGenerateDesc([part(count)], 1))
    return ok(cuda.cuGreenCtxCreate(description, 0, 1))


def group(count: int, coscheduled: int = 0, flags: int = 0) -> Any:
    description = cuda.CU_DEV_SM_RESOURCE_GROUP_PARAMS()
    description.smCount, description.coscheduledSmCount, description.flags = count, coscheduled, flags
    return description


def sizes(parts: list[Any]) -> list[int]:
    return [item.sm.smCount for item in parts]


def test_the_sms_of_a_device_are_split(context: Any) -> None:
    resource = whole()
    assert (resource.type, resource.sm.smCount) == (SM, 132)
    assert (resource.sm.minSmPartitionSize, resource.sm.smCoscheduledAlignment) == (8, 8)
    for requested, least, expected, rest in ((2, 10, [16, 16], 100), (3, 0, [8, 8, 8], 108), (99, 64, [64, 64], 4)):
        parts, number, remaining = ok(cuda.cuDevSmResourceSplitByCount(requested, resource, 0, least))
        assert (sizes(parts), number, remaining.sm.smCount) == (expected, len(expected), rest)
    assert ok(cuda.cuDevSmResourceSplitByCount(0, resource, 0, 2))[:2] == ([], 16)
    parts, _, remaining = ok(cuda.cuDevSmResourceSplitByCount(1, resource, 1, 131))
    assert (sizes(parts), int(remaining.type)) == ([132], 0)
    again, _, _ = ok(cuda.cuDevSmResourceSplitByCount(2, part(32), 0, 16))
    assert sizes(again) == [16, 16], "a part is split again"


def test_multiprocessors_are_split_into_groups(context: Any) -> None:
    parts, rest = ok(cuda.cuDevSmResourceSplit(2, whole(), 0, [group(4, 2), group(16)]))
    assert (sizes(parts), rest.sm.smCount) == ([4, 16], 112)
    expected = [group(100, 2), group(0)]
    parts, rest = ok(cuda.cuDevSmResourceSplit(2, whole(), 0, expected))
    assert (sizes(parts), rest.sm.smCount) == ([100, 32], 0)
    assert [item.smCount for item in expected] == [100, 32], "it reports what a group has got"
    assert sizes(ok(cuda.cuDevSmResourceSplit(1, whole(), 0, [group(12, 8, 1)]))[0]) == [12]
    for wrong in ([group(12)], [group(200)], [group(64), group(80)], [group(3, 2)]):
        assert cuda.cuDevSmResourceSplit(len(wrong), whole(), 0, wrong) == (CONFIGURATION, None, None)
    for number, flags, wrong in ((0, 0, []), (1, 1, [group(8)]), (2, 0, [group(8)]), (1, 0, [group(8, 3)])):
        assert cuda.cuDevSmResourceSplit(number, whole(), flags, wrong) == (INVALID, None, None)
    assert cuda.cuDevSmResourceSplit(1, whole(), 0, [group(8, 0, 2)]) == (INVALID, None, None)


def test_what_runs_in_a_green_context(context: Any) -> None:
    handle = green(16)
    inside = ok(cuda.cuCtxFromGreenCtx(handle))
    assert int(inside) != int(context)
    address = int(ok(cuda.cuMemAlloc(4000)))
    data = np.arange(1000, dtype=np.float32)
    assert cuda.cuMemcpyHtoD(address, data, 4000) == DONE
    assert cuda.cuCtxPushCurrent(inside) == DONE
    assert ok(cuda.cuCtxGetDevResource(inside, SM)).sm.smCount == 16
    assert ok(cuda.cuGreenCtxGetDevResource(handle, SM)).sm.smCount == 16
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (1000, ctypes.c_uint32), blocks=4, threads=256)
    assert (bytes_at(address, 4000).view(np.float32) == data + 1).all(), "it reaches memory of the other context"
    assert cuda.cuCtxPopCurrent() == (R.CUDA_SUCCESS, inside)
    assert ok(cuda.cuCtxGetDevResource(context, SM)).sm.smCount == 132
    assert ok(cuda.cuGreenCtxGetId(handle)) == ok(cuda.cuCtxGetId(inside)) != ok(cuda.cuCtxGetId(context))
    assert cuda.cuCtxDestroy(inside) == (INVALID_CONTEXT,)
    assert cuda.cuGreenCtxDestroy(handle) == DONE
    assert cuda.cuGreenCtxDestroy(handle) == (INVALID_CONTEXT,)
    assert cuda.cuCtxFromGreenCtx(handle) == (INVALID_CONTEXT, None)
    assert cuda.cuCtxPushCurrent(inside) == (INVALID_CONTEXT,)
    assert (bytes_at(address, 4000).view(np.float32) == data + 1).all()


def test_a_cooperative_launch_has_the_room_of_the_part(context: Any) -> None:
    inside = ok(cuda.cuCtxFromGreenCtx(green(8)))
    assert cuda.cuCtxSetCurrent(inside) == DONE
    function = kernel(BASIC, b"add_one")
    most = ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 1024, 0)) * 8
    too_large = (function, most + 1, 1, 1, 1024, 1, 1, 0, 0, ((0, 0), (ctypes.c_uint64, ctypes.c_uint32)))
    assert cuda.cuLaunchCooperativeKernel(*too_large)[0] == R.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    assert cuda.cuLaunchCooperativeKernel(function, most, *too_large[2:]) == DONE
    assert cuda.cuCtxSynchronize() == DONE


def test_a_green_context_has_streams(context: Any) -> None:
    handle = green()
    stream = ok(cuda.cuGreenCtxStreamCreate(handle, 1, 0))
    assert int(ok(cuda.cuStreamGetGreenCtx(stream))) == int(handle)
    assert int(ok(cuda.cuStreamGetCtx(stream))) == int(ok(cuda.cuCtxFromGreenCtx(handle)))
    assert [int(item) for item in ok(cuda.cuStreamGetCtx_v2(stream))] == [0, int(handle)]
    primary = int(ok(cuda.cuDevicePrimaryCtxRetain(0)))
    assert [int(item) for item in ok(cuda.cuStreamGetCtx_v2(stream))] == [primary, int(handle)]
    assert [int(item) for item in ok(cuda.cuStreamGetCtx_v2(0))] == [int(context), 0]
    assert ok(cuda.cuStreamGetDevResource(stream, SM)).sm.smCount == 16
    plain = ok(cuda.cuStreamCreate(1))
    assert int(ok(cuda.cuStreamGetGreenCtx(plain))) == 0
    assert ok(cuda.cuStreamGetDevResource(plain, SM)).sm.smCount == 132
    address = int(ok(cuda.cuMemAllocAsync(100, stream)))
    assert cuda.cuMemsetD8Async(address, 7, 100, stream) == DONE
    assert cuda.cuStreamSynchronize(stream) == DONE
    assert (bytes_at(address, 100) == 7).all()
    assert cuda.cuStreamDestroy(stream) == DONE
    for flags in (0, 2, 3):
        assert cuda.cuGreenCtxStreamCreate(handle, flags, 0) == (INVALID, None)
    assert cuda.cuGreenCtxDestroy(handle) == DONE


def test_events_go_from_one_to_the_other(context: Any) -> None:
    handle = green()
    stream = ok(cuda.cuGreenCtxStreamCreate(handle, 1, 0))
    event = ok(cuda.cuEventCreate(2))
    kept_open = Held()
    assert cuda.cuEventRecord(event, kept_open.stream) == DONE
    assert cuda.cuStreamWaitEvent(stream, event, 0) == DONE
    assert cuda.cuStreamQuery(stream) == (R.CUDA_ERROR_NOT_READY,)
    kept_open.let_go()
    assert cuda.cuStreamSynchronize(stream) == DONE
    assert cuda.cuEventRecord(event, stream) == DONE
    assert cuda.cuEventSynchronize(event) == DONE
    assert cuda.cuEventDestroy(event) == DONE
    assert cuda.cuGreenCtxDestroy(handle) == DONE


def test_events_of_all_streams(context: Any) -> None:
    handle = green()
    inside = ok(cuda.cuCtxFromGreenCtx(handle))
    assert cuda.cuCtxPushCurrent(inside) == DONE
    event, kept_open = ok(cuda.cuEventCreate(2)), Held()
    assert cuda.cuGreenCtxRecordEvent(handle, event) == DONE
    assert cuda.cuEventQuery(event) == (R.CUDA_ERROR_NOT_READY,)
    assert cuda.cuCtxPopCurrent()[0] == R.CUDA_SUCCESS
    plain = ok(cuda.cuStreamCreate(1))
    assert cuda.cuCtxWaitEvent(context, event) == DONE
    assert cuda.cuStreamQuery(plain) == (R.CUDA_ERROR_NOT_READY,)
    kept_open.let_go()
    assert cuda.cuStreamSynchronize(plain) == DONE
    assert cuda.cuEventQuery(event) == DONE
    mine = ok(cuda.cuEventCreate(2))
    assert cuda.cuCtxRecordEvent(context, mine) == DONE
    assert cuda.cuGreenCtxWaitEvent(handle, mine) == DONE
    assert cuda.cuEventSynchronize(mine) == DONE
    assert cuda.cuGreenCtxRecordEvent(handle, 12345)[0] == R.CUDA_ERROR_INVALID_HANDLE
    assert cuda.cuGreenCtxDestroy(handle) == DONE
    assert cuda.cuGreenCtxRecordEvent(handle, mine) == (INVALID_CONTEXT,)


def test_wrong_resources_are_refused(context: Any) -> None:
    for kind in (0, 1000, 10000, 5, -1):
        assert cuda.cuDeviceGetDevResource(0, kind) == (TYPE, None)
        assert cuda.cuCtxGetDevResource(context, kind) == (TYPE, None)
    assert cuda.cuDeviceGetDevResource(7, SM) == (R.CUDA_ERROR_INVALID_DEVICE, None)
    assert cuda.cuCtxGetDevResource(12345, SM) == (INVALID_CONTEXT, None)
    nothing = (None, None, None)
    assert cuda.cuDevSmResourceSplitByCount(1, cuda.CUdevResource(), 0, 8) == (TYPE, *nothing)
    assert cuda.cuDevSmResourceSplitByCount(1, None, 0, 8) == (INVALID, *nothing)
    assert cuda.cuDevSmResourceSplitByCount(1, whole(), 4, 8) == (INVALID, *nothing)
    assert cuda.cuDevSmResourceSplitByCount(1, whole(), 0, 133) == (CONFIGURATION, *nothing)
    assert cuda.cuDevSmResourceSplitByCount(1, whole(), 0, (1 << 32) - 1) == (CONFIGURATION, *nothing)
    for wrong, count in (([], 0), ([whole()], 2), ([part(8), whole(1)], 2)):
        assert cuda.cuDevResourceGenerateDesc(wrong, count) == (INVALID, None)
    assert cuda.cuDevResourceGenerateDesc([whole(), part(8)], 2) == (CONFIGURATION, None)
    assert cuda.cuDevResourceGenerateDesc([cuda.CUdevResource()], 1) == (TYPE, None)
    description = ok(cuda.cuDevResourceGenerateDesc([part(8), part(16)], 2))
    for flags in (0, 2):
        assert cuda.cuGreenCtxCreate(description, 0, flags) == (INVALID, None)
    assert cuda.cuGreenCtxCreate(description, 1, 1) == (R.CUDA_ERROR_INVALID_DEVICE, None)
    assert cuda.cuGreenCtxCreate(12345, 0, 1) == (INVALID, None)
    handle = ok(cuda.cuGreenCtxCreate(description, 0, 1))
    assert ok(cuda.cuGreenCtxGetDevResource(handle, SM)).sm.smCount == 24
    for name in ("cuGreenCtxDestroy", "cuCtxFromGreenCtx", "cuGreenCtxGetId"):
        assert getattr(cuda, name)(context)[0] == INVALID_CONTEXT, last_error()
    assert cuda.cuGreenCtxDestroy(handle) == DONE


@given(st.integers(1, 160), st.integers(0, 20), st.integers(0, 200), st.sampled_from([0, 1]))
def test_parts_are_no_more_than_the_whole(count: int, wanted: int, least: int, flags: int) -> None:
    resource = make_struct("CUdevResource", SmResource(0, count, min(8, count), min(8, count)).packed)
    step = min(2 if flags else 8, count)
    least = min(least, count // step * step)  # a part is of whole alignments
    parts, number, rest = split_by_count(wanted, resource, flags, least)
    taken = [sm_resource(make_struct("CUdevResource", item)).count for item in parts]
    assert len(taken) == (number if wanted else 0)
    assert all(item >= least and item > 0 for item in taken)
    assert sum(taken) + make_struct("CUdevResource", rest).sm.smCount == count
