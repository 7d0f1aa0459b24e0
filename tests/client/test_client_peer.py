"""Copies between the devices of two contexts, which need no peer access; and what an error of the system becomes."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._api import entry_point
from pympsd_client.signatures import SIGNATURES
from tests.client.conftest import ok

COUNT = 3_000_000
DONE = (cuda.CUresult.CUDA_SUCCESS,)
INVALID = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)


@pytest.fixture
def places(devices: None) -> Any:
    """A context and COUNT bytes on each of two devices, the second one's current."""
    return [(ok(cuda.cuCtxCreate(None, 0, number)), ok(cuda.cuMemAlloc(COUNT))) for number in range(2)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_bytes_go_from_a_contexts_device_to_anothers(places: Any, asynchronous: bool) -> None:
    (here, source), (there, destination) = places
    sent = np.random.default_rng(5).integers(0, 256, COUNT, np.uint8)
    assert cuda.cuMemcpyHtoD(source, sent, COUNT) == DONE
    if asynchronous:
        assert cuda.cuMemcpyPeerAsync(destination, there, source, here, COUNT, 0) == DONE
    else:
        assert cuda.cuMemcpyPeer(destination, there, source, here, COUNT) == DONE
    actual = np.zeros(COUNT, np.uint8)
    assert cuda.cuMemcpyDtoH(actual, destination, COUNT) == DONE
    assert (actual == sent).all()


def describe(places: Any, **values: Any) -> Any:
    """Return a copy of 2 slices of 3 rows of 100 bytes from the first device to the second."""
    (here, source), (there, destination) = places
    description = cuda.CUDA_MEMCPY3D_PEER()
    description.srcMemoryType = description.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    description.srcDevice, description.dstDevice, description.srcContext, description.dstContext = (
        source,
        destination,
        here,
        there,
    )
    description.srcPitch, description.srcHeight, description.dstPitch, description.dstHeight = 512, 10, 200, 4
    description.WidthInBytes, description.Height, description.Depth = 100, 3, 2
    for name, value in values.items():
        setattr(description, name, value)
    return description


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slices_go_from_a_contexts_device_to_anothers(places: Any, asynchronous: bool) -> None:
    sent = np.random.default_rng(6).integers(0, 256, (2, 10, 512), np.uint8)
    assert cuda.cuMemcpyHtoD(places[0][1], sent, sent.nbytes) == DONE
    copy = describe(places, srcXInBytes=5, srcY=2, dstZ=1)
    answer = cuda.cuMemcpy3DPeerAsync(copy, 0) if asynchronous else cuda.cuMemcpy3DPeer(copy)
    assert answer == DONE, last_error()
    actual = np.zeros((3, 4, 200), np.uint8)
    assert cuda.cuMemcpyDtoH(actual, places[1][1], actual.nbytes) == DONE
    assert (actual[1:, :3, :100] == sent[:, 2:5, 5:105]).all()
    assert not actual[0].any()


def test_mistakes_with_slices(places: Any) -> None:
    (here, _), (_, destination) = places
    assert cuda.cuMemcpy3DPeer(None) == INVALID
    with pytest.raises(TypeError):
        cuda.cuMemcpy3DPeer(cuda.CUDA_MEMCPY3D())
    assert cuda.cuMemcpy3DPeer(describe(places, dstContext=here)) == INVALID
    assert "is not on the device of dstContext" in last_error()
    for wrong in ({"srcDevice": 0}, {"srcPitch": 50}, {"srcDevice": destination}):
        assert cuda.cuMemcpy3DPeer(describe(places, **wrong)) == INVALID
    assert cuda.cuMemcpy3DPeer(describe(places, Depth=0)) == DONE
    wrong_context = describe(places, srcContext=cuda.CUcontext(12345))
    assert cuda.cuMemcpy3DPeer(wrong_context)[0].name == "CUDA_ERROR_INVALID_CONTEXT"


def test_addresses_determine_the_devices_of_a_copy(places: Any) -> None:
    """As on two H200."""
    (here, source), (there, destination) = places
    assert cuda.cuMemcpyPeer(destination, here, source, there, COUNT) == DONE
    assert cuda.cuMemcpyPeer(destination, 0, source, there, COUNT) == DONE
    assert cuda.cuMemcpyPeer(destination, there, source, 12345, COUNT)[0].name == "CUDA_ERROR_INVALID_CONTEXT"
    assert cuda.cuMemcpyPeer(destination, there, source, here, 0) == DONE


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_descriptors_that_ran_out_become_a_result(number: int, devices: None) -> None:
    def without_descriptors(device: int) -> None:
        raise OSError(number, os.strerror(number))

    state = entry_point.make(SIGNATURES["cuDevicePrimaryCtxGetState"], without_descriptors)
    assert state(0) == (cuda.CUresult.CUDA_ERROR_OPERATING_SYSTEM, None, None)
    assert "16384 or more (ulimit -n)" in last_error()


def test_another_error_of_the_programs_own_code_stays_what_it_is(devices: None) -> None:
    def of_the_program(device: int) -> None:
        raise PermissionError(errno.EPERM, "the program's own")

    state = entry_point.make(SIGNATURES["cuDevicePrimaryCtxGetState"], of_the_program)
    with pytest.raises(PermissionError, match="the program's own"):
        state(0)
