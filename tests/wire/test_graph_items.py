"""Executable graphs as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.wire import graph_items, records
from pympsd.wire.errors import RemoteError
from pympsd.wire.graph_items import GraphItem

LAUNCH = records.pack("LAUNCH", 1, 2, *range(11), tail=b"12345")


@st.composite
def some_items(draw: st.DrawFn) -> list[GraphItem]:
    """Items that depend on earlier ones."""
    items: list[GraphItem] = []
    for index in range(draw(st.integers(0, 8))):
        record = draw(st.sampled_from((b"", LAUNCH, records.pack("FILL", 1, 0, *range(7)))))
        earlier = draw(st.lists(st.integers(0, index - 1), max_size=4)) if index else []
        items.append(GraphItem(record, tuple(earlier)))
    return items


@given(some_items())
def test_items_read_back(items: list[GraphItem]) -> None:
    assert list(graph_items.decode(graph_items.encode(items))) == items


@given(some_items(), st.integers(0, 1 << 10), st.integers(0, 255))
def test_changed_bytes_are_items_or_refused(items: list[GraphItem], place: int, value: int) -> None:
    data = bytearray(graph_items.encode(items))
    if data:
        data[place % len(data)] = value
    try:
        found = graph_items.decode(bytes(data))
    except RemoteError:
        return
    for index, item in enumerate(found):
        assert all(each < index for each in item.dependencies)


@pytest.mark.parametrize(
    "data",
    [
        b"1234",
        graph_items.encode([GraphItem(LAUNCH)])[:-8],
        graph_items.encode([GraphItem(LAUNCH, (0,))]),
        graph_items.encode([GraphItem(b"", (1,)), GraphItem(b"")]),
        graph_items.encode([GraphItem(bytes(8))]),
        graph_items.encode([GraphItem(bytes(25))]),
        b"\xff" * 64,
    ],
)
def test_what_is_no_graph_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteError, match="item"):
        graph_items.decode(data)
