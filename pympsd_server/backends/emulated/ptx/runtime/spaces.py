"""Loads and stores: from addresses to elements of the memory views, with every access checked.

Every address that a kernel computes passes through here. The steps for all threads of a group together:

1. A generic address determines its state space by its upper bits (isa/machine.py).
2. The lowest and highest address are compared with the client's allocations, or with the size of a frame of shared or
   local memory. Only if that is not enough is each address looked up.
3. The address becomes an index in the view of the space as elements of the access's width; consecutive addresses
become
   a slice, which NumPy copies faster than it gathers.

A fault names the first thread, by its position among those that run together; `among` translates the position when
only some of the threads took part. A store writes nothing if any of its threads faults.
"""

import numpy as np

from pympsd_server.backends.emulated.ptx.isa.datatypes import S64, Array, DType, Value
from pympsd_server.backends.emulated.ptx.isa.faults import DeviceFault, IllegalAddress, MisalignedAddress
from pympsd_server.backends.emulated.ptx.isa.machine import RANK_SHIFT, SPACE_OF_WINDOW, WINDOW_BITS
from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState
from pympsd_server.backends.emulated.ptx.runtime.threads import Threads

Accesses = tuple[tuple[int, int], ...]
Seen = dict[tuple[int, int], tuple[int, int, int, Array, bool]]
# An index array, one index, or a slice of consecutive elements.
Elements = Value


def _bounds(value: Value) -> tuple[int, int, int]:
    """Return the lowest, the highest and the union of the bits of integers."""
    if value.ndim == 0:
        number = int(value)
        return number, number, number
    return int(value.min()), int(value.max()), int(np.bitwise_or.reduce(value))


def global_elements(state: BatchState, address: Value, shift: int, align: int, accesses: Accesses) -> Value:
    """Return the element indices (of 2**shift bytes) of global addresses, for accesses at several offsets.

    `accesses` are (offset, bytes) pairs that all threads will make from `address`. Faults if one of
    them is misaligned or outside the client's allocations.
    """
    offset = address.view(S64) - np.int64(state.space.base)
    low, high, bits = _bounds(offset)
    first, last = accesses[0], accesses[-1]
    if bits & (align - 1) or not state.space.contains(low + first[0], high + last[0] + last[1]):
        offset = state.space.locate(offset, accesses)
    if shift:
        offset = np.right_shift(offset, shift, out=offset) if offset.ndim else offset >> np.int64(shift)
    return offset


def sum_elements(
    state: BatchState, examined_indices: Seen, x: Value, y: Value, shift: int, align: int, accesses: Accesses
) -> Elements:
    """Return global_elements for the address x + y, of which one is usually uniform and the other an index.

    `examined_indices` contains the indices examined in this run of a block: a block that indexes several arrays in
    the same way examines the index once.
    """
    if x.ndim:
        x, y = y, x
    if x.ndim or not y.ndim:
        return global_elements(state, (x + y).view(np.uint64), shift, align, accesses)
    examined = examined_indices.get((id(y), shift))
    if examined is None:
        examined = examined_indices[id(y), shift] = _examine_index(y.view(S64), shift)
    low, high, bits, index, consecutive = examined
    start = int(x) - state.space.base
    first, last = accesses[0], accesses[-1]
    inside = state.space.contains(start + low + first[0], start + high + last[0] + last[1])
    if (bits | start) & (align - 1) or not inside:
        return global_elements(state, (x + y).view(np.uint64), shift, align, accesses)
    if consecutive:
        begin = (start + low) >> shift
        return slice(begin, begin + len(index))
    return index + (start >> shift)


def _examine_index(index: Array, shift: int) -> tuple[int, int, int, Array, bool]:
    """Return the lowest, the highest, the union of bits, the index in elements, and whether it is consecutive."""
    low, high, bits = _bounds(index)
    scaled = index >> np.int64(shift) if shift else index
    consecutive = high - low == (len(index) - 1) << shift and bool((scaled[1:] - scaled[:-1] == 1).all())
    return low, high, bits, scaled, consecutive


