"""Application rules of MPS at the client: what is refused by name, and the oldest API a context is made through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect.api_version import check_api_version, forced_version
from tests.client.conftest import ok

DONE = (cuda.CUresult.CUDA_SUCCESS,)
INVALID_CONTEXT = (cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT,)


@pytest.fixture
def peers(devices: None) -> list[Any]:
    """A context on each of two devices, the first one's current."""
    made = [ok(cuda.cuCtxCreate(None, 0, number)) for number in (1, 0)]
    return made[::-1]


@pytest.mark.parametrize(
    ("name", "rest", "code"),
    [
        ("cuCtxEnablePeerAccess", (0,), "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
        ("cuCtxDisablePeerAccess", (), "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"),
    ],
)
def test_peer_access_is_refused_by_name(name: str, rest: tuple[int, ...], code: str, peers: list[Any]) -> None:
    call = getattr(cuda, name)
    assert call(peers[1], *rest) == (getattr(cuda.CUresult, code),)
    assert last_error().startswith(f"{name}: ")
    assert "cuMemcpyPeer" in last_error(), "a way that works"
    assert cuda.cuCtxSynchronize() == DONE, "the context goes on"
    for wrong in (0, 12345, 1 << 63):
        assert call(wrong, *rest) == INVALID_CONTEXT
    assert cuda.cuCtxDestroy(peers[1]) == DONE
    assert call(peers[1], *rest) == INVALID_CONTEXT
    for _ in peers:
        ok(cuda.cuCtxPopCurrent())
    assert call(peers[0], *rest) == INVALID_CONTEXT, "a context must be current"


def test_what_peer_access_is_never_asked_for(peers: list[Any]) -> None:
    assert cuda.cuCtxEnablePeerAccess(peers[0], 0) == INVALID_CONTEXT, "the current one"
    assert cuda.cuCtxEnablePeerAccess(peers[1], 1) == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)
    rank = cuda.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
    for one, other in ((0, 0), (0, 2), (-1, 0)):
        assert cuda.cuDeviceGetP2PAttribute(rank, one, other) == (cuda.CUresult.CUDA_ERROR_INVALID_DEVICE, None)
    assert cuda.cuDeviceCanAccessPeer(0, 2) == (cuda.CUresult.CUDA_ERROR_INVALID_DEVICE, None)
    assert cuda.cuDeviceGetP2PAttribute(99, 0, 1) == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE, None)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("MANAGED_MEMORY", 1),
        ("CONCURRENT_MANAGED_ACCESS", 1),
        ("PAGEABLE_MEMORY_ACCESS", 0),
        ("IPC_EVENT_SUPPORTED", 1),
        ("CAN_MAP_HOST_MEMORY", 1),
        ("CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM", 0),
        ("MEMORY_POOLS_SUPPORTED", 1),
        ("READ_ONLY_HOST_REGISTER_SUPPORTED", 0),
        ("HOST_REGISTER_SUPPORTED", 1),
        ("UNIFIED_ADDRESSING", 1),
    ],
)
def test_the_device_attributes_say_the_same(attribute: str, value: int, devices: None) -> None:
    wanted = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
    assert ok(cuda.cuDeviceGetAttribute(wanted, 0)) == value
    assert ok(cuda.cuDeviceCanAccessPeer(0, 1)) == 0


LAUNCHES = b""".version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 result) cudaLaunchDeviceV2 (.param .b64 buffer, .param .b64 stream);
.visible .entry parent() {
    .param .b32 r; .param .b64 b; .param .b64 s; .reg .b64 %d;
    mov.u64 %d, 0; st.param.b64 [b], %d; st.param.b64 [s], %d;
    call.uni (r), cudaLaunchDeviceV2, (b, s);
    ret;
}
"""


def test_a_module_with_dynamic_parallelism_is_refused_at_load(context: Any) -> None:
    log = bytearray(500)
    options = [cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    answer = cuda.cuModuleLoadDataEx(LAUNCHES, 2, options, [log, len(log)])
    assert answer == (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED, None)
    assert "line 4" in last_error()
    assert "cudaLaunchDeviceV2" in last_error()
    assert "dynamic parallelism" in last_error()
    assert log.rstrip(b"\0").decode() == last_error()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (None, None), ("", None), ("abc", None), ("-3020", None), ("v3020", None),
        ("3020", 3020), (" 3020", 3020), ("+4000", 4000), ("3010abc", 3010), ("0", 0), ("13000", 13000),
    ],
)  # fmt: skip
def test_a_forced_api_version_is_read_as_c_reads_a_number(text: str | None, version: int | None) -> None:
    assert forced_version(text) == version


@given(st.integers(0, 20000), st.text(alphabet="abc .", max_size=3))
def test_contexts_need_the_api_of_cuda_4(version: int, rest: str) -> None:
    refused = ""
    try:
        check_api_version({"CUDA_FORCE_API_VERSION": f"{version}{rest}"})
    except CudaError as error:
        refused = error.reason
    assert bool(refused) == (version < 4000)
    assert not refused or f"CUDA_FORCE_API_VERSION={version}:" in refused
