"""Handles, which a client allocates: ``generation << 40 | count``, one table for each kind of object."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FIRST_HANDLE, GENERATION_SHIFT, Kind
from pympsd_server.backends.interface import BackendError
from pympsd_server.native.mirror import NativeMirror

MAX_HANDLES: Final = 1 << 14
"""The most objects of one kind in a context: each costs the executor memory."""
_COUNT_MASK: Final = (1 << GENERATION_SHIFT) - 1
_T = TypeVar("_T")


@define(eq=False)
class HandleTable(Generic[_T]):
    """The objects of one kind in one context. The operation that removes an object destroys it."""

    _kind: Kind
    _generation: int
    _objects: dict[int, _T] = field(factory=dict, init=False)
    mirror: NativeMirror | None = field(default=None, init=False)

    def check_new(self, handle: int) -> None:
        """Raise BackendError unless a handle may be allocated: INVALID_HANDLE, INVALID_VALUE if it is in use."""
        if handle >> GENERATION_SHIFT != self._generation or handle & _COUNT_MASK < FIRST_HANDLE:
            raise self._unknown(handle)
        if handle in self._objects:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"{self._kind.value} {handle:#x} exists")
        if len(self._objects) >= MAX_HANDLES:
            reason = f"a context has at most {MAX_HANDLES} of the kind {self._kind.value}"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)

    def add(self, handle: int, entry: _T) -> None:
        """Enter an object whose handle ``check_new`` has passed."""
        self._objects[handle] = entry
        if self.mirror is not None:
            self.mirror.add(self._kind, handle, entry)

    def __getitem__(self, handle: int) -> _T:
        """Return an object; BackendError INVALID_HANDLE."""
        try:
            return self._objects[handle]
        except KeyError:
            raise self._unknown(handle) from None

    def take(self, handle: int) -> _T:
        """Remove an object and return it; BackendError INVALID_HANDLE."""
        entry = self[handle]
        del self._objects[handle]
        if self.mirror is not None:
            self.mirror.remove(self._kind, handle)
        return entry

    def __iter__(self) -> Iterator[_T]:
        return iter(self._objects.values())

    def _unknown(self, handle: int) -> BackendError:
        generation, kind = handle >> GENERATION_SHIFT, self._kind.value
        if generation != self._generation:
            reason = f"{kind} {handle:#x} is of executor generation {generation}, not {self._generation}"
        else:
            reason = f"{kind} {handle:#x} is not known in this context"
        return BackendError(Result.ERROR_INVALID_HANDLE, reason)
