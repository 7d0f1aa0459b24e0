"""The handshake with a daemon and the server that it grants: hello, grant, welcome.

    this process                    daemon                          server
    connect ----------------------> accept
    check the owner's uid <-------- SO_PEERCRED, or a proof
    ClientHello ------------------> queued until it is this user's turn
                <------------------ SessionGranted with a socket --- the socket's other end
    SessionWelcome <------------------------------------------------ devices, driver version

The daemon may answer otherwise: GoWithoutMps (run without MPS) or Refused (an error of cuInit).

**Invariants**

- Nothing is sent before the daemon's owner is known. A daemon of an untrusted user would see and run this program's
  work. Only root's and the process's own uid are trusted. In a user namespace that cannot show the uid, the daemon
  has to prove whose it is.
- cuInit waits without limit, because another user's turn may last for hours. After SILENT_WAIT_S a single warning
  gives the reason.
- A server may end between the grant and its welcome. Then `NotWelcomed` is raised, and the caller asks the daemon
  again, MAX_GRANTS times at most.
- A program that names a namespace's directory must not run without that namespace's limits. So `connect_to_daemon`
  marks the reason as ``limited`` if the directory belongs, or may belong, to a server or namespace (`discovery`).
"""

import errno
import os
import socket
import warnings
from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from pympsd.channel import daemon_owner
from pympsd.channel.daemon_owner import TRUST_VARIABLE
from pympsd.channel.descriptors import close_all
from pympsd.process.version import build_id
from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import REQUIRE_MPS
from pympsd.wire.messages import ClientHello, GoWithoutMps, Refused, SessionGranted, SessionWelcome, Versions
from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect.discovery import (
    NoDaemon,
    command_line,
    control_socket,
    explain_missing_directory,
    hello_environment,
    is_below_a_daemon,
    is_traced,
)
from pympsd_client._connect.session import Conversation, ConversationEnded, Session

SILENT_WAIT_S: Final = 10.0
"""Seconds until a single warning gives the reason why cuInit waits."""
_WHY_THE_DAEMON: Final = (
    "others have their turn, or a drain holds it (control.log has who waits for what), or it was stopped or killed"
)
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR)
"""The errors of connecting to a path that does not exist, or that leads through a file."""
MAX_GRANTS: Final = 6
"""The maximum number of servers that the client tries. The daemon starts four before it refuses with the reason."""
GRANT_PAUSE_S: Final = 0.1
"""Seconds before asking again, in which the daemon notices that the last server has ended."""
_FRAMES: Final = 7
"""The frames of _receive_or_warn, request_session, _connect, initialize, cuInit (two) and the program."""
HIDDEN: Final = (errno.EACCES, errno.EPERM)
"""The errors of a socket that this process may not see, so it may be a namespace's."""


class NotWelcomed(CudaError):
    """The server that was granted ended the session before its welcome."""


def connect_to_daemon(environment: Mapping[str, str]) -> socket.socket | NoDaemon:
    """Return a connection to the daemon's socket, or the reason why that failed.

    The socket's path follows from CUDA_MPS_PIPE_DIRECTORY in ``environment``. The caller owns the connection.
    """
    path = control_socket(environment)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        if error.errno == errno.EPROTOTYPE:
            return NoDaemon(f"the MPS control daemon at {path} manages the driver's own server", drivers=True)
        directory = os.path.dirname(path)
        if error.errno in _NOT_THERE and (wrong := explain_missing_directory(directory)):
            return NoDaemon(f"no MPS control socket at {path}: {wrong}", limited=True)
        is_named = bool(environment.get("CUDA_MPS_PIPE_DIRECTORY"))
        is_limited = is_named and (error.errno in HIDDEN or is_below_a_daemon(directory))
        return NoDaemon(f"no MPS control daemon at {path} ({error.strerror or error})", limited=is_limited)
    return connection


