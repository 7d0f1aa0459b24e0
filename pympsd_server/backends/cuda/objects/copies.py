"""Copies. A worker never waits until one is done.

Small copies from and to the host go through a slot of the executor's registered memory, large ones directly from and
to the client's shared memory once that is registered. The device accesses a client's pinned memory itself.

A `BufferedCopy` goes through a buffer that is returned when the copy is done: a slot, or scratch memory.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import cu
from pympsd_server.backends.cuda.memory.regions import Side, rows_of, simplify, split_into_registered_pieces
from pympsd_server.backends.cuda.memory.staging import DIRECT_BYTES, Slot
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.submission.completions import PendingCompletion
from pympsd_server.backends.cuda.submission.issue_queue import IssueQueue, QueuedStream
from pympsd_server.backends.interface import Completion, Copy, Extent, Fill, Region, Space, Status


class CopyStream(QueuedStream, Protocol):
    """The part of a stream that copies use."""

    queue: IssueQueue
    space: ClientSpace
    services: DeviceServices
    handle: Any
    """The CUstream."""

    def __hash__(self) -> int:
        """Streams are keys."""

    def put(self, work: Callable[[], None], *, what: str) -> None:
        """Issue work to the driver, now or when the hold on it has ended; raise BackendError on a faulted context.

        ``what``: its name in a timeline.
        """

    def notify(self, done: Completion) -> None:
        """Call back when all work queued before the call is done."""


@define(eq=False)
class BufferedCopy:
    """A copy whose buffer is released once: when the device is done with it, or when it will never be issued.

    If its context ends while a host function holds the copy, it is never issued; only its completion is called.
    """

    _stream: CopyStream
    _work: Callable[[], None]
    """The function that issues the copy."""
    _release: Callable[[], None]
    _finish: Callable[[], None] = lambda: None
    """The function to call when the copy is done, unless the context has ended."""
    _unissued: list[bool] = field(factory=lambda: [True], init=False)
    """One element until the copy is issued, or its buffer is released unused.

    Whichever comes first takes the element out, which is atomic.
    """

    def put(self, done: Completion) -> None:
        """Put the copy in its stream; ``done`` is called when the copy is done or dropped."""
        completions = self._stream.queue.completions

        def on_end(status: Status) -> None:
            if status.code is not Result.SUCCESS:
                self._drop()
            done(status)

        complete = completions.add(on_end)
        try:
            self._stream.put(lambda: self._issue(complete), what="copy")
        except BaseException:
            self._drop()
            if completions.take(complete):  # else the context's end has called it
                raise

    def _issue(self, complete: PendingCompletion) -> None:
        if not self._is_first():
            return
        try:
            self._work()
            self._stream.watch(self._stream.marker(), lambda: self._finish_copy(complete))
        except BaseException:
            # Some of it may be running, and no marker shows when it is done.
            self._stream.services.cleanup.add(self._stream.is_completed, self._release)
            raise

    def _finish_copy(self, complete: PendingCompletion) -> None:
        try:
            # After the context's end nobody needs the bytes, and the client's memory may belong to another client.
            if self._stream.queue.status.code is Result.SUCCESS:
                self._finish()
        finally:
            try:
                self._release()
            finally:
                complete(Status())

    def _drop(self) -> None:
        # The cleanup thread releases the buffer: a context may end during a call that holds the locks needed for it.
        if self._is_first():
            self._stream.services.cleanup.add(lambda: True, self._release)

    def _is_first(self) -> bool:
        try:
            self._unissued.pop()
        except IndexError:
            return False
        return True


_NEAR_BYTES: Final = 1 << 20


def put_copy(stream: CopyStream, copy: Copy, done: Completion | None) -> None:
    """Put a copy in its stream, after the caller has checked and simplified its regions."""
    to, start = copy.destination.space, copy.source.space
    if to is Space.STAGING or start is Space.STAGING:
        _put_staged(stream, copy, done)
    elif to is Space.PINNED or start is Space.PINNED:
        _put_pinned(stream, copy, done)
    elif copy.extent.is_linear:
        _put_on_device(stream, copy.destination.base, copy.source.base, copy.extent.width, done)
    else:
        sides, call = (Side.of(copy.destination), Side.of(copy.source)), stream.services.driver.call
        _put(stream, lambda: _issue(call, *sides, copy.extent, stream.handle), done)


def _put(stream: CopyStream, work: Callable[[], None], done: Completion | None) -> None:
    stream.put(work, what="copy")
    if done is not None:
        stream.notify(done)


def _ignore(status: Status) -> None:
    """Do nothing, because the caller has no completion."""


# --- from and to the host


def _put_staged(stream: CopyStream, copy: Copy, done: Completion | None) -> None:
    """Put a copy with host memory in a stream, through a slot unless the device can access the host memory."""
    extent, to_device = copy.extent, copy.source.host is not None
    host, device = (copy.source, copy.destination) if to_device else (copy.destination, copy.source)
    slot, device_side = _slot(stream, host, extent.bytes), Side.of(device)
    if slot is None:
        side = Side.of(host)
    else:  # packed, so that no bytes between the client's rows are copied
        side = Side(True, slot.address, extent.width, extent.width * extent.height)
        if to_device:
            if extent.is_linear and host.host is not None:
                slot.view[:] = host.host.cast("B")
            else:
                rows = rows_of(host, extent)
                np.ndarray(rows.shape, np.uint8, slot.view)[...] = rows

    def issue() -> None:
        to, start = (device_side, side) if to_device else (side, device_side)
        _issue(stream.services.driver.call, to, start, extent, stream.handle)

    def release() -> None:
        if slot is not None:
            stream.services.staging.give(slot)

    def finish() -> None:
        if slot is not None and not to_device:
            if extent.is_linear and host.host is not None:
                host.host.cast("B")[:] = slot.view
            else:
                rows = rows_of(host, extent)
                rows[...] = np.ndarray(rows.shape, np.uint8, slot.view)

    BufferedCopy(stream, issue, release, finish).put(done or _ignore)


def _slot(stream: CopyStream, host: Region, count: int) -> Slot | None:
    """Return a slot for a copy; None if the copy is large and the device can access the client's bytes directly."""
    if count > DIRECT_BYTES and host.host is not None and stream.space.mappings.can_access(host.host):
        return None
    return stream.services.staging.take(count, stream.space)


