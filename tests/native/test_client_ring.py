"""The client library's side of the ring, with a native worker on the other: threads, a full ring, ends."""

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
from pympsd_server.executor.host_memory.shared import SHARED_BYTES
from pympsd_server.native.worker import Taken
from tests.native.fake_driver import LAUNCH, WRITE_VALUE, StandIn
from tests.native.rig import SECONDS, SERIAL, Rig

THREADS, EACH = 4, 3000
LARGE = RECORD_BYTES


@pytest.fixture
def transport(rig: Rig) -> Transport:
    """A client's."""
    return Transport(rig.theirs, rig.client_memory, ring=rig.ring)


def _answer_all(rig: Rig) -> Callable[[Taken], None]:
    def on_taken(taken: Taken) -> None:
        opcode, _, _, _, sequence = records.HEADER.unpack_from(taken.record)
        rig.worker.send(records.pack_answer(opcode, sequence, 0, b"", b"from Python"))

    return on_taken


def test_each_threads_records_come_in_its_order(rig: Rig, driver: StandIn, transport: Transport) -> None:
    driver.at_once(rig.default)
    rig.begin()

    def post(thread: int) -> None:
        for number in range(EACH):
            transport.post(rig.launch(parameters=struct.pack("=IQ", thread, number)))

    threads = [threading.Thread(target=post, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    rig.pass_by()
    launched = [struct.unpack("=IQ", call.parameters) for call in driver.calls(LAUNCH)]
    assert len(launched) == THREADS * EACH
    for thread in range(THREADS):
        assert [number for each, number in launched if each == thread] == list(range(EACH))


def test_calls_of_several_threads_get_their_answers(rig: Rig, driver: StandIn, transport: Transport) -> None:
    """Of the worker and of Python, while launches go on."""
    driver.at_once(rig.default)
    rig.on_taken = _answer_all(rig)
    rig.begin()
    got: list[tuple[int, bytes]] = []

    def call(name: str) -> None:
        for _ in range(300):
            sequence = transport.sequence()
            operands = [0] * len(records.BY_NAME[name].operands)
            transport.post(rig.launch())
            _, result, body = transport.call(sequence, records.pack(name, SERIAL, sequence, *operands))
            got.append((result, body))

    threads = [threading.Thread(target=call, args=(name,)) for name in ("SYNCHRONIZE_STREAM", "MEMORY_INFO") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert sorted(got) == [(0, b"")] * 600 + [(0, b"from Python")] * 600


def test_an_executor_that_ends_while_the_ring_is_full_is_told(rig: Rig, transport: Transport) -> None:
    record = rig.pack("MEMORY_INFO").ljust(LARGE, b"\0")
    for _ in range(RING_BYTES // LARGE):
        transport.post(record)
    said: list[CudaError] = []

    def post() -> None:
        with pytest.raises(CudaError, match="executor") as caught:
            transport.post(record)
        said.append(caught.value)

    client = threading.Thread(target=post)
    client.start()
    rig.ours.close()
    client.join(SECONDS)
    assert said
    with pytest.raises(CudaError, match="executor"):
        transport.post(record)


def test_an_executor_that_has_gone_is_told_to_who_rings(rig: Rig, transport: Transport) -> None:
    rig.words[ASLEEP // 8] = 1  # as it was when it was killed
    rig.ours.close()
    with pytest.raises(CudaError, match="executor"):
        transport.post(rig.launch())


def test_an_executor_that_ends_is_told_to_who_waits(rig: Rig, transport: Transport) -> None:
    rig.begin()
    sequence = transport.sequence()
    wait = records.pack("SYNCHRONIZE_STREAM", SERIAL, sequence, 0)
    transport.post(rig.launch())

    def end() -> None:
        while not rig.driver.calls(WRITE_VALUE):
            pass
        rig.worker.close()
        rig.next()
        rig.ours.close()

    ending = threading.Thread(target=end)
    ending.start()
    # It is gone for who rings a bell or had rung one that nobody heard, has ended for who only waits.
    with pytest.raises(CudaError, match=r"the executor (has ended|is gone)"):
        transport.call(sequence, wait)
    ending.join(SECONDS)
    assert not ending.is_alive()


def test_a_record_that_is_too_long_is_refused_when_the_ring_has_room_too(rig: Rig, transport: Transport) -> None:
    with pytest.raises(CudaError, match=f"{RECORD_BYTES} are allowed"):
        transport.post(rig.pack("MEMORY_INFO").ljust(RECORD_BYTES + 8, b"\0"))


# --- looking for an answer before sleeping


def test_who_need_not_look_does_not(rig: Rig) -> None:
    rig.ring.await_answer()  # SPIN_COUNT is 0: it returns


def test_who_looks_sees_that_an_answer_comes(rig: Rig) -> None:
    rig.words[SPIN_COUNT // 8] = 10**12
    ring = Ring(rig.client_memory, SHARED_BYTES)
    looking = threading.Thread(target=ring.await_answer)
    looking.start()
    rig.worker.send(b"x" * 24)
    looking.join(SECONDS)
    assert not looking.is_alive()
    assert rig.words[ANSWERS // 8] == 1


def test_who_has_seen_an_answer_looks_for_the_next(rig: Rig) -> None:
    rig.words[SPIN_COUNT // 8] = 2000
    ring = Ring(rig.client_memory, SHARED_BYTES)
    rig.worker.send(b"x" * 24)
    began = time.thread_time()  # whatever else the processor does meanwhile
    ring.await_answer()
    seen, began = time.thread_time() - began, time.thread_time()
    ring.await_answer()
    assert time.thread_time() - began > seen, "it looked as often as it was told"


# --- whether there is one


@pytest.mark.parametrize("announced", [0, 4096, AREA_BYTES - 8, AREA_BYTES + 4096])
def test_a_ring_of_another_layout_is_not_used(rig: Rig, announced: int) -> None:
    assert ring_of(rig.client_memory, SHARED_BYTES, announced) is None
    assert rig.words[IN_USE // 8] == 0


@pytest.mark.parametrize(("machine", "used"), [("x86_64", True), ("AMD64", True), ("aarch64", False), ("", False)])
def test_only_a_processor_with_the_fence_uses_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, machine: str, used: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert (ring_of(rig.client_memory, SHARED_BYTES, AREA_BYTES) is not None) == used
    assert rig.words[IN_USE // 8] == used