def request_session(connection: socket.socket, environment: Mapping[str, str]) -> Session | NoDaemon:
    """Request a session from the daemon, and wait while another user has the turn; close ``connection`` at the end.

    Return the session, or the reason why this process runs without MPS, for example because it is being debugged.
    Raise CudaError: the daemon's or server's refusal, or MPS_CONNECTION_FAILED.
    """
    daemon = Conversation(connection)
    try:
        what = f"the MPS control daemon at {control_socket(environment)}"
        _check_owner(daemon, environment, what)
        hello = _hello(environment)
        if hello.traced and environment.get(REQUIRE_MPS) == "1":
            # The daemon would give the same answer, but only after a wait.
            return NoDaemon("this process is being debugged, and the MPS server does not serve debugged processes")
        daemon.send(hello)
        answer, fds = _receive_or_warn(daemon, f"{what}: {_WHY_THE_DAEMON}", _FRAMES)
    except ConversationEnded as error:
        reason = f"the MPS control daemon at {control_socket(environment)}: {error}; the reason may be in control.log"
        raise _no_connection(reason) from None
    finally:
        daemon.close()
    if isinstance(answer, SessionGranted) and len(fds) == 1:
        server = Conversation(socket.socket(fileno=fds[0]))
        welcome = _welcome(server, answer.server_pid)
        return Session(server, welcome, environment.get(PER_CONTEXT_PARTITIONING) == "1")
    close_all(fds)
    if isinstance(answer, GoWithoutMps):
        return NoDaemon(answer.reason)
    if isinstance(answer, Refused):
        raise CudaError(answer.code, answer.reason)
    raise _no_connection(f"the MPS control daemon answered with {type(answer).__name__}")


def _welcome(server: Conversation, pid: int) -> SessionWelcome:
    """Return a server's welcome; if none comes, close the conversation and raise CudaError."""
    try:
        what = f"the welcome of its MPS server (PID {pid}), which is stopped or busy"
        message, fds = _receive_or_warn(server, what, _FRAMES + 1)
        close_all(fds)
        if isinstance(message, Refused):
            server.close()
            raise CudaError(message.code, message.reason)
        if isinstance(message, SessionWelcome) and len(message.ordinals) == len(message.devices):
            return message
        reason = f"received {type(message).__name__} instead of the welcome"
    except ConversationEnded as error:
        reason = f"{error}; the reason may be in server.log"
    server.close()
    raise NotWelcomed(Result.ERROR_MPS_CONNECTION_FAILED, f"the MPS server: {reason}")


def _receive_or_warn(conversation: Conversation, what: str, frames: int) -> tuple[Any, tuple[int, ...]]:
    """Receive the message that cuInit waits for; warn if it takes long.

    ``frames``: the number of frames from here to cuInit's caller, whose line the warning names.
    """
    try:
        return conversation.receive(SILENT_WAIT_S)
    except TimeoutError:
        _warn(what, frames)
    return conversation.receive()


def _warn(what: str, frames: int) -> None:
    message = f"cuInit has waited {SILENT_WAIT_S:g} s for {what}"
    warnings.warn(message, RuntimeWarning, stacklevel=frames + 1)


def _check_owner(daemon: Conversation, environment: Mapping[str, str], what: str) -> None:
    """Raise CudaError unless the daemon is root's or the user's own; another would see and run this program's work.

    ``what`` names the daemon. Raise ConversationEnded if it ends the conversation.
    """
    verdict = daemon_owner.is_trusted(daemon.socket)
    who, remedy = f"uid {daemon_owner.uid_of(daemon.socket)}", ""
    if verdict is None and environment.get(TRUST_VARIABLE) != "trust":
        verdict = _ask_for_proof(daemon, what)
        who = "a user without a number in this user namespace (/proc/self/uid_map)"
        remedy = f", or set {TRUST_VARIABLE}=trust if you are sure that the daemon is root's or yours"
    if verdict is False:
        raise _no_connection(
            f"the MPS control daemon runs as {who}; only root's and your own (uid {os.getuid()}) is trusted: check "
            f"CUDA_MPS_PIPE_DIRECTORY{remedy}"
        )


def _ask_for_proof(daemon: Conversation, what: str) -> bool:
    """Return whether the daemon proves that it is root's or the user's own; warn if the answer takes long.

    ``what`` names the daemon. Raise ConversationEnded if it ends the conversation.
    """
    try:
        with daemon_owner.Proof(daemon.socket) as proof:
            try:
                daemon.wait(SILENT_WAIT_S)
            except TimeoutError:
                _warn(f"{what} to prove whose it is: it is stopped", _FRAMES + 1)
            return proof.receive() is True
    except OSError as error:
        raise ConversationEnded(f"the connection is lost: {error.strerror}") from None


def _hello(environment: Mapping[str, str]) -> ClientHello:
    with open("/proc/self/cmdline", "rb") as file:
        command = command_line(file.read())
    return ClientHello(
        versions=evolve(Versions(), build=build_id()),
        pid=os.getpid(),
        command=command,
        pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
        environment=hello_environment(environment),
        traced=_is_being_traced(),
    )


def _is_being_traced() -> bool:
    with open("/proc/self/status", "rb") as file:
        return is_traced(file.read())


def _no_connection(reason: str) -> CudaError:
    return CudaError(Result.ERROR_MPS_CONNECTION_FAILED, reason)
