"""The table of limits: how those of a namespace, a server, a rule and a client's environment are combined."""

from __future__ import annotations

import msgspec
import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.limit_table import (
    LIMITS,
    PERCENTAGE,
    PINNED_MEMORY,
    SM_PARTITION,
    ClientLimits,
    LimitRow,
    Limits,
    combine,
    find_differing_percentages,
    percentage_on,
    percentages,
)
from pympsd.vocabulary.limits import ALL_DEVICES, ClientPriority, PinnedMemory, ThreadPercentage

GIB = 1 << 30
INDICES = st.sampled_from([ALL_DEVICES, 0, 1, 2])
PERCENTAGES = st.dictionaries(INDICES, st.integers(1, 100).map(lambda n: ThreadPercentage(float(n))))
MEMORY = st.dictionaries(st.integers(0, 2), st.integers(1, 9).map(PinnedMemory))
VALUES = {
    "thread_percentage": st.none() | PERCENTAGES,
    "pinned_memory": st.none() | MEMORY,
    "client_priority": st.none() | st.integers(0, 1).map(ClientPriority),
    "total_memory": st.none() | MEMORY,
    "sm_partition": st.sampled_from([None, "", "p"]),
}
"""The values of each field in the generated limits."""
PLACES = st.builds(Limits, **VALUES)


def by_device(**entries: float) -> dict[int, ThreadPercentage]:
    """Return percentages by device: ``d0=50``, and of all others ``all=25``."""
    return {
        ALL_DEVICES if name == "all" else int(name[1:]): ThreadPercentage(float(value))
        for name, value in entries.items()
    }


def test_every_limit_has_a_row_and_a_field() -> None:
    assert {row.field for row in LIMITS} == {field.name for field in fields(Limits)}
    assert {row.field for row in LIMITS} == VALUES.keys(), "add values of the new field"
    assert len({row.name for row in LIMITS}) == len(LIMITS)


def test_each_device_has_the_least_that_a_place_states_of_it() -> None:
    namespace, maximum = Limits(percentages(50.0)), Limits(by_device(d1=30, d2=70))
    combined = combine(namespace, maximum, environment=Limits(by_device(d0=40)))
    assert [percentage_on(combined, index).value for index in (0, 1, 2, 3)] == [40.0, 30.0, 50.0, 50.0]
    assert find_differing_percentages(combined, (0, 1)) == {0: 40.0, 1: 30.0}
    assert find_differing_percentages(combined, (2, 3)) == {}


def test_memory_of_a_device_without_a_limit_is_that_of_the_other_place() -> None:
    own = Limits(pinned_memory={0: PinnedMemory(4 * GIB)})
    bound = Limits(pinned_memory={0: PinnedMemory(GIB), 1: PinnedMemory(2 * GIB)})
    assert combine(own, bound).pinned_memory == {0: PinnedMemory(GIB), 1: PinnedMemory(2 * GIB)}
    assert combine(own).pinned_memory == own.pinned_memory
    assert combine(Limits()).pinned_memory is None


@pytest.mark.parametrize(
    ("own", "rule", "environment", "expected"),
    [
        (0, None, 1, 1),
        (1, None, 0, 0),
        (1, None, None, 1),
        (0, 1, 0, 1),
        (None, 1, None, 1),
        (None, None, None, None),
    ],
)
def test_a_client_chooses_its_priority_unless_a_rule_has_one(
    own: int | None, rule: int | None, environment: int | None, expected: int | None
) -> None:
    own_, rule_, requested, combined = (
        Limits(client_priority=None if level is None else ClientPriority(level))
        for level in (own, rule, environment, expected)
    )
    assert combine(own_, rule_, environment=requested) == combined


@given(PLACES, PLACES, PLACES)
def test_combined_limits_never_exceed_a_bound(own: Limits, bound: Limits, environment: Limits) -> None:
    combined = combine(own, bound, environment=environment)
    for index in (0, 1, 2, 3):
        assert percentage_on(combined, index) <= percentage_on(bound, index)
        assert percentage_on(combined, index) <= percentage_on(environment, index)
        if (limit := (bound.pinned_memory or {}).get(index)) is not None:
            assert (combined.pinned_memory or {})[index] <= limit
    if bound.client_priority is not None:
        assert combined.client_priority is not None
        assert combined.client_priority >= bound.client_priority


@given(PLACES)
def test_limits_that_are_combined_twice_stay_as_they_are(place: Limits) -> None:
    limits = ClientLimits(place, (place,))
    assert ClientLimits(limits.combine()).combine() == limits.combine()


@given(PLACES, PLACES)
def test_a_change_replaces_what_it_states_and_nothing_else(before: Limits, change: Limits) -> None:
    after = before.overlay(change)
    for row in LIMITS:
        stated = row.of(change)
        assert row.of(after) == (row.of(before) if stated is None else stated)


@given(PLACES)
def test_limits_survive_messages_and_files(place: Limits) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(place), type=Limits) == place
    assert msgspec.json.decode(msgspec.json.encode(place), type=Limits) == place


@pytest.mark.parametrize(
    ("row", "limits", "text", "json"),
    [
        (PERCENTAGE, Limits(percentages(50)), "50.00", 50.0),
        (PERCENTAGE, Limits(by_device(d5=25)), "0=100.00,1=25.00", {"0": 100.0, "1": 25.0}),
        (PERCENTAGE, Limits(by_device(d5=25, all=25)), "25.00", 25.0),
        (PERCENTAGE, Limits(), "100.00", 100.0),
        (PINNED_MEMORY, Limits(pinned_memory={4: PinnedMemory(GIB)}), "0=1G,1=unlimited", {"0": GIB, "1": None}),
        (PINNED_MEMORY, Limits(), "unlimited", None),
        (SM_PARTITION, Limits(sm_partition="p"), "p", "p"),
        (SM_PARTITION, Limits(sm_partition=""), "none", None),
    ],
)
def test_a_limit_is_shown_for_the_devices_of_a_server(row: LimitRow, limits: Limits, text: str, json: object) -> None:
    """Which are 4 and 5 of the daemon, and 0 and 1 to its clients."""
    assert (row.text(limits, (4, 5)), row.json(limits, (4, 5))) == (text, json)


def test_a_percentage_for_all_replaces_those_of_devices_and_one_of_a_device_does_not() -> None:
    before = by_device(d0=40)
    assert PERCENTAGE.apply_change(before, {ALL_DEVICES: ThreadPercentage(30.0)}, range(2)) == by_device(all=30)
    assert PERCENTAGE.apply_change(before, {1: ThreadPercentage(30.0)}, range(2)) == by_device(d0=40, d1=30)
    assert PERCENTAGE.apply_change(percentages(50.0), {1: ThreadPercentage()}, range(2)) == by_device(all=50, d1=100)


def test_memory_for_all_devices_is_an_entry_of_each() -> None:
    four = PinnedMemory(4 * GIB)
    assert PINNED_MEMORY.apply_change({0: PinnedMemory(GIB)}, {ALL_DEVICES: four}, range(2)) == {0: four, 1: four}
    assert PINNED_MEMORY.apply_change({0: four, 1: four}, {0: None}, range(2)) == {1: four}
    assert PINNED_MEMORY.apply_change({0: four}, {ALL_DEVICES: None}, range(2)) == {}
