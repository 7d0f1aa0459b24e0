"""Page-locked memory by bare records: shared at one address, copied by the device, bounded, gone when it may be."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import wait_until

from pympsd.vocabulary.device_properties import mapped_window_of, pinned_window_of, window_of
from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.executor_messages import Attach, Attached
from pympsd_server.executor.memory.pinned_addresses import MAX_PIECES
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import ENDLESS, RawClient

VALUE, MEMORY = Result.ERROR_INVALID_VALUE, Result.ERROR_OUT_OF_MEMORY
PAGE = mmap.PAGESIZE
SECONDS = 30.0


def map_pieces(executor: ExecutorOwner) -> int:
    """How many pieces the executor has mapped at their own addresses, next to the clients' address spaces."""
    lines = Path(f"/proc/{executor.process.pid}/maps").read_text().splitlines()
    starts = [int(line.partition("-")[0], 16) for line in lines if "memfd:pympsd-memory-" in line]
    return sum(mapped_window_of(0) <= start < window_of(1) for start in starts)


def wait_until_unmapped(executor: ExecutorOwner) -> None:
    """What is freed goes from the thread that is done with it last."""
    wait_until(lambda: not map_pieces(executor), "the unmapping of page-locked memory", SECONDS)


def defer(client: RawClient) -> int:
    """The error that a record without an answer left for the next call."""
    return client.call("SYNCHRONIZE_CONTEXT").result


def test_memory_is_made_in_the_window_sealed_and_zero(client: RawClient, executor: ExecutorOwner) -> None:
    answer = client.call("ALLOCATE_PINNED", 100_000)
    assert answer.result == 0
    address, offset = struct.unpack("=QQ", answer.body)
    assert mapped_window_of(0) <= address < address + 100_000 < window_of(1)
    assert address % PAGE == 0
    assert offset == address - mapped_window_of(0)
    (fd,) = client.received_fds
    for size in (0, 1 << 30, 1 << 40):
        with pytest.raises(OSError, check=lambda error: error.errno == errno.EPERM):
            os.ftruncate(fd, size)
    assert os.pread(fd, 100_000, offset) == bytes(100_000)
    assert os.fstat(fd).st_blocks == 0, "nothing has been accessed yet"
    maps = Path(f"/proc/{executor.process.pid}/maps").read_text()
    assert any(line.startswith(f"{address:x}-") and "pympsd-memory-" in line for line in maps.splitlines())


def test_bytes_go_there_and_back_by_the_device_alone(client: RawClient) -> None:
    source, source_bytes = client.allocate_pinned(3 << 20)
    target, target_bytes = client.allocate_pinned(3 << 20)
    device_memory = client.allocate(3 << 20)
    source_bytes[:] = os.urandom(3 << 20)
    client.send("COPY_TO_DEVICE_PINNED", 0, device_memory, source, 3 << 20)
    client.send("COPY_FROM_DEVICE_PINNED", 0, target + 7, device_memory + 100, 1 << 20)
    client.good("SYNCHRONIZE_STREAM", 0)
    assert target_bytes[7 : 7 + (1 << 20)] == source_bytes[100 : 100 + (1 << 20)]
    assert not any(target_bytes[:7])
    assert not any(target_bytes[7 + (1 << 20) : 8 + (1 << 20)])
    assert client.read(device_memory, 4096) == source_bytes[:4096]


def test_copies_keep_the_order_of_their_stream(client: RawClient) -> None:
    """The source is read when the stream comes to it, not before."""
    stream, token, device_memory = client.handle(), 1, client.allocate(PAGE)
    client.send("CREATE_STREAM", stream, 1, 0)
    address, memory = client.allocate_pinned(PAGE)
    memory[:] = b"a" * PAGE
    held = client.send("HOST_FUNCTION", stream, token)
    client.send("COPY_TO_DEVICE_PINNED", stream, device_memory, address, PAGE)
    client.send("COPY_FROM_DEVICE_PINNED", stream, address, device_memory, 1)
    assert client.answer(held).result == 0
    memory[:] = b"b" * PAGE
    client.send("HOST_FUNCTION_DONE", token)
    client.good("SYNCHRONIZE_STREAM", stream)
    assert client.read(device_memory, PAGE) == b"b" * PAGE


