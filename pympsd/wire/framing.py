"""Frames out of a byte stream, however it was cut, with the file descriptors that came along."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from attrs import define, field, frozen

from pympsd.wire import frames
from pympsd.wire.errors import RemoteError


@frozen
class Frame:
    """One whole frame and the descriptors that belong to it (the receiver owns them now)."""

    kind: int
    body: bytes
    fds: tuple[int, ...] = ()


@define
class FrameReader:
    """Collects bytes and descriptors, gives whole frames.

    ``body_limit`` in bytes; ``fds_allowed`` is how many descriptors one frame may bring (doors that strangers
    reach: 0). The owner closes what ``take_unclaimed_fds`` returns when the conversation ends.
    """

    body_limit: int = frames.BODY_LIMIT
    fds_allowed: int = 0
    _buffer: bytearray = field(factory=bytearray, init=False)
    _fds: deque[int] = field(factory=deque, init=False)

    def feed(self, data: bytes, fds: tuple[int, ...] = ()) -> Iterator[Frame]:
        """Take what one receive gave; yield each frame it completes. Raise RemoteError on a broken rule."""
        self._buffer += data
        self._fds.extend(fds)
        if fds and not self.fds_allowed:
            raise RemoteError("file descriptors are not accepted here")
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if len(self._buffer) < frames.HEADER_BYTES:
            return None
        length, kind, fd_count = frames.decode_header(bytes(self._buffer[: frames.HEADER_BYTES]))
        if length > self.body_limit:
            raise RemoteError(f"a frame of {length} bytes is over the ceiling of {self.body_limit}")
        if fd_count > self.fds_allowed:
            raise RemoteError(f"a frame with {fd_count} file descriptors, {self.fds_allowed} are allowed here")
        end = frames.HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        if fd_count > len(self._fds):
            raise RemoteError(f"a frame states {fd_count} file descriptors and brought {len(self._fds)}")
        body = bytes(self._buffer[frames.HEADER_BYTES : end])
        del self._buffer[:end]
        return Frame(kind, body, tuple(self._fds.popleft() for _ in range(fd_count)))

    @property
    def in_the_middle(self) -> bool:
        """Whether a frame has begun and not ended: an end of file now is a broken conversation."""
        return bool(self._buffer)

    def take_unclaimed_fds(self) -> tuple[int, ...]:
        """Return descriptors that no frame claimed; the caller closes them."""
        unclaimed = tuple(self._fds)
        self._fds.clear()
        return unclaimed
