"""The schedule is a pure function of the seed."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.schedule import (
    DEFAULT_KINDS,
    DEVICES,
    KINDS_OF,
    LONG_STOP_SECONDS,
    PLAIN,
    ROUND_SECONDS,
    SETUPS,
    STOP_SECONDS,
    USERS,
    VENDOR,
    WEIGHTS,
    WORKS,
    Backend,
    Containment,
    Kind,
    actions,
    clients,
    rounds,
    stop_seconds,
)

SEEDS = st.integers(0, 1 << 40)
SECONDS = st.floats(0, 200)
KINDS = st.frozensets(st.sampled_from(list(Kind)))


@given(seed=SEEDS, seconds=SECONDS, kinds=KINDS)
def test_the_same_seed_gives_the_same(seed: int, seconds: float, kinds: frozenset[Kind]) -> None:
    assert clients(seed, seconds) == clients(seed, seconds)
    assert actions(seed, seconds, kinds) == actions(seed, seconds, sorted(kinds, reverse=True))


@given(seed=SEEDS, seconds=SECONDS, more=SECONDS, kinds=KINDS)
def test_a_longer_run_begins_as_a_shorter_one(seed: int, seconds: float, more: float, kinds: frozenset[Kind]) -> None:
    short, long = clients(seed, seconds), clients(seed, seconds + more)
    assert long[: len(short)] == short
    few, many = actions(seed, seconds, kinds), actions(seed, seconds + more, kinds)
    assert many[: len(few)] == few


@given(seed=SEEDS, seconds=SECONDS, kinds=KINDS)
def test_what_is_scheduled_is_in_order_in_time_and_of_the_chosen_kinds(
    seed: int, seconds: float, kinds: frozenset[Kind]
) -> None:
    for planned in (clients(seed, seconds), actions(seed, seconds, kinds)):
        times = [entry.at for entry in planned]
        assert times == sorted(times)
        assert all(0 <= at < seconds for at in times)
        assert [entry.number for entry in planned] == list(range(1, len(planned) + 1))
    assert {action.kind for action in actions(seed, seconds, kinds)} <= kinds
    for plan in clients(seed, seconds):
        assert 0 <= plan.user < USERS
        assert set(plan.devices) <= set(range(DEVICES))
        assert plan.devices
        assert 0 < plan.seconds < 10


@given(seed=SEEDS, seconds=SECONDS)
def test_pace_changes_when_and_not_what(seed: int, seconds: float) -> None:
    calm, hasty = clients(seed, seconds), clients(seed, seconds, 2.0)
    assert [evolve(plan, at=0) for plan in hasty[: len(calm)]] == [evolve(plan, at=0) for plan in calm]
    assert [plan.at for plan in hasty[: len(calm)]] == [plan.at / 2 for plan in calm]
    few, many = actions(seed, seconds, Kind), actions(seed, seconds, Kind, 2.0)
    assert [evolve(action, at=0) for action in many[: len(few)]] == [evolve(action, at=0) for action in few]


def test_different_seeds_differ() -> None:
    assert clients(1, 60) != clients(2, 60)
    assert actions(1, 60, DEFAULT_KINDS) != actions(2, 60, DEFAULT_KINDS)


def test_an_hour_has_all_kinds_users_and_devices() -> None:
    assert {action.kind for action in actions(1, 3600, Kind)} == set(Kind) == set(WEIGHTS)
    plans = clients(1, 3600)
    assert {plan.user for plan in plans} == set(range(USERS))
    assert {device for plan in plans for device in plan.devices} == set(range(DEVICES))


@given(seed=SEEDS, seconds=st.floats(1, 7200))
def test_rounds_are_the_whole_time_and_begin_plain(seed: int, seconds: float) -> None:
    parts = rounds(seed, seconds)
    assert parts == rounds(seed, seconds)
    assert parts[0].setup == PLAIN
    assert abs(sum(entry.seconds for entry in parts) - seconds) < 1e-6 * seconds
    assert all(entry.seconds <= ROUND_SECONDS for entry in parts)
    assert len({entry.seed for entry in parts}) == len(parts)
    if seconds >= 180:
        assert {entry.setup.containment for entry in parts} == set(Containment)
        assert {entry.setup.dialect for entry in parts} == {"documented", "r580"}
        assert {entry.setup.backend for entry in parts} == set(Backend)


@given(seed=SEEDS, seconds=st.floats(1, 7200), backend=st.sampled_from(list(Backend)))
def test_rounds_may_be_of_one_backend_alone(seed: int, seconds: float, backend: Backend) -> None:
    parts = rounds(seed, seconds, (backend,))
    assert {entry.setup.backend for entry in parts} == {backend}
    assert parts[0].setup == (VENDOR if backend is Backend.VENDOR else PLAIN)
    assert all(entry.seconds <= ROUND_SECONDS for entry in parts)


def test_clients_of_each_backend_do_what_it_can() -> None:
    for backend in Backend:
        assert {plan.work for plan in clients(1, 3600, 1.0, backend)} == set(WORKS[backend])


def test_every_kind_is_of_a_backend() -> None:
    assert frozenset().union(*KINDS_OF.values()) == set(Kind)


def test_an_hour_has_all_setups() -> None:
    assert {entry.setup for seed in range(9) for entry in rounds(seed, 3600)} == set(SETUPS)
    assert rounds(1, 3600) != rounds(2, 3600)


@given(extent=st.floats(0, 1))
def test_stops_are_short_or_longer_than_any_bound(extent: float) -> None:
    seconds, (least, most) = stop_seconds(extent), LONG_STOP_SECONDS
    assert 0 <= seconds < STOP_SECONDS or least - 1e-9 <= seconds <= most + 1e-9
    assert stop_seconds(0.5) < STOP_SECONDS < stop_seconds(0.86)
    assert stop_seconds(1.0) > 10
