"""The client library's side of the ring with a native worker at the other end: threads, a full ring, ends."""

from __future__ import annotations

import platform
import struct
import threading
import time
from collections.abc import Callable

import pytest

from pympsd.wire import records
from pympsd.wire.ring_layout import ANSWERS, AREA_BYTES, ASLEEP, IN_USE, RECORD_BYTES, RING_BYTES, SPIN_COUNT
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream.ring import Ring, ring_of
from pympsd_client._command_stream.transport import Transport
from pympsd_server.executor.record_source import SHARED_BYTES
from pympsd_server.native.worker import DeclinedRecord
from tests.native.fake_driver import LAUNCH, WRITE_VALUE, FakeDriver
from tests.native.rig import CONTEXT_ID, SECONDS, Rig

THREADS, EACH = 4, 3000
LARGE = RECORD_BYTES


@pytest.fixture
def transport(rig: Rig) -> Transport:
    """Return a client's transport."""
    return Transport(rig.client_end, rig.client_memory, ring=rig.ring)


def _answer_all(rig: Rig) -> Callable[[DeclinedRecord], None]:
    def on_taken(declined_record: DeclinedRecord) -> None:
        opcode, _, _, _, sequence = records.HEADER.unpack_from(declined_record.record)
        rig.worker.send(records.pack_answer(opcode, sequence, 0, b"", b"from Python"))

    return on_taken


@pytest.mark.long
def test_each_threads_records_arrive_in_order(rig: Rig, driver: FakeDriver, transport: Transport) -> None:
    driver.complete_immediately(rig.default_stream)
    rig.start()

    def post(thread: int) -> None:
        for number in range(EACH):
            transport.post(rig.launch(parameters=struct.pack("=IQ", thread, number)))

    threads = [threading.Thread(target=post, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    rig.drain()
    launched = [struct.unpack("=IQ", call.parameters) for call in driver.calls(LAUNCH)]
    assert len(launched) == THREADS * EACH
    for thread in range(THREADS):
        assert [number for launcher, number in launched if launcher == thread] == list(range(EACH))


def test_each_of_several_threads_gets_its_answers(rig: Rig, driver: FakeDriver, transport: Transport) -> None:
    """From the worker and from Python, during launches."""
    driver.complete_immediately(rig.default_stream)
    rig.on_taken = _answer_all(rig)
    rig.start()
    actual: list[tuple[int, bytes]] = []

    def call(name: str) -> None:
        for _ in range(300):
            sequence = transport.sequence()
            operands = [0] * len(records.BY_NAME[name].operands)
            transport.post(rig.launch())
            _, result, body = transport.call(sequence, records.pack(name, CONTEXT_ID, sequence, *operands))
            actual.append((result, body))

    threads = [threading.Thread(target=call, args=(name,)) for name in ("SYNCHRONIZE_STREAM", "MEMORY_INFO") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert sorted(actual) == [(0, b"")] * 600 + [(0, b"from Python")] * 600


def test_the_executors_end_while_the_ring_is_full_is_an_error(rig: Rig, transport: Transport) -> None:
    record = rig.pack("MEMORY_INFO").ljust(LARGE, b"\0")
    for _ in range(RING_BYTES // LARGE):
        transport.post(record)
    errors: list[CudaError] = []

    def post() -> None:
        with pytest.raises(CudaError, match="executor") as caught:
            transport.post(record)
        errors.append(caught.value)

    client = threading.Thread(target=post)
    client.start()
    rig.server_end.close()
    client.join(SECONDS)
    assert errors
    with pytest.raises(CudaError, match="executor"):
        transport.post(record)


def test_the_executors_end_is_an_error_when_ringing_the_bell(rig: Rig, transport: Transport) -> None:
    rig.words[ASLEEP // 8] = 1  # as when the executor was killed
    rig.server_end.close()
    with pytest.raises(CudaError, match="executor"):
        transport.post(rig.launch())


def test_the_executors_end_is_an_error_for_a_wait(rig: Rig, transport: Transport) -> None:
    rig.start()
    sequence = transport.sequence()
    wait = records.pack("SYNCHRONIZE_STREAM", CONTEXT_ID, sequence, 0)
    transport.post(rig.launch())

    def end() -> None:
        while not rig.driver.calls(WRITE_VALUE):
            pass
        rig.worker.close()
        rig.next()
        rig.server_end.close()

    ending = threading.Thread(target=end)
    ending.start()
    # "is gone" if a bell was rung, or had been rung and not read; "has ended" for a mere wait.
    with pytest.raises(CudaError, match=r"the executor (has ended|is gone)"):
        transport.call(sequence, wait)
    ending.join(SECONDS)
    assert not ending.is_alive()


def test_a_record_that_is_too_long_is_refused_although_the_ring_has_room(rig: Rig, transport: Transport) -> None:
    with pytest.raises(CudaError, match=f"{RECORD_BYTES} are allowed"):
        transport.post(rig.pack("MEMORY_INFO").ljust(RECORD_BYTES + 8, b"\0"))


# --- polling for an answer before sleeping


def test_a_spin_count_of_0_means_no_polling(rig: Rig) -> None:
    rig.ring.await_answer()  # it returns


def test_polling_notices_an_answer(rig: Rig) -> None:
    rig.words[SPIN_COUNT // 8] = 10**12
    ring = Ring(rig.client_memory, SHARED_BYTES)
    polling = threading.Thread(target=ring.await_answer)
    polling.start()
    rig.worker.send(b"x" * 24)
    polling.join(SECONDS)
    assert not polling.is_alive()
    assert rig.words[ANSWERS // 8] == 1


def test_polling_after_an_answer_polls_for_the_next(rig: Rig) -> None:
    rig.words[SPIN_COUNT // 8] = 500_000  # some milliseconds, next to which nothing else counts
    ring = Ring(rig.client_memory, SHARED_BYTES)
    rig.worker.send(b"x" * 24)
    began = time.thread_time()  # independent of other work on the processor
    ring.await_answer()
    seen, began = time.thread_time() - began, time.thread_time()
    ring.await_answer()
    assert time.thread_time() - began > seen, "it polled SPIN_COUNT times"


# --- whether the ring is used


@pytest.mark.parametrize("announced", [0, 4096, AREA_BYTES - 8, AREA_BYTES + 4096])
def test_a_ring_of_another_layout_is_not_used(rig: Rig, announced: int) -> None:
    assert ring_of(rig.client_memory, SHARED_BYTES, announced) is None
    assert rig.words[IN_USE // 8] == 0


@pytest.mark.parametrize(("machine", "used"), [("x86_64", True), ("AMD64", True), ("aarch64", False), ("", False)])
def test_only_a_processor_with_the_fence_uses_the_ring(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, machine: str, used: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert (ring_of(rig.client_memory, SHARED_BYTES, AREA_BYTES) is not None) == used
    assert rig.words[IN_USE // 8] == used
