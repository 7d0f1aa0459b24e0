"""Extract frames and their file descriptors from a byte stream that is received in any chunks."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from attrs import define, field, frozen

from pympsd.errors import RemoteError
from pympsd.wire import frames


@frozen
class Frame:
    """One complete frame and its descriptors, which the receiver owns."""

    kind: int
    body: bytes
    fds: tuple[int, ...] = ()
    fds_lost: bool = False
    """Whether descriptors were lost: the receiver had no space for them, and the kernel has closed them."""


@define
class FrameReader:
    """Collects bytes and descriptors and returns complete frames.

    ``body_limit``: the maximum size of a body in bytes; ``fds_allowed``: the maximum number of a frame's descriptors
    (0 on public sockets). When the conversation ends, the owner closes the descriptors from ``take_unclaimed_fds``.
    """

    body_limit: int = frames.MAX_BODY
    fds_allowed: int = 0
    _buffer: bytearray = field(factory=bytearray, init=False)
    _fds: deque[int | None] = field(factory=deque, init=False)
    """The descriptors that no frame has claimed yet.

    None stands for all descriptors of a frame that has lost them.
    """

    def feed(self, data: bytes, fds: tuple[int, ...] = (), lost: bool = False) -> Iterator[Frame]:
        """Add the result of one receive; yield each frame that it completes. Raise RemoteError for a malformed frame.

        ``lost``: descriptors were lost (MSG_CTRUNC). One receive returns descriptors of one frame only.
        """
        self.add(data, fds, lost)
        while (frame := self.take()) is not None:
            yield frame

    def add(self, data: bytes, fds: tuple[int, ...] = (), lost: bool = False) -> None:
        """Add the result of one receive, as ``feed`` does; ``take`` returns the frames."""
        self._buffer += data
        self._fds.extend((None,) if lost else fds)
        if fds and not self.fds_allowed:
            raise RemoteError("file descriptors are not accepted here")

    def take(self) -> Frame | None:
        """Return the next complete frame; None if it has not arrived yet. Raise RemoteError for a malformed frame."""
        if len(self._buffer) < frames.HEADER_BYTES:
            return None
        length, kind, fd_count = frames.decode_header(bytes(self._buffer[: frames.HEADER_BYTES]))
        if length > self.body_limit:
            raise RemoteError(f"a frame of {length} bytes is over the maximum of {self.body_limit}")
        if fd_count > self.fds_allowed:
            raise RemoteError(f"a frame with {fd_count} file descriptors, {self.fds_allowed} are allowed here")
        end = frames.HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        lost = bool(fd_count and self._fds and self._fds[0] is None)
        fds = () if lost else tuple(fd for fd in islice(self._fds, fd_count) if fd is not None)
        if len(fds) < fd_count and not lost:
            raise RemoteError(f"a frame states {fd_count} file descriptors and brought {len(fds)}")
        body = bytes(self._buffer[frames.HEADER_BYTES : end])
        del self._buffer[:end]
        for _ in range(1 if lost else fd_count):
            self._fds.popleft()
        return Frame(kind, body, fds, lost)

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that were added and not taken yet."""
        return len(self._buffer)

    @property
    def mid_frame(self) -> bool:
        """Return whether part of a frame has arrived, so that an end of file is an error.

        Call it after ``take`` returned None.
        """
        return bool(self._buffer)

    def take_unclaimed_fds(self) -> tuple[int, ...]:
        """Remove and return the descriptors that no frame has claimed; the caller closes them."""
        unclaimed = tuple(fd for fd in self._fds if fd is not None)
        self._fds.clear()
        return unclaimed
