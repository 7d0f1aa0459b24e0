"""Define the messages between processes, a frozen class for each, and encode them as MessagePack bodies in frames.

This module has the messages between client and daemon and between client and server. Messages between server and
daemon are in ``link_messages``, messages between server and executor in ``executor_messages``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, dataclass_transform

import msgspec
from attrs import field, frozen

from pympsd.errors import LocalError, RemoteError
from pympsd.process.version import VERSION
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.wire import frames
from pympsd.wire.framing import Frame

_KINDS: Final[dict[int, type]] = {}
_KIND_OF: Final[dict[type, int]] = {}
_M = TypeVar("_M")


def register(kind: int) -> Callable[[type[_M]], type[_M]]:
    """Register a frozen class as the message of a kind."""

    def register_class(cls: type[_M]) -> type[_M]:
        number = frames.FIRST_MESSAGE_KIND + kind
        if number in _KINDS:
            raise LocalError(f"message kind {kind} is taken by {_KINDS[number].__name__}")
        _KINDS[number] = cls
        _KIND_OF[cls] = number
        return cls

    return register_class


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(kind: int) -> Callable[[type[_M]], type[_M]]:
    """Freeze a class and register it as the message of a kind.

    Decorate a class that inherits fields, or whose instances are evolved, with `register` and ``frozen`` instead:
    type checkers accept these uses only with attrs' own decorator.
    """
    return lambda plain: register(kind)(frozen(plain))


def encode(value: object, fds: int = 0) -> bytes:
    """Return the frame of a message that is sent with ``fds`` descriptors."""
    kind = _KIND_OF.get(type(value))
    if kind is None:
        raise LocalError(f"{type(value).__name__} is not a message")
    body = msgspec.msgpack.encode(value)
    if len(body) > frames.MAX_BODY:
        raise LocalError(f"{type(value).__name__} of {len(body)} bytes is over the maximum of {frames.MAX_BODY}")
    return frames.encode(kind, body, fds)


def decode(frame: Frame) -> Any:
    """Return the message in a frame; raise RemoteError for an unknown kind or a malformed body."""
    cls = _KINDS.get(frame.kind)
    if cls is None:
        raise RemoteError(f"unknown message kind {frame.kind}")
    try:
        return msgspec.msgpack.decode(frame.body, type=cls)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError(f"a malformed {cls.__name__}: {error}") from None


# --- client and daemon, on the control socket


@message(0)
class ClientHello:
    """A client connects. ``environment`` has its MPS and device variables, as far as the server uses them."""

    versions: Versions
    pid: int
    command: str
    pid_namespace: int
    environment: dict[str, str]
    traced: bool = False
    """The client runs under a debugger."""


@message(1)
class SessionGranted:
    """With 1 fd: the client's end of its session with the server."""

    version: int
    client: int
    server_pid: int


@message(2)
class Refused:
    """A CUresult number and a sentence for the user. Ends the conversation."""

    code: int
    reason: str


@message(3)
class GoWithoutMps:
    """A client under a debugger must continue without MPS, for the stated reason."""

    reason: str


# --- client and server, on the session


@message(8)
class SessionWelcome:
    """The server's first message: the devices this client sees, in its own numbering."""

    server_pid: int
    driver_version: int
    devices: tuple[DeviceProperties, ...]
    ordinals: tuple[int, ...]
    """Each device's ordinal among the daemon's devices; the ordinal determines the device's address window."""


@message(9)
class OpenContext:
    """The client requests a context on a device (an ordinal in its own numbering)."""

    request: int
    device: int
    flags: int = 0
    thread_percentage: float | None = None
    """The percentage in the client's environment at this time; used under per-context partitioning, and only if
    lower.
    """
    affinity: int | None = None
    """Execution affinity: the number of SMs to use of those that the context may use; rounded up."""
    partition: int | None = None
    """The exact number of SMs of a green context."""
    percentages: str = ""
    """The environment's percentages by device, such as ``0=50,1=25``; empty if it has a single number."""


@message(10)
class ContextOpened:
    """With 2 fds, stream and shared memory, for the process's first context at that executor."""

    request: int
    context: int
    """The server's id of the context; records name the context by this id."""
    generation: int
    """The executor's generation: handles allocated for another generation are refused."""
    multiprocessors: int
    memory_bytes: int
    """The total memory that cuMemGetInfo returns: the limit, or else the device's memory."""
    stream_priorities: tuple[int, int]
    """The least and the greatest priority, as cuCtxGetStreamPriorityRange returns them."""
    shared_bytes: int
    """The size in bytes of the shared memory for bulk data."""
    ring_bytes: int = 0
    """The size in bytes of the ring of records behind the bulk data (ring_layout); 0 if records are sent over the
    socket.
    """


@message(11)
class CloseContext:
    """The client destroys a context."""

    request: int
    context: int


@message(12)
class ContextClosed:
    """The answer to CloseContext: everything that the context held is freed."""

    request: int


@message(13)
class RequestRefused:
    """A session request failed; the session continues."""

    request: int
    """The number of the refused request; 0 if no request was refused and the session ends."""
    code: int
    reason: str


OLDEST: Final = 3
NEWEST: Final = 3
"""The newest version of the messages.

Version 2 orders the opcodes of the command stream by chapter, and adds rows to FILL. In version 3, ALLOCATE_PINNED
answers with an offset in a file, MAP_PEER, UNMAP_PEER and PUBLISH_WINDOW take an address, and PLACE_MANAGED takes
is_in_use.
"""
FEATURES: Final[tuple[str, ...]] = ("socket-transport",)


@frozen
class Versions:
    """The versions that each side announces in its hello."""

    oldest: int = OLDEST
    newest: int = NEWEST
    features: tuple[str, ...] = FEATURES
    build: str = VERSION


def agree(own: Versions, peer: Versions) -> int | None:
    """Return the newest version that both support, or None if the ranges do not overlap."""
    newest = min(own.newest, peer.newest)
    return newest if newest >= max(own.oldest, peer.oldest) else None
