"""Executable graphs: a copy of a graph's nodes, with their records in the executor, launched by one record.

Instantiation copies the graph, turns its nodes into items (`items`) and uploads these. From then on a launch is a
single LAUNCH_GRAPH record, whatever the number of nodes. The executor runs each item after the items it depends on.

**Work of this process.** The device cannot run host functions or copy pageable memory, so this process does both when
their turn comes. Such an item is a HOST_FUNCTION. A launch posts one GRAPH_HOST_FUNCTION for each of them before it
posts LAUNCH_GRAPH.

**Updates** change the nodes of the copy. They drop the executor's items (`_drop`), and the next launch or upload
makes new ones, so several changes between two launches cost one upload.

    instantiate -> items in the executor <-> dropped by a change, uploaded again by a launch -> destroyed

**Invariants**

- ``_graph_handle`` is _NOT_INSTANTIATED exactly while the executor has no items that match the nodes.
- During that time ``_records`` (the launch record of each stream) is empty.
- Queued launches continue after a change or a destroy; the graph's user objects and memory are released after the
  last of them.
- A launch leaves the memory of allocation nodes that the graph does not free to the program (`_use_memory`). Another
  launch is refused until the program has freed it, unless the graph was instantiated with AUTO_FREE.
- ``_launching`` is reentrant, because an update may drop an object whose finalizer destroys this graph.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from threading import RLock
from typing import Any, Final

from pympsd.wire.graph_items import encode
from pympsd.wire.records import FLAG_QUIET
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.host_callbacks import PendingCallback
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import work as works
from pympsd_client._graphs.capture import captures
from pympsd_client._graphs.graph import Graph, Node, allocate_handle
from pympsd_client._graphs.items import Failed, HostCopy, Items
from pympsd_client._objects import host_function
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import Context, this_thread, when_closed
from pympsd_client._objects.copies import upload
from pympsd_client._objects.event import events
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.memory import region_copy
from pympsd_client._objects.pools.graph_memory import live_at
from pympsd_client._objects.stream import resolve

_next_id: Final = count(1).__next__
_STREAMS_CACHED: Final = 64
_known_stream: Final = streams.streams.get
_NOT_INSTANTIATED: Final = 0
AUTO_FREE: Final = 1
"""The instantiation flag with which a launch frees the memory that earlier launches have left."""


class Executable:
    """An executable graph of one context. Thread-safe.

    ``graph`` is its own copy of the graph, which updates change. Methods that take a node expect one of the copy (see
    `node`).
    """

    def __init__(self, graph: Graph, context: Context, flags: int) -> None:
        """Copy a graph and send its items to the executor. ``flags``: CUgraphInstantiate_flags.

        Raise Failed, which names a node of the given graph, or CudaError.
        """
        self.handle: Final = allocate_handle()
        self.id: Final = _next_id()
        self.context: Final = context
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
        self._graph_handle = _NOT_INSTANTIATED
        """The handle of the items in the executor; _NOT_INSTANTIATED after a change."""
        self._records: Final[dict[int, bytes]] = {}
        """The record of a launch in each stream."""
        self._host_work: list[Callable[[int], None]] = []
        self._recorded: list[int] = []
        self._copy_stream = 0
        self._last_stream: int | None = None
        self._launching: Final = RLock()  # the finalizer of an object that an update drops may destroy the graph
        try:
            self._instantiate()
        except Failed as failed:
            works.destroy(self.graph)
            originals = (graphs.nodes.get(handle) for handle, copy in self._copies.items() if copy is failed.node)
            raise Failed(next(originals), failed.error) from None
        except BaseException:
            works.destroy(self.graph)
            raise

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
            if self._graph_handle == _NOT_INSTANTIATED:
                self._reinstantiate()

    def _reinstantiate(self) -> None:
        self.context.usable()
        try:
            self._instantiate()
        except Failed as failed:
            raise failed.error from None

    def _instantiate(self) -> None:
        items = Items(self.context, frozenset(self._disabled))
        items.add_all(self.graph)
        handle = self.context.allocate_handle()
        upload(self.context, operations.GRAPH_PART, handle, encode(items.items))
        self.context.call(operations.INSTANTIATE_GRAPH, handle)
        self._graph_handle = handle
        self._recorded = items.recorded
        # Last, because replacing the work may drop an object whose finalizer destroys the graph.
        self._host_work = [self._copier(work) if isinstance(work, HostCopy) else work for work in items.host_work]

    def _drop(self) -> None:
        handle, self._graph_handle = self._graph_handle, _NOT_INSTANTIATED
        self._records.clear()
        if handle != _NOT_INSTANTIATED:
            self.context.post(operations.DESTROY_GRAPH, handle)

    def launch(self, stream: int) -> None:
        """Launch the graph in stream order and return immediately.

        It runs after its own earlier launches in all streams. In a capturing stream it becomes a child graph node
        instead. Raise INVALID_VALUE for a stream of another context, and if memory of an earlier launch has not been
        freed; OUT_OF_MEMORY if a changed graph cannot be uploaded; the context's sticky error.
        """
        known_stream = _known_stream(stream)
        context, stream_id = resolve(stream) if known_stream is None else (known_stream.context, stream)
        if context is not self.context:
            raise invalid_value("the stream belongs to a context other than that of the graph's nodes")
        if intercepted.by is not None and captures.add((context, stream_id), self._convert_to_child):
            return
        with self._launching:
            if self._graph_handle == _NOT_INSTANTIATED:
                self._reinstantiate()
            if self._leaves or self._frees:
                self._use_memory()
            if self._host_work:
                for number, run in enumerate(self._host_work):
                    self._post_host_function(stream_id, number, run)
            opened = context.usable()
            if self._graph_handle == _NOT_INSTANTIATED:
                raise invalid_value("the executable graph was destroyed by a finalizer while it was launched")
            record = self._records.get(stream_id)
            if record is None:
                # Launches are not answered, so that they do not need sequence numbers.
                record = operations.LAUNCH_GRAPH.record(opened.context_id, 0, stream_id, self._graph_handle)
                if len(self._records) >= _STREAMS_CACHED:
                    self._records.clear()
                self._records[stream_id] = record
            opened.transport.post(record)
            self._last_stream = stream
        for handle in self._recorded:
            event = events.get(handle)
            if event is not None:
                event.recorded = True

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

    def _post_host_function(self, stream: int, number: int, run: Callable[[int], None]) -> None:
        opened = self.context.usable()
        graph_handle, context_id = self._graph_handle, opened.context_id

        def record(sequence: int) -> bytes:
            operands = (stream, graph_handle, sequence, number)
            return operations.GRAPH_HOST_FUNCTION.record(context_id, sequence, *operands, flags=FLAG_QUIET)

        # A function may wait for one in another branch, so the functions must not run one after another.
        order = self.handle << 16 | number
        host_function.callbacks_of(opened.transport).launch(
            PendingCallback(self.context, context_id, order, host_function.mark(run), False), record
        )

    def _copier(self, host_copy: HostCopy) -> Callable[[int], None]:
        if not self._copy_stream:
            self._copy_stream = streams.create(self.context, streams.NON_BLOCKING, 0).handle
        return partial(_copy, self.context, self._copy_stream, host_copy)

    def destroy(self) -> None:
        """Destroy the graph. Queued launches continue; the objects that the graph retains are released after them."""
        executables.remove(self.handle)
        is_usable = self.context.active and self.context.sticky_error is None
        if is_usable:
            with self._launching:
                self._drop()
        give_back = partial(works.destroy, self.graph)
        if not (is_usable and self._last_stream is not None and self.graph.retained):
            give_back()
            return
        try:
            host_function.run_after(self._last_stream, give_back)
        except CudaError:  # the stream was destroyed, so wait for all streams
            self.context.synchronize()
            give_back()


def _copy(context: Context, stream: int, host_copy: HostCopy, status: int) -> None:
    """Carry out a host copy of a running graph; an error becomes the context's sticky error."""
    stack, this_thread.stack = this_thread.stack, [context]
    context_id = context.id
    try:
        region_copy.copy(host_copy.destination, host_copy.source, host_copy.extent, stream, True)
    except CudaError as error:
        context.fault(context_id, error.code, error.reason)
    finally:
        this_thread.stack = stack


def _give_back(context: Context) -> None:
    """Release the objects that the executable graphs of a closing context retain."""
    for executable in executables.list_all():
        if executable.context is context:
            works.destroy(executable.graph)


when_closed.append(_give_back)  # before the table below is made, whose own function drops the graphs
executables: Final[HandleTable[Executable]] = HandleTable("executable graph", "destroyed, or its context was")


def find(handle: int) -> Executable:
    """Return the executable graph of a handle; raise INVALID_VALUE."""
    executable = executables.get(handle)
    if executable is None:
        raise invalid_value(f"{handle:#x} is not an executable graph of this process (destroyed, or its context was)")
    return executable
