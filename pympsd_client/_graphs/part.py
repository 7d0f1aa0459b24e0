"""Parts of executable graphs: their items in one executor, launched by one record, and their work in this process.

The device cannot run host functions or copy pageable memory, so this process does both when their turn comes. Such an
item is a HOST_FUNCTION. A launch posts one GRAPH_HOST_FUNCTION for each of them before it posts LAUNCH_GRAPH.

**Copies of this process** are also those with memory of another device. They use streams of the executable graph,
which no other stream waits for. The legacy stream of the other device would wait for that device's streams, which may
wait for the launch.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from pympsd.wire.graph_items import encode
from pympsd.wire.records import FLAG_QUIET
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.host_callbacks import PendingCallback
from pympsd_client._graphs.graph import Node
from pympsd_client._graphs.items import Division, HostCopy, Items
from pympsd_client._objects import host_function
from pympsd_client._objects.context import Context, this_thread
from pympsd_client._objects.copies import upload
from pympsd_client._objects.memory import region_copy
from pympsd_client._objects.memory.allocations import context_for
from pympsd_client._objects.memory.region_copy import CopyRegion

_STREAMS_CACHED: Final = 64
_DROPPED: Final = 0


class GraphPart:
    """The items of an executable graph in one context. The caller serializes the calls."""

    def __init__(
        self,
        division: Division,
        disabled: frozenset[Node],
        order: int,
        copy_stream_of: Callable[[Context], int],
    ) -> None:
        """Send the items of a division, in which the nodes ``disabled`` do nothing, to the executor of its context.

        ``order``: a number for the order of host functions, which no other graph has. ``copy_stream_of`` returns the
        handle of the stream in which this process copies memory of a context. Raise Failed, which names a node, or
        CudaError.
        """
        context = division.context
        items = Items(context, disabled)
        items.add_all(division)
        self._host_work: Final = [
            _copier(work, context, copy_stream_of) if isinstance(work, HostCopy) else work for work in items.host_work
        ]
        handle = context.allocate_handle()
        upload(context, operations.GRAPH_PART, handle, encode(items.items))
        context.call(operations.INSTANTIATE_GRAPH, handle)
        self.context: Final = context
        self.recorded: Final = items.recorded
        """The handles of the events that a launch records."""
        self._handle = handle
        """The handle of the items in the executor; _DROPPED after `drop`."""
        self._order: Final = order
        self._records: Final[dict[int, bytes]] = {}
        """The record of a launch in each stream."""

    def drop(self) -> None:
        """Destroy the items in the executor; queued launches are completed."""
        handle, self._handle = self._handle, _DROPPED
        self._records.clear()
        if handle != _DROPPED and self.context.active and self.context.sticky_error is None:
            self.context.post(operations.DESTROY_GRAPH, handle)

    def launch(self, stream: int) -> None:
        """Launch the items in a stream of the context, given by its name in records; return immediately."""
        if self._host_work:
            for number, run in enumerate(self._host_work):
                self._post_host_function(stream, number, run)
        opened = self.context.usable()
        if self._handle == _DROPPED:
            raise invalid_value("the executable graph was destroyed by a finalizer while it was launched")
        record = self._records.get(stream)
        if record is None:
            # Launches are not answered, so that they do not need sequence numbers.
            record = operations.LAUNCH_GRAPH.record(opened.context_id, 0, stream, self._handle)
            if len(self._records) >= _STREAMS_CACHED:
                self._records.clear()
            self._records[stream] = record
        opened.transport.post(record)

    def _post_host_function(self, stream: int, number: int, run: Callable[[int], None]) -> None:
        opened = self.context.usable()
        graph_handle, context_id = self._handle, opened.context_id

        def record(sequence: int) -> bytes:
            operands = (stream, graph_handle, sequence, number)
            return operations.GRAPH_HOST_FUNCTION.record(context_id, sequence, *operands, flags=FLAG_QUIET)

        # A function may wait for one in another branch, so the functions must not run one after another.
        order = self._order << 16 | number
        host_function.callbacks_of(opened.transport).launch(
            PendingCallback(self.context, context_id, order, host_function.mark(run), False), record
        )


def _copier(host_copy: HostCopy, context: Context, copy_stream_of: Callable[[Context], int]) -> Callable[[int], None]:
    """Return a function that makes a copy while the graph runs."""

    def stream_for(region: CopyRegion) -> tuple[Context, int]:
        at = context if region.is_host else context_for(context, region.address)
        return at, copy_stream_of(at)

    return partial(_copy, context, stream_for(host_copy.destination), stream_for(host_copy.source), host_copy)


def _copy(
    context: Context, writing: tuple[Context, int], reading: tuple[Context, int], host_copy: HostCopy, status: int
) -> None:
    """Carry out a host copy of a running graph; an error becomes the context's sticky error."""
    stack, this_thread.stack = this_thread.stack, [context]
    context_id = context.id
    sides = host_copy.destination, host_copy.source, host_copy.extent
    try:
        if writing != reading and not (sides[0].is_host or sides[1].is_host):
            region_copy.copy_between_devices(writing, reading, *sides)
        else:
            region_copy.copy(*sides, (reading if sides[0].is_host else writing)[1], True)
    except CudaError as error:
        context.fault(context_id, error.code, error.reason)
    finally:
        this_thread.stack = stack
