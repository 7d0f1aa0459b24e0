"""Address spaces that reach each other's allocations, as executors' do: what kernels reach, and forged windows."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.channel.mapping import make_sealed
from pympsd.vocabulary.device_properties import MAPPED_OFFSET, PINNED_BITS, WINDOW_BITS
from pympsd_server.backends.emulated.memory import peer_windows
from pympsd_server.backends.emulated.memory.address_space import HARDWARE, STRICT, AddressSpace, Bounds
from pympsd_server.backends.emulated.memory.peer_windows import MAX_CLIENT_ALLOCATIONS, MAX_MAPPINGS, Segment, Table
from pympsd_server.backends.emulated.memory.window import Window
from pympsd_server.backends.virtual_memory import HOST_FILE_BYTES, TABLE_BYTES, File, file_name, new_secret
from pympsd_server.ptx.isa.faults import IllegalAddress

PAGE = 4096
ROOM = 16 * PAGE
WINDOW = 1 << 24


def space(number: int) -> AddressSpace:
    made = AddressSpace(WINDOW * (number + 1), ROOM, 2 * ROOM)
    made.bounds = STRICT
    return made


def reach(own: AddressSpace, other: AddressSpace) -> None:
    """Have kernels of a space reach the other's allocations."""
    own.map_peer(os.getpid(), other.publish(other.base), other.base - own.base)


@pytest.fixture
def spaces() -> Iterator[list[AddressSpace]]:
    all_spaces = [space(number) for number in range(3)]
    yield all_spaces
    for closable in all_spaces:
        closable.close()


def reaches(own: AddressSpace, address: int, count: int = 4) -> bool:
    """Return whether kernels reach the bytes at an address; both ways to look must agree."""
    try:
        own.locate(np.array([address - own.base]), count, 4)
    except IllegalAddress:
        with pytest.raises(IllegalAddress):
            own.view(address, count)
        return False
    assert len(own.view(address, count)) == count
    return True