def test_what_is_not_memory_of_this_client_is_not_touched(executor: ExecutorOwner, client: RawClient) -> None:
    other_client = executor.attach(client=2, context=2)
    foreign, foreign_bytes = other_client.allocate_pinned(2 * PAGE)
    foreign_bytes[:] = b"f" * (2 * PAGE)
    own, own_bytes = client.allocate_pinned(2 * PAGE)
    freed, freed_bytes = client.allocate_pinned(2 * PAGE)
    assert client.free_pinned(freed).result == 0
    device_memory = client.allocate(4 * PAGE)
    client.write(device_memory, b"d" * (4 * PAGE))
    for address, count in (
        (foreign, 1), (freed, 1), (own - 1, 2), (own - 1, 1),
        (own, 2 * PAGE + 1), (own + 2 * PAGE - 1, 2), (own + 2 * PAGE, 1),
        (0, 1), (0x1000, 16), (2**64 - 8, 16), (own, 2**64 - 1), (own, 2**63), (own + 1, 2**64 - own),
        (device_memory, 16), (pinned_window_of(0), 1), (window_of(0), 1),
    ):  # fmt: skip
        client.send("COPY_TO_DEVICE_PINNED", 0, device_memory, address, count)
        assert defer(client) == VALUE, (hex(address), count)
        client.send("COPY_FROM_DEVICE_PINNED", 0, address, device_memory, count)
        assert defer(client) == VALUE, (hex(address), count)
    assert client.read(device_memory, 4 * PAGE) == b"d" * (4 * PAGE)
    assert foreign_bytes[:] == b"f" * (2 * PAGE)
    assert not any(own_bytes[:] + freed_bytes[:])
    assert defer(client) == 0, "each mistake is reported once"


def test_the_devices_own_addresses_are_checked_too(client: RawClient) -> None:
    own, own_bytes = client.allocate_pinned(PAGE)
    device_memory = client.allocate(100)
    for address, count in ((device_memory + 90, 11), (device_memory, 2000), (0, 1), (own + PAGE, 1), (2**64 - 4, 8)):
        client.send("COPY_TO_DEVICE_PINNED", 0, address, own, count)
        assert defer(client) == VALUE
        client.send("COPY_FROM_DEVICE_PINNED", 0, own, address, count)
        assert defer(client) == VALUE
    client.send("COPY_TO_DEVICE_PINNED", client.handle(), device_memory, own, 1)
    assert defer(client) == Result.ERROR_INVALID_HANDLE
    assert not any(own_bytes[:])


def test_only_its_owner_frees_memory_and_once(executor: ExecutorOwner, client: RawClient) -> None:
    other_client = executor.attach(client=2, context=2)
    address, _ = client.allocate_pinned(PAGE)
    for wrong in (address + 1, address + PAGE, 0, 2**64 - 1):
        assert client.free_pinned(wrong).result == VALUE
    assert other_client.free_pinned(address).result == VALUE
    assert client.free_pinned(address).result == 0
    again = client.free_pinned(address)
    assert again.result == VALUE
    assert f"{address:#x}" in again.reason
    wait_until_unmapped(executor)


def test_memory_is_its_process_and_outlives_its_context(executor: ExecutorOwner, client: RawClient) -> None:
    address, memory = client.allocate_pinned(PAGE)
    memory[:] = b"x" * PAGE
    executor.detach(1)
    assert map_pieces(executor) == 1
    answer, _ = executor.ask(Attach, **executor.request(1, 9, False))
    assert isinstance(answer, Attached)
    client.context = 9
    device_memory = client.allocate(PAGE)
    client.send("COPY_TO_DEVICE_PINNED", 0, device_memory, address, PAGE)
    assert client.read(device_memory, PAGE) == b"x" * PAGE
    executor.detach(9)
    assert client.free_pinned(address).result == 0, "without any context"
    wait_until_unmapped(executor)


