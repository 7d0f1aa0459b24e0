"""The table by which a part of a device's SMs is rounded."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe
from pympsd.vocabulary.sm_rounding import ROUNDINGS, SmRounding, rounding

H200, P100 = describe("H200,P100")


def test_newer_architectures_come_first() -> None:
    capabilities = [row.capability for row in ROUNDINGS]
    assert capabilities == sorted(set(capabilities), reverse=True)
    assert capabilities[-1] == (7, 0)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 0), (2, 2)), ((7, 5), (2, 2)), ((8, 9), (2, 4)), ((9, 0), (2, 8)), ((12, 0), (2, 8))],
)
def test_a_device_has_the_row_of_its_compute_capability(
    capability: tuple[int, int], expected: tuple[int, int]
) -> None:
    row = rounding(evolve(H200, compute_capability=capability))
    assert (row.step, row.minimum) == expected


def test_a_device_before_volta_has_no_row() -> None:
    with pytest.raises(LookupError, match="older than Volta"):
        rounding(P100)


def test_a_row_that_nobody_has_measured_is_marked() -> None:
    assert {row.capability: "not measured" in str(row) for row in ROUNDINGS} == {
        (10, 0): True,
        (9, 0): False,
        (8, 0): True,
        (7, 0): False,
    }


@given(st.sampled_from(ROUNDINGS), st.integers(1, 256), st.data())
def test_rounding_stays_within_the_device(row: SmRounding, available: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, available))
    down, up = row.round_down(count, available), row.round_up(count, available)
    assert 1 <= down <= up <= available
    assert up >= count
