"""Limits: what can be is kept, what cannot be is refused with what is allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.limits import BadLimit, ClientPriority, ThreadPercentage

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
