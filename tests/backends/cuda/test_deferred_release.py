"""What exited clients leave on a device is bounded while it is never idle, and released when it is."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import pytest

from pympsd_server.backends.cuda.memory.staging import DIRECT_BYTES
from pympsd_server.backends.cuda.objects import context_resources
from pympsd_server.backends.cuda.objects import device as device_file
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.cuda.objects.module_image import Cubin
from pympsd_server.backends.interface import Status
from tests.backends.contract.port_user import copy_from_device, copy_to_device, fill
from tests.backends.cuda.fake_driver import FakeDriver, Recorder

Make = Callable[..., CudaContext]
SHARED_BYTES = 1 << 20
MODULE_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shared memory of three clients and three modules wait."""
    monkeypatch.setattr(device_file, "MAX_SHARED_BYTES", 3 * SHARED_BYTES)
    monkeypatch.setattr(device_file, "MAX_MODULE_BYTES", 3 * MODULE_BYTES)


@pytest.fixture
def busy(driver: FakeDriver, make_context: Make) -> CudaContext:
    """A client whose kernel runs."""
    context = make_context(99)
    address = context.allocate(4096)
    driver.stall(context.default_stream.handle)
    context.default_stream.fill(fill(address, 1, 1, 16))
    return context


def copies(context: CudaContext) -> bytes:
    """Let a client copy much from its shared memory; return the first bytes read back."""
    shared, address, done = mmap.mmap(-1, SHARED_BYTES), context.allocate(SHARED_BYTES), Recorder()
    shared[:4] = b"here"
    back = mmap.mmap(-1, SHARED_BYTES)
    with memoryview(shared) as view, memoryview(back) as target:
        assert view.nbytes > DIRECT_BYTES
        context.default_stream.copy(copy_to_device(address, view), done)
        context.default_stream.copy(copy_from_device(target[: DIRECT_BYTES // 2], address), done)
        assert done.wait(2) == [Status()] * 2
    return back[:4]


def test_shared_memory_of_exited_clients_is_bounded_and_released_on_an_idle_device(
    driver: FakeDriver, busy: CudaContext, make_context: Make
) -> None:
    before = len(driver.registered)
    for client in range(10):
        context = make_context(client)
        assert copies(context) == b"here", "also where it is not registered"
        context.destroy()
    assert len(driver.registered) == before + 3
    driver.run()
    driver.until(lambda: len(driver.registered) == before)
    context = make_context(1)
    copies(context)
    assert len(driver.registered) == before + 1, "there is room again"


def test_modules_that_wait_to_be_unloaded_are_not_charged_up_to_a_bound(
    driver: FakeDriver,
    device: CudaDevice,
    busy: CudaContext,
    make_context: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_resources, "loadable", lambda driver, image: (image, Cubin((), MODULE_BYTES)))
    before, used = len(driver.modules), device.budget.used
    context = make_context(1)
    alone = device.memory_used[1]
    for _ in range(5):
        context.load_module(b"").unload()
    assert len(driver.modules) == before + 5
    assert device.memory_used[1] == alone + 2 * MODULE_BYTES
    context.destroy()
    assert device.budget.used == used + 2 * MODULE_BYTES, "also when the client has gone"
    driver.run()
    driver.until(lambda: (len(driver.modules), device.budget.used) == (before, used))
