"""The quotas of a context, against the figures recorded on an H200 (mps-behaviour, Limits)."""

from fractions import Fraction

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limit_table import ClientLimits, Limits, percentage_on, percentages
from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING, ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.sm_rounding import count_multiprocessors
from pympsd_server.state_machine.client_limits import (
    AffinityRefused,
    choose_percentage,
    combine_with_environment,
    count_context_sms,
    count_process_sms,
    memory_on,
    round_affinity,
)

RECORDED = {
    8: 10, 10: 12, 12.5: 16, 15: 18, 20: 26, 25: 32, 30: 38, 33.3: 42, 40: 52, 50: 66, 52: 68, 66.7: 88, 75: 98,
    90: 118, 99: 130, 100: 132,
}  # fmt: skip
AFFINITY = {1: 8, 2: 8, 3: 8, 7: 8, 24: 24, 60: 60}
H200, P100, V100, A100 = describe("H200,P100,V100,A100")
EACH = {PER_CONTEXT_PARTITIONING: "1"}
PERCENTAGES = st.floats(min_value=0, max_value=100, exclude_min=True)


def percentages_of(server: float, **environment: str) -> list[float]:
    """Return the percentages of a client on two devices, 0 and 1, of a server that has one for both."""
    limits = ClientLimits(Limits(percentages(server)))
    combined, _ = combine_with_environment(limits, environment, (0, 1), (H200, A100))
    return [percentage_on(combined.own, index).value for index in (0, 1)]


def _device(multiprocessors: int) -> DeviceProperties:
    return evolve(H200, multiprocessors=multiprocessors)


def _t4() -> DeviceProperties:
    return evolve(V100, name="Tesla T4", compute_capability=(7, 5), multiprocessors=40)


@pytest.mark.parametrize(("percentage", "expected"), [(5, 2), (10, 4), (20, 8), (1, 2), (100, 40)])
def test_the_reported_percentages_of_a_t4(percentage: float, expected: int) -> None:
    assert count_multiprocessors(ThreadPercentage(percentage), _t4()) == expected


@pytest.mark.parametrize(("requested", "expected"), [(1, 2), (2, 2), (3, 4), (39, 40), (40, 40)])
def test_an_affinity_on_a_t4_is_a_multiple_of_2(requested: int, expected: int) -> None:
    assert round_affinity(requested, 40, _t4()) == expected


def test_the_steps_of_an_a100_are_those_of_its_green_contexts() -> None:
    assert [count_multiprocessors(ThreadPercentage(percentage), A100) for percentage in (1, 5, 10, 50)] == [
        4,
        4,
        10,
        54,
    ]


@pytest.mark.parametrize(("percentage", "expected"), list(RECORDED.items()))
def test_the_recorded_percentages_of_132(percentage: float, expected: int) -> None:
    assert count_multiprocessors(ThreadPercentage(percentage), H200) == expected


@given(PERCENTAGES, st.integers(1, 256))
def test_a_percentage_gives_at_least_8_and_at_most_all(percentage: float, available: int) -> None:
    assert min(8, available) <= count_multiprocessors(ThreadPercentage(percentage), _device(available)) <= available


@given(PERCENTAGES, PERCENTAGES, st.integers(1, 256))
def test_a_greater_percentage_never_gives_less(one: float, other: float, available: int) -> None:
    less, more = sorted((one, other))
    device = _device(available)
    assert count_multiprocessors(ThreadPercentage(less), device) <= count_multiprocessors(
        ThreadPercentage(more), device
    )


@given(st.integers(1, 10_000), st.integers(1, 256))
def test_a_percentage_counts_as_written(hundredths: int, available: int) -> None:
    """Not as the nearest binary number: no SM is lost if the product is whole."""
    exact = Fraction(hundredths, 10_000) * available // 1
    expected = available if hundredths == 10_000 else min(available, max(8, exact - exact % 2))
    assert count_multiprocessors(ThreadPercentage(float(f"{hundredths / 100:.2f}")), _device(available)) == expected


@given(PERCENTAGES, st.text())
def test_a_clients_environment_only_lowers_its_percentage(server: float, text: str) -> None:
    assert max(percentages_of(server, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=text)) <= server


@pytest.mark.parametrize(
    ("text", "expected"), [("25", 25), ("75", 50), ("0", 50), ("-1", 50), ("101", 50), ("x", 50), ("", 50)]
)
def test_an_invalid_percentage_in_a_clients_environment_means_no_limit(text: str, expected: float) -> None:
    assert percentages_of(50, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=text) == [expected, expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1=25", [50, 25]), ("0=75,1=10", [50, 10]), (f"{A100.uuid}=20", [50, 20]), ("0=10,0=30", [30, 50])],
)
def test_a_clients_environment_lowers_its_percentage_by_device(text: str, expected: list[float]) -> None:
    assert percentages_of(50, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=text) == expected


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
    limits = ClientLimits(Limits(client_priority=ClientPriority(default)))
    (combined, _) = combine_with_environment(limits, environment, (0,), (H200,))
    assert combined.own.client_priority == ClientPriority(expected)


