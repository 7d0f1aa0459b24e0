"""Executable graphs as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.errors import RemoteError
from pympsd.wire import graph_items, records
from pympsd.wire.graph_items import MAX_NESTING, Conditional, ConditionalKind, GraphItem, TooLarge

LAUNCH = records.pack("LAUNCH", 1, 2, *range(11), tail=b"12345")


@st.composite
def some_items(draw: st.DrawFn, depth: int = 0) -> list[GraphItem]:
    """Items that depend on earlier ones, some of them with bodies."""
    items: list[GraphItem] = []
    for index in range(draw(st.integers(0, 8 >> 2 * depth))):
        record = draw(st.sampled_from((b"", LAUNCH, records.pack("FILL", 1, 0, *range(7)))))
        earlier = draw(st.lists(st.integers(0, index - 1), max_size=4)) if index else []
        conditional = None
        if not record and depth < 2:
            conditional = draw(st.none() | some_conditionals(depth + 1))
        items.append(GraphItem(record, tuple(earlier), conditional))
    return items


@st.composite
def some_conditionals(draw: st.DrawFn, depth: int) -> Conditional:
    """A conditional node with one to three bodies."""
    bodies = draw(st.lists(some_items(depth).map(tuple), min_size=1, max_size=3))
    numbers = st.integers(0, (1 << 32) - 1)
    kind = draw(st.sampled_from(ConditionalKind))
    return Conditional(draw(st.integers(0, (1 << 64) - 1)), kind, draw(st.none() | numbers), tuple(bodies))


def make_nested(depth: int) -> GraphItem:
    """An item with bodies within each other."""
    item = GraphItem(LAUNCH)
    for _ in range(depth):
        item = GraphItem(b"", (), Conditional(1, ConditionalKind.WHILE, None, ((item,),)))
    return item


@given(some_items())
def test_encoded_items_are_decoded_unchanged(items: list[GraphItem]) -> None:
    assert list(graph_items.decode(graph_items.encode(items))) == items


@given(some_items(), st.integers(0, 1 << 10), st.integers(0, 255))
def test_changed_bytes_are_items_or_refused(items: list[GraphItem], place: int, value: int) -> None:
    changed = bytearray(graph_items.encode(items))
    if changed:
        changed[place % len(changed)] = value
    try:
        decoded = graph_items.decode(bytes(changed))
    except RemoteError:
        return
    check_order(decoded)


def check_order(items: tuple[GraphItem, ...]) -> None:
    """Every item depends on earlier ones only."""
    for index, item in enumerate(items):
        assert all(dependency < index for dependency in item.dependencies)
        for body in item.conditional.bodies if item.conditional is not None else ():
            check_order(body)


def test_bodies_nest_up_to_a_limit() -> None:
    assert graph_items.decode(graph_items.encode([make_nested(MAX_NESTING)])) == (make_nested(MAX_NESTING),)
    with pytest.raises(TooLarge, match=str(MAX_NESTING)):
        graph_items.decode(graph_items.encode([make_nested(MAX_NESTING + 1)]))
    with pytest.raises(TooLarge):
        graph_items.decode(graph_items.encode([make_nested(500)]))


@pytest.mark.parametrize(
    "data",
    [
        b"1234",
        graph_items.encode([GraphItem(LAUNCH)])[:-8],
        graph_items.encode([GraphItem(LAUNCH, (0,))]),
        graph_items.encode([GraphItem(b"", (1,)), GraphItem(b"")]),
        graph_items.encode([GraphItem(bytes(8))]),
        graph_items.encode([GraphItem(bytes(25))]),
        graph_items.encode([make_nested(1)])[:-8],
        graph_items.encode([make_nested(2)]).replace((1).to_bytes(4, "little") * 2, (9).to_bytes(4, "little") * 2),
        b"\xff" * 64,
    ],
)
def test_data_that_is_not_a_graph_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteError, match="item"):
        graph_items.decode(data)
