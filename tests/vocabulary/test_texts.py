"""Limits as protocol 3 writes them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.vocabulary.limit_table import PERCENTAGE, PINNED_MEMORY
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.texts import (
    BadText,
    memory_text,
    percentage_text,
    read_boolean,
    read_memory,
    read_percentage,
    read_priority,
)


@settings(max_examples=50)
@given(st.integers(1, 1 << 40).map(lambda kibibytes: PinnedMemory(kibibytes << 10)))
def test_a_memory_limit_is_read_back_as_it_was(limit: PinnedMemory) -> None:
    assert read_memory(memory_text(limit)) == limit


@settings(max_examples=50)
@given(st.integers(100, 10000).map(lambda hundredths: ThreadPercentage(hundredths / 100)))
def test_a_percentage_is_read_back_as_it_was(percentage: ThreadPercentage) -> None:
    assert read_percentage(percentage_text(percentage)) == percentage


@pytest.mark.parametrize(
    ("text", "size", "shown"),
    [("4G", 4 << 30, "4G"), ("1536M", 1536 << 20, "1536M"), ("1024K", 1 << 20, "1M"), ("2048mb", 2 << 30, "2G")],
)
def test_memory_is_shown_in_the_largest_unit_that_divides_it(text: str, size: int, shown: str) -> None:
    limit = read_memory(text)
    assert limit == PinnedMemory(size)
    assert memory_text(limit) == shown


def test_the_words_that_lift_a_limit() -> None:
    assert read_memory("unlimited") is None
    assert read_memory("default") is None
    assert memory_text(None) == "unlimited"
    assert read_percentage("unlimited") == ThreadPercentage(100.0)
    assert read_priority("default") == ClientPriority(0)


@pytest.mark.parametrize("text", ["", "0", "0G", "4", "4T", "-1G", "1.5G", "1_0G", "٣G", "9999999G", " 4G"])
def test_other_memory_is_refused(text: str) -> None:
    with pytest.raises(BadText) as refused:
        read_memory(text)
    assert str(refused.value).endswith(f"not {text!r}")


@pytest.mark.parametrize("digits", [10, 20, 21, 5000])
def test_of_memory_above_the_greatest_that_is_said(digits: int) -> None:
    with pytest.raises(BadText, match="at most 1048576G, not "):
        read_memory(f"{'9' * digits}G")
    assert read_memory(f"{'0' * digits}1048576G") == PinnedMemory(1 << 50)


@pytest.mark.parametrize("text", ["", "0", "0.5", "100.5", "1e1", "nan", "-5", "50%", "5_0", "٣٠"])
def test_other_percentages_are_refused(text: str) -> None:
    with pytest.raises(BadText, match="1 to 100, not "):
        read_percentage(text)


def test_percentages_by_device() -> None:
    assert PERCENTAGE.read("50") == {"": ThreadPercentage(50.0)}
    assert PERCENTAGE.read("0=50,GPU-a=unlimited") == {"0": ThreadPercentage(50.0), "GPU-a": ThreadPercentage()}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("0=50,1=101", "1 to 100"),
        ("0=50,25", "one percentage for all devices, or one a device as in 0=50,1=25"),
        ("=50", "one percentage for all devices"),
    ],
)
def test_other_percentages_by_device_are_refused(text: str, allowed: str) -> None:
    with pytest.raises(BadText, match=allowed):
        PERCENTAGE.read(text)


def test_memory_by_device() -> None:
    assert PINNED_MEMORY.read("4G") == {"": PinnedMemory(4 << 30)}
    assert PINNED_MEMORY.read("0=4G,GPU-a=unlimited") == {"0": PinnedMemory(4 << 30), "GPU-a": None}
    for text in ("0=4G,0=5G", "=4G", "0=4G,", "0=4T"):
        with pytest.raises(BadText):
            PINNED_MEMORY.read(text)


def test_booleans_and_priorities() -> None:
    assert (read_boolean("true"), read_boolean("false")) == (True, False)
    assert (read_priority("0").level, read_priority("1").level) == (0, 1)
    for text in ("yes", "True", ""):
        with pytest.raises(BadText, match="true or false, not"):
            read_boolean(text)


def test_a_long_text_is_refused_immediately() -> None:
    with pytest.raises(BadText):
        read_memory("0" * 1_000_000 + "x")
    assert read_memory("0" * 1_000_000 + "4G") == PinnedMemory(4 << 30)


@pytest.mark.parametrize("text", ["0:1G", "0=1G,1G", "GPU-1:1G"])
def test_a_memory_limit_that_names_a_device_in_another_way_is_answered_with_the_form(text: str) -> None:
    with pytest.raises(BadText, match="one limit for all devices, or one a device as in 0=4G,1=8G"):
        PINNED_MEMORY.read(text)
