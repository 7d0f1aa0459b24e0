"""Load and store: convert addresses to elements of the memory views, and check every access.

Every address that a kernel computes is checked here, for all threads of a group together:

1. A generic address determines its state space by its upper bits (isa/machine.py).
2. The lowest and highest address are compared with the client's allocations, or with the size of a frame of shared or
   local memory. Each address is looked up only if that is not enough.
3. The address becomes an index in a view of the space whose elements have the size of the access.

A fault contains the position of the first faulting thread among those that run together. If only some of them took
part in the access, `translate_fault` converts the position. A store writes nothing if any of its threads faults.
"""

import numpy as np

from pympsd_server.ptx.isa.datatypes import S64, Array, DType, Value
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, MisalignedAddress
from pympsd_server.ptx.isa.machine import RANK_SHIFT, SPACE_OF_WINDOW, WINDOW_BITS
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.threads import Threads


def _bounds(value: Value) -> tuple[int, int, int]:
    """Return the minimum, the maximum and the bitwise or of integers."""
    if value.ndim == 0:
        number = int(value)
        return number, number, number
    return int(value.min()), int(value.max()), int(np.bitwise_or.reduce(value))


def global_elements(state: BatchState, address: Value, size: int, nbytes: int, align: int) -> Value:
    """Return the indices of elements of ``size`` bytes for accesses of ``nbytes`` at global addresses.

    Raises DeviceFault if an address is not a multiple of ``align``, or is outside the client's allocations.
    """
    offset = address.view(S64) - np.int64(state.space.base)
    low, high, bits = _bounds(offset)
    if bits & (align - 1) or not state.space.contains(low, high + nbytes):
        offset = state.space.locate(offset, nbytes, align)
    shift = size.bit_length() - 1
    return np.right_shift(offset, shift, out=offset) if offset.ndim else offset >> np.int64(shift)


def frame_elements(state: BatchState, threads: Threads, space: str, address: Value, size: int, nbytes: int) -> Value:
    """Return the indices of elements of ``size`` bytes in shared, local or parameter memory.

    Addresses begin at 0 in each frame, and only their low 32 bits count. Raises DeviceFault if an access of
    ``nbytes`` leaves the frame, or its address is not a multiple of ``nbytes``.
    """
    if address.dtype.kind == "u" and address.dtype.itemsize == 8:
        address = address.view(S64)
    low, high, bits = _bounds(address)
    frame, shift = state.frame_size(space), size.bit_length() - 1
    if bits & (nbytes - 1) or low < 0 or high + nbytes > frame:
        address = address.astype(np.int32)
        low, high, bits = _bounds(address)
        if space == "shared" and high >= 1 << RANK_SHIFT:
            return _cluster_elements(state, threads, address, shift, nbytes)
        if bits & (nbytes - 1) or low < 0 or high + nbytes > frame:
            _check_frame(space, frame, address.astype(S64), nbytes)
    index = address.astype(S64) >> np.int64(shift)
    return index if space == "param" else index + state.frame_bases(threads, space, shift)


def _cluster_elements(state: BatchState, threads: Threads, address: Value, shift: int, nbytes: int) -> Value:
    """Return the indices of elements of shared memory, which may belong to other blocks of the thread's cluster."""
    addresses = np.broadcast_to(address, threads.count).astype(S64)
    cta = threads.pick(state.cta)
    rank, offset = addresses >> RANK_SHIFT, addresses & ((1 << RANK_SHIFT) - 1)
    wrong = (rank < 0) | (rank > state.cluster_blocks)
    if wrong.any():
        place = int(np.argmax(wrong))
        why = f"shared address {int(addresses[place]) % (1 << 32):#x}: a cluster has {state.cluster_blocks} blocks"
        raise IllegalAddress(why, position=place)
    _check_frame("shared", state.frame_size("shared"), offset, nbytes)
    block = np.where(rank > 0, cta - cta % state.cluster_blocks + rank - 1, cta)
    return (offset >> shift) + block * (state.shared_frame >> shift)


def _check_frame(space: str, size: int, address: Value, nbytes: int) -> None:
    addresses = np.atleast_1d(address)
    outside = (addresses < 0) | (addresses > size - nbytes)  # address + nbytes may overflow
    if outside.any():
        at = int(np.argmax(outside))
        where = f"{space} address {int(addresses[at]) % (1 << 32):#x}, {nbytes} bytes"
        why = f"{where}: outside of the {size} bytes of {space} memory"
        raise IllegalAddress(why, position=at)
    misaligned = (addresses & (nbytes - 1)) != 0
    if misaligned.any():
        at = int(np.argmax(misaligned))
        raise MisalignedAddress(f"{space} address {int(addresses[at]):#x}, {nbytes} bytes: misaligned", position=at)


def translate_fault(selected: Array, fault: DeviceFault) -> DeviceFault:
    """Convert a fault's position among the selected threads to the position among all threads; return the fault."""
    fault.position = int(selected[fault.position])
    return fault


