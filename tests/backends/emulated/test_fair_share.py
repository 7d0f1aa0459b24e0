"""Fair shares of the compute thread, with fake work."""

from __future__ import annotations

from collections import Counter

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.backends.emulated.scheduling.fair_share import TURNS_OF_NORMAL, FairQueue
from pympsd_server.backends.emulated.scheduling.policy import (
    GREATEST_PRIORITY,
    LEAST_PRIORITY,
    ContextQueue,
    TimeShare,
    weight_of_priority,
)


@define(eq=False)
class FakeWork:
    """Work that always wants to run."""

    name: str
    queue: ContextQueue
    time_share: TimeShare = field(factory=TimeShare)
    is_blocked: bool = False


def context(level: int = 0) -> ContextQueue:
    """Return the ready work of a new context."""
    return ContextQueue(level)


def run(ready: FairQueue, count: int) -> Counter[str]:
    """Run slices of equal length; return the number of slices by name."""
    had: Counter[str] = Counter()
    for _ in range(count):
        work = ready.next()
        assert isinstance(work, FakeWork)
        had[work.name] += 1
        ready.charge(work, 1000)
    return had


def test_contexts_get_equal_time_however_many_streams_they_have() -> None:
    ready, many, single = FairQueue(), context(), context()
    for number in range(5):
        ready.add(FakeWork(f"many {number}", many))
    ready.add(FakeWork("single", single))
    had = run(ready, 100)
    assert had["single"] == 50
    assert {had[f"many {number}"] for number in range(5)} == {10}


@define(eq=False)
class CountedWork:
    """Work that counts how often a policy asks whether it can run."""

    queue: ContextQueue
    time_share: TimeShare
    asked: int = 0
    can_run: bool = True

    @property
    def is_blocked(self) -> bool:
        """Whether the work cannot run now."""
        self.asked += 1
        return not self.can_run


def test_a_policy_asks_all_of_many_streams_only_if_the_next_one_cannot_run() -> None:
    queue = context()
    works = [CountedWork(queue, TimeShare(used=number)) for number in range(100)]
    queue.ready.extend(works)
    assert queue.first() is works[0]
    assert sum(work.asked for work in works) == 1
    works[0].can_run = works[1].can_run = False
    assert queue.first() is works[2]
    for work in works:
        work.can_run = False
    assert queue.first() is None


def test_below_normal_gets_little_but_something() -> None:
    ready = FairQueue()
    ready.add(FakeWork("below", context(1)))
    ready.add(FakeWork("normal", context(0)))
    had = run(ready, 170)
    assert had == {"normal": 160, "below": 10}


def test_stream_priorities_halve_the_time_at_each_step() -> None:
    ready, owner = FairQueue(), context()
    for priority in (0, -1):
        ready.add(FakeWork(str(priority), owner, TimeShare(weight_of_priority(priority))))
    had = run(ready, 30)
    assert had == {"-1": 20, "0": 10}


def test_the_higher_priority_goes_first() -> None:
    ready, owner = FairQueue(), context()
    ready.add(FakeWork("low", owner, TimeShare(weight_of_priority(0))))
    ready.add(FakeWork("high", owner, TimeShare(weight_of_priority(-5))))
    assert run(ready, 1) == {"high": 1}


def test_priorities_out_of_range_are_clamped() -> None:
    assert weight_of_priority(-99) == weight_of_priority(-5) == 1
    assert weight_of_priority(99) == weight_of_priority(0) == 32


def test_an_idle_context_gets_no_head_start() -> None:
    ready, old, late = FairQueue(), FakeWork("old", context()), FakeWork("late", context())
    ready.add(old)
    run(ready, 1000)
    ready.add(late)
    assert run(ready, 10) == {"old": 5, "late": 5}


def test_an_idle_stream_gets_no_head_start() -> None:
    ready, owner = FairQueue(), context()
    old = FakeWork("old", owner)
    ready.add(old)
    run(ready, 1000)
    ready.remove(old)
    ready.add(FakeWork("new", owner))
    ready.add(old)
    had = run(ready, 10)
    assert abs(had["old"] - had["new"]) <= 2


def test_blocked_work_is_passed_over() -> None:
    ready, owner = FairQueue(), context()
    blocked = FakeWork("blocked", owner, is_blocked=True)
    ready.add(blocked)
    assert ready.next() is None
    ready.add(FakeWork("able", owner))
    assert run(ready, 3) == {"able": 3}
    blocked.is_blocked = False
    assert run(ready, 1) == {"blocked": 1}


def test_a_dropped_context_runs_no_more() -> None:
    ready, gone = FairQueue(), context()
    ready.add(FakeWork("gone", gone))
    ready.drop(gone)
    ready.drop(gone)
    assert ready.next() is None


# --- client priorities

MILLISECOND = 1_000_000


def stream(name: str, context: ContextQueue, priority: int = LEAST_PRIORITY) -> FakeWork:
    """Return work of a stream of a context."""
    return FakeWork(name, context, TimeShare(weight_of_priority(priority)))


