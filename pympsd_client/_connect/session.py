"""A session with an MPS server: the knock at the daemon's door, then contexts asked for and closed."""

from __future__ import annotations

import os
import socket
import struct
import warnings
from collections.abc import Callable, Mapping
from itertools import count
from threading import Lock
from typing import Any, Final

from attrs import evolve

from pympsd.build import build_id
from pympsd.channel.descriptors import close_all, require_room
from pympsd.vocabulary.identities import OVERFLOW_UID
from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING, BadLimit, ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.messages import (
    ClientHello,
    CloseContext,
    ContextClosed,
    ContextOpened,
    GoWithoutMps,
    OpenContext,
    Refused,
    RequestRefused,
    SessionGranted,
    SessionWelcome,
)
from pympsd.wire.versions import Versions
from pympsd_client._arguments.errors import CudaError, lost
from pympsd_client._command_stream.ring import ring_of
from pympsd_client._command_stream.staging_memory import SharedMemory
from pympsd_client._command_stream.transport import Transport
from pympsd_client._connect.api_version import check_api_version
from pympsd_client._connect.conversation import Conversation, Ended
from pympsd_client._connect.discovery import REQUIRE, command_line, control_socket, hello_environment, is_traced
from pympsd_client._objects.context import Device, Opened

WITH_ITS_SERVER_S: Final = 0.5
"""A server that ends closes its sessions and its executors' links in any order."""
WAIT_UNTOLD_S: Final = 10.0
"""A program that has waited so long for its server tells its user, once, what it waits for."""
_WHY_THE_DAEMON: Final = "others have their turn (control.log says who waits for whom), or it is stopped"
_FRAMES: Final = 8
"""From a wait at the door up to the program: knock, arrive, _reach_devices, initialize, cuInit's door (two)."""
_PEER_CREDENTIALS: Final = struct.Struct("3i")
_STREAM_FDS: Final = 4
"""A command stream comes as two descriptors; another thread may open some meanwhile."""


class Unanswered(CudaError):
    """The other side ended the conversation before its answer: it has died, and another may be there soon."""


class Unwelcomed(Unanswered):
    """The server that was granted ended the session before its welcome."""


def reach(environment: Mapping[str, str]) -> socket.socket | str:
    """Return a connection to the daemon's socket, or in words why there is none."""
    path = control_socket(environment)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        return f"no MPS control daemon at {path} ({error.strerror or error})"
    return connection


def knock(connection: socket.socket, environment: Mapping[str, str]) -> Session | str:
    """Ask the daemon for a session; waits as long as another user's turn lasts.

    Returns it, or in words why this process goes on without MPS: a debugger, after the other clients have left.
    Takes the connection over. Raises CudaError: the daemon's refusal, or MPS_CONNECTION_FAILED; Unanswered where the
    conversation only ended.
    """
    door = Conversation(connection)
    try:
        _check_owner(connection)
        hello = _hello(environment)
        if hello.traced and environment.get(REQUIRE) == "1":
            # Told at once what it would be told after the wait.
            return "this process runs under a debugger, for which there is no MPS server"
        door.send(hello)
        whom = f"the MPS control daemon at {control_socket(environment)}"
        answer, fds = _awaited(door, f"{whom}: {_WHY_THE_DAEMON}", _FRAMES)
    except Ended as error:
        reason = f"the MPS control daemon at {control_socket(environment)}: {error}; control.log may say why"
        raise _broken_off(door, reason) from None
    finally:
        door.close()
    if isinstance(answer, SessionGranted) and len(fds) == 1:
        per_context = environment.get(PER_CONTEXT_PARTITIONING) == "1"
        return Session(Conversation(socket.socket(fileno=fds[0])), per_context, answer.server_pid)
    close_all(fds)
    if isinstance(answer, GoWithoutMps):
        return answer.reason
    if isinstance(answer, Refused):
        raise CudaError(answer.code, answer.reason)
    raise _no_connection(f"the MPS control daemon answered with {type(answer).__name__}")