def _subset(threads: Threads, selected: Array) -> Threads:
    return Threads(threads.indices().take(selected), len(selected))


def _pick(value: Value, selected: Array) -> Value:
    return value if value.ndim == 0 else value.take(selected)


def elements(
    state: BatchState, threads: Threads, space: str, address: Value, nbytes: int, align: int, *, writes: bool = False
) -> list[tuple[str, Value, Array | None]]:
    """Resolve addresses of a space. Return (space, indices of elements, positions of threads or None for all).

    The list has several entries if the generic addresses of a group belong to several spaces. Raises DeviceFault for
    an invalid address, and for a generic address of a parameter if the access `writes`.
    """
    if space != "generic":
        return [(space, _resolve_one_space(state, threads, space, address, nbytes, align), None)]
    # All addresses outside windows 1 to 3 are global (isa/machine.py).
    if address.dtype.itemsize < 8:
        address = address.astype(np.uint64)
    windows = address.view(S64) >> np.int64(WINDOW_BITS)
    low, high, _ = _bounds(windows)
    if low == high or low > 3:
        kind = SPACE_OF_WINDOW.get(low, "global")
        return [(kind, _resolve_window(state, threads, kind, address, nbytes, align, writes), None)]
    parts: list[tuple[str, Value, Array | None]] = []
    kinds = np.where((windows >= 1) & (windows <= 3), windows, 0)
    for window in np.unique(kinds).tolist():
        selected = np.flatnonzero(kinds == window)
        kind = SPACE_OF_WINDOW.get(window, "global")
        try:
            inner, picked = _subset(threads, selected), address.take(selected)
            part = _resolve_window(state, inner, kind, picked, nbytes, align, writes)
        except DeviceFault as fault:
            raise translate_fault(selected, fault) from None
        parts.append((kind, part, selected))
    return parts


def _resolve_window(
    state: BatchState, threads: Threads, kind: str, address: Value, nbytes: int, align: int, writes: bool
) -> Value:
    if kind == "param" and writes:
        where = f"param address {int(np.atleast_1d(address)[0]) % (1 << 32):#x}, {nbytes} bytes"
        raise IllegalAddress(f"{where}: kernels cannot write their parameters")
    if kind != "global":
        address = address.view(S64) & np.int64((1 << WINDOW_BITS) - 1)
    return _resolve_one_space(state, threads, kind, address, nbytes, align)


def _resolve_one_space(
    state: BatchState, threads: Threads, space: str, address: Value, nbytes: int, align: int
) -> Value:
    if space == "global":
        if address.dtype.itemsize < 8:
            address = address.astype(np.uint64)
        return global_elements(state, address, nbytes, align, align)
    return frame_elements(state, threads, space, address, nbytes, align)


def load(
    state: BatchState, threads: Threads, space: str, address: Value, dtype: DType, align: int, guard: Value | None
) -> Value:
    """Load one element for each thread. If a thread's `guard` is false, its result is 0 and no memory is read."""
    if guard is not None and guard.ndim:
        selected: Array = np.flatnonzero(guard)
        result = np.zeros(threads.count, dtype)
        if len(selected):
            inner = _subset(threads, selected)
            try:
                result[selected] = load(state, inner, space, _pick(address, selected), dtype, align, None)
            except DeviceFault as fault:
                raise translate_fault(selected, fault) from None
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
    """Store one or more consecutive elements for each thread, except the values that are None.

    If any thread faults, nothing is written.
    """
    if guard is not None and guard.ndim:
        storing: Array = np.flatnonzero(guard)
        if len(storing):
            inner = _subset(threads, storing)
            picked = tuple(None if v is None else _pick(v, storing) for v in values)
            try:
                store(state, inner, space, _pick(address, storing), dtype, align, picked, None)
            except DeviceFault as fault:
                raise translate_fault(storing, fault) from None
        return
    if guard is not None and not guard:
        return
    for kind, index, selected in elements(state, threads, space, address, dtype.itemsize, align, writes=True):
        view = state.view(kind, dtype)
        for position, value in enumerate(values):
            if value is not None:
                store_elements(view[position:], index, value if selected is None else _pick(value, selected))


def store_elements(view: Array, index: Value, value: Value) -> None:
    """Do view[index] = value. If several threads store to the same address, the last one's value remains."""
    if index.ndim == 0 and value.ndim:
        value = value[-1]
    view[index] = value


def displace(address: Value, offset: int) -> Value:
    """Return the address plus a constant, wrapped to the address's width."""
    bits = 8 * address.dtype.itemsize
    return address + address.dtype.type(offset & ((1 << bits) - 1))


def constant_address(address: Value, constants: np.uint64) -> Value:
    """Return the generic addresses of 32-bit addresses of constants; the constants begin at address `constants`."""
    return (address - constants.astype(np.uint32)).astype(np.uint64) + constants
