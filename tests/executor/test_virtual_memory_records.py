"""Records of virtual memory: mapping at addresses of the client's choice, sharing between clients, mistakes."""

from __future__ import annotations

import os
import struct

import pytest
from processes import wait_until

from pympsd.vocabulary.device_properties import (
    MAPPED_OFFSET,
    MAPPING_GRANULE,
    PINNED_WINDOWS,
    VIRTUAL_OFFSET,
    mapped_window_of,
    window_of,
)
from pympsd.vocabulary.results import Result
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import RawClient

AREA = window_of(0) + VIRTUAL_OFFSET
VALUE = Result.ERROR_INVALID_VALUE


@pytest.fixture
def client(executor: ExecutorOwner) -> RawClient:
    return executor.attach()


def create(client: RawClient, shareable: int = 0) -> int:
    handle = client.handle()
    client.good("CREATE_MEMORY", handle, MAPPING_GRANULE, shareable)
    return handle


def map_memory(client: RawClient, handle: int, address: int = AREA) -> int:
    client.good("MAP_MEMORY", handle, address)
    client.good("SET_ACCESS", address, MAPPING_GRANULE, 1)
    return address


def export(client: RawClient, handle: int) -> tuple[int, int]:
    """Return the secret of memory, as two words."""
    client.good("EXPORT_MEMORY", handle)
    fd = client.received_fds.pop()
    name = os.readlink(f"/proc/self/fd/{fd}")
    os.close(fd)
    secret = int(name.partition("pympsd-memory-")[2].split()[0], 16)
    return secret >> 64, secret & ((1 << 64) - 1)


def test_memory_is_shared_between_clients(executor: ExecutorOwner, client: RawClient) -> None:
    raw_client = executor.attach(client=2, context=2)
    mine = map_memory(client, create(client))
    handle = create(client, 1)
    shared = map_memory(client, handle, AREA + MAPPING_GRANULE)
    client.write(shared, b"s" * 100)
    client.write(mine, b"m" * 100)
    theirs = raw_client.handle()
    answer = raw_client.good("IMPORT_MEMORY", theirs, *export(client, handle))
    assert struct.unpack("=2Q", answer) == (MAPPING_GRANULE, 0)
    assert raw_client.read(map_memory(raw_client, theirs), 100) == b"s" * 100, (
        "at the same address as the neighbour's own"
    )
    raw_client.write(AREA, b"t" * 10)
    assert client.read(shared, 10) == b"t" * 10
    assert client.read(mine, 10) == b"m" * 10
    executor.drop(1)
    assert raw_client.read(AREA, 10) == b"t" * 10, "it lives while anybody uses it"
    executor.drop(2)


def test_a_secret_that_is_wrong_or_old_names_nothing(executor: ExecutorOwner, client: RawClient) -> None:
    handle = create(client, 1)
    high, low = export(client, handle)
    raw_client = executor.attach(client=2, context=2)
    for words in ((0, 0), (high, low ^ 1), (low, high), (2**64 - 1, 2**64 - 1)):
        assert raw_client.call("IMPORT_MEMORY", raw_client.handle(), *words).result == VALUE
    client.good("RELEASE_MEMORY", handle)
    assert raw_client.call("IMPORT_MEMORY", raw_client.handle(), high, low).result == VALUE
    assert client.call("EXPORT_MEMORY", create(client)).result == VALUE


@pytest.mark.parametrize(
    "address",
    [
        0, 1, 2**63, 2**64 - MAPPING_GRANULE, window_of(0), AREA - MAPPING_GRANULE, AREA + 4096,
        window_of(0) + MAPPED_OFFSET, window_of(1), window_of(0) + MAPPED_OFFSET - MAPPING_GRANULE // 2,
    ],
)  # fmt: skip
def test_nothing_is_mapped_elsewhere(client: RawClient, address: int) -> None:
    assert client.call("MAP_MEMORY", create(client), address).result == VALUE
    assert client.call("UNMAP_MEMORY", address, MAPPING_GRANULE).result == VALUE
    assert client.call("SET_ACCESS", address, MAPPING_GRANULE, 1).result == VALUE
    assert client.read(map_memory(client, create(client)), 1) == b"\0"


def test_wrong_records_of_virtual_memory_are_refused(client: RawClient) -> None:
    handle = create(client)
    for size in (0, 1, MAPPING_GRANULE + 1, 2**63, 2**64 - MAPPING_GRANULE):
        assert client.call("CREATE_MEMORY", client.handle(), size, 0).result == VALUE
    assert client.call("CREATE_MEMORY", handle, MAPPING_GRANULE, 0).result == VALUE, "the handle is in use"
    for flags in (4, 1 << 63):
        assert client.call("CREATE_MEMORY", client.handle(), MAPPING_GRANULE, flags).result == VALUE
    assert client.call("MAP_MEMORY", client.handle(), AREA).result == Result.ERROR_INVALID_HANDLE
    map_memory(client, handle)
    assert client.call("MAP_MEMORY", create(client), AREA).result == VALUE
    for count in (0, 1, 2 * MAPPING_GRANULE, 2**63, 2**64 - 1):
        assert client.call("UNMAP_MEMORY", AREA, count).result == VALUE
        assert client.call("SET_ACCESS", AREA, count, 0).result == VALUE
    client.good("RELEASE_MEMORY", handle)
    assert client.call("RELEASE_MEMORY", handle).result == Result.ERROR_INVALID_HANDLE
    assert client.read(AREA, 4) == bytes(4)
    assert client.call("FREE", AREA).result == VALUE, "it is not an allocation"
    client.good("UNMAP_MEMORY", AREA, MAPPING_GRANULE)


def test_an_exiting_client_leaves_no_mappings(executor: ExecutorOwner) -> None:
    first = executor.attach()
    free = first.memory_info()
    descriptors = executor.fd_count()
    second = executor.attach(client=2, context=2)
    for number in range(5):
        map_memory(second, create(second, 1), AREA + number * MAPPING_GRANULE)
    create(second, 1)
    executor.drop(2)
    assert first.memory_info() == free
    wait_until(lambda: executor.fd_count() <= descriptors, "the end of its descriptors")


def test_memory_of_peers_begins_where_a_part_of_their_windows_does(client: RawClient) -> None:
    places = (window_of(0), mapped_window_of(0), window_of(1) + 1, AREA + (1 << 40), window_of(PINNED_WINDOWS), 0)
    for address in (*places, window_of(-1), 2**64 - 1):
        assert client.call("MAP_PEER", address, os.getpid(), 0, 1, 1).result == VALUE, hex(address)
        answer = client.call("UNMAP_PEER", address)
        assert answer.result == VALUE, hex(address)
        assert f"{address:#x}" in answer.reason
    for begin in (window_of, mapped_window_of):
        assert "another file" in client.call("MAP_PEER", begin(1), os.getpid(), 0, 1, 1).reason
        assert client.call("UNMAP_PEER", begin(1)).result == 0, "nothing is mapped there"


def test_host_memory_is_published_once_there_is_some(client: RawClient) -> None:
    client.good("PUBLISH_WINDOW", window_of(0))
    for address in (mapped_window_of(0), AREA, window_of(1), 0):
        assert client.call("PUBLISH_WINDOW", address).result == VALUE
    client.allocate_pinned(1)
    process, _, *secret = struct.unpack("=4Q", client.good("PUBLISH_WINDOW", mapped_window_of(0)))
    assert any(secret)
    assert client.call("MAP_PEER", mapped_window_of(0), process, 0, *secret).result == VALUE, "it is the device's own"
