"""Decompression of Zstandard frames, without dictionaries (RFC 8878)."""

from __future__ import annotations

from typing import Final

from attrs import define, field

from pympsd.wire.images.entropy import (
    Bits,
    Codes,
    Table,
    decoded,
    read_distribution,
    read_huffman,
)
from pympsd.wire.images.lz4 import repeat

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_BLOCK_LIMIT: Final = 128 << 10
_RAW, _RLE, _COMPRESSED = 0, 1, 2


_LITERAL_LENGTHS: Final = [(value, 0) for value in range(16)] + [
    (16, 1), (18, 1), (20, 1), (22, 1), (24, 2), (28, 2), (32, 3), (40, 3), (48, 4), (64, 6), (128, 7), (256, 8),
    (512, 9), (1024, 10), (2048, 11), (4096, 12), (8192, 13), (16384, 14), (32768, 15), (65536, 16),
]  # fmt: skip
"""For each code its least value, and the bits that are added to it."""
_MATCH_LENGTHS: Final = [(value, 0) for value in range(3, 35)] + [
    (35, 1), (37, 1), (39, 1), (41, 1), (43, 2), (47, 2), (51, 3), (59, 3), (67, 4), (83, 4), (99, 5), (131, 7),
    (259, 8), (515, 9), (1027, 10), (2051, 11), (4099, 12), (8195, 13), (16387, 14), (32771, 15), (65539, 16),
]  # fmt: skip
_LITERALS_DEFAULT: Final = Table.of([4, 3, *[2] * 11, 1, 1, 1, *[2] * 9, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1], 6)
_MATCHES_DEFAULT: Final = Table.of([1, 4, 3, 2, 2, 2, 2, 2, 2, *[1] * 37, *[-1] * 7], 6)
_OFFSETS_DEFAULT: Final = Table.of([1, 1, 1, 1, 1, 1, 2, 2, 2, *[1] * 15, *[-1] * 5], 5)
_KINDS: Final = ((_LITERALS_DEFAULT, 9, 36), (_OFFSETS_DEFAULT, 8, 32), (_MATCHES_DEFAULT, 9, 53))
"""Default table, largest table's log and number of codes, for literal lengths, offsets and match lengths."""