def test_freed_memory_stays_until_the_work_that_uses_it_is_done(executor: ExecutorOwner, client: RawClient) -> None:
    stream, device_memory = client.handle(), client.allocate(1 << 20)
    client.send("CREATE_STREAM", stream, 1, 0)
    address, memory = client.allocate_pinned(1 << 20)
    memory[:] = b"k" * (1 << 20)
    held = client.send("HOST_FUNCTION", stream, 1)
    client.send("COPY_TO_DEVICE_PINNED", stream, device_memory, address, 1 << 20)
    assert client.answer(held).result == 0
    assert client.free_pinned(address).result == 0
    assert map_pieces(executor) == 1
    client.send("HOST_FUNCTION_DONE", 1)
    client.good("SYNCHRONIZE_STREAM", stream)
    assert client.read(device_memory, 1 << 20) == b"k" * (1 << 20)
    wait_until_unmapped(executor)


def test_a_client_that_goes_leaves_nothing_whatever_it_has_under_way(executor: ExecutorOwner) -> None:
    neighbour = executor.attach(client=2, context=2)
    kept, kept_bytes = neighbour.allocate_pinned(PAGE)
    descriptors = executor.fd_count()
    for number in range(8):
        client = executor.attach(client=1, context=1)
        module, _ = client.load()
        stream, busy = client.handle(), client.handle()
        for handle in (stream, busy):
            client.send("CREATE_STREAM", handle, 1, 0)
        address, _ = client.allocate_pinned(40 << 20)
        device_memory = client.allocate(40 << 20)
        client.launch(module, ENDLESS, stream=busy)
        for _ in range(1 + number):
            client.send("COPY_TO_DEVICE_PINNED", stream, device_memory, address, 40 << 20)
            client.send("COPY_FROM_DEVICE_PINNED", stream, address, device_memory, 40 << 20)
            client.send("COPY_TO_DEVICE_PINNED", busy, device_memory, address, 40 << 20)
        if number % 2:
            client.free_pinned(address)
        client.close()
        executor.drop(1)

    def all_but_one_has_gone() -> bool:
        return map_pieces(executor) <= 1 and executor.fd_count() <= descriptors

    wait_until(all_but_one_has_gone, "the end of all but one piece", SECONDS)
    assert executor.alive
    kept_bytes[:] = b"n" * PAGE
    device_memory = neighbour.allocate(PAGE)
    neighbour.send("COPY_TO_DEVICE_PINNED", 0, device_memory, kept, PAGE)
    assert neighbour.read(device_memory, PAGE) == b"n" * PAGE


WITHOUT_END = """
import socket, sys
stream = socket.socket(fileno=int(sys.argv[1]))
records = bytes.fromhex(sys.argv[2])
print("begun", flush=True)
while True:
    stream.sendall(records)
"""


