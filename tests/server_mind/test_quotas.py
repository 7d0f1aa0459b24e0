"""What a context may use, against the figures recorded on an H200 (mps-behaviour, Limits)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.limits import ThreadPercentage
from pympsd_server.mind.quotas import client_percentage, client_priority, multiprocessors

RECORDED = {
    8: 10, 10: 12, 12.5: 16, 15: 18, 20: 26, 25: 32, 30: 38, 33.3: 42, 40: 52, 50: 66, 52: 68, 66.7: 88, 75: 98,
    90: 118, 99: 130, 100: 132,
}  # fmt: skip
PERCENTAGES = st.floats(min_value=0, max_value=100, exclude_min=True)


@pytest.mark.parametrize(("percentage", "expected"), list(RECORDED.items()))
def test_the_recorded_shares_of_132(percentage: float, expected: int) -> None:
    assert multiprocessors(ThreadPercentage(percentage), 132) == expected


@given(PERCENTAGES, st.integers(1, 256))
def test_a_share_is_never_more_than_there_is_and_at_least_8_of_that(percentage: float, available: int) -> None:
    share = multiprocessors(ThreadPercentage(percentage), available)
    assert min(8, available) <= share <= available


@given(PERCENTAGES, PERCENTAGES, st.integers(1, 256))
def test_a_greater_percentage_never_gives_less(one: float, other: float, available: int) -> None:
    less, more = sorted((one, other))
    assert multiprocessors(ThreadPercentage(less), available) <= multiprocessors(ThreadPercentage(more), available)


@given(PERCENTAGES, st.text())
def test_a_clients_environment_only_lowers(server: float, text: str) -> None:
    got = client_percentage(ThreadPercentage(server), {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": text})
    assert got.value <= server


@pytest.mark.parametrize(
    ("text", "expected"), [("25", 25), ("75", 50), ("0", 50), ("-1", 50), ("101", 50), ("x", 50)]
)
def test_what_is_no_percentage_in_a_clients_environment_means_no_limit(text: str, expected: float) -> None:
    got = client_percentage(ThreadPercentage(50), {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": text})
    assert got == ThreadPercentage(expected)


def test_without_a_limit_of_its_own_a_client_has_the_servers() -> None:
    assert client_percentage(ThreadPercentage(50), {}) == ThreadPercentage(50)


@pytest.mark.parametrize(
    ("default", "environment", "expected"),
    [
        (0, {}, 0),
        (1, {}, 1),
        (0, {"CUDA_MPS_CLIENT_PRIORITY": "1"}, 1),
        (1, {"CUDA_MPS_CLIENT_PRIORITY": "0"}, 0),
        (1, {"CUDA_MPS_CLIENT_PRIORITY": "2"}, 1),
        (1, {"CUDA_MPS_CLIENT_PRIORITY": "x"}, 1),
    ],
)
def test_a_clients_own_priority_wins_over_the_default(
    default: int, environment: dict[str, str], expected: int
) -> None:
    assert client_priority(default, environment) == expected
