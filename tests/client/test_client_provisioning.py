"""Execution affinity as the client requests and reports it; without MPS there is none."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._connect.private_executor import PrivateExecutors
from tests.client.conftest import ok
from tests.client.fake_executor import PROPERTIES, FakeExecutor

SM_COUNT = cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
MAX = cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_MAX
UNSUPPORTED = (cuda.CUresult.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, None)
INVALID = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE, None)


@pytest.fixture
def under_mps(executor: FakeExecutor, fresh_process: Any) -> FakeExecutor:
    """CUDA initialised on a device whose contexts can be kept to some SMs; the asked number is given."""
    fresh_process(executor)
    return executor


def _affinity(count: int, kind: Any = SM_COUNT) -> Any:
    affinity = cuda.CUexecAffinityParam()
    affinity.type = kind
    affinity.param.smCount.val = count
    return affinity


def _parameters(*affinities: Any, stated_count: int | None = None) -> Any:
    parameters = cuda.CUctxCreateParams()
    parameters.execAffinityParams = list(affinities)
    parameters.numExecAffinityParams = len(affinities) if stated_count is None else stated_count
    return parameters


def _multiprocessors() -> int:
    granted = ok(cuda.cuCtxGetExecAffinity(SM_COUNT))
    return int(granted.param.smCount.val)


def test_a_context_reports_its_affinity(under_mps: FakeExecutor) -> None:
    ok(cuda.cuCtxCreate(_parameters(_affinity(24)), 0, 0))
    assert _multiprocessors() == 24
    answer = ok(cuda.cuCtxGetExecAffinity(SM_COUNT))
    assert isinstance(answer, cuda.CUexecAffinityParam)
    assert answer.type == SM_COUNT


def test_the_last_of_several_affinities_wins(under_mps: FakeExecutor) -> None:
    ok(cuda.cuCtxCreate(_parameters(_affinity(24), _affinity(60)), 0, 0))
    assert _multiprocessors() == 60


@pytest.mark.parametrize("parameters", [None, cuda.CUctxCreateParams()], ids=["None", "empty"])
def test_a_context_without_an_affinity_reports_what_it_may_use(under_mps: FakeExecutor, parameters: Any) -> None:
    ok(cuda.cuCtxCreate(parameters, 0, 0))
    assert _multiprocessors() == 132


def test_the_names_of_cuda_12_are_there_with_every_cuda_bindings(under_mps: FakeExecutor) -> None:
    create_v3, create_v4 = cuda.cuCtxCreate_v3, cuda.cuCtxCreate_v4
    ok(create_v3([_affinity(24)], 1, 0, 0))
    assert _multiprocessors() == 24
    ok(create_v3(None, 0, 0, 0))
    assert _multiprocessors() == 132
    ok(create_v4(_parameters(_affinity(60)), 0, 0))
    assert _multiprocessors() == 60


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (_parameters(_affinity(24, MAX)), "type must be SM_COUNT"),
        (_parameters(_affinity(24), stated_count=0), "1 execution affinities, but their number is 0"),
        (_parameters(_affinity(24), stated_count=2), "1 execution affinities, but their number is 2"),
    ],
)
def test_parameters_that_cannot_be_are_refused(under_mps: FakeExecutor, parameters: Any, words: str) -> None:
    assert cuda.cuCtxCreate(parameters, 0, 0) == INVALID
    assert words in last_error()
    assert cuda.cuCtxGetCurrent()[1] == cuda.CUcontext(0)


def test_another_type_of_affinity_is_none(under_mps: FakeExecutor) -> None:
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuCtxGetExecAffinity(MAX) == (cuda.CUresult.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, None)
    assert ok(cuda.cuDeviceGetExecAffinitySupport(MAX, 0)) == 0


def test_support_for_affinity_is_reported(
    under_mps: FakeExecutor, fresh_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ok(cuda.cuDeviceGetExecAffinitySupport(SM_COUNT, 0)) == 1
    older = VisibleDevice(0, 0, evolve(PROPERTIES, compute_capability=(6, 0)))
    monkeypatch.setattr(FakeExecutor, "devices", (older,))
    fresh_process(under_mps)
    assert ok(cuda.cuDeviceGetExecAffinitySupport(SM_COUNT, 0)) == 0
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuCtxGetExecAffinity(SM_COUNT) == UNSUPPORTED


def test_the_affinity_needs_a_context(under_mps: FakeExecutor) -> None:
    assert cuda.cuCtxGetExecAffinity(SM_COUNT) == (cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)


def test_the_count_of_the_device_is_the_contexts_under_partitioning_of_each(
    under_mps: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    ok(cuda.cuCtxCreate(_parameters(_affinity(24)), 0, 0))
    assert ok(cuda.cuDeviceGetAttribute(attribute, 0)) == 132
    monkeypatch.setattr(FakeExecutor, "per_context", True)
    assert ok(cuda.cuDeviceGetAttribute(attribute, 0)) == 24
    assert ok(cuda.cuDeviceGetAttribute(attribute, 1)) == 132, "of another device than the current context's"
    ok(cuda.cuCtxPopCurrent())
    assert ok(cuda.cuDeviceGetAttribute(attribute, 0)) == 132


def test_devices_without_mps_have_no_affinity(devices: None) -> None:
    assert ok(cuda.cuDeviceGetExecAffinitySupport(SM_COUNT, 0)) == 0
    assert cuda.cuCtxCreate(_parameters(_affinity(24)), 0, 0) == UNSUPPORTED
    assert "needs an MPS daemon" in last_error()
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuCtxGetExecAffinity(SM_COUNT) == UNSUPPORTED


def test_limits_of_the_environment_do_not_hold_without_mps() -> None:
    """Percentages, memory limits and priorities are MPS's; a program alone with its device has all of it."""
    environment = {
        "PYMPSD_EMULATED_DEVICES": "H200",
        "PYMPSD_BACKEND": "emulated",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,junk",
        PER_CONTEXT_PARTITIONING: "1",
    }
    connection = PrivateExecutors(environment)
    try:
        (device,) = connection.devices
        opened = connection.open_context(device, 0)
        assert device.properties.attributes["MULTIPROCESSOR_COUNT"] == opened.multiprocessors == 132
        assert opened.memory_bytes == device.properties.memory_bytes
    finally:
        connection.close()
