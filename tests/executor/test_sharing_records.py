"""Records of allocations and events that clients share: what is shared, until when, and mistakes."""

from __future__ import annotations

import struct

import pytest

from pympsd.vocabulary.device_properties import MAPPING_GRANULE, VIRTUAL_OFFSET, window_of
from pympsd.vocabulary.results import Result
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import ENDLESS, RawClient

AREA = window_of(0) + VIRTUAL_OFFSET
VALUE = Result.ERROR_INVALID_VALUE
NOT_READY = Result.ERROR_NOT_READY


@pytest.fixture
def client(executor: ExecutorOwner) -> RawClient:
    return executor.attach()


@pytest.fixture
def other(executor: ExecutorOwner) -> RawClient:
    return executor.attach(client=2, context=2)


def shared(client: RawClient, address: int) -> tuple[int, int, int]:
    """Return the two words of an allocation's secret, and its offset."""
    high, low, offset = struct.unpack("=3Q", client.good("SHARE_ALLOCATION", address))
    return high, low, offset


def make_opened(client: RawClient, names: tuple[int, int, int], address: int = AREA) -> int:
    """Return where a client has mapped another one's allocation."""
    handle = client.handle()
    size, _ = struct.unpack("=2Q", client.good("IMPORT_MEMORY", handle, *names[:2]))
    client.good("MAP_MEMORY", handle, address)
    client.good("SET_ACCESS", address, size, 1)
    client.good("RELEASE_MEMORY", handle)
    return address + names[2]


@pytest.mark.parametrize("size", [1, 40, 3000, 4096, 10_000, 3 << 20])
def test_an_allocation_is_the_same_memory_for_both(client: RawClient, other: RawClient, size: int) -> None:
    before, mine, after = client.allocate(100), client.allocate(size), client.allocate(100)
    client.write(mine, b"m" * size)
    client.write(before, b"b" * 100)
    client.write(after, b"a" * 100)
    theirs = make_opened(other, shared(client, mine))
    assert other.read(theirs, size) == b"m" * size, "what was there before stays"
    other.write(theirs, b"t" * size)
    assert client.read(mine, size) == b"t" * size
    client.write(mine, b"n" * size)
    assert other.read(theirs, size) == b"n" * size
    assert client.read(before, 100) == b"b" * 100
    assert client.read(after, 100) == b"a" * 100


def test_neighbours_in_a_page_are_shared_one_after_the_other(client: RawClient, other: RawClient) -> None:
    mine = [client.allocate(5000) for _ in range(4)]
    for number, address in enumerate(mine):
        client.write(address, bytes([number]) * 5000)
    theirs = [
        make_opened(other, shared(client, address), AREA + number * MAPPING_GRANULE)
        for number, address in enumerate(mine)
    ]
    for number, (ours, its) in enumerate(zip(mine, theirs, strict=True)):
        assert other.read(its, 5000) == bytes([number]) * 5000
        client.write(ours, bytes([number + 9]) * 5000)
    for number, its in enumerate(theirs):
        assert other.read(its, 5000) == bytes([number + 9]) * 5000
    client.good("FREE", mine[1])
    assert other.read(theirs[1], 5000) == bytes([10]) * 5000, "freed memory stays while it is mapped"
    assert client.read(mine[0], 5000) == bytes([9]) * 5000
    assert client.read(mine[2], 5000) == bytes([11]) * 5000


def test_freed_memory_stays_charged_and_taken_until_it_is_unmapped(client: RawClient, other: RawClient) -> None:
    size = 4 << 20
    free, theirs_free = client.memory_info()[0], other.memory_info()[0]
    mine = client.allocate(size)
    names = shared(client, mine)
    theirs = make_opened(other, names)
    client.write(mine, b"m" * 100)
    used = client.memory_info()[0]
    assert free - used == size, "it is charged once"
    client.good("FREE", mine)
    assert client.memory_info()[0] == used
    second = client.allocate(size)
    assert second != mine
    client.good("FREE", second)
    assert other.read(theirs, 100) == b"m" * 100
    assert other.call("IMPORT_MEMORY", other.handle(), *names[:2]).result == VALUE, "it is freed"
    other.good("UNMAP_MEMORY", AREA, size)
    assert client.memory_info()[0] == free
    assert other.memory_info()[0] == theirs_free
    assert client.allocate(size) == mine, "its addresses are free again"
    assert client.read(mine, 100) == bytes(100), "and read zero"


def test_shared_memory_outlives_its_exporter(executor: ExecutorOwner, client: RawClient, other: RawClient) -> None:
    mine = client.allocate(10_000)
    client.write(mine, b"m" * 10_000)
    theirs = make_opened(other, shared(client, mine))
    executor.drop(1)
    assert other.read(theirs, 10_000) == b"m" * 10_000
    other.write(theirs, b"t" * 10_000)
    assert other.read(theirs, 10_000) == b"t" * 10_000
    executor.drop(2)


def test_the_importer_of_shared_memory_may_end_first(
    executor: ExecutorOwner, client: RawClient, other: RawClient
) -> None:
    mine = client.allocate(10_000)
    make_opened(other, shared(client, mine))
    executor.drop(2)
    used = client.memory_info()[0]
    client.write(mine, b"m" * 10_000)
    assert client.read(mine, 10_000) == b"m" * 10_000
    client.good("FREE", mine)
    assert client.memory_info()[0] == used + 10_240, "it is charged in units of 512 bytes"