STEPS = st.lists(
    st.tuples(st.sampled_from(["allocate", "free", "map", "unmap"]), st.integers(0, 2), st.integers(0, 2)),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_kernels_reach_exactly_what_is_allocated_and_mapped(steps: list[tuple[str, int, int]]) -> None:
    spaces = [space(number) for number in range(3)]
    held: list[list[int]] = [[], [], []]
    mapped: set[tuple[int, int]] = set()
    seen: set[tuple[int, int]] = set()
    for number, (step, first, second) in enumerate(steps):
        if step == "allocate" and len(held[first]) < 8:
            address = spaces[first].allocate(512)
            spaces[first].write(address, bytes([number % 256]) * 512)
            held[first].append(address)
            seen.add((first, address))
        elif step == "free" and held[first]:
            spaces[first].free(held[first].pop(second % len(held[first])))
        elif step == "map" and first != second and (first, second) not in mapped:
            reach(spaces[first], spaces[second])
            mapped.add((first, second))
        elif step == "unmap" and first != second:
            spaces[first].unmap_peer(spaces[second].base - spaces[first].base)
            mapped.discard((first, second))
    for own in range(3):
        for owner, address in seen:
            expected = address in held[owner] and (own == owner or (own, owner) in mapped)
            assert reaches(spaces[own], address) == expected
            if expected:
                assert spaces[own].read(address, 512) == spaces[owner].read(address, 512)
                spaces[own].write(address, b"new!")
                assert spaces[owner].read(address, 4) == b"new!"
    for closable in spaces:
        closable.close()


def test_lanes_of_one_warp_access_all_spaces_together(spaces: list[AddressSpace]) -> None:
    addresses = [space.allocate(64) for space in spaces]
    for number, (entry, address) in enumerate(zip(spaces, addresses, strict=True)):
        entry.write(address, np.full(16, number, np.uint32).data)
    middle = spaces[1]
    for other in (spaces[0], spaces[2]):
        reach(middle, other)
    offsets = np.array(addresses * 4, np.int64) - middle.base
    places = middle.locate(offsets, 8, 4)
    assert middle.views[np.dtype(np.uint32)][places >> 2].tolist() == [0, 1, 2] * 4


def test_wild_addresses_are_in_no_window(spaces: list[AddressSpace]) -> None:
    first, second = spaces[:2]
    reach(first, second)
    for wild in (16, 0x7123_0000_0000, (1 << 62) + 64):
        with pytest.raises(IllegalAddress):
            first.locate(np.array([wild - first.base]), 4, 4)


def test_an_allocation_that_reaches_the_end_of_a_window_is_the_windows_alone(spaces: list[AddressSpace]) -> None:
    first, second = spaces[:2]
    reach(first, second)
    address = second.allocate(512)
    last = address + 512 - 4
    assert reaches(first, last)
    assert not reaches(first, last + 4 + 512), "beyond what kernels reach of an allocation"
    assert not reaches(first, address - 4)
    assert not reaches(first, first.base + first.size), "where the peer's memory is mapped"


def test_kernels_do_not_reach_memory_that_cannot_be_mapped(
    spaces: list[AddressSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = spaces[:2]
    reach(first, second)
    behind = second.base + ROOM
    own = second.allocate(512)
    second.place_file(behind, second.publish(second.base), PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(Window, "map_file", _refuse_mapping)
        second.set_accessible(behind, PAGE, True)
        assert not reaches(first, behind), "else it would read zeros, and what it writes would be lost"
        assert reaches(first, own)
    second.free(own)
    assert reaches(first, behind), "once it can be mapped"


def _refuse_mapping(window: Window, process: int, segment: Segment) -> None:
    raise OSError(errno.ENOMEM, "no room")


def test_a_closed_window_has_nothing(spaces: list[AddressSpace]) -> None:
    first, second = spaces[:2]
    reach(first, second)
    address = second.allocate(512)
    assert reaches(first, address)
    second.close()
    assert not reaches(first, address)


def test_a_window_that_is_never_finished_is_waited_for_once(
    spaces: list[AddressSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, now, file = spaces[0], 0.0, make_sealed(f"pympsd-memory-{7:032x}", PAGE + TABLE_BYTES)

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(peer_windows, "time", SimpleNamespace(monotonic=lambda: now, sleep=pass_time))
    try:
        table = Table(file, PAGE)
        table.write(PAGE, [(0, 512)], [])
        own.map_peer(os.getpid(), File(file, 7), WINDOW)
        address = own.base + WINDOW
        assert reaches(own, address)
        table._head[0] += 1
        assert not reaches(own, address)
        assert 1 <= now < 1.01
        for _ in range(2):  # whether or not the table was finished in between
            before = now
            table._head[0] += 2
            assert not reaches(own, address)
            assert now < before + 0.01
            table._head[0] += 1
            assert reaches(own, address)
            table._head[0] += 1
            assert not reaches(own, address)
            assert now < before + 0.02
    finally:
        os.close(file)


def test_a_table_has_places_for_all_that_a_client_may_have() -> None:
    file = make_sealed(f"pympsd-memory-{7:032x}", PAGE + TABLE_BYTES)
    try:
        count, size = MAX_CLIENT_ALLOCATIONS + MAX_MAPPINGS, 1 << WINDOW_BITS
        segments = [Segment(at * PAGE, PAGE, File(at, 7)) for at in range(MAX_MAPPINGS)]
        Table(file, PAGE).write(size, ((at, at + 1) for at in range(count)), segments)
        _, starts, ends, read = Table(file, PAGE).read(size)
        assert np.array_equal(starts, np.arange(count))
        assert np.array_equal(ends, starts + 1)
        assert read == set(segments)
    finally:
        os.close(file)


def test_pages_are_released_though_a_peer_has_them_mapped(spaces: list[AddressSpace]) -> None:
    first, second = spaces[:2]
    reach(first, second)
    file = second.publish(second.base).descriptor
    before = os.fstat(file).st_blocks
    address = second.allocate(8 * PAGE)
    first.write(address, b"x" * (8 * PAGE))
    assert os.fstat(file).st_blocks >= before + 8 * PAGE // 512
    second.free(address)
    assert os.fstat(file).st_blocks <= before + 2 * PAGE // 512
    assert second.read(second.allocate(8 * PAGE), 8 * PAGE) == bytes(8 * PAGE)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_files_that_are_not_windows_are_refused(named: bool, sealed: bool, spaces: list[AddressSpace]) -> None:
    secret = spaces[1].publish(spaces[1].base).secret
    name = f"pympsd-memory-{secret:032x}" if named else "another"
    file = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, PAGE + TABLE_BYTES)
        if sealed:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        why = "another file" if not named else "not a published window" if sealed else "can change"
        with pytest.raises(ValueError, match=why):
            spaces[0].map_peer(os.getpid(), File(file, secret), WINDOW)
    finally:
        os.close(file)


def test_a_file_that_is_not_in_memory_is_not_opened(spaces: list[AddressSpace], tmp_path: Path) -> None:
    """Opening it could have effects, or wait."""
    file = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(ValueError, match="another file"):  # and not that it cannot be opened to write
            spaces[0].map_peer(os.getpid(), File(file, spaces[1].publish(spaces[1].base).secret), WINDOW)
    finally:
        os.close(file)


def test_a_file_of_huge_pages_is_refused(spaces: list[AddressSpace]) -> None:
    """Where there are no huge pages, touching it would end the process."""
    secret = spaces[1].publish(spaces[1].base).secret
    file = os.memfd_create(f"pympsd-memory-{secret:032x}", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    try:
        os.ftruncate(file, 32 << 20)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        with pytest.raises(ValueError, match="huge pages"):
            spaces[0].map_peer(os.getpid(), File(file, secret), WINDOW)
    finally:
        os.close(file)


def test_what_a_forged_window_says_of_other_places_does_not_count(spaces: list[AddressSpace]) -> None:
    entry, another = spaces[:2]
    reach(entry, another)  # what the forged one must not let in
    address, hidden = another.allocate(512), os.memfd_create("hidden")
    file = make_sealed(f"pympsd-memory-{7:032x}", PAGE + TABLE_BYTES)
    try:
        far = [
            Segment(at, size, File(hidden, 7)) for at, size in ((PAGE, PAGE), (-PAGE, PAGE), (0, 64 * PAGE), (0, -1))
        ]
        ranges = [(-PAGE, -16), (0, 8), (16, 1 << 40), (PAGE, 3 * PAGE)]
        Table(file, PAGE).write(2 * PAGE, ranges, far)
        entry.map_peer(os.getpid(), File(file, 7), -entry.base + (1 << 40))
        assert reaches(entry, 1 << 40)
        for offset in (-PAGE, 1024, PAGE, 2 * PAGE, 3 * PAGE):
            assert not reaches(entry, (1 << 40) + offset)
        assert reaches(entry, address)
        Table(file, PAGE).write(1 << 62, [(0, 1 << 61)], [])
        assert not reaches(entry, (1 << 40) + 2 * PAGE)
        with pytest.raises(ValueError, match="not a published window"):
            entry.map_peer(os.getpid(), File(file, 7), 1 << 41)
    finally:
        os.close(file)
        os.close(hidden)


def test_memory_that_is_mapped_behind_the_allocations(spaces: list[AddressSpace]) -> None:
    """A peer sees what is mapped, made accessible and unmapped, even after its own mapping was made larger."""
    first, second, third = spaces
    place, file = second.base + ROOM, make_sealed(f"pympsd-memory-{9:032x}", PAGE)
    memory = mmap.mmap(file, PAGE)
    reach(first, second)
    second.place(place, np.frombuffer(memory, np.uint8).data, File(file, 9))
    assert not reaches(first, place)
    second.set_accessible(place, PAGE, True)
    memory[:4] = b"seen"
    assert reaches(first, place)
    assert first.read(place, 4) == b"seen"
    reach(first, third)
    first.write(place, b"also")
    assert memory[:4] == b"also"
    second.set_accessible(place, PAGE, False)
    assert not reaches(first, place)
    second.clear(place, PAGE)
    second.set_accessible(place, PAGE, True)
    assert first.read(place, 4) == bytes(4), "nothing is mapped there"
    os.close(file)


def test_a_process_that_is_gone_has_no_window(spaces: list[AddressSpace]) -> None:
    with pytest.raises(OSError, match="No such file"):
        spaces[0].map_peer(1 << 22, File(3, 5), WINDOW)


# --- host memory


class HostMemory:
    """The host memory of one client, as an executor makes it: pieces of one file."""

    def __init__(self, owner: AddressSpace) -> None:
        self.owner = owner
        secret = new_secret()
        self.file = File(make_sealed(file_name(secret), HOST_FILE_BYTES), secret)
        self.base = owner.base + MAPPED_OFFSET

    def add(self, offset: int) -> int:
        """Add a page at an offset; return its address."""
        memory = mmap.mmap(self.file.descriptor, PAGE, offset=offset)
        self.owner.attach(self.base + offset, np.frombuffer(memory, np.uint8).data, self.file)
        return self.base + offset


@pytest.fixture
def windows() -> Iterator[list[AddressSpace]]:
    all_windows = [AddressSpace(number << WINDOW_BITS, ROOM, 1 << WINDOW_BITS) for number in (1, 2)]
    yield all_windows
    for window in all_windows:
        window.close()


@pytest.fixture
def host(windows: list[AddressSpace]) -> Iterator[HostMemory]:
    """The second window's."""
    memory = HostMemory(windows[1])
    yield memory
    os.close(memory.file.descriptor)


def test_host_memory_is_mapped_alone_and_takes_the_addresses_of_a_quarter(
    windows: list[AddressSpace], host: HostMemory
) -> None:
    first, second = windows
    allocation, piece = second.allocate(512), host.add(PAGE)
    first.map_peer(os.getpid(), second.publish(host.base), host.base - first.base)
    assert len(first.views[np.dtype(np.uint8)]) == (1 << WINDOW_BITS) + (1 << PINNED_BITS)
    later = host.add((1 << PINNED_BITS) - PAGE)
    for address in (piece, later):
        assert reaches(first, address)
        assert not reaches(first, address - 4)
        assert not reaches(first, address + PAGE)
        first.write(address, b"mine")
        assert second.read(address, 4) == b"mine"
    assert not reaches(first, allocation)
    second.detach(piece)
    assert not reaches(first, piece)
    assert reaches(first, later)


@pytest.mark.parametrize("bounds", [HARDWARE, STRICT], ids=["hardware", "strict"])
def test_kernels_reach_as_much_around_a_peers_allocations_as_around_their_own(bounds: Bounds) -> None:
    """Copies, and kernels in host memory, reach only the allocated bytes."""
    first, second = (AddressSpace(at << WINDOW_BITS, 4 * HARDWARE.page, 1 << WINDOW_BITS) for at in (1, 2))
    first.bounds = second.bounds = bounds
    host, address = HostMemory(second), second.allocate(100, HARDWARE.page)
    for begin, start, size in ((second.base, address, bounds.ceiling(100)), (host.base, host.add(PAGE), PAGE)):
        first.map_peer(os.getpid(), second.publish(begin), begin - first.base)
        for own in (first, second):
            own.locate(np.array([start, start + size - 4]) - own.base, 4, 4)
            for beyond in (start - 4, start + size):
                with pytest.raises(IllegalAddress):
                    own.locate(np.array([beyond]) - own.base, 4, 4)
    assert first.read(address, 100) == bytes(100)
    with pytest.raises(IllegalAddress):
        first.read(address, 101)
    os.close(host.file.descriptor)
    for space in (first, second):
        space.close()


def test_both_parts_of_a_window_are_mapped_and_unmapped_by_themselves(
    windows: list[AddressSpace], host: HostMemory
) -> None:
    first, second = windows
    places = {second.base: second.allocate(512), host.base: host.add(0)}
    for begin in (*places, *places):
        first.map_peer(os.getpid(), second.publish(begin), begin - first.base)
        assert reaches(first, places[begin])
        for other in places.keys() - {begin}:
            first.unmap_peer(other - first.base)
            assert reaches(first, places[begin])
            assert not reaches(first, places[other])


def test_peers_keep_neither_descriptors_nor_mappings(windows: list[AddressSpace], host: HostMemory) -> None:
    first, second = windows
    for number in range(8):
        host.add(2 * PAGE * number)

    def count() -> tuple[int, int]:
        gc.collect()
        mapped = 0  # bytes: the system may list neighbouring mappings of a file as one
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            if file_name(host.file.secret) in line:
                start, _, end = line.split()[0].partition("-")
                mapped += int(end, 16) - int(start, 16)
        return len(os.listdir("/proc/self/fd")), mapped

    second.publish(host.base)
    before = count()
    for _ in range(2):
        first.map_peer(os.getpid(), second.publish(host.base), host.base - first.base)
        assert count() == (before[0], before[1] + HOST_FILE_BYTES)
        first.unmap_peer(host.base - first.base)
        assert count() == before


def test_a_window_without_host_memory_or_at_another_address_is_not_published(windows: list[AddressSpace]) -> None:
    for begin in (MAPPED_OFFSET, PAGE):
        with pytest.raises(ValueError, match="no memory for peers"):
            windows[0].publish(windows[0].base + begin)
