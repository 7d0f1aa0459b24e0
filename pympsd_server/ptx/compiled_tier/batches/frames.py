"""Access the frames of warps as NumPy columns, for escaping instructions and for the NumPy tier's groups.

A frame is a row of the frame slab. A varying register has an element for each lane of the vector, a varying predicate
a bit for each lane, a uniform register one element. Rows are selected by index, and lanes by a Boolean matrix with a
row for each of them.
"""

from __future__ import annotations

import numpy as np

from pympsd_server.ptx.compiled_tier.compilation.machine_code import MachineCode
from pympsd_server.ptx.compiled_tier.native_runtime import (
    CACHE_LINE,
    FRAME_ALIVE,
    FRAME_HEADER,
    FRAME_MASK,
    FRAME_STOP,
)
from pympsd_server.ptx.isa.datatypes import DTYPES, Array, DType, Value
from pympsd_server.ptx.numpy_tier.translation import Translation

_WORD = np.dtype(np.uint32)


def allocate_aligned(nbytes: int) -> Array:
    """Return an array of uninitialised bytes that begins at a cache line."""
    buffer = np.empty(nbytes + CACHE_LINE, np.uint8)
    begin = -int(buffer.ctypes.data) % CACHE_LINE
    return buffer[begin : begin + nbytes]


def allocate_zeros(nbytes: int) -> Array:
    """Return an array of zeros that begins at a cache line."""
    zeros = allocate_aligned(nbytes)
    zeros[:] = 0
    return zeros


class Frames:
    """The frames of the warps in a batch's slots; a row is a warp's frame."""

    def __init__(self, code: MachineCode, memory: Array, translation: Translation) -> None:
        self.memory = memory
        self._rows = memory.reshape(-1, code.frame_bytes)
        self._code, self._translation = code, translation
        self._lane = np.arange(code.width, dtype=np.uint32)

    def _column(self, rows: Array, at: int, dtype: DType, count: int = 1) -> Array:
        """Return a copy of `count` elements at offset `at` of each row."""
        part = np.ascontiguousarray(self._rows[rows, at : at + count * dtype.itemsize])
        return part.view(dtype).reshape(len(rows), count)

    def _set_column(self, rows: Array, at: int, values: Array) -> None:
        part = np.ascontiguousarray(values).view(np.uint8).reshape(len(rows), values.shape[1] * values.itemsize)
        self._rows[rows, at : at + part.shape[1]] = part

    def _bits(self, words: Array) -> Array:
        """Return the bits of masks, which have one word in each row, as a Boolean for each lane."""
        bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
        return bits[:, : self._code.width].view(np.bool_)

    def stops(self, rows: Array) -> Array:
        """Return the number of the stop at which each warp is."""
        return self._column(rows, FRAME_STOP, _WORD)[:, 0]

    def move(self, rows: Array, stop: int) -> None:
        """Set the stop at which warps continue."""
        self._set_column(rows, FRAME_STOP, np.full((len(rows), 1), stop, np.uint32))

    def clear(self, stops: Array, living: Array) -> None:
        """Clear all frames, and set the stop and living lanes of the first warps. No lanes are at stops yet."""
        self.memory[:] = 0
        rows = np.arange(len(stops))
        self._set_column(rows, FRAME_STOP, np.maximum(stops, 0).astype(np.uint32)[:, None])
        self._set_column(rows, FRAME_ALIVE, self._words(living))

    def set_mask(self, rows: Array, segment: int | None, lanes: Array) -> None:
        """Set which lanes are at a warp's stop or, if a segment is given, which are pending at that segment."""
        at = FRAME_MASK if segment is None else FRAME_HEADER + 4 * segment
        self._set_column(rows, at, self._words(lanes))

    def _words(self, lanes: Array) -> Array:
        words: Array = (lanes << self._lane).sum(axis=1, dtype=np.uint32)[:, None]
        return words

    def lanes(self, rows: Array) -> Array:
        """Return, for each warp, which lanes are at its stop."""
        return self._bits(self._column(rows, FRAME_MASK, _WORD))

    def find_living_lanes(self, row: int) -> Array:
        """Return which lanes of a warp have not exited."""
        alive: Array = self._bits(self._column(np.array([row]), FRAME_ALIVE, _WORD))[0]
        return alive

    def _dtype(self, number: int) -> DType:
        return DTYPES[self._translation.code.register_types[number]]

    def read(self, rows: Array, number: int, lanes: Array) -> Value:
        """Return a register's values in the selected lanes, warp by warp; 0 if no stop needs the register."""
        dtype, at = self._dtype(number), self._code.slots.get(number)
        if at is None:
            return dtype.type(0)
        if not self._code.varies(number):
            return np.repeat(self._column(rows, at, dtype)[:, 0], lanes.sum(axis=1))
        if dtype.kind == "b":
            return self._bits(self._column(rows, at, self._mask_dtype()))[lanes]
        elements = self._column(rows, at, dtype, self._code.width)
        return elements.reshape(-1) if lanes.all() else elements[lanes]

    def _mask_dtype(self) -> DType:
        return np.dtype(f"u{self._code.width // 8}")

    def write(self, rows: Array, number: int, lanes: Array, value: Value) -> None:
        """Set a register in the selected lanes; do nothing if no stop needs it.

        A uniform register takes the value of each warp's first selected lane.
        """
        dtype, at = self._dtype(number), self._code.slots.get(number)
        if at is None:
            return
        if not self._code.varies(number):
            counts = lanes.sum(axis=1)
            self._set_column(rows, at, np.asarray(value, dtype)[np.cumsum(counts) - counts, None])
            return
        if dtype.kind == "b":
            truths = self._bits(self._column(rows, at, self._mask_dtype()))
            truths[lanes] = value
            self._set_column(rows, at, np.packbits(truths, axis=1, bitorder="little"))
            return
        if np.ndim(value) and lanes.all():
            elements = np.asarray(value, dtype).reshape(lanes.shape)
        else:
            elements = self._column(rows, at, dtype, self._code.width)
            elements[lanes] = value
        self._set_column(rows, at, elements)

    def places(self, row: int) -> list[tuple[int, Array, int]]:
        """Return the places of a warp's lanes as (block, lanes, block at whose barrier they wait or -1)."""
        rows = np.array([row])
        stop = self._code.stops[int(self.stops(rows)[0])]
        places = [(self._code.origins[stop.segment], self.lanes(rows)[0], stop.barrier)]
        for segment in stop.pending:
            mask = self._column(rows, FRAME_HEADER + 4 * segment, _WORD)
            places.append((self._code.origins[segment], self._bits(mask)[0], -1))
        return [place for place in places if place[1].any()]

    def registers(self, row: int, block: int, lanes: Array) -> tuple[Value, ...]:
        """Return a block's live-in registers for the selected lanes of a warp."""
        rows = np.array([row])
        if self._code.stops[int(self.stops(rows)[0])].is_entry:
            return tuple(dtype.type(0) for dtype in self._translation.plans[block].dtypes)
        return tuple(self.read(rows, number, lanes[None]) for number in self._translation.plans[block].live_in)


def exchange_words(local: Array, word: int, rows: int, columns: int) -> Array:
    """Convert local memory between the NumPy tier and machine code that interleaves words of `word` bytes.

    A warp's words are a matrix, which is transposed. Its rows are the memory of a thread in the NumPy tier, and the
    same word of all lanes in machine code (memory_text.py).
    """
    if not len(local):
        return local
    words = local.view(f"u{word}").reshape(-1, rows, columns).transpose(0, 2, 1)
    return np.ascontiguousarray(words).reshape(-1).view(np.uint8)
