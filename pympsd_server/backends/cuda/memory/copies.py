"""Copies between the host and the device, which never keep a worker until they are done.

Small ones go through a slot of the executor's registered memory, large ones directly from and to the client's shared
memory once that is registered. Page-locked memory that a client shares is the device's to read and write itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import cu
from pympsd_server.backends.cuda.memory.address_ranges import registered_parts
from pympsd_server.backends.cuda.memory.staging import DIRECT_BYTES, Slot, address_of
from pympsd_server.backends.cuda.submission.completions import Promise
from pympsd_server.backends.interface import Completion, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pympsd_server.backends.cuda.objects.stream import CudaStream

_NEAR_BYTES: Final = 1 << 20


def to_device(stream: CudaStream, destination: int, source: memoryview, done: Completion) -> None:
    """Copy host bytes, whose place was checked, to the device."""
    if not source.nbytes:
        stream.notify(done)
        return
    count, slot = source.nbytes, _slot(stream, source)
    if slot is not None:
        slot.view[:] = source.cast("B")
    address = slot.address if slot is not None else address_of(source)

    def issue() -> None:
        stream.context.device.driver.call(cu.cuMemcpyHtoDAsync, destination, address, count, stream.handle)

    _Passage(stream, issue, _giving(stream, slot)).put(done)


def from_device(stream: CudaStream, target: memoryview, source: int, done: Completion) -> None:
    """Copy device bytes, whose place was checked, to the host."""
    if not target.nbytes:
        stream.notify(done)
        return
    count, slot = target.nbytes, _slot(stream, target)
    address = slot.address if slot is not None else address_of(target)

    def issue() -> None:
        stream.context.device.driver.call(cu.cuMemcpyDtoHAsync, address, source, count, stream.handle)

    def finish() -> None:
        if slot is not None:
            target.cast("B")[:] = slot.view

    _Passage(stream, issue, _giving(stream, slot), finish).put(done)


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
    scratches = device.staging.scratches
    scratch = scratches.take(stream, count)

    def through() -> None:
        for start, length in _pieces(count, scratch.size, destination > source):
            move(scratch.address, source + start, length)
            move(destination + start, scratch.address, length)

    _Passage(stream, through, lambda: scratches.give(scratch)).put(lambda outcome: None)


def _pieces(count: int, longest: int, backwards: bool) -> list[tuple[int, int]]:
    starts = range(0, count, longest)
    return [(start, min(longest, count - start)) for start in (reversed(starts) if backwards else starts)]


def _slot(stream: CudaStream, view: memoryview) -> Slot | None:
    """Return a slot for a copy, None when the device reaches the bytes themselves and they are many."""
    if view.nbytes > DIRECT_BYTES and stream.context.space.registered.reaches(view):
        return None
    return stream.context.device.staging.take(view.nbytes, stream.context.space)


def _giving(stream: CudaStream, slot: Slot | None) -> Callable[[], None]:
    staging = stream.context.device.staging
    return lambda: staging.give(slot) if slot is not None else None


class _Passage:
    """A copy through something that is given back once: when the device is done with it, or never will begin.

    What is held by a function of the client's is never issued when its context ends before, and nobody hears of it
    but by the promise.
    """

    def __init__(
        self,
        stream: CudaStream,
        work: Callable[[], None],
        give_back: Callable[[], None],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        """``work`` gives the copy to the driver; ``finish`` comes behind it, unless the context has ended."""
        self._stream = stream
        self._work = work
        self._give_back = give_back
        self._finish = finish
        self._unissued = [True]
        """Who takes it out, in one step, issues the copy or gives back what it would have passed through."""

    def put(self, done: Completion) -> None:
        """Put it in its stream; ``done`` is told when it is over."""
        promises = self._stream.context.promises

        def told(outcome: Outcome) -> None:
            if outcome.code is not Result.SUCCESS:
                self._drop()
            done(outcome)

        tell = promises.make(told)
        try:
            self._stream.put(lambda: self._issue(tell))
        except BaseException:
            self._drop()
            if promises.take(tell):  # else it was told of the context's end
                raise

    def _issue(self, tell: Promise) -> None:
        if not self._is_first():
            return
        try:
            self._work()
            self._stream.watch(self._stream.point(), lambda: self._passed(tell))
        except BaseException:
            # Some of it may be under way, and there is no point that tells when it is done.
            self._stream.context.device.janitor.add(self._stream.is_settled, self._give_back)
            raise

    def _passed(self, tell: Promise) -> None:
        try:
            # Of a context that has ended nobody looks any more, and the client's memory may be another's.
            if self._stream.context.outcome.code is Result.SUCCESS:
                self._finish()
        finally:
            try:
                self._give_back()
            finally:
                tell(Outcome())

    def _drop(self) -> None:
        # By the janitor: a context may end in the midst of a call that holds the locks which giving back takes.
        if self._is_first():
            self._stream.context.device.janitor.add(lambda: True, self._give_back)

    def _is_first(self) -> bool:
        try:
            self._unissued.pop()
        except IndexError:
            return False
        return True
