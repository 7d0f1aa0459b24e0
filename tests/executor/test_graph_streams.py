"""The streams and the memory that executable graphs take: counted, given back, and refused, without a device."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd.wire.graph_items import ConditionalKind
from pympsd_server.backends.cuda.objects.context import NoConditions
from pympsd_server.backends.interface import BackendError
from pympsd_server.executor.graphs.executable import ConditionalStep, ExecutableGraph, GraphStep
from pympsd_server.executor.graphs.streams import ITEM_BYTES, MAX_USER_BYTES, GraphBudget, GraphMemory
from pympsd_server.ptx.runtime.facilities import DeviceCondition

LIMIT = 40


@define(eq=False)
class FakeEvent:
    """An event that is done."""

    def notify(self, done: Any) -> None:
        """Call back immediately."""
        done(None)


@define(eq=False)
class FakeContext:
    """Counts its streams."""

    streams: set[int] = field(factory=set)
    made: int = 0

    def create_stream(self, non_blocking: bool, priority: int) -> Any:
        """Return one that counts its end."""
        self.made += 1
        self.streams.add(self.made)
        return FakeStream(self, self.made)

    def create_event(self, timing: bool) -> Any:
        """Return an event."""
        return FakeEvent()

    def condition(self, handle: int) -> Any:
        """Return a condition."""
        return DeviceCondition()


@define(eq=False)
class FakeStream:
    """A stream without work."""

    context: FakeContext
    number: int

    def destroy(self) -> None:
        """End, once."""
        self.context.streams.remove(self.number)


@define(eq=False)
class WithoutConditions(NoConditions, FakeContext):
    """A context of a backend that evaluates no conditions."""


def node(*bodies: list[GraphStep]) -> GraphStep:
    return GraphStep(ConditionalStep(1, ConditionalKind.SWITCH, 0, bodies))


trees = st.recursive(
    st.just(GraphStep(None)),
    lambda inner: st.lists(st.lists(inner, max_size=4), min_size=1, max_size=3).map(lambda b: node(*b)),
)


@settings(max_examples=30)
@given(st.lists(st.lists(trees, max_size=20), max_size=6))
def test_what_graphs_take_is_within_the_limit_and_comes_back(graphs: list[list[GraphStep]]) -> None:
    context, budget, created = FakeContext(), GraphBudget(max_streams=LIMIT), []
    for steps in graphs:
        before, refused = len(context.streams), None
        try:
            created.append(ExecutableGraph.make(context, steps, budget))  # type: ignore[arg-type]
        except BackendError as error:
            refused = error
        if refused is not None:
            assert (refused.code, len(context.streams)) == (Result.ERROR_OUT_OF_MEMORY, before)
        assert len(context.streams) <= LIMIT
    for graph in created:
        graph.destroy()
    assert not context.streams
    budget.memory.take(MAX_USER_BYTES)
    budget.memory.give(MAX_USER_BYTES)
    ExecutableGraph.make(context, [GraphStep(None)] * 16, GraphBudget(max_streams=15))  # type: ignore[arg-type]
    wide = [ExecutableGraph.make(context, [GraphStep(None)] * 11, budget) for _ in range(LIMIT // 10)]  # type: ignore[arg-type]
    assert all(graph.size == 11 for graph in wide)


def test_bodies_in_one_slot_share_their_streams() -> None:
    context = FakeContext()
    wide = [GraphStep(None)] * 3
    chain = [
        node(wide),
        GraphStep(None, (0,)),
        GraphStep(node(wide, wide).act, (1,)),
        GraphStep(node(wide).act, (2,)),
    ]
    ExecutableGraph.make(context, chain, GraphBudget())  # type: ignore[arg-type]
    assert len(context.streams) == 3, "the stream of the bodies, and two more slots"


def test_a_backend_that_evaluates_no_conditions_refuses_them() -> None:
    context, budget = WithoutConditions(), GraphBudget(max_streams=1)
    with pytest.raises(BackendError) as refused:
        ExecutableGraph.make(context, [GraphStep(None), node([])], budget)  # type: ignore[arg-type]
    assert (refused.value.code, "conditional" in refused.value.reason) == (Result.ERROR_NOT_SUPPORTED, True)
    assert not context.streams
    ExecutableGraph.make(context, [GraphStep(None), GraphStep(None)], budget)  # type: ignore[arg-type]


def test_the_memory_of_graphs_is_limited_and_given_back() -> None:
    """A graph, each of its items and each of its bodies count, and the bytes of its records."""
    context: Any = FakeContext()
    budget = GraphBudget(GraphMemory(9 * ITEM_BYTES + 24), LIMIT)
    chain = [GraphStep(None), GraphStep(None, (0,))]
    graphs = [ExecutableGraph.make(context, chain, budget, 24), ExecutableGraph.make(context, [node([], [])], budget)]
    streams = len(context.streams)
    for steps, record_bytes in (([GraphStep(None)] * 2, 0), ([node([])], 0), ([], 2 * ITEM_BYTES)):
        with pytest.raises(BackendError, match="destroy executable graphs") as refused:
            ExecutableGraph.make(context, steps, budget, record_bytes)
        assert (refused.value.code, len(context.streams)) == (Result.ERROR_OUT_OF_MEMORY, streams)
    graphs.append(ExecutableGraph.make(context, [GraphStep(None)], budget))
    for graph in graphs:
        graph.destroy()
    ExecutableGraph.make(context, [GraphStep(None)] * 8, budget, 24)


def test_a_users_clients_share_the_memory_of_graphs() -> None:
    context: Any = FakeContext()
    memory = GraphMemory(4 * ITEM_BYTES)
    budgets = [GraphBudget(memory), GraphBudget(memory)]
    graph = ExecutableGraph.make(context, [GraphStep(None)] * 2, budgets[0])
    for budget in budgets:
        with pytest.raises(BackendError, match="this process' user take"):
            ExecutableGraph.make(context, [GraphStep(None)], budget)
    del graph  # as if its client had ended while its worker made it
    gc.collect()
    ExecutableGraph.make(context, [GraphStep(None)] * 2, budgets[1])
