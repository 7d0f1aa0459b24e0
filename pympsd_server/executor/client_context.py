"""One context of a client, as its records see it: things by handle, images on their way, the error to deliver."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Context, Event, HostCall, Module, Outcome, Stream
from pympsd_server.executor.handle_table import HandleTable

if TYPE_CHECKING:
    from pympsd_server.executor.native_mirror import Outside

IMAGE_LIMIT: Final = 256 << 20
"""Bytes of images that one context may have on their way."""
IMAGE_COUNT_LIMIT: Final = 64


@define(eq=False)
class StreamEntry:
    """A stream, and how many of its unanswered operations nobody has counted yet (see work_limit)."""

    backend: Stream
    uncounted: int = 0


class ClientContext:
    """Used by its client's worker thread; the deferred error is set by the compute thread too."""

    def __init__(self, backend: Context, generation: int) -> None:
        self.backend = backend
        self.streams: HandleTable[StreamEntry] = HandleTable("stream", generation)
        self.events: HandleTable[Event] = HandleTable("event", generation)
        self.modules: HandleTable[Module] = HandleTable("module", generation)
        self.host_calls: dict[int, HostCall] = {}
        """Functions of the client's that are not done, by its tokens."""
        self.images = Images()
        self._default = StreamEntry(backend.default_stream)
        self._lock = Lock()
        self._deferred: Outcome | None = None
        self._outside: Outside | None = None

    def go_outside(self, outside: Outside) -> None:
        """Plain records of it are executed outside the interpreter from now on."""
        self._outside = outside
        for table in (self.streams, self.modules):
            table.watcher = outside

    def abandon(self) -> None:
        """Execute nothing of it any more; ``destroy`` is to follow."""
        if self._outside is not None:
            self._outside.close()
        self.backend.abandon()

    def destroy(self) -> None:
        """Execute nothing of it any more, and free what it holds."""
        if self._outside is not None:
            self._outside.close()
        self.backend.destroy()

    def stream(self, handle: int) -> StreamEntry:
        """Return a stream, 0 being the legacy default stream; BackendError INVALID_HANDLE."""
        return self.streams[handle] if handle else self._default

    def defer(self, outcome: Outcome) -> None:
        """Keep an error nobody waits for; the first one counts."""
        with self._lock:
            if self._deferred is None:
                self._deferred = outcome
                if self._outside is not None:
                    self._outside.deferred(True)

    def take_deferred(self) -> Outcome | None:
        """Return the error that the next waiting call delivers, once."""
        if self._deferred is None:
            return None
        with self._lock:
            outcome, self._deferred = self._deferred, None
            if self._outside is not None:
                self._outside.deferred(False)
        return outcome


@define(eq=False)
class Images:
    """Images that arrive in parts, by the handle of the module they will be."""

    _parts: dict[int, bytearray] = field(factory=dict, init=False)
    _bytes: int = field(default=0, init=False)

    def append(self, module: int, part: memoryview) -> None:
        """Add a part; BackendError OUT_OF_MEMORY when too much is on its way."""
        if self._bytes + part.nbytes > IMAGE_LIMIT:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"images on their way exceed {IMAGE_LIMIT} bytes")
        if module not in self._parts and len(self._parts) >= IMAGE_COUNT_LIMIT:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"more than {IMAGE_COUNT_LIMIT} images are on their way")
        self._parts.setdefault(module, bytearray()).extend(part)
        self._bytes += part.nbytes

    def take(self, module: int) -> bytes:
        """Return the whole image; BackendError INVALID_IMAGE when no part came."""
        parts = self._parts.pop(module, None)
        if parts is None:
            raise BackendError(Result.ERROR_INVALID_IMAGE, f"no image came for module {module:#x}")
        self._bytes -= len(parts)
        return bytes(parts)
