"""The command stream without an executor's help: threads, order, full buffers, ends, Ctrl-C."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pympsd.vocabulary.device_facts import window_of
from pympsd.wire.records import FLAG_POISONED, HEADER, Record
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.staging_memory import GRAIN
from pympsd_client._command_stream.transport import Transport
from pympsd_client._objects import copies
from pympsd_client._objects.context import Context
from tests.client.fake_executor import OPCODES, SHARED_BYTES, FakeExecutor

ILLEGAL_ADDRESS, RPC_FAILURE, INVALID_VALUE = 700, 806, 1
MakeExecutor = Callable[..., FakeExecutor]
BASE = window_of(0)


def test_a_call_brings_its_answer(executor: FakeExecutor) -> None:
    body = executor.context().call(operations.ALLOCATE, 100)
    assert operations.ALLOCATE.answer.unpack(body) == (BASE + (1 << 20),)


def test_an_error_carries_its_sentence(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    executor.reply = lambda record: executor.answer(record, result=INVALID_VALUE, reason="no such address")
    context = executor.context()
    with pytest.raises(CudaError, match="no such address") as caught:
        context.call(operations.FREE, 1)
    assert caught.value.code == INVALID_VALUE
    assert context.sticky_error is None


def test_records_of_one_thread_arrive_in_order(executor: FakeExecutor) -> None:
    context = executor.context()
    for number in range(500):
        context.post(operations.RECORD_EVENT, number, 0)
    context.call(operations.SYNCHRONIZE_CONTEXT)
    assert [executor.operands(record)[0] for record in executor.seen[:-1]] == list(range(500))


def test_threads_get_their_own_answers_in_whatever_order_they_come(make_executor: MakeExecutor) -> None:
    kept: list[Record] = []
    executor = make_executor()

    def reversed_in_pairs(record: Record) -> bytes | None:
        kept.append(record)
        if len(kept) % 2:
            return None
        late, early = kept[-2:]
        return b"".join(
            executor.answer(one, operations.ALLOCATE.answer.pack(executor.operands(one)[0])) for one in (early, late)
        )

    executor.reply = reversed_in_pairs
    context = executor.context()

    def ask(size: int) -> bool:
        return operations.ALLOCATE.answer.unpack(context.call(operations.ALLOCATE, size)) == (size,)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(1, 401)))


def test_others_go_on_while_one_thread_waits(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    waiting: list[Record] = []
    arrived = threading.Event()

    def reply(record: Record) -> bytes | None:
        if record.opcode == OPCODES["SYNCHRONIZE_CONTEXT"]:
            waiting.append(record)
            arrived.set()
            return None
        return executor.succeed(record)

    executor.reply = reply
    context = executor.context()
    waiter = threading.Thread(target=context.synchronize)
    waiter.start()
    assert arrived.wait(10)
    for size in range(1, 50):
        context.call(operations.ALLOCATE, size)
    assert waiter.is_alive()
    executor.send(executor.answer(waiting[0]))
    waiter.join(10)
    assert not waiter.is_alive()


def test_a_ruined_context_fails_at_once_and_without_a_trip(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    executor.reply = lambda record: executor.answer(
        record, result=ILLEGAL_ADDRESS, reason="kernel add read 0x10", flags=FLAG_POISONED
    )
    context = executor.context()
    for _ in range(3):
        with pytest.raises(CudaError, match="kernel add read 0x10") as caught:
            context.synchronize()
        assert caught.value.code == ILLEGAL_ADDRESS
    with pytest.raises(CudaError):
        context.post(operations.RECORD_EVENT, 1, 0)
    assert len(executor.seen) == 1


def test_a_quiet_answer_ruins_its_context_too(make_executor: MakeExecutor) -> None:
    executor = make_executor()

    def reply(record: Record) -> bytes:
        if record.opcode == OPCODES["COPY_TO_DEVICE"]:
            return executor.answer(record, result=ILLEGAL_ADDRESS, reason="gone wrong", flags=FLAG_POISONED)
        return executor.succeed(record)

    executor.reply = reply
    context = executor.context()
    _copy(context, b"1234", wait=False)
    executor.context().synchronize()  # its answer comes after the quiet one
    with pytest.raises(CudaError, match="gone wrong"):
        context.usable()


def _copy(context: Context, data: bytes, wait: bool) -> None:
    with HostMemory(data) as memory:
        copies.to_device(context, 0, BASE, memory.address, len(data), wait)


@pytest.mark.parametrize("wait", [True, False])
def test_a_copy_goes_through_the_shared_memory_in_parts(executor: FakeExecutor, wait: bool) -> None:
    data = bytes(range(251)) * 5000  # more than all shared memory
    context = executor.context()
    _copy(context, data, wait)
    context.synchronize()
    assert bytes(executor.memory[BASE + place] for place in range(len(data))) == data
    target = bytearray(len(data))
    with HostMemory(target) as memory:
        copies.from_device(context, 0, memory.address, BASE, len(data))
    assert bytes(target) == data
    assert executor.transport.shared.in_use == 0


def test_a_copy_waits_for_room_while_others_hold_it(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    held: list[Record] = []
    full = threading.Event()

    def reply(record: Record) -> bytes | None:
        if record.opcode != OPCODES["COPY_TO_DEVICE"] or len(held) >= 4:
            return executor.succeed(record)
        held.append(record)
        if len(held) == 4:
            full.set()
        return None

    executor.reply = reply
    context = executor.context()
    quarter = bytes(SHARED_BYTES // 4)
    for _ in range(4):
        _copy(context, quarter, wait=False)
    assert full.wait(10)
    third = threading.Thread(target=_copy, args=(context, b"x" * 10, True))
    third.start()
    context.call(operations.ALLOCATE, 1)  # the others go on
    assert third.is_alive()
    executor.send(executor.succeed(held[2]))
    third.join(10)
    assert not third.is_alive()
    for record in (held[0], held[1], held[3]):
        executor.send(executor.succeed(record))
    context.synchronize()
    assert executor.transport.shared.in_use == 0


def test_parts_are_given_out_apart_and_merge_again(executor: FakeExecutor) -> None:
    shared, context = executor.transport.shared, executor.context()
    offsets = [shared.take(number, GRAIN, context, kept=False) for number in range(16)]
    assert sorted(offsets, key=lambda offset: offset or 0) == [GRAIN * number for number in range(16)]
    assert shared.take(99, 1, context, kept=False) is None
    for number in (3, 4):
        shared.give_back(number)
        assert shared.give_back(number) is None
    assert shared.take(99, 2 * GRAIN, context, kept=False) == 3 * GRAIN


def test_a_full_socket_holds_a_sender_up_and_loses_nothing(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    context = executor.context()
    executor.reading.clear()
    done = threading.Event()

    def post_many() -> None:
        for number in range(20000):
            context.post(operations.RECORD_EVENT, number, 0)
        done.set()

    sender = threading.Thread(target=post_many)
    sender.start()
    # 800 KB of records are more than the socket takes; that the sender stands is seen by its socket being full.
    while executor.transport._leading.acquire(blocking=False):
        executor.transport._leading.release()
        if done.is_set():
            break
    assert not done.is_set()
    executor.reading.set()
    sender.join(20)
    context.synchronize()
    assert [executor.operands(record)[0] for record in executor.seen[:-1]] == list(range(20000))


def test_both_sides_full_do_not_hold_each_other_up(make_executor: MakeExecutor) -> None:
    """The executor answers into a socket that nobody reads while the client sends: the sender reads."""
    executor = make_executor()
    executor.stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    executor.transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    context, transport = executor.context(), executor.transport
    for number in range(3000):
        sequence = transport.sequence()
        transport.post(operations.QUERY_EVENT.record(context.serial, sequence, number, flags=1))
    context.synchronize()
    assert len(executor.seen) == 3001


def test_the_end_of_the_executor_is_told_for_ever(executor: FakeExecutor) -> None:
    context = executor.context()
    executor.hang_up()
    for _ in range(2):
        with pytest.raises(CudaError, match="end this process") as caught:
            context.synchronize()
        assert caught.value.code == RPC_FAILURE
    with pytest.raises(CudaError):
        context.post(operations.RECORD_EVENT, 1, 0)


def test_the_end_of_the_executor_wakes_every_waiter(make_executor: MakeExecutor) -> None:
    executor = make_executor(reply=lambda record: None)
    context = executor.context()

    def wait() -> int:
        with pytest.raises(CudaError) as caught:
            context.synchronize()
        return caught.value.code

    with ThreadPoolExecutor(4) as threads:
        waiters = [threads.submit(wait) for _ in range(4)]
        while len(executor.seen) < 4:
            pass
        executor.hang_up()
        assert [waiter.result(10) for waiter in waiters] == [RPC_FAILURE] * 4


@pytest.mark.parametrize("garbage", [b"\xff" * 64, HEADER.pack(1, 0, 24, 0, 1), HEADER.pack(0x8001, 0, 7, 0, 1)])
def test_garbage_ends_the_stream(make_executor: MakeExecutor, garbage: bytes) -> None:
    context = make_executor(reply=lambda record: garbage).context()
    with pytest.raises(CudaError, match="what is no answer") as caught:
        context.synchronize()
    assert caught.value.code == RPC_FAILURE


@pytest.fixture
def press_ctrl_c() -> Iterator[Callable[[], None]]:
    """Press Ctrl-C, and again until it is heard: one that comes just before a wait begins is heard by the next."""
    heard = threading.Event()

    def hear(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def press() -> None:
        while not heard.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            heard.wait(0.01)

    before = signal.signal(signal.SIGINT, hear)
    yield press
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_wait_leaves_the_stream_whole(
    make_executor: MakeExecutor, press_ctrl_c: Callable[[], None]
) -> None:
    executor = make_executor()
    interrupted: list[Record] = []

    def reply(record: Record) -> bytes | None:
        if record.opcode == OPCODES["SYNCHRONIZE_CONTEXT"] and not interrupted:
            interrupted.append(record)
            press_ctrl_c()
            return None
        return executor.succeed(record)

    executor.reply = reply
    context = executor.context()
    with pytest.raises(KeyboardInterrupt):
        context.synchronize()
    executor.send(executor.answer(interrupted[0]))  # the answer nobody waits for any more
    assert context.call(operations.ALLOCATE, 1)
    assert not executor.transport._gates
    assert not executor.transport._answers


def test_ctrl_c_leaves_the_lead_to_another_thread(
    make_executor: MakeExecutor, press_ctrl_c: Callable[[], None]
) -> None:
    executor = make_executor()
    kept: list[Record] = []
    executor.reply = lambda record: kept.append(record)  # type: ignore[func-returns-value]
    context = executor.context()
    transport: Transport = executor.transport
    other_done = threading.Event()

    def other() -> None:
        while not transport._leading.locked():
            pass
        context.call(operations.FREE, 1)
        other_done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def interrupt() -> None:
        while len(kept) < 2:
            pass
        press_ctrl_c()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        context.synchronize()
    freed = next(record for record in kept if record.opcode == OPCODES["FREE"])
    executor.send(executor.answer(freed))
    assert other_done.wait(10)
    thread.join(10)
    interrupter.join(10)


def test_answers_cut_into_bytes_are_put_together(make_executor: MakeExecutor) -> None:
    executor = make_executor()

    def in_bytes(record: Record) -> None:
        for byte in executor.succeed(record):
            executor.send(bytes((byte,)))

    executor.reply = in_bytes  # type: ignore[assignment]
    context = executor.context()
    for _ in range(5):
        assert operations.ALLOCATE.answer.unpack(context.call(operations.ALLOCATE, 1)) == (BASE + (1 << 20),)


def test_a_part_is_not_given_out_again_before_its_answer(make_executor: MakeExecutor) -> None:
    """Copies larger than the shared memory, taken by an executor that reads a part only when its answer is due."""
    executor = make_executor()
    late: list[Record] = []

    def in_twos(record: Record) -> bytes | None:
        late.append(record)
        if record.opcode == OPCODES["COPY_TO_DEVICE"] and len(late) < 4:
            return None
        due = late[:2] if record.opcode == OPCODES["COPY_TO_DEVICE"] else late[:]
        del late[: len(due)]
        return b"".join(map(executor.succeed, due))

    executor.reply = in_twos
    context = executor.context()
    data = bytes(range(241)) * 15000
    _copy(context, data, wait=False)
    context.synchronize()
    assert bytes(executor.memory[BASE + place] for place in range(len(data))) == data
