"""The entropy coding of Zstandard: finite state entropy, and Huffman codes (RFC 8878, section 4)."""

from __future__ import annotations

from typing import Final

from attrs import define, field

_HUFFMAN_BITS: Final = 11
_WEIGHT_LOG: Final = 6
"""The largest table of a Huffman tree's weights has 2^6 states."""


@define
class Bits:
    """Bits read from the end of some bytes to their beginning; the last byte's highest 1 marks where they begin."""

    data: bytes
    left: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        if not self.data or not self.data[-1]:
            raise ValueError("a bit stream without an end")
        self.left = len(self.data) * 8 - (9 - self.data[-1].bit_length())

    def look(self, count: int) -> int:
        """Return the next bits, zeros after the last, without taking them."""
        low = self.left - count
        if low >= 0:
            found = int.from_bytes(self.data[low >> 3 : (self.left + 7) >> 3], "little")
            return found >> (low & 7) & (1 << count) - 1
        if self.left <= 0:
            return 0
        whole = int.from_bytes(self.data[: (self.left + 7) >> 3], "little") & (1 << self.left) - 1
        return whole << -low

    def take(self, count: int) -> int:
        """Return the next bits; ``left`` is negative once more were taken than there are."""
        found = self.look(count)
        self.left -= count
        return found


@define
class Table:
    """A table of finite state entropy: for each state its symbol, the bits to read, and what they are added to."""

    log: int
    symbols: list[int]
    bits: list[int]
    base: list[int]

    @classmethod
    def of(cls, counts: list[int], log: int) -> Table:
        """Return the table of a distribution, in which -1 is less than one."""
        size = 1 << log
        symbols = [0] * size
        high = size - 1
        for symbol, count in enumerate(counts):
            if count == -1:
                symbols[high] = symbol
                high -= 1
        position, step = 0, (size >> 1) + (size >> 3) + 3
        for symbol, count in enumerate(counts):
            for _ in range(max(0, count)):
                symbols[position] = symbol
                position = (position + step) & (size - 1)
                while position > high:
                    position = (position + step) & (size - 1)
        if position:
            raise ValueError("a distribution that does not fill its table")
        following = [1 if count == -1 else count for count in counts]
        bits, base = [], []
        for symbol in symbols:
            state = following[symbol]
            following[symbol] += 1
            bits.append(log - state.bit_length() + 1)
            base.append((state << bits[-1]) - size)
        return cls(log, symbols, bits, base)

    @classmethod
    def of_one(cls, symbol: int) -> Table:
        """Return the table whose states all mean one symbol."""
        return cls(0, [symbol], [0], [0])


def read_distribution(data: bytes, most_log: int, most_symbols: int) -> tuple[Table, int]:
    """Return a table from its description, and the number of bytes that this has."""
    number, at = int.from_bytes(data[: most_symbols * 4 + 16], "little"), 4
    log = (number & 15) + 5
    if log > most_log:
        raise ValueError(f"a table of 2^{log} states")
    left, counts = (1 << log) + 1, list[int]()
    while left > 1 and len(counts) < most_symbols:
        width = left.bit_length()
        short = (1 << width) - 1 - left
        value = number >> at & (1 << width) - 1
        if value & (1 << width - 1) - 1 < short:
            value &= (1 << width - 1) - 1
            at += width - 1
        else:
            if value >= 1 << width - 1:
                value -= short
            at += width
        counts.append(value - 1)
        left -= abs(value - 1)
        while value == 1:
            repeats = number >> at & 3
            at += 2
            counts += [0] * repeats
            if repeats < 3:
                break
    if left != 1 or len(counts) > most_symbols or (at + 7) // 8 > len(data):
        raise ValueError("a distribution that is malformed")
    return Table.of(counts, log), (at + 7) // 8


Codes = tuple[int, list[tuple[int, int]]]
"""The longest code's length in bits, and for each value of that length its symbol and the bits of its code."""


def _huffman(weights: list[int]) -> Codes:
    """Return the codes that the weights of all symbols but the last give."""
    total = sum(1 << weight - 1 for weight in weights if weight)
    longest = total.bit_length()
    if not total or longest > _HUFFMAN_BITS:
        raise ValueError("a Huffman tree that is too deep or empty")
    rest = (1 << longest) - total
    if rest & (rest - 1):
        raise ValueError("a Huffman tree that is not complete")
    weights = [*weights, rest.bit_length()]
    table: list[tuple[int, int]] = []
    for weight in range(1, longest + 1):
        for symbol, its in enumerate(weights):
            if its == weight:
                table += [(symbol, longest + 1 - weight)] * (1 << weight - 1)
    return longest, table


def read_huffman(data: bytes) -> tuple[Codes, int]:
    head = data[0]
    if head >= 128:
        count = head - 127
        packed = data[1 : 1 + (count + 1) // 2]
        weights = [nibble for byte in packed for nibble in (byte >> 4, byte & 15)][:count]
        if len(weights) < count:
            raise ValueError("a Huffman tree that is cut off")
        return _huffman(weights), 1 + (count + 1) // 2
    table, used = read_distribution(data[1 : 1 + head], _WEIGHT_LOG, 256)
    if 1 + head > len(data):
        raise ValueError("a Huffman tree that is cut off")
    bits = Bits(data[1 + used : 1 + head])
    states = [bits.take(table.log), bits.take(table.log)]
    weights, turn = [], 0
    while len(weights) < 255:
        state = states[turn]
        weights.append(table.symbols[state])
        if bits.left < table.bits[state]:
            weights.append(table.symbols[states[1 - turn]])
            break
        states[turn] = table.base[state] + bits.take(table.bits[state])
        turn = 1 - turn
    return _huffman(weights), 1 + head


def decoded(codes: Codes, data: bytes, count: int) -> bytearray:
    longest, table = codes
    bits, out = Bits(data), bytearray()
    for _ in range(count):
        symbol, width = table[bits.look(longest)]
        bits.left -= width
        out.append(symbol)
    if bits.left:
        raise ValueError("literals that do not end where they should")
    return out
