"""The command stream's records: the table is sound, records survive any chunking, bad lengths are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.errors import RemoteError
from pympsd.wire import records
from pympsd.wire.records import (
    ANSWER,
    BY_OPCODE,
    HEADER,
    HEADER_BYTES,
    OPERATIONS,
    Completion,
    Kind,
    Operand,
    Operation,
    Record,
    RecordReader,
    Scope,
    Use,
)

U64 = st.integers(0, (1 << 64) - 1)
EVENT = Operand("event", kind=Kind.EVENT)
CODES = {"Q": U64, "q": st.integers(-(1 << 63), (1 << 63) - 1), "d": st.floats(allow_nan=False)}


def _operands(fields: tuple[Operand, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(CODES[operand.code] for operand in fields))


def test_the_table_is_sound() -> None:
    assert len({operation.opcode for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert all(0 < operation.opcode < ANSWER for operation in OPERATIONS)
    assert records.BY_NAME.keys() == {operation.name for operation in OPERATIONS}
    assert HEADER_BYTES == 24


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operands_are_eight_bytes_each_with_names_of_their_own(operation: Operation) -> None:
    for fields in (operation.operands, operation.answers):
        assert all(operand.code in CODES and struct.calcsize(f"={operand.code}") == 8 for operand in fields)
        assert len({operand.name for operand in fields}) == len(fields)
    assert operation.layout.size == HEADER_BYTES + 8 * len(operation.operands)
    assert operation.answer_layout.size == 8 * len(operation.answers)
    assert operation.answered or not (operation.answers or operation.answer_tail)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_completion_scope_and_handles_fit_each_other(operation: Operation) -> None:
    kinds = [operand.kind for operand in operation.operands if operand.kind is not None]
    if operation.completion is Completion.QUEUED:
        assert Kind.STREAM in kinds, "work is queued in a stream"
    if operation.completion is Completion.COMPLETE:
        assert operation.answered, "the answer is what reports that it is done"
        assert not operation.answers
    if operation.scope is Scope.PROCESS:
        assert not kinds, "handles belong to contexts"
        assert operation.completion is Completion.IMMEDIATE
    assert operation.answered or not operation.brings_fd
    assert sum(operand.use is Use.CREATED for operand in operation.operands) <= 1
    assert all(operand.code == "Q" for operand in operation.operands if operand.kind is not None)


def test_a_chapters_opcodes_lie_together() -> None:
    assert [operation.opcode for operation in OPERATIONS] == sorted(operation.opcode for operation in OPERATIONS)
    chapters = {operation.opcode >> 8 for operation in OPERATIONS if operation.operands[:1] == (EVENT,)}
    assert chapters == {5}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@given(data=st.data())
def test_a_record_reads_back(operation: Operation, data: st.DataObject) -> None:
    context, sequence, flags = data.draw(U64), data.draw(U64), data.draw(st.integers(0, 0xFFFF))
    operands = data.draw(_operands(operation.operands))
    tail = data.draw(st.binary(max_size=40)) if operation.tail else b""
    packed = records.pack(operation.name, context, sequence, *operands, tail=tail, flags=flags)
    (record,) = RecordReader().feed(packed)
    assert (record.opcode, record.flags) == (operation.opcode, flags)
    assert (record.context, record.sequence) == (context, sequence)
    assert operation.layout.unpack_from(packed)[5:] == operands
    operand_bytes = 8 * len(operation.operands)
    assert record.body[operand_bytes:] == tail.ljust(records.pad(len(tail)), b"\0")
    assert len(packed) % 8 == 0


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.answered], ids=lambda operation: operation.name)
@given(data=st.data())
def test_an_answer_reads_back(operation: Operation, data: st.DataObject) -> None:
    operands = data.draw(_operands(operation.answers))
    tail = data.draw(st.binary(max_size=40))
    packed = records.pack_answer(operation.opcode, 7, 719, operation.answer_layout.pack(*operands), tail, flags=1)
    (answer,) = RecordReader().feed(packed)
    assert answer.opcode == operation.opcode | ANSWER
    assert BY_OPCODE[answer.opcode & ~ANSWER] is operation
    assert (answer.flags, answer.context, answer.sequence) == (1, 719, 7)
    assert operation.answer_layout.unpack_from(answer.body) == operands
    assert answer.body[operation.answer_layout.size :] == tail


@given(st.lists(st.binary(max_size=100), max_size=10), st.lists(st.integers(1, 60), max_size=40))
def test_records_cut_anywhere_come_out_whole(tails: list[bytes], steps: list[int]) -> None:
    stream = b"".join(records.pack("LAUNCH", 1, number, *range(11), tail=tail) for number, tail in enumerate(tails))
    reader, actual, start = RecordReader(), [], 0
    for step in [*steps, len(stream)]:
        actual += reader.feed(stream[start : start + step])
        start += step
    assert [record.sequence for record in actual] == list(range(len(tails)))
    assert [record.body[88 : 88 + len(tail)] for record, tail in zip(actual, tails, strict=True)] == tails


@given(st.integers(0, (1 << 32) - 1).filter(lambda n: not HEADER_BYTES <= n <= records.MAX_RECORD))
def test_a_length_out_of_range_is_refused_immediately(length: int) -> None:
    with pytest.raises(RemoteError, match=f"a record of {length} bytes: between 24 and 1048576 are allowed"):
        RecordReader().feed(HEADER.pack(1, 0, length, 0, 0))


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_garbage_raises_nothing_but_remote_error(chunks: list[bytes]) -> None:
    reader = RecordReader()
    try:
        actual = [record for chunk in chunks for record in reader.feed(chunk)]
    except RemoteError as error:
        assert "bytes" in str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert all(isinstance(record, Record) for record in actual)


def test_the_longest_record_passes() -> None:
    longest = HEADER.pack(8, 0, records.MAX_RECORD, 0, 0) + bytes(records.MAX_RECORD - HEADER_BYTES)
    (record,) = RecordReader().feed(longest)
    assert len(record.body) == records.MAX_RECORD - HEADER_BYTES


@given(st.integers(0, 1 << 40))
def test_padding_goes_up_to_the_next_8(length: int) -> None:
    assert records.pad(length) % 8 == 0
    assert 0 <= records.pad(length) - length < 8


def test_handles_of_cudas_own_streams_are_never_minted() -> None:
    assert records.FIRST_HANDLE > 2
    assert 1 << records.GENERATION_SHIFT > records.FIRST_HANDLE
