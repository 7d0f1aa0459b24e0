"""Messages between the daemon and a server, over the registration socket the server inherits."""

from __future__ import annotations

from attrs import frozen

from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.wire.messages import message
from pympsd.wire.versions import Versions


@message(32)
@frozen
class ServerHello:
    """The server's first word."""

    versions: Versions
    pid: int


@message(33)
@frozen
class ServerSetup:
    """What a server works with: its user, its devices and the limits it starts with."""

    uid: int
    control_socket: str
    backend: str
    devices: tuple[DeviceFacts, ...]
    thread_percentage: float
    client_priority: int
    memory_limits: dict[int, int]
    """Bytes by device ordinal: the most each client of this server may hold there."""
    door: str = ""
    """The full path of the daemon's socket, where to knock when its link ends; empty: nowhere."""
    machine: str = ""
    """As PYMPSD_EMULATED_DEVICES describes it, with a path that is absolute: beside it its state is found."""


@message(34)
@frozen
class StatusChanged:
    """The server's status, pushed whenever it changes; the daemon never asks."""

    status: str


@message(35)
@frozen
class AdmitClient:
    """Comes with 2 fds: the server's end of the session and a pidfd of the client (1 where none can be had)."""

    client: int
    pid: int
    uid: int
    gid: int
    command: str
    priority: int
    environment: dict[str, str]
    namespace: int = 0
    """The inode of its PID namespace; a server tells it to the next daemon."""


@message(36)
@frozen
class ContextReported:
    """A client has made a context."""

    client: int
    serial: int
    number: int
    """Counts the process's contexts from 1."""
    device: int


@message(37)
@frozen
class ContextGone:
    """A context is gone and what it held freed."""

    client: int
    serial: int


@message(38)
@frozen
class ClientGone:
    """A client process is gone from the server; when none is left the daemon may pass the turn on."""

    client: int


@message(39)
@frozen
class ShutDown:
    """Leave: when the last client has gone, or (forced) at once."""

    forced: bool


@message(40)
@frozen
class LogRecord:
    """A line for server.log: an event of the catalogue with its fields, at a time in seconds since the epoch."""

    event: str
    fields: dict[str, str | int | float]
    time: float


@message(41)
@frozen
class LogDropped:
    """The link was full and so many records were dropped."""

    count: int


@message(42)
@frozen
class LimitsChanged:
    """The limits of the server's later clients: a percentage, and bytes by device ordinal."""

    thread_percentage: float
    memory_limits: dict[int, int]


@message(43)
@frozen
class TerminateClient:
    """End all contexts of the client process with this PID; Terminated answers, with the same token."""

    token: int
    pid: int
    by_reset: bool = False
    """What does not stop is ended with its device, as by a fatal fault of it."""


@message(44)
@frozen
class Terminated:
    """How a termination ended: a CUresult number."""

    token: int
    code: int


# --- a server whose daemon died, at the door of the next one. Builds of other versions have to read these four.


@message(45)
@frozen
class StartRefused:
    """Why the server cannot start; its end follows."""

    reason: str


@message(52)
@frozen
class ServerReturn:
    """The first word on `control` of a server that an earlier daemon started; so many ReturningClient follow."""

    versions: Versions
    pid: int
    status: str
    leaving: bool
    """It was told to leave, and goes with its last client."""
    clients: int


@message(53)
@frozen
class ReturningClient:
    """A client of a server that returns, as the daemon before described it."""

    client: int
    pid: int
    uid: int
    command: str
    namespace: int
    contexts: tuple[tuple[int, int, int], ...]
    """(serial, number, device) of each, as in ContextReported."""


@message(54)
@frozen
class ServerAdopted:
    """The new daemon takes the server in: all goes on as on the link before."""


@message(55)
@frozen
class ServerDismissed:
    """The new daemon does not take the server in: it goes with its last client, without a daemon."""

    reason: str
