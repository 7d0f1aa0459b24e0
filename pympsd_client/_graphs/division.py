"""Division of graphs into parts, each of which runs in one context.

**The problem.** The nodes of a graph may belong to several contexts, also of several devices. An executor runs the
items of one device, and has no access to other executors.

**The idea.** Each node gets a stage. A node has the latest stage of the nodes that it depends on, or the stage after
that for a dependency in another context. The nodes of one stage in one context are a part. Within a part the executor
keeps the order of the edges; an edge between two contexts always leads to a later stage:

    context 0    A ---> B             E      parts: {A, B} in stage 0, {E} in stage 2
    context 1            \\---> C -----/      parts: {C, D} in stage 1
                                \\---> D

A launch launches the parts, stage by stage, each in a stream of its context, and lets a stream wait for the streams
of the contexts in ``waits_for``. So parts of one stage run at the same time.

**Which context.** A fill runs in a context on the device that has the memory, as on a GPU, which does not require
access from the node's own context. The recording of an event and the wait for it run in the event's context. A host
function runs in the context of a node that it depends on. Empty nodes and nodes of memory have nothing to run. They
pass on the stages of the nodes that they depend on, and become entries only where branches join. Child graphs are
divided with the graph that contains them. The bodies of a conditional node must belong to one context, because the
executor decides which of them it runs.

**Cost.** Each node is visited once, however many parts there are: a part has entries for its own nodes only, with the
dependencies between them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from attrs import define, field

from pympsd_client._arguments.errors import CudaError, not_supported
from pympsd_client._graphs import work as works
from pympsd_client._graphs.graph import Graph, Node
from pympsd_client._graphs.items import Division, DivisionEntry, Failed, not_in_body
from pympsd_client._objects.context import Context
from pympsd_client._objects.event import events
from pympsd_client._objects.memory.allocations import context_for, is_on_a_device

_Ends = dict[Context, tuple[int, tuple[int, ...]]]
"""The latest stage of some nodes in each of their contexts, and their entries in that stage's part."""
_NOTHING_TO_RUN: Final = (works.EmptyWork, works.AllocateWork, works.FreeWork)
_NOT_IN_BODIES: Final = (
    works.HostWork,
    works.RecordWork,
    works.WaitWork,
    works.AllocateWork,
    works.FreeWork,
    works.BatchWork,
)


def divide(graph: Graph, otherwise: Callable[[], Context]) -> list[Division]:
    """Return the parts of a graph, ordered by stage; at least one, in ``otherwise()`` if no node has a context.

    Raise Failed for a node that would have to run in several contexts; INVALID_VALUE for a cycle.
    """
    return _divide(graph, next(_contexts(graph), None) or otherwise())


def _divide(graph: Graph, context: Context, in_body: bool = False) -> list[Division]:
    divider = _Divider(context, in_body)
    divider.add_graph(graph, {})
    if not divider.parts:
        return [Division(context, 0)]
    return sorted(divider.parts.values(), key=lambda part: part.stage)


def _contexts(graph: Graph) -> Iterator[Any]:
    for node in graph.nodes.values():
        work = node.work
        if isinstance(work, works.ChildWork):
            yield from _contexts(work.graph)
        elif isinstance(work, works.ConditionalWork):
            yield work.condition.context
        elif isinstance(work, works.AllocateWork):
            yield work.allocation.context
        elif isinstance(work, works.KernelWork | works.FillWork | works.CopyWork | works.BatchWork):
            yield work.context


@define(eq=False)
class _Divider:
    """The parts of a graph that is being divided; ``context`` is for work that could run in any context."""

    context: Context
    in_body: bool
    """Whether the graph is a conditional node's body."""
    parts: dict[tuple[int, Context], Division] = field(factory=dict, init=False)

    def add_graph(self, graph: Graph, after: _Ends) -> _Ends:
        """Add a graph's nodes, which run after the entries ``after``; return the entries in which they end."""
        ends: dict[Node, _Ends] = {}
        for node in graph.sort():
            before = _latest(ends[earlier] for earlier in node.dependencies) or after
            try:
                ends[node] = self._add_node(node, before)
            except CudaError as error:
                raise Failed(node, error) from None
        return _latest(ends[node] for node in graph.nodes.values() if not node.dependents) or after

    def _add_node(self, node: Node, before: _Ends) -> _Ends:
        work = node.work
        if self.in_body and isinstance(work, _NOT_IN_BODIES):
            raise not_in_body(f"a {work.type.name} node")
        if isinstance(work, _NOTHING_TO_RUN):
            return self._join(before)
        if isinstance(work, works.ChildWork):
            return self._join(self.add_graph(work.graph, self._join(before)))
        bodies: tuple[Division, ...] = ()
        if isinstance(work, works.ConditionalWork):
            bodies = _divide_bodies(work)
        context = self._find_context(work, before)
        stage = max((earlier + (other is not context) for other, (earlier, _) in before.items()), default=0)
        part = self.parts.setdefault((stage, context), Division(context, stage))
        part.waits_for.update(before.keys() - {context})
        latest, ends = before.get(context, (stage, ()))
        return {context: (stage, (part.add(DivisionEntry(node, ends if latest == stage else (), bodies)),))}

    def _join(self, ends: _Ends) -> _Ends:
        """Return the same ends with one entry for each context, so that n nodes after m need m + n edges."""
        return {
            context: (
                stage,
                entries if len(entries) == 1 else (self.parts[stage, context].add(DivisionEntry(None, entries)),),
            )
            for context, (stage, entries) in ends.items()
        }

    def _find_context(self, work: Any, before: _Ends) -> Context:
        """Return the context in which a node's work runs; raise NOT_SUPPORTED if it would run in several."""
        if isinstance(work, works.FillWork):
            return _context_of_fill(work)
        if isinstance(work, works.KernelWork | works.CopyWork):
            return work.context
        if isinstance(work, works.BatchWork):
            contexts = {self._find_context(part, before) for part in work.parts} or {work.context}
            return _only(contexts, "a batch of memory operations with words of several devices")
        if isinstance(work, works.ConditionalWork):
            return work.condition.context
        if isinstance(work, works.RecordWork | works.WaitWork) and (event := events.get(work.event)) is not None:
            return event.context
        return next(iter(before), self.context)


def _divide_bodies(work: works.ConditionalWork) -> tuple[Division, ...]:
    own = work.condition.context
    bodies = [part for body in work.bodies for part in _divide(body, own, in_body=True)]
    _only(
        {own, *(part.context for part in bodies)}, "a conditional node whose bodies or handle are of several contexts"
    )
    return tuple(bodies)


def _latest(ends_of_nodes: Iterable[_Ends]) -> _Ends:
    latest: dict[Context, tuple[int, dict[int, None]]] = {}
    for ends in ends_of_nodes:
        for context, (stage, entries) in ends.items():
            so_far = latest.get(context)
            if so_far is None or stage > so_far[0]:
                so_far = latest[context] = stage, {}
            if stage == so_far[0]:
                so_far[1].update(dict.fromkeys(entries))
    return {context: (stage, tuple(entries)) for context, (stage, entries) in latest.items()}


def _context_of_fill(work: works.FillWork) -> Context:
    return context_for(work.context, work.destination) if is_on_a_device(work.destination) else work.context


def _only(contexts: set[Context], what: str) -> Context:
    if len(contexts) > 1:
        raise not_supported(f"a graph cannot have {what}; make a node for each")
    return contexts.pop()
