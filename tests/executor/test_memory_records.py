"""Allocating, copying and filling, by bare records."""

from __future__ import annotations

import os

import pytest

from pympsd.vocabulary.device_properties import window_of
from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.executor_messages import Attach
from pympsd_server.executor.requests.answers import MAX_KEPT_BYTES
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import ENDLESS, RawClient

VALUE = Result.ERROR_INVALID_VALUE


def test_memory_lies_in_the_devices_window_and_is_zero(client: RawClient) -> None:
    address = client.allocate(10_000)
    assert window_of(0) <= address < window_of(1)
    assert client.read(address, 10_000) == bytes(10_000)


def test_bytes_go_there_and_back(client: RawClient) -> None:
    address, data = client.allocate(100_000), os.urandom(100_000)
    client.write(address, data)
    assert client.read(address, 100_000) == data
    assert client.read(address + 17, 1000) == data[17:1017]


def test_copies_and_fills_on_the_device(client: RawClient) -> None:
    first, second = client.allocate(4096), client.allocate(4096)
    client.send("FILL", 0, first, 0xABCD1234, 4, 1024, 0, 1)
    client.send("FILL", 0, first + 4, 0x1FF, 1, 3, 0, 1)
    client.send("COPY_ON_DEVICE", 0, second, first, 4096)
    assert client.read(second, 4096) == (
        bytes.fromhex("3412cdab") + b"\xff\xff\xff\xab" + bytes.fromhex("3412cdab") * 1022
    )


def test_freed_memory_is_gone(client: RawClient) -> None:
    before = client.memory_info()
    address = client.allocate(1 << 20)
    client.good("FREE", address)
    assert client.memory_info() == before
    assert client.call("FREE", address).result == VALUE
    assert client.call("COPY_FROM_DEVICE", 0, address, 0, 16).result == VALUE


def test_nothing_is_copied_for_no_bytes(client: RawClient) -> None:
    client.good("COPY_TO_DEVICE", 0, 0, 0, 0)
    client.send("FILL", 0, 0, 7, 1, 0, 0, 1)
    client.good("SYNCHRONIZE_CONTEXT")


def test_a_memory_limit_holds_and_is_what_the_client_sees(executor: ExecutorOwner) -> None:
    client = executor.attach(memory_bytes=1 << 30)
    free, total = client.memory_info()
    assert total == 1 << 30
    assert 0 < free < total
    answer = client.call("ALLOCATE", 1 << 30)
    assert answer.result == Result.ERROR_OUT_OF_MEMORY
    assert str(1 << 30) in answer.reason
    client.good("ALLOCATE", free)
    assert client.call("ALLOCATE", 1).result == Result.ERROR_OUT_OF_MEMORY


def test_contexts_of_a_process_reach_each_others_memory_other_processes_do_not(executor: ExecutorOwner) -> None:
    client = executor.attach(client=1, context=1)
    executor.ask(Attach, **executor.request(1, 2, False))
    other_client = executor.attach(client=2, context=3)
    address = client.allocate(64)
    client.write(address, b"x" * 64)
    client.good("COPY_FROM_DEVICE", 0, address, 0, 64, context=2)
    assert client.memory[:64] == b"x" * 64
    assert other_client.call("COPY_FROM_DEVICE", 0, address, 0, 64).result == VALUE
    assert client.call("FREE", address, context=2).result == VALUE


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("ALLOCATE", (0,)),
        ("FREE", (0,)),
        ("FREE", (2**64 - 1,)),
        ("COPY_TO_DEVICE", (0, 0x1000, 0, 16)),
        ("COPY_FROM_DEVICE", (0, 2**64 - 8, 0, 16)),
        ("COPY_TO_DEVICE", (0, window_of(0), 16 << 20, 1)),
        ("COPY_TO_DEVICE", (0, window_of(0), 2**64 - 1, 2)),
        ("COPY_FROM_DEVICE", (0, window_of(0), 0, (16 << 20) + 1)),
        ("COPY_FROM_DEVICE", (0, window_of(0), 0, 2**64 - 1)),
        ("IMAGE_PART", ((7 << 40) + 16, 16 << 20, 1)),
    ],
)
def test_what_lies_outside_is_an_invalid_value(client: RawClient, name: str, operands: tuple[int, ...]) -> None:
    address = client.allocate(4096)
    answer = client.call(name, *operands)
    assert answer.result == VALUE
    assert answer.reason
    assert client.read(address, 4096) == bytes(4096)


@pytest.mark.parametrize(
    ("destination", "width", "count"),
    [(0, 3, 1), (0, 8, 1), (2, 4, 1), (0, 4, 1025), (0, 4, 2**64 - 1), (4096, 1, 1), (0, 0, 5)],
)
def test_a_fill_that_does_not_fit_fails_the_next_call(
    client: RawClient, destination: int, width: int, count: int
) -> None:
    address = client.allocate(4096)
    client.send("FILL", 0, address + destination, 0xFF, width, count, 0, 1)
    assert client.call("SYNCHRONIZE_CONTEXT").result == VALUE
    assert client.read(address, 4096) == bytes(4096)


def test_more_than_there_is_cannot_be_had(client: RawClient) -> None:
    for count in (1 << 40, 1 << 63, 2**64 - 1):
        assert client.call("ALLOCATE", count).result == Result.ERROR_OUT_OF_MEMORY
    assert client.allocate(1 << 30)


