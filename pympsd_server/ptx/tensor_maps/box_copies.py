"""Copy boxes between global and shared memory, and reduce boxes into global memory."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pympsd.wire.tensor_map import DataType, TensorMap
from pympsd_server.ptx.isa.datatypes import F16, F32, F64, S32, S64, U8, U16, U32, U64, Array, DType, Value
from pympsd_server.ptx.isa.faults import IllegalInstruction
from pympsd_server.ptx.runtime.atomics import atomic, name_step
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.bulk_copies import (
    check_multiple,
    complete_bytes,
    consecutive,
    destinations,
    repeat,
    run_by_thread,
)
from pympsd_server.ptx.runtime.spaces import load, store
from pympsd_server.ptx.runtime.threads import Threads
from pympsd_server.ptx.tensor_maps.boxes import Box, box_at, row_pitch, store_box_at
from pympsd_server.ptx.tensor_maps.descriptors import map_at

_SHARED_ALIGNMENT: Final = 128
_DTYPES: Final[dict[int, DType]] = dict(
    zip(DataType, (U8, U16, U32, S32, U64, S64, F16, F32, F64, U16, F32, F32, F32), strict=True)
)
"""The dtype of the elements in a reduction, by their data type; for bfloat16 the dtype of its bits."""
_ROUNDED: Final = (DataType.TFLOAT32, DataType.TFLOAT32_FTZ)
"""The types that loads round. As on an H100, loads do not flush subnormal numbers, even for TFLOAT32_FTZ."""
_NAN: Final = b"\xf7\x7f"
"""The bytes that an H100 repeats to fill elements with NaN: a NaN of every type of 2, 4 and 8 bytes."""
_TF32_NAN: Final = U32.type(0x7FFFE000)
_MAGNITUDE: Final = U32.type(0x7FFFFFFF)
_INFINITY: Final = U32.type(0x7F800000)


def load_box(
    state: BatchState,
    threads: Threads,
    target: Value,
    map_address: Value,
    coordinates: tuple[Value, ...],
    offsets: tuple[Value, ...] | None,
    barrier: Value,
    mask: Value | None,
    guard: Value | None,
) -> None:
    """cp.async.bulk.tensor: copy a box from global to shared memory, and complete its bytes on `barrier`.

    ``offsets`` are None for .tile. ``mask`` selects the blocks of the cluster that receive the box. Raises
    DeviceFault for an invalid map, address or coordinate.
    """
    rank, moved = len(coordinates), offsets or ()
    values = (target, map_address, barrier, *coordinates, *moved, *(() if mask is None else (mask,)))

    def work(thread: Threads, arguments: tuple[int, ...]) -> None:
        place, where, waiting, *coordinates = arguments
        start, moves = coordinates[:rank], coordinates[rank : rank + len(moved)]
        check_multiple("shared address", place, _SHARED_ALIGNMENT)
        tensor_map = map_at(state, thread, where)
        limit, is_rounded = state.frame_size("shared"), tensor_map.data_type in _ROUNDED
        box = box_at(tensor_map, start, None if offsets is None else moves, limit, is_rounded)
        elements = _read(state, thread, tensor_map, box)
        blocks = None if mask is None else coordinates[-1]
        for to in destinations(place, blocks):
            copies, places = repeat(thread, len(elements)), _shared_addresses(tensor_map, box, to)
            store(state, copies, "shared", places, elements.dtype, box.unit, (elements,), None)
        for waiting_address in destinations(waiting, blocks):
            complete_bytes(state, thread, waiting_address, elements.nbytes)

    run_by_thread(state, threads, values, guard, work)


def store_box(
    state: BatchState,
    threads: Threads,
    map_address: Value,
    coordinates: tuple[Value, ...],
    is_im2col: bool,
    source: Value,
    function: str,
    guard: Value | None,
) -> None:
    """cp.async.bulk.tensor: copy a box from shared to global memory; with a `function`, reduce the box into it.

    Raises DeviceFault for an invalid map, address or coordinate.
    """

    def work(thread: Threads, arguments: tuple[int, ...]) -> None:
        where, place, *start = arguments
        check_multiple("shared address", place, _SHARED_ALIGNMENT)
        tensor_map = map_at(state, thread, where)
        reduction = _reduction(tensor_map, function) if function else ""
        box = store_box_at(tensor_map, start, is_im2col, state.frame_size("shared"), bool(reduction))
        dtype, copies = _DTYPES[tensor_map.data_type] if reduction else _bits(box), repeat(thread, len(box.inside))
        elements = load(state, copies, "shared", _shared_addresses(tensor_map, box, place), dtype, box.unit, None)
        values, inside = (elements,), box.inside
        if reduction:
            atomic(state, copies, "global", reduction, box.addresses, dtype, box.unit, values, False, inside)
        else:
            store(state, copies, "global", box.addresses, dtype, box.unit, values, inside)

    run_by_thread(state, threads, (map_address, source, *coordinates), guard, work)


def _shared_addresses(tensor_map: TensorMap, box: Box, start: int) -> Array:
    """Return the shared addresses of a box's units, with the swizzle.

    With a swizzle, the distance between rows is its span, even if the rows are shorter; a copy does not write the
    bytes between rows. The swizzle changes bits of the address itself, not of the offset in the box.
    """
    width = tensor_map.inner * tensor_map.element_bytes
    rows = consecutive(start, len(box.inside) * box.unit // width, row_pitch(tensor_map))
    places = rows[:, None] + consecutive(0, width // box.unit, box.unit)
    return swizzle_addresses(places.ravel(), tensor_map.swizzle)


def swizzle_addresses(address: Array, swizzle: int) -> Array:
    """Change the bits from 4 up by xor with the bits from 7 up: 1 bit for 32B, 2 bits for 64B, 3 bits for 128B."""
    changed: Array = address ^ ((address >> U64.type(7) & U64.type((1 << swizzle) - 1)) << U64.type(4))
    return changed


def _bits(box: Box) -> DType:
    return np.dtype(f"u{box.unit}")


def _read(state: BatchState, thread: Threads, tensor_map: TensorMap, box: Box) -> Array:
    """Return the bits of a box's elements, rounded if the type is in _ROUNDED, and 0 or NaN outside of the tensor."""
    dtype, copies = _bits(box), repeat(thread, len(box.inside))
    elements = np.asarray(load(state, copies, "global", box.addresses, dtype, box.unit, box.inside))
    if tensor_map.data_type in _ROUNDED:
        rounded = (elements + U32.type(0xFFF) + (elements >> U32.type(13) & U32.type(1))) & U32.type(0xFFFFE000)
        elements = np.where((elements & _MAGNITUDE) > _INFINITY, _TF32_NAN, rounded)
    if tensor_map.fill:
        elements[~box.inside] = np.frombuffer(_NAN * (box.unit // len(_NAN)), dtype)[0]
    return elements


# --- reductions

_WHOLE: Final = (DataType.UINT32, DataType.INT32, DataType.UINT64)
_HALVES: Final = (DataType.FLOAT16, DataType.BFLOAT16)
_FLUSHED: Final = (DataType.FLOAT32_FTZ, DataType.TFLOAT32_FTZ)
_SINGLES: Final = (DataType.FLOAT32, DataType.TFLOAT32, *_FLUSHED)
"""Types that are added as float32. An H100 was recorded to add TFLOAT32 without rounding it, and to flush subnormal
numbers only of FLOAT32_FTZ. TFLOAT32_FTZ was not recorded, and is added like FLOAT32_FTZ."""
_TYPE_NAMES: Final[dict[int, str]] = {
    DataType.FLOAT16: "f16",
    DataType.BFLOAT16: "bf16",
    **dict.fromkeys(_SINGLES, "f32"),
}
REDUCTIONS: Final[dict[str, Sequence[int]]] = {
    "add": (*_WHOLE, *_HALVES, *_SINGLES, DataType.FLOAT64),
    **dict.fromkeys(("min", "max"), (*_WHOLE, DataType.INT64, *_HALVES)),
    **dict.fromkeys(("inc", "dec"), (DataType.UINT32,)),
    **dict.fromkeys(("and", "or", "xor"), _WHOLE),
}
"""The data types for each function of cp.reduce.async.bulk.tensor, as recorded on an H100. INT64 has only .min and
.max (.xor was not recorded)."""


def _reduction(tensor_map: TensorMap, function: str) -> str:
    """Return the atomic operation for a function and a map's data type. Raises IllegalInstruction if it has none."""
    if tensor_map.data_type not in REDUCTIONS[function]:
        raise IllegalInstruction(f"no reduction .{function} of {DataType(tensor_map.data_type).name}")
    return name_step(function, _TYPE_NAMES.get(tensor_map.data_type, ""), tensor_map.data_type in _FLUSHED)