# --- the levels below the process


@pytest.mark.parametrize(("requested", "expected"), list(AFFINITY.items()))
def test_the_recorded_affinities_of_104(requested: int, expected: int) -> None:
    """Client 987 of servers-and-clients.txt: a process with 80 % of 132 SMs."""
    assert count_multiprocessors(ThreadPercentage(80), H200) == 104
    assert round_affinity(requested, 104, H200) == expected


@pytest.mark.parametrize("requested", [0, -1, 105, 131, 132, 133])
def test_an_affinity_beyond_the_processs_multiprocessors_is_refused(requested: int) -> None:
    with pytest.raises(AffinityRefused, match=f"1 to 104 SMs.*not {requested}"):
        round_affinity(requested, 104, H200)


@given(st.integers(1, 256), st.data())
def test_an_affinity_gives_at_least_what_is_requested_and_at_most_all(available: int, data: st.DataObject) -> None:
    requested = data.draw(st.integers(1, available))
    assert requested <= round_affinity(requested, available, H200) <= min(available, max(8, requested + 1))


@pytest.mark.parametrize(("requested", "expected"), [(20, 26), (90, 104), (80, 104), (None, 104)])
def test_the_recorded_percentages_of_contexts(requested: float | None, expected: int) -> None:
    """Client 987: under per-context partitioning 20 % and 90 % in a process that began with 80 %."""
    assert count_context_sms(choose_percentage(ThreadPercentage(80), EACH, requested), H200) == expected


@given(st.none() | st.floats(), st.none() | st.integers(), PERCENTAGES, st.booleans())
def test_no_request_gives_a_client_more_than_its_process_may_use(
    percentage: float | None, affinity: int | None, process: float, each: bool
) -> None:
    most = count_process_sms(ThreadPercentage(process), H200)
    try:
        chosen = choose_percentage(ThreadPercentage(process), EACH if each else {}, percentage)
        granted = count_context_sms(chosen, H200, affinity)
    except AffinityRefused:
        assert affinity is not None
        assert not 1 <= affinity <= most or percentage is not None
        return
    assert 8 <= granted <= most


@pytest.mark.parametrize("environment", [{}, {PER_CONTEXT_PARTITIONING: "0"}, {PER_CONTEXT_PARTITIONING: ""}])
def test_without_partitioning_a_context_has_its_processs_percentage(environment: dict[str, str]) -> None:
    assert choose_percentage(ThreadPercentage(80), environment, 20) == ThreadPercentage(80)


@pytest.mark.parametrize("requested", [0.0, -5.0, 101.0, float("nan"), float("inf")])
def test_an_invalid_percentage_of_a_context_means_no_limit(requested: float) -> None:
    assert choose_percentage(ThreadPercentage(80), EACH, requested) == ThreadPercentage(80)


def test_an_affinity_is_limited_by_the_contexts_percentage() -> None:
    """A context's own 20 % are 26 SMs: an affinity beyond them is refused."""
    assert count_context_sms(ThreadPercentage(20), H200, 25) == 26
    with pytest.raises(AffinityRefused, match="1 to 26"):
        count_context_sms(ThreadPercentage(20), H200, 27)


def test_before_volta_there_are_no_percentages_and_no_affinity() -> None:
    assert count_process_sms(ThreadPercentage(10), P100) == 56
    assert count_context_sms(ThreadPercentage(10), P100) == 56
    with pytest.raises(AffinityRefused, match="Volta or newer"):
        count_context_sms(ThreadPercentage(100), P100, 8)


# --- memory


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 20))
def test_a_client_only_lowers_its_memory_limit(server: int, mebibytes: int) -> None:
    client = mebibytes << 20
    limits = ClientLimits(Limits(pinned_memory={0: PinnedMemory(server)} if server else {}))
    environment = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={mebibytes}M" if mebibytes else ""}
    actual = memory_on(combine_with_environment(limits, environment, (0,), (H200,))[0], 0)
    assert actual in (server, client)
    assert actual or not (server or client), "0 means no limit, and only if neither is one"
    assert not server or actual <= server
    assert not client or actual <= client


def test_the_least_of_a_clients_own_and_its_containers_memory_holds() -> None:
    environment = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=1G", "NVIDIA_GPU_MEMORY_LIMIT": "2048"}
    combined, bad = combine_with_environment(ClientLimits(), environment, (4, 2), (H200, A100))
    assert ([memory_on(combined, index) for index in (4, 2)], bad) == ([2 << 30, 1 << 30], [])


def test_before_volta_a_client_has_no_limit_of_memory() -> None:
    limits = ClientLimits(Limits(pinned_memory={0: PinnedMemory(1 << 30)}))
    combined, bad = combine_with_environment(limits, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "7=1G"}, (0,), (P100,))
    assert (memory_on(combined, 0), bad) == (0, [])
