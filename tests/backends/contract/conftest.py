"""Every backend passes these tests, driven through the port alone; a backend joins by a line in ``BACKENDS``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import evolve

from pympsd.devices.machine import describe
from pympsd.wire.executor_messages import ExecutorSetup
from pympsd_server.backends.interface import Device
from pympsd_server.backends.selection import open_device

from .port_user import PortUser

BACKENDS = ("emulated",)
DEVICE_BYTES = 8 << 30


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device of 8 GiB, open."""
    facts = evolve(describe("H200")[0], memory_bytes=DEVICE_BYTES)
    opened = open_device(ExecutorSetup("", 0, 1, request.param, facts))
    yield opened
    opened.close()


@pytest.fixture(params=[(backend, model) for backend in BACKENDS for model in ("H200", "P100")], ids="-".join)
def any_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Devices of 8 GiB from before and after Volta: what they can do, their capabilities say."""
    backend, model = request.param
    facts = evolve(describe(model)[0], memory_bytes=DEVICE_BYTES)
    opened = open_device(ExecutorSetup("", 0, 1, backend, facts))
    yield opened
    opened.close()


@pytest.fixture
def user(device: Device) -> PortUser:
    """A context of one client."""
    return PortUser.on(device)
