"""Conversion between nodes and records: the items of executable graphs, and the work of captured records.

An item is a record, the indices of the items that it comes after, and for a conditional node its bodies. Items are
made from the entries of a `Division`, into which `division` divides graphs. In records the legacy stream stands for
the stream of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import define, field, frozen

from pympsd.errors import CallError
from pympsd.vocabulary.results import Result
from pympsd.wire.graph_items import Conditional, ConditionalKind, GraphItem
from pympsd.wire.records import (
    BY_NAME,
    FLAG_COOPERATIVE,
    HEADER,
    STREAM_LEGACY,
    CopySpace,
    cluster_of,
    pack_launch_flags,
)
from pympsd_client._api.memory.region_copy import regions
from pympsd_client._arguments.copy_structs import Copy3D, copy_side, linear_copy
from pympsd_client._arguments.errors import CudaError, not_supported
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.kernel_parameters import raw_packer, record_bytes
from pympsd_client._command_stream.operations import LAUNCH_OPCODE
from pympsd_client._graphs import work as works
from pympsd_client._graphs.graph import Node
from pympsd_client._objects.code.module import Function, functions
from pympsd_client._objects.context import Context
from pympsd_client._objects.event import events
from pympsd_client._objects.memory.allocations import ordinal_at
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.memory.region_copy import CopyExtent, CopyRegion

_STREAM: Final = STREAM_LEGACY
"""The stream id in the records of items, which stands for the stream of the launch."""


class Failed(CallError):
    """``node`` cannot be turned into items because of ``error``."""

    def __init__(self, node: Node | None, error: CudaError) -> None:
        super().__init__(error.reason)
        self.node = node
        self.error = error


@frozen(eq=False)
class HostCopy:
    """A copy with pageable host memory, which this process makes while the graph runs."""

    destination: CopyRegion
    source: CopyRegion
    extent: CopyExtent


@frozen(eq=False)
class DivisionEntry:
    """A node of a division, or without a node the point where branches join."""

    node: Node | None
    after: tuple[int, ...]
    """The indices of the entries of the same division that it comes after."""
    bodies: tuple[Division, ...] = ()
    """The bodies of a conditional node."""


@define(eq=False)
class Division:
    """Nodes that run in one context, without a wait for another context in between."""

    context: Context
    stage: int
    entries: list[DivisionEntry] = field(factory=list, init=False)
    waits_for: set[Context] = field(factory=set, init=False)
    """The other contexts whose parts of earlier stages have to end first."""

    def add(self, entry: DivisionEntry) -> int:
        """Add an entry and return its index."""
        self.entries.append(entry)
        return len(self.entries) - 1


@define(eq=False)
class Items:
    """The items of an executable graph, or of a part of one, in one context."""

    context: Context
    disabled: frozenset[Node] = frozenset()
    """The nodes that do nothing."""
    in_body: bool = False
    """Whether the items are a conditional node's body, in which host functions and host copies are not allowed."""
    items: list[GraphItem] = field(factory=list, init=False)
    host_work: list[Callable[[int], None] | HostCopy] = field(factory=list, init=False)
    """The host functions and copies that this process runs. Items refer to them by index."""
    recorded: list[int] = field(factory=list, init=False)
    """The handles of the events that the graph records."""

    def add_all(self, division: Division) -> None:
        """Add a division's items; raise Failed."""
        last: list[int] = []
        """The last item of each entry."""
        for entry in division.entries:
            try:
                last.append(self._add_entry(entry, [last[index] for index in entry.after]))
            except CudaError as error:
                raise Failed(entry.node, error) from None
        if not self.items:
            self._add(b"", ())

    def _add(self, record: bytes, after: Sequence[int], conditional: Conditional | None = None) -> int:
        self.items.append(GraphItem(record, tuple(sorted(after)), conditional))
        return len(self.items) - 1

    def _add_entry(self, entry: DivisionEntry, after: Sequence[int]) -> int:
        """Add an entry's items after the items ``after``, and return its last item; raise CudaError."""
        if entry.node is None or entry.node in self.disabled:
            return self._add(b"", after)
        work = entry.node.work
        if isinstance(work, works.ConditionalWork):
            return self._add(b"", after, self._conditional(work, entry.bodies))
        if isinstance(work, works.BatchWork) and work.parts:
            for part in work.parts:
                after = (self._add(self._record(part), after),)
            return after[0]
        return self._add(b"" if isinstance(work, works.BatchWork) else self._record(work), after)

    def _conditional(self, work: works.ConditionalWork, divisions: tuple[Division, ...]) -> Conditional:
        condition, bodies = work.condition, []
        for division in divisions:
            items = Items(self.context, self.disabled, True)
            items.add_all(division)
            bodies.append(tuple(items.items))
        default = condition.default if condition.assigns else None
        return Conditional(condition.handle, ConditionalKind(work.kind), default, tuple(bodies))

    def _record(self, work: Any) -> bytes:
        """Return the record of a node's work, which is empty if there is nothing to do; raise CudaError."""
        context_id = self.context.usable().context_id
        if isinstance(work, works.KernelWork):
            return _launch(work, context_id)
        if isinstance(work, works.FillWork):
            operands = (work.destination, work.value, work.element_bytes, work.width, work.pitch, work.height)
            if not (work.width and work.height):
                return b""
            return operations.FILL.record(context_id, 0, _STREAM, *operands)
        if isinstance(work, works.CopyWork):
            return self._copy(work, context_id)
        if isinstance(work, works.HostWork):
            return self._host(work.run, context_id)
        if isinstance(work, works.RecordWork | works.WaitWork):
            event = events.find(work.event)
            if isinstance(work, works.WaitWork):
                return operations.WAIT_EVENT.record(context_id, 0, _STREAM, event.handle)
            self.recorded.append(event.handle)
            return operations.RECORD_EVENT.record(context_id, 0, event.handle, _STREAM)
        raise TypeError(f"{type(work).__name__} has no record")

    def _host(self, run: Callable[[int], None] | HostCopy, context_id: int) -> bytes:
        if self.in_body:
            raise not_in_body("a copy with memory that the device cannot access")
        self.host_work.append(run)
        return operations.HOST_FUNCTION.record(context_id, 0, _STREAM, len(self.host_work) - 1)

    def _copy(self, work: works.CopyWork, context_id: int) -> bytes:
        """Return the record of a copy, which is empty if there is nothing to copy; raise CudaError.

        If the device cannot make the copy, the record is a HOST_FUNCTION, and this process makes it.
        """
        sides_and_extent = regions(work.copy, self.context)
        if sides_and_extent is None:
            return b""
        destination, source, extent = sides_and_extent
        sides = tuple(map(self._side, (destination, source), (extent, extent)))
        if None in sides or all(side is CopySpace.PINNED for side in sides):
            return self._host(HostCopy(destination, source, extent), context_id)
        to, start = sides
        assert to is not None
        assert start is not None
        if extent.height == extent.depth == 1:
            operation = {
                (CopySpace.DEVICE, CopySpace.DEVICE): operations.COPY_ON_DEVICE,
                (CopySpace.DEVICE, CopySpace.PINNED): operations.COPY_TO_DEVICE_PINNED,
                (CopySpace.PINNED, CopySpace.DEVICE): operations.COPY_FROM_DEVICE_PINNED,
            }[to, start]
            return operation.record(context_id, 0, _STREAM, destination.address, source.address, extent.bytes)
        operands = (*destination.operands(to), *source.operands(start), *extent.operands)
        return operations.COPY_3D.record(context_id, 0, _STREAM, *operands)

    def _side(self, region: CopyRegion, extent: CopyExtent) -> CopySpace | None:
        """Return the space in which the executor accesses a side of a copy; None if this process has to copy."""
        if not region.is_host:
            return CopySpace.DEVICE if ordinal_at(region.address) == self.context.device.ordinal else None
        transport = self.context.usable().transport
        return CopySpace.PINNED if pinned.is_reached_by(transport, region.address, region.span(extent)) else None


