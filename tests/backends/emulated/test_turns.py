"""Fair shares of the compute thread, on made-up turns."""

from __future__ import annotations

from collections import Counter

from attrs import define, field

from pympsd_server.backends.emulated.turns import Group, Share, Turns, weight_of_level, weight_of_priority


@define(eq=False)
class FakeTurn:
    """Something that always wants to run."""

    name: str
    group: Group
    share: Share = field(factory=Share)
    blocked: bool = False


def group(level: int = 0) -> Group:
    """Return a context's turns."""
    return Group(Share(weight_of_level(level)))


def run(turns: Turns, count: int) -> Counter[str]:
    """Run slices of equal length; return who had how many."""
    had: Counter[str] = Counter()
    for _ in range(count):
        turn = turns.next()
        assert isinstance(turn, FakeTurn)
        had[turn.name] += 1
        turns.charge(turn, 1000)
    return had


def test_contexts_share_alike_however_many_streams_they_have() -> None:
    turns, many, single = Turns(), group(), group()
    for number in range(5):
        turns.add(FakeTurn(f"many {number}", many))
    turns.add(FakeTurn("single", single))
    had = run(turns, 100)
    assert had["single"] == 50
    assert {had[f"many {number}"] for number in range(5)} == {10}


def test_below_normal_gets_little_but_something() -> None:
    turns = Turns()
    turns.add(FakeTurn("below", group(1)))
    turns.add(FakeTurn("normal", group(0)))
    had = run(turns, 170)
    assert had == {"normal": 160, "below": 10}


def test_stream_priorities_halve_the_time_at_each_step() -> None:
    turns, one = Turns(), group()
    for priority in (0, -1):
        turns.add(FakeTurn(str(priority), one, Share(weight_of_priority(priority))))
    had = run(turns, 30)
    assert had == {"-1": 20, "0": 10}


def test_the_higher_priority_goes_first() -> None:
    turns, one = Turns(), group()
    turns.add(FakeTurn("low", one, Share(weight_of_priority(0))))
    turns.add(FakeTurn("high", one, Share(weight_of_priority(-5))))
    assert run(turns, 1) == {"high": 1}


def test_priorities_out_of_range_are_clamped() -> None:
    assert weight_of_priority(-99) == weight_of_priority(-5) == 1
    assert weight_of_priority(99) == weight_of_priority(0) == 32


def test_who_was_away_gets_no_head_start() -> None:
    turns, old, late = Turns(), FakeTurn("old", group()), FakeTurn("late", group())
    turns.add(old)
    run(turns, 1000)
    turns.add(late)
    assert run(turns, 10) == {"old": 5, "late": 5}


def test_a_stream_that_was_away_gets_none_either() -> None:
    turns, one = Turns(), group()
    old = FakeTurn("old", one)
    turns.add(old)
    run(turns, 1000)
    turns.remove(old)
    turns.add(FakeTurn("new", one))
    turns.add(old)
    had = run(turns, 10)
    assert abs(had["old"] - had["new"]) <= 2


def test_who_is_blocked_is_passed_over() -> None:
    turns, one = Turns(), group()
    blocked = FakeTurn("blocked", one, blocked=True)
    turns.add(blocked)
    assert turns.next() is None
    turns.add(FakeTurn("able", one))
    assert run(turns, 3) == {"able": 3}
    blocked.blocked = False
    assert run(turns, 1) == {"blocked": 1}


def test_a_dropped_context_runs_no_more() -> None:
    turns, gone = Turns(), group()
    turns.add(FakeTurn("gone", gone))
    turns.drop(gone)
    turns.drop(gone)
    assert turns.next() is None