def test_a_kernel_runs_on_while_its_memory_becomes_shared(client: RawClient, other: RawClient) -> None:
    module, _ = client.load()
    stream = client.handle()
    client.send("CREATE_STREAM", stream, 1, 0)
    client.launch(module, ENDLESS, stream=stream)
    mine = client.allocate(100)
    client.write(mine, b"m" * 100)
    assert other.read(make_opened(other, shared(client, mine)), 100) == b"m" * 100


def test_mistakes_with_allocations(client: RawClient, other: RawClient) -> None:
    mine = client.allocate(100)
    for address in (0, 1, mine + 1, mine + 512, 2**63, 2**64 - 1, AREA):
        assert client.call("SHARE_ALLOCATION", address).result == VALUE
    assert other.call("SHARE_ALLOCATION", mine).result == VALUE, "of another client"
    names = shared(client, mine)
    assert shared(client, mine) == names, "it is shared once"
    for words in ((0, 0), (names[0], names[1] ^ 1), (names[1], names[0])):
        assert other.call("IMPORT_MEMORY", other.handle(), *words).result == VALUE
    client.good("FREE", mine)
    assert client.call("SHARE_ALLOCATION", mine).result == VALUE


# --- events


def event(client: RawClient) -> int:
    handle = client.handle()
    client.send("CREATE_EVENT", handle, 2 | 4)
    return handle


def open_event(client: RawClient, names: bytes) -> int:
    handle = client.handle()
    client.good("OPEN_EVENT", handle, *struct.unpack("=2Q", names))
    return handle


def count_held(client: RawClient) -> int:
    """Hold the default stream until HOST_FUNCTION_DONE; return the token."""
    client.send("HOST_FUNCTION", 0, 7)
    return 7


def test_an_event_is_the_same_for_both(client: RawClient, other: RawClient) -> None:
    mine = event(client)
    theirs = open_event(other, client.good("SHARE_EVENT", mine))
    other.good("QUERY_EVENT", theirs)
    token = count_held(client)
    client.send("RECORD_EVENT", mine, 0)
    assert client.call("QUERY_EVENT", mine).result == NOT_READY
    assert other.call("QUERY_EVENT", theirs).result == NOT_READY
    stream = other.handle()
    other.send("CREATE_STREAM", stream, 1, 0)
    other.send("WAIT_EVENT", stream, theirs)
    waiting = other.send("SYNCHRONIZE_EVENT", theirs)
    assert other.call("QUERY_STREAM", stream).result == NOT_READY
    assert waiting not in other.arrived()
    client.send("HOST_FUNCTION_DONE", token)
    assert other.answer(waiting).result == Result.SUCCESS
    other.good("SYNCHRONIZE_STREAM", stream)
    other.send("RECORD_EVENT", theirs, stream)
    client.good("SYNCHRONIZE_EVENT", mine)
    client.send("DESTROY_EVENT", mine)
    other.good("QUERY_EVENT", theirs)


@pytest.mark.parametrize("ends", ["client", "context"])
def test_a_client_that_waits_for_an_event_continues_when_its_owner_ends(
    executor: ExecutorOwner, client: RawClient, other: RawClient, ends: str
) -> None:
    mine = event(client)
    theirs = open_event(other, client.good("SHARE_EVENT", mine))
    count_held(client)
    client.send("RECORD_EVENT", mine, 0)
    assert client.call("QUERY_EVENT", mine).result == NOT_READY
    assert other.call("QUERY_EVENT", theirs).result == NOT_READY
    other.send("WAIT_EVENT", 0, theirs)
    waiting = other.send("SYNCHRONIZE_EVENT", theirs)
    if ends == "client":
        executor.drop(1)
    else:
        executor.detach(1)
    assert other.answer(waiting).result == Result.SUCCESS
    other.good("SYNCHRONIZE_CONTEXT")


def test_a_client_that_waits_for_a_shared_event_may_end_first(
    executor: ExecutorOwner, client: RawClient, other: RawClient
) -> None:
    mine = event(client)
    theirs = open_event(other, client.good("SHARE_EVENT", mine))
    token = count_held(client)
    client.send("RECORD_EVENT", mine, 0)
    assert client.call("QUERY_EVENT", mine).result == NOT_READY
    other.send("WAIT_EVENT", 0, theirs)
    waiting = other.send("SYNCHRONIZE_EVENT", theirs)
    assert other.call("QUERY_EVENT", theirs).result == NOT_READY
    executor.detach(2)
    assert other.answer(waiting).result == Result.ERROR_CONTEXT_IS_DESTROYED
    client.send("HOST_FUNCTION_DONE", token)
    client.good("SYNCHRONIZE_CONTEXT")


def test_mistakes_with_events(client: RawClient, other: RawClient) -> None:
    mine = event(client)
    names = client.good("SHARE_EVENT", mine)
    assert client.good("SHARE_EVENT", mine) == names
    high, low = struct.unpack("=2Q", names)
    for words in ((0, 0), (high, low ^ 1), (low, high), (2**64 - 1, 2**64 - 1)):
        assert other.call("OPEN_EVENT", other.handle(), *words).result == VALUE
    client.send("DESTROY_EVENT", mine)
    assert client.call("SHARE_EVENT", mine).result == Result.ERROR_INVALID_HANDLE
    assert other.call("OPEN_EVENT", other.handle(), high, low).result == VALUE, "it is destroyed"
