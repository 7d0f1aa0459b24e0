"""A CudaDevice on a fake driver, for situations that no test with a GPU can bring about."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import Quota
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import Status
from tests.backends.cuda.fake_driver import MEMORY_BYTES, FakeDriver

ROOM: Final = "pympsd_server.backends.cuda."
PROPERTIES: Final = DeviceProperties(
    "a fake GPU",
    "GPU-00000000-0000-0000-0000-000000000000",
    "0",
    (9, 0),
    132,
    MEMORY_BYTES,
    {f"MAX_{what}_DIM_{axis}": 1024 for what in ("GRID", "BLOCK") for axis in "XYZ"}
    | {
        "MAX_THREADS_PER_BLOCK": 1024,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 1 << 17,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
        "MAX_PITCH": (1 << 31) - 1,
    },
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """The fake driver, in place of the real one in the whole backend; no work may touch memory that is not mapped."""
    fake = FakeDriver()
    for name in sorted(sys.modules):
        if name.startswith(ROOM) and hasattr(sys.modules[name], "cu"):
            monkeypatch.setattr(sys.modules[name], "cu", fake)
    yield fake
    assert fake.faults == []


@pytest.fixture
def device(driver: FakeDriver) -> Iterator[CudaDevice]:
    """A device on it; at the end all work runs, and its threads end."""
    opened = CudaDevice(PROPERTIES, 0)
    yield opened
    driver.codes.clear()
    driver.hooks.clear()
    driver.run()
    opened.close()


@pytest.fixture
def faults() -> list[Status]:
    """The errors that faulted the contexts of ``make_context``."""
    return []


@pytest.fixture
def make_context(device: CudaDevice, faults: list[Status]) -> Callable[..., CudaContext]:
    """Create a context of a client: ``make_context(1)``, ``make_context(1, memory_bytes=64 << 20)``."""

    def make(client: int, memory_bytes: int = 0) -> CudaContext:
        return device.create_context(client, Quota(0, memory_bytes, 1), faults.append)

    return make
