"""Limits: valid ones are kept, invalid ones are refused with what is allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.limits import MAX_MEMORY, BadLimit, ClientPriority, PinnedMemory, ThreadPercentage

POSSIBLE = st.floats(min_value=0, max_value=100, exclude_min=True)


@given(POSSIBLE)
def test_a_possible_percentage_is_kept(value: float) -> None:
    assert ThreadPercentage.parse(repr(value)) == ThreadPercentage(value)


@given(st.floats().filter(lambda value: not 0 < value <= 100))
def test_an_impossible_percentage_is_refused(value: float) -> None:
    with pytest.raises(BadLimit, match="above 0 and at most 100"):
        ThreadPercentage(value)


@given(st.text())
def test_any_text_is_a_percentage_or_a_bad_limit(text: str) -> None:
    try:
        value = ThreadPercentage.parse(text).value
    except BadLimit as error:
        assert "above 0" in str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert 0 < value <= 100


@given(POSSIBLE, POSSIBLE)
def test_percentages_are_ordered_by_value(one: float, other: float) -> None:
    assert min(ThreadPercentage(one), ThreadPercentage(other)).value == min(one, other)


@pytest.mark.parametrize(("value", "shown"), [(100.0, "100.0"), (33.3, "33.3"), (12.0, "12.0"), (0.44, "0.4")])
def test_a_percentage_shows_one_decimal(value: float, shown: str) -> None:
    assert str(ThreadPercentage(value)) == shown


@given(st.integers())
def test_a_priority_is_0_or_1(level: int) -> None:
    if level in (0, 1):
        assert ClientPriority(level).level == level
        assert str(ClientPriority.parse(f" {level} ")) == str(level)
    else:
        with pytest.raises(BadLimit, match=r"0 \(normal\) or 1 \(below normal\)"):
            ClientPriority(level)
        with pytest.raises(BadLimit, match=r"0 \(normal\) or 1 \(below normal\)"):
            ClientPriority.parse(str(level))


# --- pinned memory

UNITS = st.sampled_from([("G", 30), ("g", 30), ("M", 20), ("m", 20)])


@given(st.data(), UNITS, st.sampled_from(["", "B", "b"]))
def test_a_memory_limit_is_read_in_gibibytes_and_mebibytes(
    data: st.DataObject, unit: tuple[str, int], byte: str
) -> None:
    letter, shift = unit
    number = data.draw(st.integers(1, MAX_MEMORY >> shift))
    assert PinnedMemory.parse(f"{number}{letter}{byte}") == PinnedMemory(number << shift)


@given(st.integers(1, MAX_MEMORY >> 20).map(lambda mebibytes: PinnedMemory(mebibytes << 20)))
def test_a_memory_limit_shows_exactly_what_it_is(limit: PinnedMemory) -> None:
    assert PinnedMemory.parse(str(limit)) == limit
    assert str(limit).endswith("M" if limit.value % (1 << 30) else "G")


def test_only_a_bare_zero_removes_a_limit() -> None:
    assert PinnedMemory.parse("0") is None
    assert str(PinnedMemory(1025 << 20)) == "1025M"


@pytest.mark.parametrize(
    "text",
    ["", "G", "0G", "0M", "00", "-1G", "+1G", "1.5G", "1T", "1K", "1024", "abc", "1 G", "1GBB", "1_0G", "1G\n"],
)
def test_an_invalid_memory_limit_is_refused(text: str) -> None:
    with pytest.raises(BadLimit, match="a whole number from 1 and G or M"):
        PinnedMemory.parse(text)


@given(st.integers(min_value=(MAX_MEMORY >> 30) + 1))
def test_a_memory_limit_above_the_maximum_is_refused(number: int) -> None:
    with pytest.raises(BadLimit, match="at most 1048576G"):
        PinnedMemory.parse(f"{number}G")


@given(st.text())
def test_any_text_is_a_memory_limit_or_a_bad_limit(text: str) -> None:
    try:
        limit = PinnedMemory.parse(text)
    except BadLimit as error:
        assert repr(text) in str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert limit is None or 0 < limit.value <= MAX_MEMORY


@given(st.integers(1, MAX_MEMORY), st.integers(1, MAX_MEMORY))
def test_memory_limits_are_ordered_by_size(one: int, other: int) -> None:
    assert min(PinnedMemory(one), PinnedMemory(other)).value == min(one, other)
