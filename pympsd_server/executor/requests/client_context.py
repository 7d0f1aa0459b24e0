"""A context of a client, as records use it: objects by handle, partial images, and the error to deliver.

The client allocates the handles, ``generation << 40 | count``. Each kind of object has an `ObjectTable`.
"""

from collections.abc import Iterator
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FIRST_HANDLE, GENERATION_SHIFT, Kind
from pympsd_server.backends.interface import BackendError, Context, PendingHostFunction, Status, Stream
from pympsd_server.native.mirror import NativeMirror

MAX_HANDLES: Final = 1 << 14
"""The maximum number of objects of one kind in a context, because each takes the executor's memory."""
_COUNT_MASK: Final = (1 << GENERATION_SHIFT) - 1
_T = TypeVar("_T")


@define(eq=False)
class ObjectTable(Generic[_T]):
    """The objects of one kind in one context. The operation that removes an object destroys it."""

    _kind: Kind
    _generation: int
    _objects: dict[int, _T] = field(factory=dict, init=False)
    mirror: NativeMirror | None = field(default=None, init=False)

    def check_new(self, handle: int) -> None:
        """Raise BackendError for a handle that may not be allocated.

        The error is INVALID_VALUE if the handle is in use, OUT_OF_MEMORY if the context has MAX_HANDLES objects of
        the kind, and otherwise INVALID_HANDLE.
        """
        if handle >> GENERATION_SHIFT != self._generation or handle & _COUNT_MASK < FIRST_HANDLE:
            raise self._unknown(handle)
        if handle in self._objects:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"{self._kind.value} {handle:#x} exists")
        if len(self._objects) >= MAX_HANDLES:
            reason = f"a context has at most {MAX_HANDLES} of the kind {self._kind.value}"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)

    def add(self, handle: int, entry: _T) -> None:
        """Add an object, whose handle ``check_new`` must have accepted."""
        self._objects[handle] = entry
        if self.mirror is not None:
            self.mirror.add(self._kind, handle, entry)

    def __getitem__(self, handle: int) -> _T:
        """Return the object of a handle. Raise BackendError with INVALID_HANDLE."""
        try:
            return self._objects[handle]
        except KeyError:
            raise self._unknown(handle) from None

    def take(self, handle: int) -> _T:
        """Remove the object of a handle and return it. Raise BackendError with INVALID_HANDLE."""
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


MAX_IMAGE_BYTES: Final = 256 << 20
"""The maximum number of bytes of partial images in a context."""
MAX_IMAGES: Final = 64


@define(eq=False)
class StreamEntry:
    """A stream, and the number of its operations without an answer that are not counted yet (see `backpressure`)."""

    backend: Stream
    uncounted: int = 0


class ClientContext:
    """A context of a client.

    Only the client's worker uses it, except that the compute thread may also set the deferred error.
    """

    def __init__(self, backend: Context, generation: int) -> None:
        self.backend = backend
        self._tables: Final[dict[Kind, ObjectTable[Any]]] = {kind: ObjectTable(kind, generation) for kind in Kind}
        self.host_functions: dict[int, PendingHostFunction] = {}
        """The client's unfinished host functions, by token."""
        self.images = Images()
        self._default = StreamEntry(backend.default_stream)
        self._lock = Lock()
        self._deferred: Status | None = None
        self._mirror: NativeMirror | None = None

    def attach_mirror(self, mirror: NativeMirror) -> None:
        """Keep a mirror of the context up to date from now on."""
        self._mirror = mirror
        for table in self._tables.values():
            table.mirror = mirror

    def table(self, kind: Kind) -> ObjectTable[Any]:
        """Return the table of a kind of objects. Objects of Kind.STREAM are instances of StreamEntry."""
        return self._tables[kind]

    def stream(self, handle: int) -> StreamEntry:
        """Return a stream; 0 is the legacy default stream. Raise BackendError with INVALID_HANDLE."""
        return self._tables[Kind.STREAM][handle] if handle else self._default

    def abandon(self) -> None:
        """Stop executing records of the context; ``destroy`` must follow."""
        if self._mirror is not None:
            self._mirror.close()
        self.backend.abandon()

    def destroy(self) -> None:
        """Stop executing records of the context, and free its resources."""
        if self._mirror is not None:
            self._mirror.close()
        for graph in self._tables[Kind.GRAPH]:
            graph.release()
        self.backend.destroy()

    def defer(self, status: Status) -> None:
        """Keep the error of a call that nobody waits for, unless an earlier error is kept."""
        with self._lock:
            if self._deferred is None:
                self._deferred = status
                if self._mirror is not None:
                    self._mirror.set_deferred(True)

    def take_deferred(self) -> Status | None:
        """Return and clear the error for the next call that waits."""
        if self._deferred is None:
            return None
        with self._lock:
            status, self._deferred = self._deferred, None
            if self._mirror is not None:
                self._mirror.set_deferred(False)
        return status


@define(eq=False)
class Images:
    """The incomplete images, which arrive in parts, by the handle that the module will have."""

    _parts: dict[int, bytearray] = field(factory=dict, init=False)
    _bytes: int = field(default=0, init=False)

    def append(self, module: int, part: memoryview) -> None:
        """Add a part. Raise BackendError with OUT_OF_MEMORY if partial images become too many or too large."""
        if self._bytes + part.nbytes > MAX_IMAGE_BYTES:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"incomplete images exceed {MAX_IMAGE_BYTES} bytes")
        if module not in self._parts and len(self._parts) >= MAX_IMAGES:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"more than {MAX_IMAGES} images are incomplete")
        self._parts.setdefault(module, bytearray()).extend(part)
        self._bytes += part.nbytes

    def take(self, module: int) -> bytes:
        """Remove and return a complete image. Raise BackendError with INVALID_IMAGE if no part was received."""
        parts = self._parts.pop(module, None)
        if parts is None:
            raise BackendError(Result.ERROR_INVALID_IMAGE, f"no image was sent for module {module:#x}")
        self._bytes -= len(parts)
        return bytes(parts)
