"""Fair shares of the compute thread, on made-up turns."""

from __future__ import annotations

from collections import Counter

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.backends.emulated.scheduling.fair_share import (
    GREATEST_PRIORITY,
    LEAST_PRIORITY,
    TURNS_OF_NORMAL,
    FairShare,
    Group,
    TimeShare,
    weight_of_priority,
)


@define(eq=False)
class FakeTurn:
    """Something that always wants to run."""

    name: str
    group: Group
    time_share: TimeShare = field(factory=TimeShare)
    blocked: bool = False


def group(level: int = 0) -> Group:
    """Return a context's turns."""
    return Group(level)


def run(turns: FairShare, count: int) -> Counter[str]:
    """Run slices of equal length; return who had how many."""
    had: Counter[str] = Counter()
    for _ in range(count):
        turn = turns.next()
        assert isinstance(turn, FakeTurn)
        had[turn.name] += 1
        turns.charge(turn, 1000)
    return had


def test_contexts_share_alike_however_many_streams_they_have() -> None:
    turns, many, single = FairShare(), group(), group()
    for number in range(5):
        turns.add(FakeTurn(f"many {number}", many))
    turns.add(FakeTurn("single", single))
    had = run(turns, 100)
    assert had["single"] == 50
    assert {had[f"many {number}"] for number in range(5)} == {10}


def test_below_normal_gets_little_but_something() -> None:
    turns = FairShare()
    turns.add(FakeTurn("below", group(1)))
    turns.add(FakeTurn("normal", group(0)))
    had = run(turns, 170)
    assert had == {"normal": 160, "below": 10}


def test_stream_priorities_halve_the_time_at_each_step() -> None:
    turns, one = FairShare(), group()
    for priority in (0, -1):
        turns.add(FakeTurn(str(priority), one, TimeShare(weight_of_priority(priority))))
    had = run(turns, 30)
    assert had == {"-1": 20, "0": 10}


def test_the_higher_priority_goes_first() -> None:
    turns, one = FairShare(), group()
    turns.add(FakeTurn("low", one, TimeShare(weight_of_priority(0))))
    turns.add(FakeTurn("high", one, TimeShare(weight_of_priority(-5))))
    assert run(turns, 1) == {"high": 1}


def test_priorities_out_of_range_are_clamped() -> None:
    assert weight_of_priority(-99) == weight_of_priority(-5) == 1
    assert weight_of_priority(99) == weight_of_priority(0) == 32


def test_who_was_away_gets_no_head_start() -> None:
    turns, old, late = FairShare(), FakeTurn("old", group()), FakeTurn("late", group())
    turns.add(old)
    run(turns, 1000)
    turns.add(late)
    assert run(turns, 10) == {"old": 5, "late": 5}


def test_a_stream_that_was_away_gets_none_either() -> None:
    turns, one = FairShare(), group()
    old = FakeTurn("old", one)
    turns.add(old)
    run(turns, 1000)
    turns.remove(old)
    turns.add(FakeTurn("new", one))
    turns.add(old)
    had = run(turns, 10)
    assert abs(had["old"] - had["new"]) <= 2


def test_who_is_blocked_is_passed_over() -> None:
    turns, one = FairShare(), group()
    blocked = FakeTurn("blocked", one, blocked=True)
    turns.add(blocked)
    assert turns.next() is None
    turns.add(FakeTurn("able", one))
    assert run(turns, 3) == {"able": 3}
    blocked.blocked = False
    assert run(turns, 1) == {"blocked": 1}


def test_a_dropped_context_runs_no_more() -> None:
    turns, gone = FairShare(), group()
    turns.add(FakeTurn("gone", gone))
    turns.drop(gone)
    turns.drop(gone)
    assert turns.next() is None


# --- client priorities

MILLISECOND = 1_000_000


def stream(name: str, context: Group, priority: int = LEAST_PRIORITY) -> FakeTurn:
    """Return what a stream of a context has to run."""
    return FakeTurn(name, context, TimeShare(weight_of_priority(priority)))


def take(turns: FairShare, nanoseconds: int = MILLISECOND) -> FakeTurn:
    """Run one slice; return whose it was."""
    turn = turns.next()
    assert isinstance(turn, FakeTurn)
    turns.charge(turn, nanoseconds)
    return turn