def not_in_body(what: str) -> CudaError:
    """Return the error for work that the body of a conditional node cannot have."""
    reason = (
        f"the body of a conditional node cannot have {what}: it has kernels, copies and fills of device and "
        "page-locked memory, empty nodes, child graphs and conditional nodes"
    )
    return not_supported(reason)


def _launch(work: works.KernelWork, context_id: int) -> bytes:
    function, layout = work.function, work.function.layout
    flags = pack_launch_flags(work.cooperative, work.cluster)
    fields = (LAUNCH_OPCODE, flags, record_bytes(layout), context_id, 0, _STREAM, function.module, function.index)
    return raw_packer(layout)(*fields, *work.shape, layout.parameter_bytes, work.parameters)


_LINEAR: Final = {
    "COPY_ON_DEVICE": (False, False),
    "COPY_TO_DEVICE_PINNED": (False, True),
    "COPY_FROM_DEVICE_PINNED": (True, False),
}
"""Whether (destination, source) are host memory, by the operation's name."""


def work_of_record(name: str, record: bytes, context: Context) -> Any:
    """Return the work of a node from the record of an operation in a stream.

    Raise STREAM_CAPTURE_UNSUPPORTED for work that cannot be a node.
    """
    layout = BY_NAME[name].layout
    operands = layout.unpack_from(record)[5:]
    if name == "LAUNCH":
        _, flags, *_ = HEADER.unpack_from(record)
        _, module, index, *shape, count = operands
        parameters = record[layout.size : layout.size + count]
        work = works.KernelWork(_function(module, index), tuple(shape), parameters, bool(flags & FLAG_COOPERATIVE))
        return work.set_clusters(cluster_of(flags))
    if name == "FILL":
        _, destination, value, width, count, pitch, height = operands
        return works.FillWork(destination, pitch, value, width, count, height, context)
    if name in _LINEAR:
        to_host, from_host = _LINEAR[name]
        _, destination, source, count = operands
        return works.CopyWork(linear_copy(to_host, destination, from_host, source, count), context)
    if name == "COPY_3D":
        return works.CopyWork(_rows(*operands[1:]), context)
    raise CudaError(Result.ERROR_STREAM_CAPTURE_UNSUPPORTED, f"{name} cannot be captured yet")


def _rows(*operands: int) -> Copy3D:
    to, destination, to_pitch, to_slice, start, source, pitch, slice_pitch, width, height, depth = operands
    return Copy3D(
        copy_side(to == CopySpace.PINNED, destination, to_pitch, to_slice // to_pitch if to_pitch else 0),
        copy_side(start == CopySpace.PINNED, source, pitch, slice_pitch // pitch if pitch else 0),
        width,
        height,
        depth,
    )


def _function(module: int, index: int) -> Function:
    for function in functions.list_all():
        if function.module == module and function.index == index:
            return function
    raise CudaError(Result.ERROR_INVALID_HANDLE, "the kernel's module was unloaded")
