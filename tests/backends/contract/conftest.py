"""Every backend passes these tests, driven through the port alone; a backend joins by a line in ``_backends``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from pympsd.devices.machine import describe
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.wire.executor_messages import ExecutorSetup
from pympsd_server.backends.budget import DeviceBudget
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import Capabilities
from pympsd_server.executor.main import open_device
from tests.backends.contract.children import reports_from_child
from tests.backends.contract.machine import first_gpu
from tests.backends.contract.port_user import PortUser

HERE = Path(__file__).parent
DEVICE_BYTES = 8 << 30
_PROPERTIES: dict[str, dict[str, DeviceProperties]] = {
    "emulated": {
        **{model: describe(model)[0] for model in ("H200", "P100")},
        "no-better-than-real": evolve(describe("H200")[0], stops_kernels=False, isolates_address_spaces=False),
    },
    "cuda": {"GPU": gpu} if (gpu := first_gpu()) is not None else {},
}
"""By backend, the devices of this machine by name; the first one of each passes all tests."""
BACKENDS = tuple(backend for backend, devices in _PROPERTIES.items() if devices)


def _open(backend: str, model: str) -> Device:
    properties = evolve(_PROPERTIES[backend][model], memory_bytes=DEVICE_BYTES)
    opened = open_device(ExecutorSetup("", 0, 1, backend, properties))
    if backend == "cuda":
        from pympsd_server.backends.cuda.objects.device import CudaDevice

        assert isinstance(opened, CudaDevice)
        # Other processes may use the GPU: the memory they allocate and free must not count.
        opened.budget = DeviceBudget(DEVICE_BYTES)
    return opened


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device of 8 GiB, open."""
    opened = _open(request.param, next(iter(_PROPERTIES[request.param])))
    yield opened
    opened.close()


@pytest.fixture
def properties(request: pytest.FixtureRequest, device: Device) -> DeviceProperties:
    """The properties of the device."""
    return next(iter(_PROPERTIES[request.node.callspec.params["device"]].values()))


@pytest.fixture(params=[(backend, model) for backend in BACKENDS for model in _PROPERTIES[backend]], ids="-".join)
def any_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Devices of 8 GiB from before and after Volta; their capabilities differ."""
    opened = _open(*request.param)
    yield opened
    opened.close()


@pytest.fixture
def user(device: Device) -> PortUser:
    """A context of one client."""
    return PortUser.on(device)


# --- tests of what a backend states that it cannot do are left out


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "needs(*capabilities): run only on devices that state them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of capabilities that a device does not state."""
    left_out = [item for item in items if not _needs(item) <= _list_stated(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _needs(item: pytest.Item) -> set[str]:
    return {name for mark in item.iter_markers("needs") for name in mark.args}


def _list_stated(item: pytest.Item) -> set[str]:
    chosen = _find_device(item)
    if not _needs(item) or chosen is None:
        return _needs(item)
    capabilities = _capabilities(*chosen)
    return {name for name in _needs(item) if getattr(capabilities, name)}


def _capabilities(backend: str, model: str) -> Capabilities:
    if backend == "cuda":
        from pympsd_server.backends.cuda.objects.device import CAPABILITIES

        return CAPABILITIES
    opened = _open(backend, model)
    try:
        return opened.capabilities
    finally:
        opened.close()


def _find_device(item: pytest.Item) -> tuple[str, str] | None:
    if HERE not in item.path.parents or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return None  # the hooks below are called for every test of the session
    parameters: dict[str, Any] = item.callspec.params
    if "device" in parameters:
        backend = parameters["device"]
        return backend, next(iter(_PROPERTIES[backend]))
    return parameters.get("any_device")


# --- a fault or an endless kernel costs a real GPU's process: each test has its own


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test on a real GPU in a child process, whose driver has opened the files that it keeps open."""
    chosen = _find_device(item)
    if chosen is None or chosen[0] != "cuda":
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports_from_child(item, nextitem, lambda: _open(*chosen).close()):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
