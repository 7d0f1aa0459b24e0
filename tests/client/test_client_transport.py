"""The command stream with a fake executor: threads, order, full buffers, ends, Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from attrs import evolve
from processes import wait_until

from pympsd.vocabulary.device_properties import window_of
from pympsd.wire.records import FLAG_STICKY, HEADER, Record
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.staging import GRAIN
from pympsd_client._objects import copies
from pympsd_client._objects.context import Context
from tests.client.fake_executor import OPCODES, SHARED_BYTES, FakeExecutor

ILLEGAL_ADDRESS, RPC_FAILURE, INVALID_VALUE = 700, 806, 1
MakeExecutor = Callable[..., FakeExecutor]
BASE = window_of(0)


def test_a_call_brings_its_answer(executor: FakeExecutor) -> None:
    body = executor.context().call(operations.ALLOCATE, 100)
    assert operations.ALLOCATE.answer.unpack(body) == (BASE + (1 << 20),)


def test_an_error_carries_its_reason(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    executor.reply = lambda record: executor.answer(record, result=INVALID_VALUE, reason="no such address")
    context = executor.context()
    with pytest.raises(CudaError, match="no such address") as caught:
        context.call(operations.FREE, 1)
    assert caught.value.code == INVALID_VALUE
    assert context.sticky_error is None


def _events(executor: FakeExecutor) -> list[int]:
    """Return the events that were recorded; between them a client looks for faults."""
    return [executor.operands(item)[0] for item in executor.seen if item.opcode == operations.RECORD_EVENT.opcode]


def test_records_of_one_thread_arrive_in_order(executor: FakeExecutor) -> None:
    context = executor.context()
    for number in range(500):
        context.post(operations.RECORD_EVENT, number, 0)
    context.call(operations.SYNCHRONIZE_CONTEXT)
    assert _events(executor) == list(range(500))


def test_threads_get_their_own_answers_in_whatever_order_they_come(make_executor: MakeExecutor) -> None:
    records: list[Record] = []
    executor = make_executor()

    def reverse_in_pairs(record: Record) -> bytes | None:
        records.append(record)
        if len(records) % 2:
            return None
        late, early = records[-2:]
        return b"".join(
            executor.answer(item, operations.ALLOCATE.answer.pack(executor.operands(item)[0]))
            for item in (early, late)
        )

    executor.reply = reverse_in_pairs
    context = executor.context()

    def ask(size: int) -> bool:
        return operations.ALLOCATE.answer.unpack(context.call(operations.ALLOCATE, size)) == (size,)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(1, 401)))


def test_a_waiting_thread_does_not_hold_up_others(make_executor: MakeExecutor) -> None:
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


def test_calls_in_a_faulted_context_fail_without_a_record(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    executor.reply = lambda record: executor.answer(
        record, result=ILLEGAL_ADDRESS, reason="kernel add read 0x10", flags=FLAG_STICKY
    )
    context = executor.context()
    for _ in range(3):
        with pytest.raises(CudaError, match="kernel add read 0x10") as caught:
            context.synchronize()
        assert caught.value.code == ILLEGAL_ADDRESS
    with pytest.raises(CudaError):
        context.post(operations.RECORD_EVENT, 1, 0)
    assert len(executor.seen) == 1


def test_a_quiet_answer_poisons_its_context_too(make_executor: MakeExecutor) -> None:
    executor = make_executor()

    def reply(record: Record) -> bytes:
        if record.opcode == OPCODES["COPY_TO_DEVICE"]:
            return executor.answer(record, result=ILLEGAL_ADDRESS, reason="gone wrong", flags=FLAG_STICKY)
        return executor.succeed(record)

    executor.reply = reply
    context = executor.context()
    _copy(context, b"1234", wait=False)
    executor.context().synchronize()  # its answer comes after the quiet one
    with pytest.raises(CudaError, match="gone wrong"):
        context.usable()


def _copy(context: Context, data: bytes, wait: bool) -> None:
    with HostMemory(data) as memory:
        copies.copy_to_device(context, 0, BASE, memory.address, len(data), wait)


@pytest.mark.parametrize("wait", [True, False])
def test_a_copy_larger_than_the_staging_memory_goes_through_its_slots(executor: FakeExecutor, wait: bool) -> None:
    data = bytes(range(251)) * 5000  # more than all staging memory
    context = executor.context()
    _copy(context, data, wait)
    context.synchronize()
    assert bytes(executor.memory[BASE + place] for place in range(len(data))) == data
    target = bytearray(len(data))
    with HostMemory(target) as memory:
        copies.copy_from_device(context, 0, memory.address, BASE, len(data))
    assert bytes(target) == data
    assert executor.transport.staging.in_use == 0


def test_a_copy_waits_for_room_while_others_hold_it(make_executor: MakeExecutor) -> None:
    executor = make_executor()
    kept_open: list[Record] = []
    full = threading.Event()

    def reply(record: Record) -> bytes | None:
        if record.opcode != OPCODES["COPY_TO_DEVICE"] or len(kept_open) >= 4:
            return executor.succeed(record)
        kept_open.append(record)
        if len(kept_open) == 4:
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
    context.call(operations.ALLOCATE, 1)  # others are not held up
    assert third.is_alive()
    executor.send(executor.succeed(kept_open[2]))
    third.join(10)
    assert not third.is_alive()
    for record in (kept_open[0], kept_open[1], kept_open[3]):
        executor.send(executor.succeed(record))
    context.synchronize()
    assert executor.transport.staging.in_use == 0


def test_slots_do_not_overlap_and_free_ones_merge(executor: FakeExecutor) -> None:
    staging, context = executor.transport.staging, executor.context()
    offsets = [staging.take(number, GRAIN, context, is_kept=False) for number in range(16)]
    assert sorted(offsets, key=lambda offset: offset or 0) == [GRAIN * number for number in range(16)]
    assert staging.take(99, 1, context, is_kept=False) is None
    for number in (3, 4):
        staging.free(number)
        assert staging.free(number) is None
    assert staging.take(99, 2 * GRAIN, context, is_kept=False) == 3 * GRAIN


def test_a_full_socket_blocks_a_sender_and_loses_nothing(make_executor: MakeExecutor) -> None:
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
    wait_until(executor.client_is_full)  # 800 KB of records are more than the socket takes
    assert not done.is_set()
    executor.reading.set()
    sender.join(20)
    context.synchronize()
    assert _events(executor) == list(range(20000))


def test_two_full_sides_do_not_block_each_other(make_executor: MakeExecutor) -> None:
    """The executor answers while the client only sends: the sender reads."""
    executor = make_executor()
    executor.limit_buffers(4096)
    context, transport = executor.context(), executor.transport
    for number in range(3000):
        sequence = transport.sequence()
        transport.post(operations.QUERY_EVENT.record(context.id, sequence, number, flags=1))
    context.synchronize()
    assert len(executor.seen) == 3001


def test_after_the_executors_end_every_call_fails(executor: FakeExecutor) -> None:
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
        wait_until(lambda: len(executor.seen) == 4)
        executor.hang_up()
        assert [waiter.result(10) for waiter in waiters] == [RPC_FAILURE] * 4


@pytest.mark.parametrize("garbage", [b"\xff" * 64, HEADER.pack(1, 0, 24, 0, 1), HEADER.pack(0x8001, 0, 7, 0, 1)])
def test_garbage_ends_the_stream(make_executor: MakeExecutor, garbage: bytes) -> None:
    context = make_executor(reply=lambda record: garbage).context()
    with pytest.raises(CudaError, match="something that is not an answer") as caught:
        context.synchronize()
    assert caught.value.code == RPC_FAILURE


def test_ctrl_c_in_a_wait_leaves_the_stream_usable(
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
    executor.send(executor.answer(interrupted[0]))  # no caller waits for this answer any more
    assert context.call(operations.ALLOCATE, 1)
    assert executor.transport.list_answered() == ()


def test_after_ctrl_c_in_the_leader_another_thread_leads(
    make_executor: MakeExecutor, press_ctrl_c: Callable[[], None]
) -> None:
    executor = make_executor()
    records: list[Record] = []
    executor.reply = lambda record: records.append(record)  # type: ignore[func-returns-value]
    context = executor.context()
    other_done = threading.Event()

    def other() -> None:
        wait_until(lambda: bool(records))
        unexpected = evolve(records[0], sequence=1 << 40)
        executor.send(executor.answer(unexpected))
        wait_until(lambda: executor.unread() == 0)  # so the main thread reads: it is the leader
        context.call(operations.FREE, 1)
        other_done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def interrupt() -> None:
        wait_until(lambda: len(records) == 2)
        press_ctrl_c()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        context.synchronize()
    freed = next(record for record in records if record.opcode == OPCODES["FREE"])
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


def test_a_slot_is_not_reused_before_its_answer(make_executor: MakeExecutor) -> None:
    """Copies larger than the shared memory, by an executor that reads a slot only when its answer is due."""
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
