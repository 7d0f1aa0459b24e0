"""Executable graphs: a copy of a graph's nodes, with their items in executors, launched by one record for each part.

Instantiation copies the graph, divides it into parts of one context each (`division`), and turns the nodes of each
part into items, which it uploads (`part`). Most graphs have one part. If the launch is in a stream of the part's
context, it is a single LAUNCH_GRAPH record, whatever the number of nodes. The executor runs each item after the items
it depends on.

**Several contexts.** A graph of several contexts, or one that is launched in a stream of another context, runs in
streams of its own, one for each context. These wait for the stream of the launch, and for each other, by host
functions (`host_function.make_wait`). The stream of the launch then waits for all of them. The streams are the same
for all launches, so the launches run one after another.

**Updates** change the nodes of the copy. They drop the parts (`_drop`), and the next launch or upload makes new ones,
so several changes between two launches cost one upload.

    instantiate -> items in the executors <-> dropped by a change, uploaded again by a launch -> destroyed

**Invariants**

- ``_parts`` is empty exactly while the executors have no items that match the nodes.
- Queued launches continue after a change or a destroy; the graph's user objects and memory are released after the
  last of them.
- A launch leaves the memory of allocation nodes that the graph does not free to the program (`_use_memory`). Another
  launch is refused until the program has freed it, unless the graph was instantiated with AUTO_FREE.
- ``_launching`` is reentrant, because an update may drop an object whose finalizer destroys this graph.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count, groupby
from threading import RLock
from typing import Any, Final

from pympsd.wire.records import STREAM_LEGACY
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import work as works
from pympsd_client._graphs.capture import captures
from pympsd_client._graphs.division import divide
from pympsd_client._graphs.graph import Graph, Node, allocate_handle
from pympsd_client._graphs.items import Division, Failed
from pympsd_client._graphs.part import GraphPart
from pympsd_client._objects import host_function
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import Context, when_closed
from pympsd_client._objects.event import events
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.pools.graph_memory import live_at
from pympsd_client._objects.stream import resolve

_next_id: Final = count(1).__next__
_known_stream: Final = streams.streams.get
AUTO_FREE: Final = 1
"""The instantiation flag with which a launch frees the memory that earlier launches have left."""


class Executable:
    """An executable graph. Thread-safe.

    ``graph`` is its own copy of the graph, which updates change. Methods that take a node expect one of the copy (see
    `node`).
    """

    def __init__(self, graph: Graph, otherwise: Callable[[], Context], flags: int) -> None:
        """Copy a graph and send its items to the executors. ``flags``: CUgraphInstantiate_flags.

        ``otherwise`` returns the context for a graph whose nodes have none. Raise Failed, which names a node of the
        given graph, or CudaError.
        """
        self.handle: Final = allocate_handle()
        self.id: Final = _next_id()
        self.flags: Final = flags
        self.graph: Final = works.clone(graph)
        self._copies: Final = works.collect_copies(self.graph)
        self._disabled: Final[set[Node]] = set()
        inner = [node.work for node in works.collect_nodes(self.graph).values()]
        frees = {work.address for work in inner if isinstance(work, works.FreeWork)}
        allocated = {
            work.allocation.handle: work.allocation for work in inner if isinstance(work, works.AllocateWork)
        }
        self._leaves: Final = [work for address, work in allocated.items() if address not in frees]
        """The memory that a launch leaves to the program."""
        self._frees: Final = frees - allocated.keys()
        """The addresses of other graphs' memory that a launch frees."""
        self._parts: list[tuple[GraphPart, Division]] = []
        """The parts, ordered by stage, each with the nodes that it has and the contexts that it waits for."""
        self._own_streams: Final[dict[Context, int]] = {}
        """The streams in which parts run if the graph or a launch has several contexts."""
        self._copy_streams: Final[dict[Context, int]] = {}
        """The streams in which this process copies memory of each context."""
        self._last_direct: tuple[Context, int] | None = None
        """The stream of the last launch that did not use the graph's own streams."""
        self._launching: Final = RLock()  # the finalizer of an object that an update drops may destroy the graph
        try:
            self._instantiate(otherwise)
        except Failed as failed:
            works.destroy(self.graph)
            originals = (graphs.nodes.get(handle) for handle, copy in self._copies.items() if copy is failed.node)
            raise Failed(next(originals), failed.error) from None
        except BaseException:
            works.destroy(self.graph)
            raise
        self.context: Final = self._parts[0][0].context
        """The context with which the handle becomes invalid."""

    def node(self, node: Node) -> Node:
        """Return the copy of a node of the graph that was instantiated; raise INVALID_VALUE."""
        copy = self._copies.get(node.handle)
        if copy is None:
            raise invalid_value(f"node {node.handle:#x} does not belong to the graph that was instantiated")
        return copy

    def change(self, node: Node, work: Any) -> None:
        """Replace a node's work, from the next launch on."""
        with self._launching:
            node.work = work
            self._drop()

    def change_all(self, pairs: list[tuple[Node, Node]]) -> None:
        """Give nodes the work of other nodes, from the next launch on.

        ``pairs``: nodes of the copy, each with the node whose work it gets. Graphs within nodes stay the same
        objects; their nodes are among the pairs.
        """
        with self._launching:
            for node, source in pairs:
                if not works.inner_graphs(node.work):
                    node.work = source.work
                elif isinstance(node.work, works.ConditionalWork):
                    node.work.condition = source.work.condition
            self._drop()

    def is_enabled(self, node: Node) -> bool:
        """Return whether a node of the copy is enabled, so that it does its work."""
        return node not in self._disabled

    def enable(self, node: Node, enabled: bool) -> None:
        """Enable a node, or disable it so that it does nothing, from the next launch on."""
        with self._launching:
            (self._disabled.discard if enabled else self._disabled.add)(node)
            self._drop()

    def prepare(self) -> None:
        """Bring the graph up to date in the executor; raise CudaError."""
        with self._launching:
            if not self._parts:
                self._reinstantiate()

    def _reinstantiate(self) -> None:
        try:
            self._instantiate(lambda: self.context)
        except Failed as failed:
            raise failed.error from None

    def _instantiate(self, otherwise: Callable[[], Context]) -> None:
        divisions, disabled = divide(self.graph, otherwise), frozenset(self._disabled)
        parts: list[tuple[GraphPart, Division]] = []
        try:
            for own in divisions:
                part = GraphPart(own, disabled, self.handle, self._copy_stream_of)
                parts.append((part, own))
        except BaseException:
            for part, _ in parts:
                part.drop()
            raise
        self._parts = parts

    def _copy_stream_of(self, context: Context) -> int:
        return _stream_of(context, self._copy_streams)

    def _drop(self) -> None:
        parts, self._parts = self._parts, []
        for part, _ in parts:
            part.drop()

    def launch(self, stream: int) -> None:
        """Launch the graph in stream order and return immediately.

        The stream may be of any context. The graph runs after its own earlier launches in all streams. In a capturing
        stream it becomes a child graph node instead. Raise INVALID_VALUE if memory of an earlier launch has not been
        freed; OUT_OF_MEMORY if a changed graph cannot be uploaded; the context's sticky error.
        """
        known_stream = _known_stream(stream)
        context, stream_id = resolve(stream) if known_stream is None else (known_stream.context, stream)
        if intercepted.by is not None and captures.add((context, stream_id), self._convert_to_child):
            return
        with self._launching:
            if not self._parts:
                self._reinstantiate()
            if self._leaves or self._frees:
                self._use_memory()
            parts = self._parts
            if len(parts) == 1 and parts[0][0].context is context:
                parts[0][0].launch(stream_id)
                self._last_direct = context, stream_id
            else:
                self._launch_across((context, stream_id))
        for part, _ in parts:
            for handle in part.recorded:
                event = events.get(handle)
                if event is not None:
                    event.recorded = True

    def _launch_across(self, place: tuple[Context, int]) -> None:
        """Launch the parts in the graph's own streams, between the earlier and the later work of another stream."""
        parts = self._parts
        own = {part.context: _stream_of(part.context, self._own_streams) for part, _ in parts}
        for context in (place[0], *own):
            context.usable()
        for stream in own.items():
            host_function.make_wait(stream, place)
        for _, stage in groupby(parts, lambda entry: entry[1].stage):
            stage_parts = list(stage)
            # All waits come before all launches, so that no part waits for another one of its stage.
            for part, division in stage_parts:
                for context in division.waits_for:
                    host_function.make_wait((part.context, own[part.context]), (context, own[context]))
            for part, _ in stage_parts:
                part.launch(own[part.context])
        for stream in own.items():
            host_function.make_wait(place, stream)

    def _use_memory(self) -> None:
        """Free other graphs' memory, and leave the memory that this graph does not free to the program.

        Raise INVALID_VALUE if the program has it already from an earlier launch, or memory to free is not allocated.
        """
        for allocation in self._leaves:
            if allocation.is_live and not self.flags & AUTO_FREE:
                raise invalid_value(
                    f"the memory at {allocation.handle:#x} of an earlier launch is not freed; free it, or "
                    "instantiate with CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH"
                )
        for address in self._frees:
            freed = live_at(address)
            if freed is None:
                raise invalid_value(f"the memory at {address:#x}, which the graph frees, is not allocated")
            freed.end()
        for allocation in self._leaves:
            allocation.begin()

    def _convert_to_child(self) -> works.ChildWork:
        return works.ChildWork(works.clone(self.graph))

    def destroy(self) -> None:
        """Destroy the graph.

        Queued launches continue in all contexts that are open; the graph's streams and the objects that it retains
        are given back after them.
        """
        executables.remove(self.handle)
        with self._launching:
            self._drop()
        launched_in = list(self._own_streams.items())
        if self._last_direct is not None:
            context, stream = self._last_direct
            if stream == STREAM_LEGACY or _known_stream(stream) is not None:
                launched_in.append(self._last_direct)
            elif self.graph.retained or self._copy_streams:  # the stream was destroyed, so wait for all streams
                with suppress(CudaError):
                    context.synchronize()
        needs_wait = self.graph.retained or self._own_streams or self._copy_streams
        host_function.run_after(launched_in if needs_wait else [], self._give_back)

    def _give_back(self) -> None:
        works.destroy(self.graph)
        for stream in (*self._own_streams.values(), *self._copy_streams.values()):
            with suppress(CudaError):  # its context has been closed, or has an error
                streams.destroy(stream)

    def is_in(self, context: Context) -> bool:
        """Return whether the graph has items or streams in a context."""
        used = (self._own_streams, self._copy_streams, [part.context for part, _ in self._parts])
        return context is self.context or any(context in places for places in used)


def _stream_of(context: Context, own_streams: dict[Context, int]) -> int:
    """Return a graph's own stream of a context, which is made when it is first used."""
    if context not in own_streams:
        own_streams[context] = streams.create(context, streams.NON_BLOCKING, 0).handle
    return own_streams[context]


def _give_back(context: Context) -> None:
    """End the executable graphs of a closing context."""
    for executable in executables.list_all():
        if executable.is_in(context):
            executable.destroy()


when_closed.append(_give_back)  # before the table below is made, whose own function drops the graphs
executables: Final[HandleTable[Executable]] = HandleTable("executable graph", "destroyed, or its context was")


def find(handle: int) -> Executable:
    """Return the executable graph of a handle; raise INVALID_VALUE."""
    executable = executables.get(handle)
    if executable is None:
        raise invalid_value(f"{handle:#x} is not an executable graph of this process (destroyed, or its context was)")
    return executable
