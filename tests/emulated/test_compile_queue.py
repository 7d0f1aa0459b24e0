"""Which kernels are compiled at the same time: no user and no client keeps those of others waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event

import pytest
from attrs import define, field
from processes import SECONDS, wait_until

from pympsd_server.ptx.compiled_tier.compilation import compile_queue
from pympsd_server.ptx.compiled_tier.compilation.compile_queue import MAX_WAITING, CompileQueue
from pympsd_server.ptx.runtime.facilities import DeviceHeap, Facilities

TIERS = ()


@define(eq=False)
class Context:
    """A context that has kernels compiled, each until the test finishes it."""

    queue: CompileQueue
    running: deque[Event] = field(factory=deque)
    given_up: list[Callable[[], bool]] = field(factory=list)
    dropped: int = 0
    facilities: Facilities = field(factory=lambda: Facilities(DeviceHeap(lambda _: 0)))
    begun: list[int] = field(factory=list)
    """The sizes of the kernels whose compilation has begun."""

    def add(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.queue.add(self.facilities, size, partial(self._run, size), self._drop)

    def _run(self, size: int, is_abandoned: Callable[[], bool]) -> None:
        finished = Event()
        self.begun.append(size)
        self.given_up.append(is_abandoned)
        self.running.append(finished)
        assert finished.wait(SECONDS)

    def _drop(self) -> None:
        self.dropped += 1

    def finish(self) -> None:
        """Finish the kernel that runs longest."""
        self.running.popleft().set()


def counts(*contexts: Context) -> list[int]:
    return [len(context.running) for context in contexts]


@pytest.fixture
def contexts() -> Iterator[list[Context]]:
    """Four contexts, each of another user, which have twelve slots."""
    queue = CompileQueue(12)
    contexts = [Context(queue) for _ in range(4)]
    for uid, context in enumerate(contexts):
        context.facilities.user = uid
    yield contexts
    for context in contexts:
        context.facilities.ended.set()
    while any(counts(*contexts)):
        for context in contexts:
            while context.running:
                context.finish()


def await_counts(contexts: list[Context], expected: list[int]) -> None:
    wait_until(lambda: counts(*contexts) == expected, f"{expected} running compilations")


@pytest.mark.parametrize(
    ("users", "running"),
    [([0, 1, 2, 3], [4, 3, 2, 1]), ([0, 0, 1, 2], [4, 2, 2, 2]), ([0, 0, 0, 0], [4, 2, 0, 0])],
    ids=["users", "clients", "user"],
)
def test_each_user_and_each_client_leaves_slots_to_others(
    contexts: list[Context], users: list[int], running: list[int]
) -> None:
    for number, (context, uid) in enumerate(zip(contexts, users, strict=True)):
        context.facilities.user = uid
        context.add(10)
        await_counts(contexts, running[: number + 1] + [0] * (3 - number))


def test_a_slot_goes_to_the_user_and_the_client_that_have_the_least(contexts: list[Context]) -> None:
    first, second, third, other = contexts
    for context in (first, second, third):
        context.facilities.user = 0
        context.add(10)
    await_counts(contexts, [4, 2, 0, 0])
    other.add(10)
    await_counts(contexts, [4, 2, 0, 2])
    first.finish()
    await_counts(contexts, [3, 2, 0, 3])
    first.finish()
    await_counts(contexts, [2, 2, 1, 3])


def test_contexts_of_a_client_share_its_slots(contexts: list[Context]) -> None:
    *own, other = contexts
    for context in own:
        context.facilities.client, context.facilities.user = own[0].facilities, 0
        context.add(10)
    wait_until(lambda: sum(counts(*own)) == 4, "four compilations")
    other.add(10)
    await_counts([other], [3])
    assert sum(counts(*own)) == 4
    own[0].add(MAX_WAITING - 26 + 3)
    assert sum(context.dropped for context in own) == 3


def test_a_users_many_processes_have_one_bound_of_waiting_kernels(contexts: list[Context]) -> None:
    *own, other = contexts
    other.add(MAX_WAITING)
    for context in own:
        context.facilities.user = 0
        context.add(MAX_WAITING)
    assert sum(context.dropped for context in own) == 3 * MAX_WAITING - MAX_WAITING - sum(counts(*own))
    assert not other.dropped


def test_of_a_clients_kernels_the_smallest_is_next(contexts: list[Context]) -> None:
    first, *_ = contexts
    first.add(4)
    await_counts(contexts, [4, 0, 0, 0])
    for size in (300, 20, 100, 20):
        first.add(1, size)
    for count in range(1, 5):
        first.finish()
        wait_until(lambda count=count: len(first.begun) == 4 + count, "the next compilation")
    assert first.begun[4:] == [20, 20, 100, 300]


def test_kernels_of_a_context_that_has_ended_wait_no_longer(contexts: list[Context]) -> None:
    first, second, *_ = contexts
    first.add(10)
    await_counts(contexts, [4, 0, 0, 0])
    first.facilities.ended.set()
    first.finish()
    wait_until(lambda: first.dropped == 6, "the drop of what waits")
    second.add(1)
    await_counts(contexts, [3, 1, 0, 0])


def test_a_running_compilation_of_an_ended_context_yields(
    contexts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To others that wait, immediately; and after some seconds in any case."""
    first, second, *_ = contexts
    first.add(1)
    await_counts(contexts, [1, 0, 0, 0])
    (is_abandoned,) = first.given_up
    assert not is_abandoned()
    first.facilities.ended.set()
    assert not is_abandoned()
    second.add(10)
    await_counts(contexts, [1, 4, 0, 0])
    assert is_abandoned()
    second.facilities.ended.set()
    second.finish()
    wait_until(lambda: second.dropped == 6, "the drop of what waits")
    assert not is_abandoned()
    monkeypatch.setattr(compile_queue.time, "monotonic", lambda: float("inf"))
    assert is_abandoned()


def test_a_client_has_a_bounded_number_of_waiting_kernels(contexts: list[Context]) -> None:
    first, *_ = contexts
    first.add(4)
    await_counts(contexts, [4, 0, 0, 0])
    first.add(MAX_WAITING + 5)
    assert first.dropped == 5


def test_without_more_threads_a_kernel_is_not_compiled_now(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(CompileQueue(2))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(compile_queue.Thread, "start", fail)
        context.add(1)
    assert context.dropped == 1
    context.add(1)
    wait_until(lambda: counts(context) == [1], "the compilation")
    context.finish()


def test_a_users_account_is_dropped_with_the_last_client() -> None:
    queue, clients = CompileQueue(12), [Event() for _ in range(3)]
    for client, user in zip(clients, (1, 1, 2), strict=True):
        context = Context(queue)
        context.facilities.client, context.facilities.user = client, user
        context.add(1)
        await_counts([context], [1])
        context.given_up.clear()  # refers to the context
        context.finish()
    wait_until(lambda: not queue._running, "the end of the compilations")
    del client, context
    for users in ([1, 2], [1, 2], [2], []):
        wait_until(lambda users=users: sorted(queue._users) == users, f"the accounts of users {users}")
        del clients[:1]


def test_a_user_gains_nothing_by_a_new_account() -> None:
    queue, contexts = CompileQueue(12), []
    for user in (1, 2, 3):
        context = Context(queue)
        context.facilities.client, context.facilities.user = Event(), user
        contexts.append(context)
        context.add(1)
        await_counts([context], [1])
        queue._users[user].seconds += user
    assert [queue._users[user].seconds for user in (1, 2, 3)] == [1, 3, 4]
    for context in contexts:
        context.finish()
