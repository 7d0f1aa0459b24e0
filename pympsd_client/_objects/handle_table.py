"""Tables of the program's objects by handle, one for each kind; a table drops the objects of a closed context."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from pympsd.wire.records import OPERATIONS, Kind, Use
from pympsd_client._arguments.errors import invalid_handle
from pympsd_client._command_stream.operations import OperationLayout
from pympsd_client._objects.context import Context, current, when_closed

next_buffer_id: Final = count(1).__next__
"""Returns an id of memory that no other memory of this process has or had."""


class Owned(Protocol):
    """An object with a handle that belongs to a context.

    An object in a `HandleTable`: a stream, an event, a module, or an allocation by its address.
    """

    @property
    def handle(self) -> int:
        """The handle with which the program names it."""

    @property
    def context(self) -> Context:
        """The context it is destroyed with."""


T = TypeVar("T", bound=Owned)
_DESTROY: Final = {
    operand.kind: OperationLayout(row.name)
    for row in OPERATIONS
    for operand in row.operands
    if operand.use is Use.DESTROYED
}
"""The wire's operation that destroys an object, by its kind."""


class HandleTable(Generic[T]):
    """Objects of one kind by handle. Thread-safe: each step is a single one of a dictionary's.

    An object whose context closes is dropped: its handle is invalid then. ``get`` is the dictionary's own method, for
    callers that look up often and handle a missing object themselves.
    """

    def __init__(self, noun: str, why_missing: str, kind: Kind | None = None) -> None:
        """``noun`` and ``why_missing`` are words of the refusal; ``kind`` names the wire's destroy operation."""
        self._noun: Final = f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
        self._why_missing: Final = why_missing
        self._objects: Final[dict[int, T]] = {}
        self._destroy: Final = None if kind is None else _DESTROY[kind]
        self.get: Final = self._objects.get
        when_closed.append(self._drop)

    def add(self, owned: T) -> T:
        """Enter an object under its handle and return it."""
        self._objects[owned.handle] = owned
        return owned

    def find(self, handle: int) -> T:
        """Return the object of a handle.

        Raise INVALID_HANDLE, which names the kind of object and the likely reason; or the error of a current context
        that cannot be used, because that error explains more.
        """
        owned = self._objects.get(handle)
        if owned is None:
            current().usable()
            raise invalid_handle(f"{handle:#x} is not {self._noun} of this process ({self._why_missing})")
        return owned

    def remove(self, handle: int) -> T | None:
        """Take an object out; return it, or None if there was none."""
        return self._objects.pop(handle, None)

    def put_back(self, owned: T) -> None:
        """Put back an object that was taken out, unless its handle now names another object.

        Used when freeing has failed: the program may try again.
        """
        self._objects.setdefault(owned.handle, owned)

    @contextmanager
    def take_out(self, owned: T) -> Iterator[None]:
        """Take an object out for a block that frees it, and enter it again if the block fails.

        It is taken out first: once it is free another thread may be given the same handle. INVALID_HANDLE if another
        thread has taken it out.
        """
        if self.remove(owned.handle) is None:
            raise invalid_handle(f"{owned.handle:#x} has been destroyed by another thread")
        try:
            yield
        except BaseException:
            self.put_back(owned)
            raise

    def destroy(self, owned: T) -> None:
        """Ask the executor to destroy an object; take it out once the record is sent, or answered.

        Raises CudaError if the executor refuses, in which case the handle stays valid; TypeError for a table without
        a kind on the wire.
        """
        if self._destroy is None:
            raise TypeError(f"the wire has no operation that destroys {self._noun}")
        (owned.context.call if self._destroy.answered else owned.context.post)(self._destroy, owned.handle)
        self.remove(owned.handle)

    def list_all(self) -> tuple[T, ...]:
        """Return the objects of all contexts."""
        return tuple(self._objects.values())

    def clear(self) -> None:
        """Take everything out."""
        self._objects.clear()

    def _drop(self, context: Context) -> None:
        for owned in self.list_all():
            if owned.context is context:
                self.remove(owned.handle)