def frame_elements(
    state: BatchState, threads: Threads, space: str, address: Value, shift: int, align: int, accesses: Accesses
) -> Value:
    """Return the elements of shared, local and parameter memory, whose addresses begin at 0 in each frame.

    Addresses of these spaces have 32 bits: wider ones are cut off, and the sum of an address and an offset wraps.
    """
    if address.dtype.kind == "u" and address.dtype.itemsize == 8:
        address = address.view(S64)
    low, high, bits = _bounds(address)
    first, last = accesses[0], accesses[-1]
    size = state.frame_size(space)
    if bits & (align - 1) or low + first[0] < 0 or high + last[0] + last[1] > size:
        # Compilers write an address below a variable, and an offset that leads into it.
        address = address.astype(np.int32)
        low, high, bits = _bounds(address)
        if space == "shared" and high + last[0] >= 1 << RANK_SHIFT:
            return _cluster_elements(state, threads, address, shift, accesses)
        if bits & (align - 1) or low + first[0] < 0 or high + last[0] + last[1] > size:
            for delta, nbytes in accesses:
                _check_frame(space, size, address.astype(S64) + delta, nbytes)
    index = (address >> address.dtype.type(shift)).astype(S64) if shift else address.astype(S64)
    return index if space == "param" else index + state.frame_bases(threads, space, shift)


def _cluster_elements(state: BatchState, threads: Threads, address: Value, shift: int, accesses: Accesses) -> Value:
    """Return the elements of shared memory, some of it other blocks' of the thread's cluster."""
    addresses = np.broadcast_to(address, threads.count).astype(S64)
    own = threads.pick(state.cta)
    index = None
    for delta, nbytes in accesses:
        at = addresses + delta
        rank, offset = at >> RANK_SHIFT, at & ((1 << RANK_SHIFT) - 1)
        wrong = (rank < 0) | (rank > state.cluster_blocks)
        if wrong.any():
            place = int(np.argmax(wrong))
            why = f"shared address {int(at[place]) % (1 << 32):#x}: a cluster has {state.cluster_blocks} blocks"
            raise IllegalAddress(why, position=place)
        _check_frame("shared", state.frame_size("shared"), offset, nbytes)
        if index is None:
            block = np.where(rank > 0, own - own % state.cluster_blocks + rank - 1, own)
            index = ((offset - delta) >> shift) + block * (state.shared_frame >> shift)
    assert index is not None
    return index


def _check_frame(space: str, size: int, address: Value, nbytes: int) -> None:
    addresses = np.atleast_1d(address)
    outside = (addresses < 0) | (addresses > size - nbytes)  # the sum may overflow
    if outside.any():
        at = int(np.argmax(outside))
        where = f"{space} address {int(addresses[at]) % (1 << 32):#x}, {nbytes} bytes"
        why = f"{where}: outside of the {size} bytes there are"
        raise IllegalAddress(why, position=at)
    misaligned = (addresses & (nbytes - 1)) != 0
    if misaligned.any():
        at = int(np.argmax(misaligned))
        raise MisalignedAddress(f"{space} address {int(addresses[at]):#x}, {nbytes} bytes: misaligned", position=at)


def among(selected: Array, fault: DeviceFault) -> DeviceFault:
    """Return a fault of some threads with its position among all of them."""
    fault.position = int(selected[fault.position])
    return fault


def _subset(threads: Threads, selected: Array) -> Threads:
    return Threads(threads.indices().take(selected), len(selected))


def _pick(value: Value, selected: Array) -> Value:
    return value if value.ndim == 0 else value.take(selected)


def elements(
    state: BatchState, threads: Threads, space: str, address: Value, nbytes: int, align: int
) -> list[tuple[str, Value, Array | None]]:
    """Resolve addresses of any space: (space, element indices, which of the threads or None for all).

    Generic addresses of one group may lie in several spaces; the list has one entry for each.
    """
    if space != "generic":
        return [(space, _one_space(state, threads, space, address, nbytes, align), None)]
    # Device windows begin at 0x6000_0000_0000: everything outside windows 1 to 3 is global.
    if address.dtype.itemsize < 8:
        address = address.astype(np.uint64)
    windows = address.view(S64) >> np.int64(WINDOW_BITS)
    low, high, _ = _bounds(windows)
    if low == high or low > 3:
        kind = SPACE_OF_WINDOW.get(low, "global")
        return [(kind, _in_window(state, threads, kind, address, nbytes, align), None)]
    parts: list[tuple[str, Value, Array | None]] = []
    kinds = np.where((windows >= 1) & (windows <= 3), windows, 0)
    for window in np.unique(kinds).tolist():
        selected = np.flatnonzero(kinds == window)
        kind = SPACE_OF_WINDOW.get(window, "global")
        try:
            part = _in_window(state, _subset(threads, selected), kind, address.take(selected), nbytes, align)
        except DeviceFault as fault:
            raise among(selected, fault) from None
        parts.append((kind, part, selected))
    return parts


