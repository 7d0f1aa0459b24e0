"""A module layout is decoded as it was encoded; a malformed one is a RemoteError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.errors import RemoteError
from pympsd.wire.module_layout import FunctionLayout, GlobalLayout, ModuleLayout

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SIZES = st.integers(0, (1 << 64) - 1)
FUNCTIONS = st.builds(
    FunctionLayout,
    name=NAMES,
    parameters=st.lists(st.tuples(SIZES, SIZES), max_size=4).map(tuple),
    parameter_bytes=SIZES,
    attributes=st.dictionaries(NAMES, st.integers(-(1 << 31), (1 << 31) - 1), max_size=4),
)
GLOBALS = st.builds(GlobalLayout, name=NAMES, address=SIZES, size=SIZES)
LAYOUTS = st.builds(
    ModuleLayout,
    functions=st.lists(FUNCTIONS, max_size=3).map(tuple),
    globals=st.lists(GLOBALS, max_size=3).map(tuple),
)


@given(LAYOUTS)
def test_a_layout_is_decoded_as_it_was_encoded(layout: ModuleLayout) -> None:
    assert ModuleLayout.decode(layout.encode()) == layout


@given(st.binary(max_size=100))
def test_any_bytes_are_a_remote_error(data: bytes) -> None:
    with pytest.raises(RemoteError, match="a malformed module layout"):
        ModuleLayout.decode(data)


@given(LAYOUTS, st.integers(0, 200))
def test_a_truncated_layout_is_a_remote_error(layout: ModuleLayout, cut: int) -> None:
    whole = layout.encode()
    with pytest.raises(RemoteError, match="a malformed module layout"):
        ModuleLayout.decode(whole[: min(cut, len(whole) - 1)])


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(RemoteError, match="functions"):
        ModuleLayout.decode(b'{"functions": 5, "globals": []}')
