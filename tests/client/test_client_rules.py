"""Application rules of MPS at the client: what is refused by name, and the oldest API a context is made through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect.session import check_api_version, read_forced_version
from tests.client.conftest import ok

DONE = (cuda.CUresult.CUDA_SUCCESS,)
INVALID_CONTEXT = (cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT,)


@pytest.fixture
def peers(devices: None) -> list[Any]:
    """A context on each of two devices, the first one's current."""
    contexts = [ok(cuda.cuCtxCreate(None, 0, number)) for number in (1, 0)]
    return contexts[::-1]


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
    requested = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
    assert ok(cuda.cuDeviceGetAttribute(requested, 0)) == value


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
    assert read_forced_version(text) == version


@given(st.integers(0, 20000), st.text(alphabet="abc .", max_size=3))
def test_contexts_need_the_api_of_cuda_4(version: int, rest: str) -> None:
    refused = ""
    try:
        check_api_version({"CUDA_FORCE_API_VERSION": f"{version}{rest}"})
    except CudaError as error:
        refused = error.reason
    assert bool(refused) == (version < 4000)
    assert not refused or f"CUDA_FORCE_API_VERSION={version}:" in refused