def _in_window(state: BatchState, threads: Threads, kind: str, address: Value, nbytes: int, align: int) -> Value:
    if kind != "global":
        address = address.view(S64) & np.int64((1 << WINDOW_BITS) - 1)
    return _one_space(state, threads, kind, address, nbytes, align)


def _one_space(state: BatchState, threads: Threads, space: str, address: Value, nbytes: int, align: int) -> Value:
    shift = nbytes.bit_length() - 1
    accesses = ((0, align),)
    if space == "global":
        if address.dtype.itemsize < 8:
            address = address.astype(np.uint64)
        return global_elements(state, address, shift, align, accesses)
    return frame_elements(state, threads, space, address, shift, align, accesses)


def load(
    state: BatchState, threads: Threads, space: str, address: Value, dtype: DType, align: int, guard: Value | None
) -> Value:
    """Load one element per thread; where `guard` is false the result is 0 and nothing is touched."""
    if guard is not None and guard.ndim:
        selected: Array = np.flatnonzero(guard)
        result = np.zeros(threads.count, dtype)
        if len(selected):
            inner = _subset(threads, selected)
            try:
                result[selected] = load(state, inner, space, _pick(address, selected), dtype, align, None)
            except DeviceFault as fault:
                raise among(selected, fault) from None
        return result
    if guard is not None and not guard:
        return dtype.type(0)
    parts = elements(state, threads, space, address, dtype.itemsize, align)
    if parts[0][2] is None:
        return state.view(parts[0][0], dtype)[parts[0][1]]
    result = np.empty(threads.count, dtype)
    for kind, index, some in parts:
        result[some] = state.view(kind, dtype)[index]
    return result


def store(
    state: BatchState,
    threads: Threads,
    space: str,
    address: Value,
    dtype: DType,
    align: int,
    values: tuple[Value | None, ...],
    guard: Value | None,
) -> None:
    """Store one or more consecutive elements per thread, less those that are None.

    Nothing is written when any thread faults.
    """
    if guard is not None and guard.ndim:
        storing: Array = np.flatnonzero(guard)
        if len(storing):
            inner = _subset(threads, storing)
            picked = tuple(None if v is None else _pick(v, storing) for v in values)
            try:
                store(state, inner, space, _pick(address, storing), dtype, align, picked, None)
            except DeviceFault as fault:
                raise among(storing, fault) from None
        return
    if guard is not None and not guard:
        return
    for kind, index, selected in elements(state, threads, space, address, dtype.itemsize, align):
        view = state.view(kind, dtype)
        for position, value in enumerate(values):
            if value is not None:
                store_elements(view[position:], index, value if selected is None else _pick(value, selected))


def store_elements(view: Array, index: Value, value: Value) -> None:
    """Do view[index] = value; of several threads that store to one address the last wins."""
    if index.ndim == 0 and value.ndim:
        value = value[-1]
    view[index] = value


def fetch(view: Array, index: Elements, displacement: int) -> Value:
    """Return view[index + displacement]."""
    if type(index) is slice:
        return view[index.start + displacement : index.stop + displacement].copy()
    return view.take(index + displacement if displacement else index)


def store_at(view: Array, index: Elements, displacement: int, value: Value) -> None:
    """Do view[index + displacement] = value; of several threads that store to one address the last wins."""
    if type(index) is slice:
        view[index.start + displacement : index.stop + displacement] = value
        return
    store_elements(view, index + displacement if displacement else index, value)


def displace(address: Value, offset: int) -> Value:
    """Return the address plus a constant, wrapping in its own width."""
    bits = 8 * address.dtype.itemsize
    return address + address.dtype.type(offset & ((1 << bits) - 1))


def constant_address(address: Value, constants: np.uint64) -> Value:
    """Return the generic address of 32-bit addresses of constants, which lie behind `constants`."""
    return (address - constants.astype(np.uint32)).astype(np.uint64) + constants