def test_both_ready_at_once_the_normal_default_stream_goes_before_a_high_stream_below_normal() -> None:
    for swap in (False, True):
        turns = FairShare()
        both = [stream("below", group(1), GREATEST_PRIORITY), stream("normal", group(0))]
        for turn in both[::-1] if swap else both:
            turns.add(turn)
        assert [take(turns).name for _ in range(TURNS_OF_NORMAL + 1)] == ["normal"] * TURNS_OF_NORMAL + ["below"]


def test_what_the_normal_one_used_before_does_not_put_it_behind() -> None:
    """Both become ready when the device has just been busy for the normal one."""
    turns, mine = FairShare(), group(0)
    turn = stream("normal", mine)
    turns.add(turn)
    take(turns, 500 * MILLISECOND)
    turns.remove(turn)
    turns.add(stream("below", group(1), GREATEST_PRIORITY))
    turns.add(stream("normal", mine))
    assert {take(turns).name for _ in range(TURNS_OF_NORMAL)} == {"normal"}


def test_a_normal_one_that_comes_while_one_below_runs_goes_next() -> None:
    turns = FairShare()
    turns.add(stream("normal", group(0)))
    turns.add(stream("below", group(1), GREATEST_PRIORITY))
    for _ in range(TURNS_OF_NORMAL):
        last = take(turns)
    turns.remove(last)
    assert [take(turns).name for _ in range(100)] == ["below"] * 100
    turns.add(stream("late", group(0)))
    assert [take(turns).name for _ in range(TURNS_OF_NORMAL)] == ["late"] * TURNS_OF_NORMAL


def test_a_long_turn_below_normal_is_paid_for() -> None:
    turns = FairShare()
    turns.add(stream("normal", group(0)))
    turns.add(stream("below", group(1)))
    for _ in range(TURNS_OF_NORMAL):
        take(turns)
    assert take(turns, 10 * MILLISECOND).name == "below"
    assert [take(turns).name for _ in range(160)] == ["normal"] * 160
    assert take(turns).name == "below"


def test_many_below_normal_do_not_get_more_than_one_does() -> None:
    turns = FairShare()
    turns.add(stream("normal", group(0)))
    for number in range(8):
        turns.add(stream(f"below {number}", group(1)))
    had = run(turns, 17 * 16)
    assert had["normal"] == 256
    assert {had[f"below {number}"] for number in range(8)} == {2}


def test_what_is_blocked_holds_up_nobody_below() -> None:
    turns, blocked = FairShare(), FakeTurn("normal", group(0), blocked=True)
    turns.add(blocked)
    turns.add(stream("below", group(1)))
    assert take(turns).name == "below"
    blocked.blocked = False
    assert take(turns).name == "normal"


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.integers(GREATEST_PRIORITY, LEAST_PRIORITY)),
    st.tuples(st.just("run"), st.integers(1, 50 * MILLISECOND), st.booleans()),
    st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
)


@given(st.lists(steps, max_size=120))
def test_below_normal_never_overtakes_and_never_starves(script: list[tuple[str, int, int]]) -> None:
    """Contexts 0 to 2 are normal, 3 to 5 below. A run may finish its turn."""
    turns, groups = FairShare(), [group(int(number >= 3)) for number in range(6)]
    since = due = 0  # the normal level's turns and time since it had reason to wait
    for what, number, more in script:
        normal, below = (any(each.ready for each in some) for some in (groups[:3], groups[3:]))
        if what == "add":
            turns.add(stream(str(number), groups[number], int(more)))
            since = 0 if number >= 3 and not below else since
        elif what == "drop":
            turns.drop(groups[number])
            groups[number] = group(int(number >= 3))
        elif normal or below:
            turn = take(turns, number)
            if turn.group.level:
                # Ahead of a normal one only after the normal level had its turns and its time.
                assert not normal or (since >= TURNS_OF_NORMAL and due <= 0)
                since, due = 0, TURNS_OF_NORMAL * number if normal else due
            else:
                # And then it does go ahead.
                assert not below or since < TURNS_OF_NORMAL or due > 0
                since, due = since + 1, due - number
            if more:
                turns.remove(turn)
        else:
            assert turns.next() is None


@given(st.lists(st.integers(0, 1), min_size=2, max_size=12), st.data())
def test_everybody_who_wants_to_run_does(levels: list[int], data: st.DataObject) -> None:
    turns = FairShare()
    for number, level in enumerate(levels):
        priority = data.draw(st.integers(GREATEST_PRIORITY, LEAST_PRIORITY))
        turns.add(stream(str(number), group(level), priority))
    had = run(turns, 17 * 13 * len(levels))
    assert set(had) == {str(number) for number in range(len(levels))}