def test_short_calls_do_not_queue_behind_a_kernel(client: RawClient) -> None:
    module, _ = client.load()
    stream = client.handle()
    client.send("CREATE_STREAM", stream, 1, 0)
    client.launch(module, ENDLESS, stream=stream)
    address = client.allocate(4096)
    client.write(address, b"y" * 4096)
    assert client.read(address, 4096) == b"y" * 4096
    assert client.memory_info()[1]
    assert client.call("QUERY_STREAM", stream).result == Result.ERROR_NOT_READY


def test_memory_in_use_by_a_kernel_is_freed_after_it(client: RawClient) -> None:
    module, _ = client.load()
    address = client.allocate(4096)
    client.launch(module, ENDLESS)
    freeing = client.send("FREE", address)
    assert client.call("QUERY_STREAM", 0).result == Result.ERROR_NOT_READY
    assert client.call("FREE", address).result == VALUE
    assert freeing not in client.arrived()


# --- rows and slices

DEVICE, STAGING, PINNED = records.CopySpace
LINES, PITCH, SLICE = 3, 64, 512
"""A slice of 3 rows of 8 bytes, 64 bytes apart; two slices, 512 bytes apart."""


def block(memory: bytes, start: int = 0, pitch: int = PITCH, slice_pitch: int = SLICE) -> bytes:
    """Return 2 slices of 3 rows of 8 bytes out of pitched memory."""
    starts = [start + z * slice_pitch + y * pitch for z in range(2) for y in range(LINES)]
    return b"".join(memory[start : start + 8] for start in starts)


def test_rows_and_slices_come_from_the_shared_memory_and_return_to_it(client: RawClient) -> None:
    address, data = client.allocate(4096), os.urandom(48)
    client.memory[:48] = data
    extent = (8, LINES, 2)
    client.good("COPY_3D_STAGED", 0, DEVICE, address + 16, PITCH, SLICE, STAGING, 0, 8, 24, *extent)
    assert block(client.read(address, 4096), 16) == data
    client.good("COPY_3D_STAGED", 0, STAGING, 4096, 8, 24, DEVICE, address + 16, PITCH, SLICE, *extent)
    assert client.memory[4096 : 4096 + 48] == data


def test_rows_and_slices_are_copied_on_the_device_and_nothing_between_them_is(client: RawClient) -> None:
    first, second, data = client.allocate(4096), client.allocate(4096), os.urandom(4096)
    client.write(first, data)
    client.send("COPY_3D", 0, DEVICE, second, 8, 24, DEVICE, first, PITCH, SLICE, 8, LINES, 2)
    assert client.read(second, 4096) == block(data) + bytes(4096 - 48)


def test_a_fill_of_rows_leaves_what_lies_between_them(client: RawClient) -> None:
    address = client.allocate(4096)
    client.send("FILL", 0, address, 0x1234, 2, 4, PITCH, LINES)
    row = b"\x34\x12" * 4 + bytes(PITCH - 8)
    assert client.read(address, 4096) == row * LINES + bytes(4096 - len(row) * LINES)


@pytest.mark.parametrize(
    "sides",
    [
        (STAGING, 0, 8, 24, STAGING, 4096, 8, 24),
        (7, 0, 8, 24, DEVICE, 0, 8, 24),
        (DEVICE, 0, 8, 24, 7, 0, 8, 24),
        (DEVICE, 0, 4, 24, STAGING, 0, 8, 24),
        (DEVICE, 4096 - 47, 8, 24, STAGING, 0, 8, 24),
        (DEVICE, 0, 8, 24, STAGING, (16 << 20) - 47, 8, 24),
        (DEVICE, 0, 8, 24, STAGING, 0, 2**63, 2**63),
        (DEVICE, 0, 2**63, 2**63, STAGING, 0, 8, 24),
        (DEVICE, 0, 8, 24, PINNED, 0, 8, 24),
    ],
)
def test_a_copy_of_rows_that_cannot_be_is_an_invalid_value(client: RawClient, sides: tuple[int, ...]) -> None:
    address = client.allocate(4096)
    on_device = [
        base + address if space == DEVICE else base for space, base in zip(sides[::4], sides[1::4], strict=True)
    ]
    operands = list(sides)
    operands[1], operands[5] = on_device
    answer = client.call("COPY_3D_STAGED", 0, *operands, 8, LINES, 2)
    assert answer.result == VALUE
    assert answer.reason
    assert client.read(address, 4096) == bytes(4096)


def test_a_copy_without_rows_is_done_immediately(client: RawClient) -> None:
    client.good("COPY_3D_STAGED", 0, DEVICE, 0, 8, 24, STAGING, 0, 8, 24, 8, 0, 2)


def test_a_copy_that_is_not_answered_does_not_reach_the_shared_memory(client: RawClient) -> None:
    address = client.allocate(4096)
    client.send("COPY_3D", 0, DEVICE, address, 8, 24, STAGING, 0, 8, 24, 8, LINES, 2)
    answer = client.call("SYNCHRONIZE_CONTEXT")
    assert answer.result == VALUE
    assert "COPY_3D_STAGED" in answer.reason


@pytest.mark.long
def test_copies_of_rows_on_the_device_leave_no_answers_unread(client: RawClient) -> None:
    # 24 bytes of answer to each of them would be more than an executor keeps for a client that reads none.
    count = MAX_KEPT_BYTES // records.HEADER_BYTES + 100
    address = client.allocate(4096)
    copies = records.pack("COPY_3D", 1, 1, 0, DEVICE, address + 64, 8, 24, DEVICE, address, 8, 24, 8, 2, 1) * 1000
    for _ in range(count // 1000 + 1):
        client.stream.sendall(copies)
    client.good("SYNCHRONIZE_CONTEXT")