def test_a_process_killed_in_the_midst_of_copies_leaves_nothing(executor: ExecutorOwner) -> None:
    neighbour = executor.attach(client=2, context=2)
    for _ in range(3):
        client = executor.attach(client=1, context=1)
        size = 8 << 20
        address, device_memory = client.allocate_pinned(size)[0], client.allocate(size)
        copies = b"".join(
            records.pack(name, 1, 1 << 40, 0, *operands, size)
            for name, operands in (
                ("COPY_TO_DEVICE_PINNED", (device_memory, address)),
                ("COPY_FROM_DEVICE_PINNED", (address, device_memory)),
            )
        )  # fmt: skip
        stream = client.stream.fileno()
        with subprocess.Popen(
            [sys.executable, "-S", "-c", WITHOUT_END, str(stream), copies.hex()],
            pass_fds=(stream,), stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            neighbour.good("MEMORY_INFO")
            process.kill()
        client.close()
        executor.drop(1)
    wait_until_unmapped(executor)
    assert executor.alive
    address, memory = neighbour.allocate_pinned(PAGE)
    memory[:] = b"n" * PAGE
    device_memory = neighbour.allocate(PAGE)
    neighbour.send("COPY_TO_DEVICE_PINNED", 0, device_memory, address, PAGE)
    assert neighbour.read(device_memory, PAGE) == b"n" * PAGE


def test_what_one_client_may_have_is_bounded_in_bytes_and_pieces(executor: ExecutorOwner) -> None:
    client, neighbour = executor.attach(client=1, context=1), executor.attach(client=2, context=2)
    assert client.call("ALLOCATE_PINNED", 0).result == VALUE
    for count in (1 << 40, 1 << 62, 2**64 - 1):
        answer = client.call("ALLOCATE_PINNED", count)
        assert answer.result == MEMORY
        assert "a quarter of this machine's memory" in answer.reason
    descriptors = executor.fd_count()
    addresses = []
    for _ in range(MAX_PIECES):
        address, memory = client.allocate_pinned(1)
        memory.close()
        addresses.append(address)
    assert len(set(addresses)) == MAX_PIECES
    answer = client.call("ALLOCATE_PINNED", 1)
    assert answer.result == MEMORY
    assert str(MAX_PIECES) in answer.reason
    assert client.received_fds == []
    neighbour.allocate_pinned(1)
    deadline = time.monotonic() + SECONDS
    while executor.fd_count() > descriptors + 1:  # the neighbour has a file; others are closed with their answers
        assert time.monotonic() < deadline
    assert client.free_pinned(addresses[0]).result == 0
    client.allocate_pinned(1)
    executor.drop(1)
    client = executor.attach(client=1, context=1)
    client.allocate_pinned(1)
    deadline = time.monotonic() + SECONDS
    while executor.fd_count() > descriptors + 1:  # a file for each of the two
        assert time.monotonic() < deadline


def test_freed_pinned_memory_has_no_pages(executor: ExecutorOwner, client: RawClient) -> None:
    address, _ = struct.unpack("=QQ", client.good("ALLOCATE_PINNED", 1))
    fd = client.received_fds.pop()  # the file has all of the client's memory
    for _ in range(3):
        assert client.free_pinned(address).result == 0
        wait_until_unmapped(executor)
        assert os.fstat(fd).st_blocks == 0
        address, memory = client.allocate_pinned(1 << 20)
        assert not any(memory[:])
        memory[:] = b"x" * (1 << 20)
        assert os.fstat(fd).st_blocks >= (1 << 20) // 512
    os.close(fd)


def test_bodies_of_any_length_are_read_or_refused(client: RawClient) -> None:
    address, _ = client.allocate_pinned(PAGE)
    opcode = records.BY_NAME["FREE_PINNED"].opcode
    for number, body in enumerate(
        (b"", struct.pack("=Q", address)[:5], struct.pack("=QQ", address, address)), 1 << 40
    ):
        head = records.HEADER.pack(opcode, 0, records.HEADER_BYTES + len(body), 0, number)
        client.stream.sendall(head + body)
        assert client.answer(number).result == VALUE
    assert client.call("FREE_PINNED", address, context=12345).result == 0, "whatever context it names"


def test_a_faulted_context_frees_and_copies_nothing_more(executor: ExecutorOwner, client: RawClient) -> None:
    address, memory = client.allocate_pinned(PAGE)
    device_memory = client.allocate(PAGE)
    module, _ = client.load()
    client.launch(module, 3)  # trap
    is_faulted = client.call("SYNCHRONIZE_CONTEXT").result
    assert is_faulted == Result.ERROR_LAUNCH_FAILED
    executor.receive()
    client.send("COPY_FROM_DEVICE_PINNED", 0, address, device_memory, PAGE)
    assert client.call("ALLOCATE_PINNED", PAGE).result == is_faulted
    assert client.free_pinned(address).result == 0
    assert not any(memory[:])
    wait_until_unmapped(executor)