def take(ready: FairQueue, nanoseconds: int = MILLISECOND) -> FakeWork:
    """Run one slice; return its work."""
    work = ready.next()
    assert isinstance(work, FakeWork)
    ready.charge(work, nanoseconds)
    return work


def test_a_normal_default_stream_goes_before_a_high_stream_of_a_client_below_normal() -> None:
    for swap in (False, True):
        ready = FairQueue()
        both = [stream("below", context(1), GREATEST_PRIORITY), stream("normal", context(0))]
        for work in both[::-1] if swap else both:
            ready.add(work)
        assert [take(ready).name for _ in range(TURNS_OF_NORMAL + 1)] == ["normal"] * TURNS_OF_NORMAL + ["below"]


def test_time_used_before_does_not_put_a_normal_context_behind() -> None:
    """Both become ready when the device has just been busy for the normal one."""
    ready, mine = FairQueue(), context(0)
    work = stream("normal", mine)
    ready.add(work)
    take(ready, 500 * MILLISECOND)
    ready.remove(work)
    ready.add(stream("below", context(1), GREATEST_PRIORITY))
    ready.add(stream("normal", mine))
    assert {take(ready).name for _ in range(TURNS_OF_NORMAL)} == {"normal"}


def test_a_normal_context_that_becomes_ready_runs_next() -> None:
    ready = FairQueue()
    ready.add(stream("normal", context(0)))
    ready.add(stream("below", context(1), GREATEST_PRIORITY))
    for _ in range(TURNS_OF_NORMAL):
        last = take(ready)
    ready.remove(last)
    assert [take(ready).name for _ in range(100)] == ["below"] * 100
    ready.add(stream("late", context(0)))
    assert [take(ready).name for _ in range(TURNS_OF_NORMAL)] == ["late"] * TURNS_OF_NORMAL


def test_a_long_turn_below_normal_is_paid_for() -> None:
    ready = FairQueue()
    ready.add(stream("normal", context(0)))
    ready.add(stream("below", context(1)))
    for _ in range(TURNS_OF_NORMAL):
        take(ready)
    assert take(ready, 10 * MILLISECOND).name == "below"
    assert [take(ready).name for _ in range(160)] == ["normal"] * 160
    assert take(ready).name == "below"


def test_many_below_normal_do_not_get_more_than_one_does() -> None:
    ready = FairQueue()
    ready.add(stream("normal", context(0)))
    for number in range(8):
        ready.add(stream(f"below {number}", context(1)))
    had = run(ready, 17 * 16)
    assert had["normal"] == 256
    assert {had[f"below {number}"] for number in range(8)} == {2}


def test_blocked_normal_work_does_not_delay_work_below() -> None:
    ready, blocked = FairQueue(), FakeWork("normal", context(0), is_blocked=True)
    ready.add(blocked)
    ready.add(stream("below", context(1)))
    assert take(ready).name == "below"
    blocked.is_blocked = False
    assert take(ready).name == "normal"


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.integers(GREATEST_PRIORITY, LEAST_PRIORITY)),
    st.tuples(st.just("run"), st.integers(1, 50 * MILLISECOND), st.booleans()),
    st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
)


@given(st.lists(steps, max_size=120))
def test_below_normal_never_overtakes_and_never_starves(script: list[tuple[str, int, int]]) -> None:
    """Contexts 0 to 2 are normal, 3 to 5 below. A run may finish the work."""
    ready, contexts = FairQueue(), [context(int(number >= 3)) for number in range(6)]
    since = due = 0  # the normal level's turns and time since one below could run
    for step, number, more in script:
        normal, below = (any(entry.ready for entry in some) for some in (contexts[:3], contexts[3:]))
        if step == "add":
            ready.add(stream(str(number), contexts[number], int(more)))
            since = 0 if number >= 3 and not below else since
        elif step == "drop":
            ready.drop(contexts[number])
            contexts[number] = context(int(number >= 3))
        elif normal or below:
            work = take(ready, number)
            if work.queue.level:
                # Ahead of a normal one only after the normal level had its turns and its time.
                assert not normal or (since >= TURNS_OF_NORMAL and due <= 0)
                since, due = 0, TURNS_OF_NORMAL * number if normal else due
            else:
                # After that it does run first.
                assert not below or since < TURNS_OF_NORMAL or due > 0
                since, due = since + 1, due - number
            if more:
                ready.remove(work)
        else:
            assert ready.next() is None


@given(st.lists(st.integers(0, 1), min_size=2, max_size=12), st.data())
def test_all_ready_work_runs(levels: list[int], data: st.DataObject) -> None:
    ready = FairQueue()
    for number, level in enumerate(levels):
        priority = data.draw(st.integers(GREATEST_PRIORITY, LEAST_PRIORITY))
        ready.add(stream(str(number), context(level), priority))
    had = run(ready, 17 * 13 * len(levels))
    assert set(had) == {str(number) for number in range(len(levels))}
