"""Regions in fewer dimensions, and in pieces that lie in one registration each, are the same bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.memory.address_ranges import REGISTERED_BYTES
from pympsd_server.backends.cuda.memory.regions import (
    Side,
    simplify,
    split_into_registered_pieces,
)
from pympsd_server.backends.interface import BackendError, Extent, Region
from tests.backends.contract.port_user import on_device

EXTENTS = st.builds(Extent, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)).filter(
    lambda extent: not extent.is_linear
)
MIB = 1 << 20


def rows(extent: Extent, pitch: int, slice_pitch: int) -> Iterator[int]:
    """Yield the offsets of all rows, in order."""
    for layer in range(extent.depth):
        for row in range(extent.height):
            yield layer * slice_pitch + row * pitch


def offsets(extent: Extent, region: Region) -> list[int]:
    """Return the offsets of all bytes, in order."""
    return [start + at for start in rows(extent, region.pitch, region.slice_pitch) for at in range(extent.width)]


@given(
    EXTENTS,
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=2),
)
def test_a_simplified_extent_is_the_same_bytes(extent: Extent, gaps: list[tuple[int, int]]) -> None:
    regions = []
    for row_gap, slice_gap in gaps:
        pitch = extent.width + row_gap
        regions.append(on_device(0, pitch, extent.height * pitch + slice_gap))
    fewer, simplified = simplify(extent, *regions)
    assert [offsets(fewer, region) for region in simplified] == [offsets(extent, region) for region in regions]
    assert fewer.depth == 1 or fewer.height > 1


def test_rows_that_touch_are_one_row() -> None:
    assert simplify(Extent(4, 3, 2), on_device(0, 4, 12))[0] == Extent(24)
    assert simplify(Extent(4, 3, 2), on_device(0, 5, 15))[0] == Extent(4, 6)
    assert simplify(Extent(4, 1, 2), on_device(0, 0, 4))[0] == Extent(8)
    assert simplify(Extent(4, 3, 2), on_device(0, 4, 12), on_device(0, 4, 16))[0] == Extent(4, 3, 2)


@given(
    st.integers(0, 3 * REGISTERED_BYTES),
    st.builds(Extent, st.integers(1, 9 * MIB), st.integers(1, 6), st.integers(1, 4)),
    st.integers(0, 3 * MIB),
    st.integers(0, 20 * MIB),
)
def test_every_piece_of_a_copy_lies_in_one_registration(address: int, extent: Extent, gap: int, more: int) -> None:
    pitch = extent.width + gap
    host = Side(True, address, pitch, extent.height * pitch + more)
    seen: dict[tuple[int, int], int] = {}
    for column, row, layer, piece in split_into_registered_pieces(host, extent):
        start = host.at(column, row, layer).address
        last = start + (piece.depth - 1) * host.slice_pitch + (piece.height - 1) * pitch + piece.width - 1
        assert start // REGISTERED_BYTES == last // REGISTERED_BYTES
        for index in range(layer, layer + piece.depth):
            for other in range(row, row + piece.height):
                assert seen.get((index, other), 0) == column, "the pieces of a row follow each other"
                seen[index, other] = column + piece.width
    assert seen == {(layer, row): extent.width for layer in range(extent.depth) for row in range(extent.height)}


def test_a_region_in_one_registration_is_one_piece() -> None:
    extent = Extent(100, 1000, 10)
    assert list(split_into_registered_pieces(Side(True, 0, 128, 128_500), extent)) == [(0, 0, 0, extent)]


@pytest.mark.parametrize(
    ("extent", "region"),
    [
        (Extent(8, 2), on_device(0, 7)),
        (Extent(8, 2), on_device(0, 65)),
        (Extent(8, 2, 2), on_device(0, 8, 15)),
        (Extent(8, 1, 2), on_device(0, 8, 7)),
    ],
)
def test_impossible_pitches_are_refused(extent: Extent, region: Region) -> None:
    with pytest.raises(BackendError, check=lambda error: error.code == Result.ERROR_INVALID_VALUE):
        region.check_pitches(extent, 64)


def test_a_single_row_needs_no_pitch() -> None:
    on_device(0).check_pitches(Extent(8))
    on_device(0, 0, 8).check_pitches(Extent(8, 1, 2))
