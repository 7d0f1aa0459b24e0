"""Copies between the host and the device, which never keep a worker until they are done.

Small ones go through a slot of the executor's registered memory, large ones directly from and to the client's shared
memory once that is registered. Page-locked memory that a client shares is the device's to read and write itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver import cu
from pympsd_server.backends.cuda.promises import Promise
from pympsd_server.backends.cuda.ranges import registered_parts
from pympsd_server.backends.cuda.staging import DIRECT_BYTES, Slot, address_of
from pympsd_server.backends.interface import BackendError, Completion, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pympsd_server.backends.cuda.stream import CudaStream

_NEAR_BYTES: Final = 1 << 20
_SCRATCH_BYTES: Final = 16 << 20


def to_device(stream: CudaStream, destination: int, source: memoryview, done: Completion) -> None:
    """Copy host bytes, whose place was checked, to the device."""
    if not source.nbytes:
        stream.notify(done)
        return
    count, slot = source.nbytes, _slot(stream, source)
    if slot is not None:
        slot.view[:] = source.cast("B")
    address = slot.address if slot is not None else address_of(source)
    _copy(stream, done, slot, cu.cuMemcpyHtoDAsync, (destination, address, count), lambda: None)


def from_device(stream: CudaStream, target: memoryview, source: int, done: Completion) -> None:
    """Copy device bytes, whose place was checked, to the host."""
    if not target.nbytes:
        stream.notify(done)
        return
    count, slot = target.nbytes, _slot(stream, target)
    address = slot.address if slot is not None else address_of(target)

    def finish() -> None:
        if slot is not None:
            target.cast("B")[:] = slot.view

    _copy(stream, done, slot, cu.cuMemcpyDtoHAsync, (address, source, count), finish)


def from_host(stream: CudaStream, destination: int, source: memoryview) -> None:
    """Copy bytes of a client's page-locked memory to the device, the place having been checked; nobody is told."""
    call = stream.context.device.driver.call

    def issue() -> None:
        # It refers to the bytes, which so outlive their registration; the driver then copies them like any others.
        for offset, address, length in registered_parts(address_of(source), source.nbytes):
            call(cu.cuMemcpyHtoDAsync, destination + offset, address, length, stream.handle)

    if source.nbytes:
        stream.put(issue)


def to_host(stream: CudaStream, target: memoryview, source: int) -> None:
    """Copy device bytes, whose place was checked, to a client's page-locked memory; nobody is told."""
    call = stream.context.device.driver.call

    def issue() -> None:
        for offset, address, length in registered_parts(address_of(target), target.nbytes):
            call(cu.cuMemcpyDtoHAsync, address, source + offset, length, stream.handle)

    if target.nbytes:
        stream.put(issue)


def on_device(stream: CudaStream, destination: int, source: int, count: int) -> None:
    """Copy bytes, whose places were checked, inside the device; the ranges may overlap."""
    distance, device = abs(destination - source), stream.context.device
    call = device.driver.call

    def move(to: int, start: int, length: int) -> None:
        call(cu.cuMemcpyDtoDAsync, to, start, length, stream.handle)

    if distance >= min(count, _NEAR_BYTES):
        # Pieces no longer than the distance do not overlap, and the driver promises nothing for those that do.
        def issue() -> None:
            for start, length in _pieces(count, min(count, distance), destination > source):
                move(destination + start, source + start, length)

        stream.put(issue)
        return
    scratch = device.memory.allocate(min(count, _SCRATCH_BYTES))

    def through() -> None:
        for start, length in _pieces(count, _SCRATCH_BYTES, destination > source):
            move(scratch, source + start, length)
            move(destination + start, scratch, length)
        stream.watch(stream.point(), lambda: device.memory.free(scratch))

    try:
        stream.put(through)
    except BackendError:
        device.memory.free(scratch)
        raise


def _pieces(count: int, longest: int, backwards: bool) -> list[tuple[int, int]]:
    starts = range(0, count, longest)
    return [(start, min(longest, count - start)) for start in (reversed(starts) if backwards else starts)]


def _slot(stream: CudaStream, view: memoryview) -> Slot | None:
    """Return a slot for a copy, None when the device reaches the bytes themselves and they are many."""
    if view.nbytes > DIRECT_BYTES and stream.context.space.registered.reaches(view):
        return None
    return stream.context.device.staging.take(view.nbytes)


def _copy(
    stream: CudaStream,
    done: Completion,
    slot: Slot | None,
    function: Callable[..., Any],
    operands: tuple[int, int, int],
    finish: Callable[[], None],
) -> None:
    context, staging = stream.context, stream.context.device.staging
    tell: Promise = context.promises.make(done)

    def passed() -> None:
        # Of a context that has ended nobody looks any more, and the client's memory may be another's.
        if context.outcome.code is Result.SUCCESS:
            finish()
        if slot is not None:
            staging.give(slot)
        tell(Outcome())

    def issue() -> None:
        context.device.driver.call(function, *operands, stream.handle)
        stream.watch(stream.point(), passed)

    try:
        stream.put(issue)
    except BackendError:
        context.promises.take(tell)
        if slot is not None:
            staging.give(slot)
        raise