@define
class _Frame:
    """What a frame's blocks hand on to each other, and the data so far."""

    size: int
    out: bytearray = field(factory=bytearray)
    codes: Codes | None = None
    tables: list[Table | None] = field(factory=lambda: [None, None, None])
    offsets: list[int] = field(factory=lambda: [1, 4, 8])

    def block(self, data: bytes) -> None:
        """Decompress one block."""
        literals, at = self._literals(data)
        sequences = data[at]
        at += 1
        if sequences >= 255:
            sequences = (data[at] | data[at + 1] << 8) + 0x7F00
            at += 2
        elif sequences >= 128:
            sequences = (sequences - 128 << 8) + data[at]
            at += 1
        if not sequences:
            self._append(literals)
            return
        at = self._read_tables(data, at)
        self._execute(sequences, literals, Bits(data[at:]))

    def _append(self, data: bytes | bytearray) -> None:
        if len(self.out) + len(data) > self.size:
            raise ValueError("more data than announced")
        self.out += data

    def _literals(self, data: bytes) -> tuple[bytes | bytearray, int]:
        kind, form = data[0] & 3, data[0] >> 2 & 3
        if kind in (_RAW, _RLE):
            width, shift = ((1, 3), (2, 4), (1, 3), (3, 4))[form]
            count = int.from_bytes(data[:width], "little") >> shift
            if count > _BLOCK_LIMIT:
                raise ValueError(f"{count} literals in a block")
            if kind == _RLE:
                return data[width : width + 1] * count, width + 1
            return data[width : width + count], width + count
        width, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
        number = int.from_bytes(data[:width], "little") >> 4
        count, packed = number & (1 << bits) - 1, number >> bits
        if count > _BLOCK_LIMIT or width + packed > len(data):
            raise ValueError(f"{count} literals in {packed} bytes of a block")
        body, used = data[width : width + packed], 0
        if kind == _COMPRESSED:
            self.codes, used = read_huffman(body)
        if self.codes is None:
            raise ValueError("literals without a Huffman tree")
        return self._streams(self.codes, body[used:], count, 4 if form else 1), width + packed

    def _streams(self, codes: Codes, data: bytes, count: int, streams: int) -> bytearray:
        if streams == 1:
            return decoded(codes, data, count)
        sizes = [int.from_bytes(data[place : place + 2], "little") for place in (0, 2, 4)]
        each, out, at = (count + 3) // 4, bytearray(), 6
        for size in sizes:
            out += decoded(codes, data[at : at + size], each)
            at += size
        if count < 3 * each:
            raise ValueError("too few literals for four streams")
        return out + decoded(codes, data[at:], count - 3 * each)

    def _read_tables(self, data: bytes, at: int) -> int:
        modes = data[at]
        at += 1
        for place, (default, most_log, most_symbols) in enumerate(_KINDS):
            mode = modes >> 6 - 2 * place & 3
            if mode == _RAW:
                self.tables[place] = default
            elif mode == _RLE:
                if data[at] >= most_symbols:
                    raise ValueError(f"code {data[at]} in a table of {most_symbols}")
                self.tables[place] = Table.of_one(data[at])
                at += 1
            elif mode == _COMPRESSED:
                self.tables[place], used = read_distribution(data[at:], most_log, most_symbols)
                at += used
        return at

    def _execute(self, sequences: int, literals: bytes | bytearray, bits: Bits) -> None:
        tables = [table for table in self.tables if table is not None]
        if len(tables) < len(self.tables):
            raise ValueError("sequences without a table")
        states = [bits.take(table.log) for table in tables]
        at = 0
        for number in range(sequences):
            literal, offset, match = (table.symbols[state] for table, state in zip(tables, states, strict=True))
            distance = (1 << offset) + bits.take(offset)
            base, more = _MATCH_LENGTHS[match]
            length = base + bits.take(more)
            base, more = _LITERAL_LENGTHS[literal]
            count = base + bits.take(more)
            if number + 1 < sequences:
                for place in (0, 2, 1):
                    table, state = tables[place], states[place]
                    states[place] = table.base[state] + bits.take(table.bits[state])
            if bits.left < 0 or at + count > len(literals):
                raise ValueError("sequences that are cut off")
            self._append(literals[at : at + count])
            at += count
            repeat(self.out, self._distance(distance, count), length, self.size)
        if bits.left:
            raise ValueError("sequences that do not end where they should")
        self._append(literals[at:])

    def _distance(self, value: int, literals: int) -> int:
        """Return how far a match lies back: values up to 3 mean one of the last three."""
        if value > 3:
            self.offsets = [value - 3, *self.offsets[:2]]
            return self.offsets[0]
        place = value - 1 + (not literals)
        found = self.offsets[0] - 1 if place == 3 else self.offsets[place]
        if place:
            kept = self.offsets[:2] if place > 1 else self.offsets[:1] + self.offsets[2:]
            self.offsets = [found, *kept]
        return found


def decompress(data: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that a frame holds; ValueError if it is malformed or holds others."""
    try:
        return _decompressed(data, size)
    except IndexError:
        raise ValueError("a Zstandard frame that is cut off") from None


def _decompressed(data: bytes, size: int) -> bytes:
    if not data.startswith(_MAGIC):
        raise ValueError("no Zstandard frame")
    head = data[4]
    if head & 3 or head & 8:
        raise ValueError("a Zstandard frame with a dictionary")
    single = head >> 5 & 1
    at = 5 + (not single) + (single, 2, 4, 8)[head >> 6]
    frame = _Frame(size)
    while True:
        header = int.from_bytes(data[at : at + 3], "little")
        kind, count = header >> 1 & 3, header >> 3
        at += 3
        if kind == _RLE:
            if len(frame.out) + count > size:
                raise ValueError("more data than announced")
            frame._append(data[at : at + 1] * count)
            at += 1
        else:
            if at + count > len(data) or kind > _COMPRESSED:
                raise ValueError("a block that is cut off or of no kind")
            if kind == _RAW:
                frame._append(data[at : at + count])
            else:
                frame.block(data[at : at + count])
            at += count
        if header & 1:
            break
    if len(frame.out) != size:
        raise ValueError(f"a Zstandard frame of {len(frame.out)} bytes where {size} were announced")
    return bytes(frame.out)
