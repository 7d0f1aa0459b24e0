"""Define fragments: the elements of a matrix in each lane's registers, as in the figures of the PTX ISA (mma).

A fragment has two tables, with the matrix rows and columns of the elements. A table has a row for each lane and a
column for each of the lane's elements, in the order of its registers, and in a register from the low bits up.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from attrs import frozen

from pympsd_server.ptx.isa.datatypes import Array

_LANES = np.arange(32)
_GROUP, _IN_GROUP = _LANES >> 2, _LANES & 3
_BITS: Final = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f64": 64, "b1": 1}
"""The number of bits of an element of A or B, by its type."""

Shape = tuple[int, int, int]
"""The sizes M, N and K of a product: A is M by K, B is K by N."""


@frozen
class Fragment:
    """The matrix rows and columns of each lane's elements. A register contains `packed` elements."""

    rows: Array
    columns: Array
    packed: int

    @property
    def registers(self) -> int:
        """The number of registers of each lane."""
        return int(self.rows.shape[1]) // self.packed


def _fragment(shape: tuple[int, int], packed: int, blocks: tuple[int, int], along_rows: bool) -> Fragment:
    """Return a fragment whose registers each cover a block of 8 by 4 * packed elements.

    In each block, lane t has row t / 4 and `packed` columns from packed * (t % 4). Blocks follow each other down the
    rows first, then along the columns. Unless `along_rows`, rows and columns are exchanged, as for B.
    """
    down, across = blocks
    rows, columns = [], []
    for column_block in range(across):
        for row_block in range(down):
            for element in range(packed):
                rows.append(_GROUP + 8 * row_block)
                columns.append(packed * _IN_GROUP + element + 4 * packed * column_block)
    first, second = np.stack(rows, 1), np.stack(columns, 1)
    assert (first.max() + 1, second.max() + 1) == (shape if along_rows else shape[::-1])
    return Fragment(first, second, packed) if along_rows else Fragment(second, first, packed)


@lru_cache(maxsize=64)
def multiplicand_a(m: int, k: int, packed: int) -> Fragment:
    """Return the fragment of A, m by k, with `packed` elements in a register."""
    return _fragment((m, k), packed, (m // 8, k // (4 * packed)), along_rows=True)


@lru_cache(maxsize=64)
def multiplicand_b(k: int, n: int, packed: int) -> Fragment:
    """Return the fragment of B, k by n, with `packed` elements in a register."""
    return _fragment((k, n), packed, (n // 8, k // (4 * packed)), along_rows=False)


@lru_cache(maxsize=64)
def accumulator(m: int, n: int, packed: int) -> Fragment:
    """Return the fragment of C or D, m by n.

    In each block of 8 by 8 elements, a lane has two neighbouring elements of a row.
    """
    pairs = _fragment((m, n), 2, (m // 8, n // 8), along_rows=True)
    return Fragment(pairs.rows, pairs.columns, packed)


def fragment_of(matrix: str, shape: Shape, kind: str) -> Fragment:
    """Return the fragment of a product's matrix "a", "b", "c" or "d" with elements of the type `kind`."""
    m, n, k = shape
    if matrix in ("c", "d"):
        return accumulator(m, n, 2 if kind == "f16" else 1)
    packed = max(1, 32 // _BITS[kind])
    return multiplicand_a(m, k, packed) if matrix == "a" else multiplicand_b(k, n, packed)
