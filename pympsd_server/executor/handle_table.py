"""Handles that a client mints: ``generation << 40 | count``, one table for each kind of thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FIRST_HANDLE, GENERATION_SHIFT
from pympsd_server.backends.interface import BackendError

HANDLE_LIMIT: Final = 1 << 14
"""Things of one kind a context may have: each costs the executor memory of its own."""
_COUNT_MASK: Final = (1 << GENERATION_SHIFT) - 1
_T = TypeVar("_T")


class Watcher(Protocol):
    """Who is told what handles stand for."""

    def minted(self, kind: str, handle: int, thing: object) -> None:
        """A handle stands for something now."""

    def taken(self, kind: str, handle: int) -> None:
        """A handle stands for nothing any more."""


class HandleTable(Generic[_T]):
    """The streams, events or modules of one context."""

    def __init__(self, kind: str, generation: int) -> None:
        self._kind = kind
        self._generation = generation
        self._things: dict[int, _T] = {}
        self.watcher: Watcher | None = None

    def check_new(self, handle: int) -> None:
        """Raise BackendError unless a handle may be minted: INVALID_HANDLE, INVALID_VALUE when it is taken."""
        if handle >> GENERATION_SHIFT != self._generation or handle & _COUNT_MASK < FIRST_HANDLE:
            raise self._unknown(handle)
        if handle in self._things:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"{self._kind} {handle:#x} exists")
        if len(self._things) >= HANDLE_LIMIT:
            reason = f"a context has at most {HANDLE_LIMIT} of the kind {self._kind}"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)

    def mint(self, handle: int, thing: _T) -> None:
        """Enter a thing whose handle ``check_new`` has passed."""
        self._things[handle] = thing
        if self.watcher is not None:
            self.watcher.minted(self._kind, handle, thing)

    def __getitem__(self, handle: int) -> _T:
        """Return a thing; BackendError INVALID_HANDLE."""
        try:
            return self._things[handle]
        except KeyError:
            raise self._unknown(handle) from None

    def take(self, handle: int) -> _T:
        """Remove a thing and return it; BackendError INVALID_HANDLE."""
        thing = self[handle]
        del self._things[handle]
        if self.watcher is not None:
            self.watcher.taken(self._kind, handle)
        return thing

    def __iter__(self) -> Iterator[_T]:
        return iter(self._things.values())

    def _unknown(self, handle: int) -> BackendError:
        generation = handle >> GENERATION_SHIFT
        if generation != self._generation:
            reason = f"{self._kind} {handle:#x} is of executor generation {generation}, not {self._generation}"
        else:
            reason = f"{self._kind} {handle:#x} is not known in this context"
        return BackendError(Result.ERROR_INVALID_HANDLE, reason)
