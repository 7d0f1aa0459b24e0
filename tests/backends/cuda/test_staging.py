"""Slots for copies: no client takes those of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import BackendError, Status
from tests.backends.contract.port_user import copy_to_device
from tests.backends.cuda.fake_driver import FakeDriver, Recorder

MIB = 1 << 20
PIECE = 256 << 10


def expect_refusal(owner: str) -> pytest.RaisesExc[BackendError]:
    """Expect OUT_OF_MEMORY for the copies of one client, or of all."""
    pattern = f"^unfinished copies of {owner} would take more than"
    return pytest.raises(BackendError, match=pattern, check=lambda error: error.code == Result.ERROR_OUT_OF_MEMORY)


def test_a_client_with_many_copies_leaves_slots_to_the_others(
    driver: FakeDriver, make_context: Callable[..., CudaContext]
) -> None:
    greedy, other = make_context(1), make_context(2)
    address, stream = greedy.allocate(MIB), greedy.create_stream(True, 0)
    source, done = memoryview(bytes(PIECE)), Recorder()
    driver.stall(stream.handle)
    for _ in range(32 * MIB // PIECE):
        stream.copy(copy_to_device(address, source), done)
    again = make_context(1)  # of the same client
    for entry in (stream, again.default_stream):
        with expect_refusal("this client"):
            entry.copy(copy_to_device(address, source), done)
    recorder = Recorder()
    other.default_stream.copy(copy_to_device(other.allocate(4), memoryview(b"1234")), recorder)
    assert recorder.wait() == [Status()]
    driver.run(stream.handle)
    done.wait(32 * MIB // PIECE)
    stream.copy(copy_to_device(address, source), done)
    assert set(done.wait(32 * MIB // PIECE + 1)) == {Status()}


def test_a_single_copy_of_any_size_has_a_slot(device: CudaDevice) -> None:
    slot = device.services.staging.take(40 * MIB, "client")
    with expect_refusal("this client"):
        device.services.staging.take(1, "client")
    device.services.staging.give(slot)
    assert device.services.staging.take(1, "client").view.nbytes == 1


def test_all_clients_together_have_a_limit(device: CudaDevice) -> None:
    with expect_refusal("all clients"):
        for client in range(18):
            for _ in range(4):
                device.services.staging.take(8 * MIB, client)
