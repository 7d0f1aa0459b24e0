"""Tables of the program's objects by handle, one for each kind. A table drops the objects of a closed context."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from pympsd.vocabulary.results import Result
from pympsd.wire.records import OPERATIONS, Kind, Use
from pympsd_client._arguments.errors import CudaError, invalid_handle
from pympsd_client._command_stream.operations import OperationLayout
from pympsd_client._objects.context import Context, current, this_thread, when_closed

next_buffer_id: Final = count(1).__next__
"""Return a new id for memory, never used before in this process."""


class Owned(Protocol):
    """An object in a `HandleTable`, with a handle and a context: a stream, an event, a module or an allocation."""

    @property
    def handle(self) -> int:
        """The handle by which the program names the object; for an allocation, its address."""

    @property
    def context(self) -> Context:
        """The context with which the object is destroyed."""


T = TypeVar("T", bound=Owned)
_DESTROY: Final = {
    operand.kind: OperationLayout(row.name)
    for row in OPERATIONS
    for operand in row.operands
    if operand.use is Use.DESTROYED
}
"""The wire's operation that destroys an object, by its kind."""


class HandleTable(Generic[T]):
    """Objects of one kind by handle. Thread-safe, because each step is a single operation of a dictionary.

    When a context closes, its objects are dropped and their handles become invalid. ``get`` is the dictionary's own
    method, for callers that look up often and handle a missing object themselves.
    """

    def __init__(
        self, noun: str, why_missing: str, kind: Kind | None = None, *, remembers_contexts: bool = False
    ) -> None:
        """``noun`` and ``why_missing`` complete the error for a missing object; ``kind`` selects the operation that
        destroys one. With ``remembers_contexts`` the table keeps the handles of objects that ended with their
        contexts, whose error is another one.
        """
        self._noun: Final = f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
        self._why_missing: Final = why_missing
        self._objects: Final[dict[int, T]] = {}
        self._destroy: Final = None if kind is None else _DESTROY[kind]
        self.get: Final = self._objects.get
        self._remembers_contexts: Final = remembers_contexts
        self._ended: Final[set[int]] = set()
        """The handles of objects that ended with their contexts; handles are unique."""
        when_closed.append(self._drop)

    def add(self, owned: T) -> T:
        """Enter an object under its handle and return it."""
        self._objects[owned.handle] = owned
        return owned

    def find(self, handle: int) -> T:
        """Return the object of a handle.

        Raise INVALID_HANDLE, which names the kind of object and the likely reason, even if no context is current (as
        recorded on an H200); or the error of a current context that cannot be used, because that error explains more;
        or CONTEXT_IS_DESTROYED for an object that ended with its context, if the table remembers these.
        """
        owned = self._objects.get(handle)
        if owned is None:
            if handle in self._ended:
                raise CudaError(
                    Result.ERROR_CONTEXT_IS_DESTROYED, f"the context of {handle:#x}, {self._noun}, was destroyed"
                )
            if this_thread.stack:
                current().usable()
            raise invalid_handle(f"{handle:#x} is not {self._noun} of this process ({self._why_missing})")
        return owned

    def remove(self, handle: int) -> T | None:
        """Remove the object with a handle and return it; return None if the table does not have it."""
        return self._objects.pop(handle, None)

    def put_back(self, owned: T) -> None:
        """Put back an object that could not be freed, unless its handle now names another object."""
        self._objects.setdefault(owned.handle, owned)

    @contextmanager
    def take_out(self, owned: T) -> Iterator[None]:
        """Remove an object for a block that frees it, and put it back if the block raises.

        It is removed first, because another thread may get the same handle as soon as the object is free. Raise
        INVALID_HANDLE if another thread has removed the object.
        """
        if self.remove(owned.handle) is None:
            raise invalid_handle(f"{owned.handle:#x} has been destroyed by another thread")
        try:
            yield
        except BaseException:
            self.put_back(owned)
            raise

    def destroy(self, owned: T) -> None:
        """Ask the executor to destroy an object, and remove it once the record is sent and, if necessary, answered.

        Raise CudaError if the executor refuses; the handle then stays valid. Raise TypeError for a table without a
        kind.
        """
        if self._destroy is None:
            raise TypeError(f"the wire has no operation that destroys {self._noun}")
        (owned.context.call if self._destroy.answered else owned.context.post)(self._destroy, owned.handle)
        self.remove(owned.handle)

    def list_all(self) -> tuple[T, ...]:
        """Return the objects of all contexts."""
        return tuple(self._objects.values())

    def clear(self) -> None:
        """Remove all objects."""
        self._objects.clear()

    def _drop(self, context: Context) -> None:
        for owned in self.list_all():
            if owned.context is context:
                self.remove(owned.handle)
                if self._remembers_contexts:
                    self._ended.add(owned.handle)