def _awaited(conversation: Conversation, whom: str, frames: int) -> tuple[Any, tuple[int, ...]]:
    """Receive what cuInit waits for; a wait that somebody else has to explain is made known.

    ``frames``: how many there are from here up to cuInit's caller, at whom the warning points.
    """
    try:
        return conversation.receive(WAIT_UNTOLD_S)
    except TimeoutError:
        warnings.warn(f"cuInit waits since {WAIT_UNTOLD_S:g} s for {whom}", RuntimeWarning, stacklevel=frames)
    return conversation.receive()


def _check_owner(connection: socket.socket) -> None:
    """A daemon of somebody else's would see and run our work: only root's and our own are trusted."""
    uid = _peer_uid(connection)
    if uid in (0, os.getuid()):
        return
    who = "a user of another user namespace" if uid == OVERFLOW_UID else f"uid {uid}"
    raise _no_connection(
        f"the MPS control daemon runs as {who}; only root's and your own (uid {os.getuid()}) is trusted: check "
        "CUDA_MPS_PIPE_DIRECTORY"
    )


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, uid, _ = _PEER_CREDENTIALS.unpack(credentials)
    return int(uid)


def _hello(environment: Mapping[str, str]) -> ClientHello:
    with open("/proc/self/cmdline", "rb") as file:
        command = command_line(file.read())
    return ClientHello(
        versions=evolve(Versions(), build=build_id()),
        pid=os.getpid(),
        command=command,
        pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
        environment=hello_environment(environment),
        traced=_traced(),
    )


def _traced() -> bool:
    with open("/proc/self/status", "rb") as file:
        return is_traced(file.read())


def _no_connection(reason: str) -> CudaError:
    return CudaError(Result.ERROR_MPS_CONNECTION_FAILED, reason)


def _broken_off(conversation: Conversation, reason: str, ended: type[Unanswered] = Unanswered) -> CudaError:
    kind = ended if conversation.over else CudaError
    return kind(Result.ERROR_MPS_CONNECTION_FAILED, reason)