def _put_pinned(stream: CopyStream, copy: Copy, done: Completion | None) -> None:
    call = stream.services.driver.call

    def issue() -> None:
        # This function keeps the bytes alive beyond their registration; the driver then copies them like any others.
        to, start = Side.of(copy.destination), Side.of(copy.source)
        for *position, extent in split_into_registered_pieces(to if to.is_host else start, copy.extent):
            _issue(call, to.at(*position), start.at(*position), extent, stream.handle)

    _put(stream, issue, done)


# --- inside the device


def _put_on_device(stream: CopyStream, destination: int, source: int, count: int, done: Completion | None) -> None:
    """Put a copy of one row inside the device; the ranges may overlap."""
    distance, call = abs(destination - source), stream.services.driver.call

    def move(to: int, start: int, length: int) -> None:
        call(cu.cuMemcpyDtoDAsync, to, start, length, stream.handle)

    if not distance:
        if done is not None:
            stream.notify(done)
        return
    if distance >= min(count, _NEAR_BYTES):
        # Pieces no longer than the distance do not overlap; the driver does not define copies that overlap.
        def issue() -> None:
            for start, length in _pieces(count, min(count, distance), destination > source):
                move(destination + start, source + start, length)

        _put(stream, issue, done)
        return
    pool = stream.services.scratch
    scratch = pool.take(stream, stream.space, count)

    def copy_through_scratch() -> None:
        for start, length in _pieces(count, scratch.size, destination > source):
            move(scratch.address, source + start, length)
            move(destination + start, scratch.address, length)

    BufferedCopy(stream, copy_through_scratch, lambda: pool.give(scratch)).put(done or _ignore)


def _pieces(count: int, longest: int, backwards: bool) -> list[tuple[int, int]]:
    starts = range(0, count, longest)
    return [(start, min(longest, count - start)) for start in (reversed(starts) if backwards else starts)]


# --- the driver's calls


def _issue(call: Callable[..., Any], to: Side, start: Side, extent: Extent, stream: Any) -> None:
    if not extent.is_linear:
        # CUDA_MEMCPY3D takes the slice pitch as a number of rows.
        if extent.depth > 1 and (extent.height == 1 or any(side.slice_pitch % side.pitch for side in (to, start))):
            layer = Extent(extent.width, extent.height)
            for index in range(extent.depth):
                call(cu.cuMemcpy3DAsync, _parameters(to.at(0, 0, index), start.at(0, 0, index), layer), stream)
        else:
            call(cu.cuMemcpy3DAsync, _parameters(to, start, extent), stream)
    elif start.is_host:
        call(cu.cuMemcpyHtoDAsync, to.address, start.address, extent.width, stream)
    else:
        call(cu.cuMemcpyDtoHAsync, to.address, start.address, extent.width, stream)


def _parameters(to: Side, start: Side, extent: Extent) -> Any:
    parameters, kinds = cu.CUDA_MEMCPY3D(), cu.CUmemorytype
    for prefix, side in (("dst", to), ("src", start)):
        kind = kinds.CU_MEMORYTYPE_HOST if side.is_host else kinds.CU_MEMORYTYPE_DEVICE
        setattr(parameters, f"{prefix}MemoryType", kind)
        setattr(parameters, f"{prefix}Host" if side.is_host else f"{prefix}Device", side.address)
        setattr(parameters, f"{prefix}Pitch", side.pitch)
        setattr(parameters, f"{prefix}Height", side.slice_pitch // side.pitch if extent.depth > 1 else extent.height)
    parameters.WidthInBytes, parameters.Height, parameters.Depth = extent.width, extent.height, extent.depth
    return parameters


def check_fill(fill: Fill) -> tuple[Extent, Region]:
    """Return a fill's simplified extent and region; raise BackendError INVALID_VALUE if the driver cannot do it."""
    fill.check_elements()
    extent, region = fill.extent, fill.destination
    if not extent.is_linear:
        extent, (region,) = simplify(extent, region)
        region.check_pitches(extent)
    return extent, region


def issue_fill(call: Callable[..., Any], fill: Fill, extent: Extent, region: Region, stream: Any) -> None:
    """Issue a fill, simplified as ``check_fill`` returns it."""
    element = fill.element_bytes
    pattern, count = fill.value & ((1 << 8 * element) - 1), extent.width // element
    if extent.is_linear:
        rows = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}
        call(rows[element], region.base, pattern, count, stream)
        return
    rectangles = {1: cu.cuMemsetD2D8Async, 2: cu.cuMemsetD2D16Async, 4: cu.cuMemsetD2D32Async}
    for index in range(extent.depth):
        address = region.base + index * region.slice_pitch
        call(rectangles[element], address, region.pitch, pattern, count, extent.height, stream)
