"""One context of a client, as records use it: objects by handle, partial images, the error to deliver.

The client allocates handles: ``generation << 40 | count``. Each kind of object has a `HandleTable`.
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


MAX_IMAGE_BYTES: Final = 256 << 20
"""Bytes of partial images that one context may have."""
MAX_IMAGES: Final = 64


@define(eq=False)
class StreamEntry:
    """A stream, and the number of its unanswered operations not counted yet (see backpressure)."""

    backend: Stream
    uncounted: int = 0


class ClientContext:
    """Used by its client's worker thread; the deferred error is set by the compute thread too."""

    def __init__(self, backend: Context, generation: int) -> None:
        self.backend = backend
        self._tables: Final[dict[Kind, HandleTable[Any]]] = {kind: HandleTable(kind, generation) for kind in Kind}
        self.host_functions: dict[int, PendingHostFunction] = {}
        """The client's unfinished host functions, by its tokens."""
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

    def table(self, kind: Kind) -> HandleTable[Any]:
        """Return the objects of a kind; those of Kind.STREAM are StreamEntry."""
        return self._tables[kind]

    def stream(self, handle: int) -> StreamEntry:
        """Return a stream, 0 being the legacy default stream; BackendError INVALID_HANDLE."""
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
        """Keep an error that no call waits for, unless one is kept already."""
        with self._lock:
            if self._deferred is None:
                self._deferred = status
                if self._mirror is not None:
                    self._mirror.set_deferred(True)

    def take_deferred(self) -> Status | None:
        """Return and clear the error for the next waiting call."""
        if self._deferred is None:
            return None
        with self._lock:
            status, self._deferred = self._deferred, None
            if self._mirror is not None:
                self._mirror.set_deferred(False)
        return status


@define(eq=False)
class Images:
    """Images that are received in parts, by the handle their module will have."""

    _parts: dict[int, bytearray] = field(factory=dict, init=False)
    _bytes: int = field(default=0, init=False)

    def append(self, module: int, part: memoryview) -> None:
        """Add a part; BackendError OUT_OF_MEMORY if partial images become too many or too large."""
        if self._bytes + part.nbytes > MAX_IMAGE_BYTES:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"images on their way exceed {MAX_IMAGE_BYTES} bytes")
        if module not in self._parts and len(self._parts) >= MAX_IMAGES:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"more than {MAX_IMAGES} images are on their way")
        self._parts.setdefault(module, bytearray()).extend(part)
        self._bytes += part.nbytes

    def take(self, module: int) -> bytes:
        """Return the complete image; BackendError INVALID_IMAGE if no part of it was received."""
        parts = self._parts.pop(module, None)
        if parts is None:
            raise BackendError(Result.ERROR_INVALID_IMAGE, f"no image came for module {module:#x}")
        self._bytes -= len(parts)
        return bytes(parts)
