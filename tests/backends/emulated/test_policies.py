"""Scheduling policies that a setting names: the two examples, with fake work, and how they are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.settings import METHODS, SCHEDULING_POLICIES, TURN_POLICIES, load_policy
from pympsd.vocabulary.variables import BadSetting
from pympsd_server.backends.emulated.scheduling.deadlines import Deadlines
from pympsd_server.backends.emulated.scheduling.fair_share import FairQueue, MemoryShare
from pympsd_server.backends.emulated.scheduling.policy import (
    ContextQueue,
    Policy,
    TimeShare,
    policy_of,
    weight_of_priority,
)

MILLISECOND = 1_000_000
GIB = 1 << 30


@define(eq=False)
class FakeWork:
    """Work that always wants to run."""

    name: str
    queue: ContextQueue = field(factory=ContextQueue)
    time_share: TimeShare = field(factory=TimeShare)
    is_blocked: bool = False


@define
class FakeClock:
    """A clock that stands still between slices."""

    now: int = 0

    def __call__(self) -> int:
        """Return the time."""
        return self.now


def run(policy: Policy, slices: int, clock: FakeClock | None = None) -> list[str]:
    """Run slices of a millisecond; return the names of what ran."""
    names = []
    for _ in range(slices):
        work = policy.next()
        assert isinstance(work, FakeWork)
        names.append(work.name)
        if clock is not None:
            clock.now += MILLISECOND
        policy.charge(work, MILLISECOND)
    return names


def holding(count: int) -> ContextQueue:
    """Return the queue of a context whose client holds so many bytes."""
    return ContextQueue(memory_used=lambda: count)


# --- fair share by memory


def test_time_is_in_proportion_to_memory() -> None:
    policy = MemoryShare()
    policy.add(FakeWork("large", holding(3 * GIB)))
    policy.add(FakeWork("small", holding(GIB)))
    had = Counter(run(policy, 400))
    assert had == {"large": 300, "small": 100}


def test_a_client_without_memory_gets_some_time() -> None:
    policy = MemoryShare()
    policy.add(FakeWork("large", holding(8 << 20)))
    policy.add(FakeWork("none", holding(0)))
    assert Counter(run(policy, 90))["none"] == 10


def test_below_normal_is_below_however_much_it_holds() -> None:
    policy = MemoryShare()
    policy.add(FakeWork("below", ContextQueue(1, memory_used=lambda: 100 * GIB)))
    policy.add(FakeWork("normal", holding(GIB)))
    assert Counter(run(policy, 170)) == {"normal": 160, "below": 10}


# --- deadlines


def test_the_earliest_deadline_runs_first() -> None:
    clock = FakeClock()
    policy = Deadlines("100", clock)
    first = FakeWork("first", time_share=TimeShare(weight_of_priority(0)))
    policy.add(first)
    clock.now += MILLISECOND
    second = FakeWork("second", time_share=TimeShare(weight_of_priority(0)))
    urgent = FakeWork("urgent", time_share=TimeShare(weight_of_priority(-1)))
    policy.add(second)
    policy.add(urgent)
    for expected in (urgent, first, second):
        assert policy.next() is expected
        policy.remove(expected)
    assert policy.next() is None


def test_a_missed_deadline_is_renewed_so_that_others_run() -> None:
    clock = FakeClock()
    policy = Deadlines("2", clock)
    for name in ("one", "other"):
        policy.add(FakeWork(name, time_share=TimeShare(weight_of_priority(0))))
    names = run(policy, 12, clock)
    assert names[:4] == ["one", "one", "one", "other"]
    assert min(Counter(names).values()) >= 3


def test_clients_below_normal_have_longer_deadlines() -> None:
    clock = FakeClock()
    policy = Deadlines("10", clock)
    policy.add(FakeWork("below", ContextQueue(1), TimeShare(weight_of_priority(0))))
    policy.add(FakeWork("normal", ContextQueue(0), TimeShare(weight_of_priority(0))))
    assert policy.next().name == "normal"  # type: ignore[union-attr]


def test_what_is_blocked_does_not_run() -> None:
    policy = Deadlines()
    policy.add(FakeWork("blocked", is_blocked=True))
    assert policy.next() is None
    free = FakeWork("free")
    policy.add(free)
    assert policy.next() is free


@pytest.mark.parametrize("argument", ["0", "-1", "nan", "60001", "soon", "1ms"])
def test_a_period_that_cannot_be_is_refused(argument: str) -> None:
    with pytest.raises(BadSetting, match="PYMPSD_SCHEDULING_POLICY=deadline:"):
        policy_of({"PYMPSD_SCHEDULING_POLICY": f"deadline:{argument}"})


# --- every policy


def _load_documented() -> type[Policy]:
    """Return the policy that docs/research.md shows."""
    page = (Path(__file__).parents[3] / "docs/research.md").read_text()
    names: dict[str, type[Policy]] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    return names["NewestFirst"]


POLICIES = {"fair": FairQueue, "memory": MemoryShare, "deadline": Deadlines}
ALL: dict[str, Callable[[], Policy]] = {**POLICIES, "documented": _load_documented()}


@pytest.mark.parametrize("name", POLICIES)
def test_a_setting_names_a_policy(name: str) -> None:
    assert type(policy_of({"PYMPSD_SCHEDULING_POLICY": name})) is POLICIES[name]
    assert policy_of({}) is None


@given(
    st.sampled_from(sorted(ALL)),
    st.lists(st.tuples(st.sampled_from("arcd"), st.integers(0, 5)), max_size=60),
    st.lists(st.tuples(st.integers(0, 1), st.integers(-5, 0)), min_size=6, max_size=6),
)
def test_any_order_of_events(name: str, steps: list[tuple[str, int]], kinds: list[tuple[int, int]]) -> None:
    """Queues contain exactly the ready work, only ready work runs, and some of it runs if there is any."""
    policy = ALL[name]()
    queues = [ContextQueue(level, memory_used=lambda: GIB) for level, _ in kinds]
    work = [
        FakeWork(str(number), queues[number // 2 * 2], TimeShare(weight_of_priority(priority)))
        for number, (_, priority) in enumerate(kinds)
    ]
    ready: set[FakeWork] = set()
    for step, number in steps:
        entry = work[number]
        if step == "a" and entry not in ready:
            policy.add(entry)
            ready.add(entry)
        elif step == "r" and entry in ready:
            policy.remove(entry)
            ready.discard(entry)
        elif step == "d":
            policy.drop(entry.queue)
            ready -= {other for other in ready if other.queue is entry.queue}
        elif (chosen := policy.next()) is not None:
            assert chosen in ready
            policy.charge(chosen, MILLISECOND)
        assert {entry for queue in queues for entry in queue.ready} == ready
        assert (policy.next() is None) == (not ready)


@pytest.mark.parametrize("name", ALL)
def test_whatever_is_ready_runs_some_time(name: str) -> None:
    clock = FakeClock()
    policy = Deadlines("50", clock) if name == "deadline" else ALL[name]()
    for number in range(4):
        policy.add(FakeWork(str(number), ContextQueue(number % 2)))
    assert set(run(policy, 3000, clock)) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "nonsense",
            "PYMPSD_SCHEDULING_POLICY must be one of deadline, fair, memory, or an entry point of the group",
        ),
        ("fair:1", "PYMPSD_SCHEDULING_POLICY=fair:1: the policy takes no argument"),
        (":", "PYMPSD_SCHEDULING_POLICY must be one of"),
    ],
)
def test_a_policy_that_is_not_there_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        policy_of({"PYMPSD_SCHEDULING_POLICY": text})


def test_a_plug_in_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "newest_first.py").write_text(
        "from pympsd_server.backends.emulated.scheduling.fair_share import FairQueue\n"
        "class NewestFirst(FairQueue):\n"
        "    pass\n"
        "def broken(argument):\n"
        "    return {}[argument]\n"
        "def number(argument):\n"
        "    return 5\n"
    )
    folder = tmp_path / "newest_first-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: newest-first\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(
        "[pympsd.scheduling_policies]\nnewest = newest_first:NewestFirst\n"
        "broken = newest_first:broken\nmissing = not_there:Policy\nnumber = newest_first:number\n"
        "[pympsd.turn_policies]\nnumber = newest_first:number\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert type(policy_of({"PYMPSD_SCHEDULING_POLICY": "newest"})).__name__ == "NewestFirst"
    for name, output in (
        ("broken", "KeyError: ''"),
        ("missing", "ModuleNotFoundError: No module named 'not_there'"),
        ("number", "the entry point must return a policy, but int has no add, remove, drop, next, charge$"),
    ):
        with pytest.raises(BadSetting, match=f"PYMPSD_SCHEDULING_POLICY={name}: .* cannot be used: {output}"):
            policy_of({"PYMPSD_SCHEDULING_POLICY": name})
    with pytest.raises(BadSetting, match=r"^PYMPSD_TURN_POLICY=number: .* int has no __call__$"):
        load_policy(TURN_POLICIES, "PYMPSD_TURN_POLICY", "number")


def test_every_method_of_a_policy_is_called_on_a_plug_in() -> None:
    public = {name for name in vars(Policy) if not name.startswith("_")}
    assert set(METHODS[SCHEDULING_POLICIES]) == public