class Session:
    """This process's session with its server; requests go one at a time. Safe for threads."""

    provisions = True

    def __init__(self, conversation: Conversation, per_context: bool = False, server_pid: int = 0) -> None:
        """Take the conversation over and wait for the server's welcome; raise CudaError.

        ``per_context``: the process began with partitioning of each context (MPS documents, 4.2.6).
        """
        self.per_context = per_context
        self._conversation: Final = conversation
        self._asking: Final = Lock()
        self._number: Final = count(1).__next__
        self._asked: Final[dict[int, Device]] = {}
        self._transports: Final[dict[int, Transport]] = {}
        self._lost: CudaError | None = None
        welcome = self._welcome(server_pid)
        self.driver_version: int = welcome.driver_version
        self.devices: tuple[Device, ...] = tuple(
            Device(number, ordinal, facts)
            for number, (ordinal, facts) in enumerate(zip(welcome.ordinals, welcome.devices, strict=True))
        )

    def _welcome(self, server_pid: int) -> SessionWelcome:
        try:
            whom = f"the welcome of its MPS server (PID {server_pid}), which is stopped or busy"
            message, fds = _awaited(self._conversation, whom, _FRAMES + 2)
            close_all(fds)
            if isinstance(message, Refused):
                self._conversation.close()
                raise CudaError(message.code, message.reason)
            if isinstance(message, SessionWelcome) and len(message.ordinals) == len(message.devices):
                return message
            reason = f"it sent {type(message).__name__} where its welcome was due"
        except Ended as error:
            reason = f"{error}; server.log may say why"
        failed = _broken_off(self._conversation, f"the MPS server: {reason}", Unwelcomed)
        self._conversation.close()
        raise failed

    def open_context(self, device: Device, flags: int, affinity: int | None = None) -> Opened:
        """Ask the server for a context on a device; raise CudaError with its refusal."""
        check_api_version(os.environ)
        if device.ordinal not in self._transports:
            # What cannot be taken had better not be asked for: it would be lost on the way.
            require_room(_STREAM_FDS)
        percentage = _percentage_now() if self.per_context else None
        with self._asking:
            number = self._number()
            self._asked[number] = device
            answer = self._ask(OpenContext(number, device.number, flags, percentage, affinity), number)
            if not isinstance(answer, ContextOpened):
                raise self._gone(f"it sent {type(answer).__name__} where ContextOpened was due")
            transport = self._transports.get(device.ordinal)
            if transport is None:
                raise self._gone("it opened a context and gave no command stream")
            if transport.trouble is not None:
                # The executor has ended meanwhile, which the server outlives.
                raise transport.trouble.again()
        return Opened(
            serial=answer.context,
            generation=answer.generation,
            transport=transport,
            multiprocessors=answer.multiprocessors,
            memory_bytes=answer.memory_bytes,
            stream_priorities=answer.stream_priorities,
        )

    def close_context(self, device: Device, serial: int) -> None:
        """Ask the server to close a context; return when what it held is free."""
        with self._asking:
            number = self._number()
            answer = self._ask(CloseContext(request=number, context=serial), number)
            if not isinstance(answer, ContextClosed):
                raise self._gone(f"it sent {type(answer).__name__} where ContextClosed was due")

    def _ask(self, request: object, number: int) -> Any:
        if self._lost is not None:
            raise self._lost.again()
        try:
            self._conversation.send(request)
            while True:
                answer, fds = self._conversation.receive()
                self._adopt(answer, fds)
                if getattr(answer, "request", None) == number:
                    break
                self._decline(answer)
        except (Ended, OSError) as error:
            raise self._gone(str(error)) from None
        if isinstance(answer, RequestRefused):
            raise CudaError(answer.code, answer.reason)
        return answer

    def _adopt(self, answer: object, fds: tuple[int, ...]) -> None:
        """Keep the command stream that came along, even with the answer to a request that Ctrl-C gave up."""
        device = self._asked.pop(getattr(answer, "request", 0), None)
        if not fds:
            return
        if not isinstance(answer, ContextOpened) or device is None or len(fds) != 2:
            close_all(fds)
            raise Ended(f"it sent {type(answer).__name__} with {len(fds)} descriptors that belong to nothing")
        self._transports[device.ordinal] = adopt_stream(
            fds, answer.shared_bytes, self._stream_ended, answer.ring_bytes
        )

    def _decline(self, answer: object) -> None:
        if isinstance(answer, ContextOpened):
            self._conversation.send(CloseContext(request=self._number(), context=answer.context))

    def _stream_ended(self, reason: str) -> CudaError:
        """An executor is gone: with its server, or alone, which is a fatal fault of its device."""
        if self._conversation.ends_within(WITH_ITS_SERVER_S):
            return self._gone("it has ended")
        return CudaError(Result.ERROR_LAUNCH_FAILED, f"a fatal GPU fault: {reason}")

    def _gone(self, reason: str) -> CudaError:
        if self._lost is None:
            self._lost = lost(f"the MPS server: {reason}; end this process and start it again")
            if self._conversation.over:
                # What it gave is gone with it, though executors may live on for a moment.
                for transport in tuple(self._transports.values()):
                    transport.lose(self._lost)
        return self._lost.again()

    def check(self) -> None:
        """Raise MPS_RPC_FAILURE when the server has gone; it stays gone for this process."""
        if self._lost is None and self._conversation.over:
            self._gone("it has ended")
        if self._lost is not None:
            raise self._lost.again()

    def close(self) -> None:
        """Leave: the server frees what this process held."""
        for transport in tuple(self._transports.values()):
            transport.close()
        self._conversation.close()

    def abandon(self) -> None:
        """In a forked child: let go of the copies of the sockets."""
        for transport in tuple(self._transports.values()):
            transport.abandon()
        self._conversation.close()


def _percentage_now() -> float | None:
    """Return the percentage for a context made now, None where the environment holds none that can be."""
    try:
        return ThreadPercentage.parse(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")).value
    except BadLimit:
        return None


def adopt_stream(
    fds: tuple[int, ...], shared_bytes: int, on_end: Callable[[str], CudaError], ring_bytes: int = 0
) -> Transport:
    """Return the transport over the two descriptors that came with a first context; raise OSError."""
    connection = socket.socket(fileno=fds[0])
    try:
        shared = SharedMemory(fds[1], shared_bytes, ring_bytes)
        return Transport(connection, shared, on_end, ring_of(shared, shared_bytes, ring_bytes))
    except BaseException:
        connection.close()
        raise
