"""The handshake with a daemon and the session with a server, both played by the test."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from pympsd.channel import daemon_owner
from pympsd.process.version import build_id
from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING
from pympsd.vocabulary.results import Result
from pympsd.wire import messages
from pympsd.wire.framing import FrameReader
from pympsd.wire.messages import (
    ClientHello,
    CloseContext,
    ContextClosed,
    ContextOpened,
    OpenContext,
    Refused,
    RequestRefused,
    SessionGranted,
    SessionWelcome,
)
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect import handshake
from pympsd_client._connect.discovery import NoDaemon
from pympsd_client._connect.handshake import connect_to_daemon, request_session
from pympsd_client._connect.session import Session
from tests.client.fake_executor import PROPERTIES, SHARED_BYTES

CONNECTION_FAILED, RPC_FAILURE, SERVER_NOT_READY, MAX_CLIENTS = 805, 806, 807, 808


class Peer:
    """One end of a conversation, for the test to play."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = FrameReader()
        self._messages: list[Any] = []

    def receive(self) -> Any:
        """Return the next message, None at the end."""
        while not self._messages:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._messages += [messages.decode(frame) for frame in self._reader.feed(data)]
        return self._messages.pop(0)

    def send(self, message: object, *fds: int) -> None:
        """Send a message with descriptors, which are closed here afterwards."""
        socket.send_fds(self.socket, [messages.encode(message, len(fds))], fds)
        for fd in fds:
            os.close(fd)


@define(eq=False)
class FakeDaemon:
    """Listens at ``control``; ``handshake`` and ``in_session`` are what it does, each in its thread."""

    directory: Path
    handshake: Callable[[FakeDaemon, Peer], None] | None = None
    in_session: Callable[[Peer, object], None] | None = None
    hellos: list[ClientHello] = field(factory=list)
    fds: list[int] = field(factory=list)
    threads: list[threading.Thread] = field(factory=list)
    sockets: list[socket.socket] = field(factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client that finds it."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.directory), "CUDA_MPS_CLIENT_PRIORITY": "1"}

    def start(self) -> None:
        """Listen and serve one client."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.directory / "control"))
        listener.listen()
        self._own(listener)
        self.start_thread(self._serve, listener)

    def start_thread(self, run: Callable[..., None], *arguments: object) -> None:
        """Run something until it ends, at the latest when the sockets are shut."""
        thread = threading.Thread(target=run, args=arguments)
        self.threads.append(thread)
        thread.start()

    def _own(self, connection: socket.socket) -> socket.socket:
        self.sockets.append(connection)
        return connection

    def _serve(self, listener: socket.socket) -> None:
        try:
            peer = Peer(self._own(listener.accept()[0]))
        except OSError:
            return
        self.hellos.append(peer.receive())
        (self.handshake or FakeDaemon.grant)(self, peer)

    def grant(self, peer: Peer) -> None:
        """Grant a session and welcome the client in it."""
        own_end, peer_end = socket.socketpair()
        server = Peer(self._own(own_end))
        peer.send(SessionGranted(1, 7, 4321), peer_end.detach())
        server.send(SessionWelcome(4321, 13000, (PROPERTIES, PROPERTIES), (2, 0)))
        while (request := server.receive()) is not None:
            (self.in_session or self.open_and_close)(server, request)

    def open_and_close(self, server: Peer, request: object) -> None:
        """Serve as a server does; the first context of each device comes with a command stream."""
        if isinstance(request, OpenContext):
            server.send(make_opened(request), *self.stream())
        elif isinstance(request, CloseContext):
            server.send(ContextClosed(request.request))

    def stream(self) -> tuple[int, int]:
        """Return the descriptors for a first context; keep the executor's end."""
        own_end, peer_end = socket.socketpair()
        self._own(own_end)
        memory = os.memfd_create("shared", os.MFD_CLOEXEC)
        os.ftruncate(memory, SHARED_BYTES)
        return peer_end.detach(), memory

    def stop(self) -> None:
        """Shut everything and wait for the threads."""
        for connection in self.sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self.threads:
            thread.join(10)
        for connection in self.sockets:
            connection.close()


def make_opened(request: OpenContext, context: int = 11) -> ContextOpened:
    """Return the answer that opens a context."""
    return ContextOpened(request.request, context, 3, 66, 1 << 30, (0, -5), SHARED_BYTES)


def connect(daemon: FakeDaemon) -> socket.socket:
    """Return a client's connection to a daemon."""
    connection = connect_to_daemon(daemon.environment)
    assert not isinstance(connection, NoDaemon), connection
    return connection


def session_of(daemon: FakeDaemon, **environment: str) -> Session:
    """Return a client's session."""
    session = request_session(connect(daemon), {**daemon.environment, **environment})
    assert not isinstance(session, NoDaemon), session
    return session


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A daemon that is started by the test."""
    fake = FakeDaemon(tmp_path)
    yield fake
    fake.stop()


@pytest.fixture
def session_with() -> Iterator[Callable[[FakeDaemon], Session]]:
    """Start a daemon and request a session, which is closed after the test."""
    sessions: list[Session] = []

    def start(daemon: FakeDaemon) -> Session:
        daemon.start()
        sessions.append(session_of(daemon))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


SessionWith = Callable[[FakeDaemon], Session]


def test_a_session_shows_its_devices(daemon: FakeDaemon, session_with: SessionWith) -> None:
    session = session_with(daemon)
    assert [(device.number, device.ordinal) for device in session.devices] == [(0, 2), (1, 0)]
    assert session.driver_version == 13000


def test_the_hello_describes_the_process(daemon: FakeDaemon, session_with: SessionWith) -> None:
    session_with(daemon)
    hello = daemon.hellos[0]
    assert hello.pid == os.getpid()
    assert hello.command.startswith(Path("/proc/self/cmdline").read_bytes().partition(b"\0")[0].decode())
    assert hello.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert hello.environment == daemon.environment
    assert hello.versions.build == build_id()


def opens_in_order(daemon: FakeDaemon) -> None:
    """Contexts get ids from 11 on, and a device's first one its command stream."""
    arguments: list[int] = []

    def serve(server: Peer, request: object) -> None:
        assert isinstance(request, OpenContext)
        first = request.device not in arguments
        arguments.append(request.device)
        server.send(make_opened(request, 10 + len(arguments)), *(daemon.stream() if first else ()))

    daemon.in_session = serve


def test_contexts_of_one_device_share_a_stream(daemon: FakeDaemon, session_with: SessionWith) -> None:
    opens_in_order(daemon)
    session = session_with(daemon)
    item, two, other = (session.open_context(session.devices[number], 0) for number in (0, 0, 1))
    assert (item.context_id, two.context_id, other.context_id) == (11, 12, 13)
    assert item.transport is two.transport
    assert other.transport is not item.transport
    assert (item.generation, item.multiprocessors, item.stream_priorities) == (3, 66, (0, -5))


def test_a_refused_request_leaves_the_session_as_it_was(daemon: FakeDaemon, session_with: SessionWith) -> None:
    def refuse_device_1(server: Peer, request: object) -> None:
        if isinstance(request, OpenContext) and request.device == 1:
            server.send(RequestRefused(request.request, MAX_CLIENTS, "48 clients are connected"))
        else:
            daemon.open_and_close(server, request)

    daemon.in_session = refuse_device_1
    session = session_with(daemon)
    with pytest.raises(CudaError, match="48 clients") as caught:
        session.open_context(session.devices[1], 0)
    assert caught.value.code == MAX_CLIENTS
    opened_one = session.open_context(session.devices[0], 0)
    session.close_context(session.devices[0], opened_one.context_id)


def test_an_executors_end_is_not_the_servers_end(daemon: FakeDaemon, session_with: SessionWith) -> None:
    opens_in_order(daemon)
    session = session_with(daemon)
    transport = session.open_context(session.devices[0], 0).transport
    daemon.sockets[-1].shutdown(socket.SHUT_RDWR)
    with pytest.raises(CudaError):
        transport.post(bytes(24))
    with pytest.raises(CudaError) as caught:
        session.open_context(session.devices[0], 0)
    assert caught.value.code == Result.ERROR_LAUNCH_FAILED
    session.check()
    assert session.open_context(session.devices[1], 0).context_id == 13


def test_a_context_whose_request_was_interrupted_is_closed(
    daemon: FakeDaemon, session_with: SessionWith, press_ctrl_c: Callable[[], None]
) -> None:
    closed: list[int] = []
    interrupted: list[OpenContext] = []

    def late(server: Peer, request: object) -> None:
        if isinstance(request, OpenContext) and not interrupted:
            interrupted.append(request)
            press_ctrl_c()
        elif isinstance(request, OpenContext):
            server.send(make_opened(interrupted[0], 99), *daemon.stream())
            server.send(make_opened(request, 100))
        elif isinstance(request, CloseContext):
            closed.append(request.context)
            server.send(ContextClosed(request.request))

    daemon.in_session = late
    session = session_with(daemon)
    with pytest.raises(KeyboardInterrupt):
        session.open_context(session.devices[0], 0)
    assert session.open_context(session.devices[0], 0).context_id == 100
    session.close_context(session.devices[0], 100)
    assert closed == [99, 100]


def test_an_unexpected_command_stream_ends_the_session(daemon: FakeDaemon, session_with: SessionWith) -> None:
    daemon.in_session = lambda server, request: server.send(ContextClosed(request.request), *daemon.stream())  # type: ignore[attr-defined]
    session = session_with(daemon)
    with pytest.raises(CudaError, match="belong to nothing") as caught:
        session.open_context(session.devices[0], 0)
    assert caught.value.code == RPC_FAILURE


def test_after_the_servers_end_every_call_fails(daemon: FakeDaemon, session_with: SessionWith) -> None:
    session = session_with(daemon)
    session.check()
    daemon.stop()
    for _ in range(2):
        with pytest.raises(CudaError, match="end this process") as caught:
            session.check()
        assert caught.value.code == RPC_FAILURE
        with pytest.raises(CudaError):
            session.open_context(session.devices[0], 0)


def test_the_servers_end_fails_calls_that_wait_for_an_executor(
    daemon: FakeDaemon, session_with: SessionWith, fresh_process: Callable[[Session], None]
) -> None:
    session = session_with(daemon)
    fresh_process(session)
    assert cuda.cuCtxCreate(None, 0, 0)[0] == cuda.CUresult.CUDA_SUCCESS
    _listener, _handshake, server, executor = daemon.sockets
    actual: list[tuple[cuda.CUresult, ...]] = []
    context = cuda.cuCtxGetCurrent()[1]
    waiter = threading.Thread(
        target=lambda: actual.append((*cuda.cuCtxSetCurrent(context), *cuda.cuCtxSynchronize()))
    )
    waiter.start()
    assert executor.recv(1, socket.MSG_PEEK), "a call that waits for its executor, which lives on"
    server.shutdown(socket.SHUT_RDWR)
    assert cuda.cuDeviceGetName(64, 0)[0] == cuda.CUresult(RPC_FAILURE)
    waiter.join(30)
    assert actual == [(cuda.CUresult.CUDA_SUCCESS, cuda.CUresult(RPC_FAILURE))]
    assert cuda.cuCtxSynchronize() == (cuda.CUresult(RPC_FAILURE),)


@pytest.mark.parametrize("code", [CONNECTION_FAILED, SERVER_NOT_READY, MAX_CLIENTS])
def test_a_refusal_is_what_cuinit_returns(
    daemon: FakeDaemon, fresh_process: object, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    daemon.handshake = lambda daemon, peer: peer.send(Refused(code, "not today"))
    daemon.start()
    for name, value in daemon.environment.items():
        monkeypatch.setenv(name, value)
    assert cuda.cuInit(0) == (cuda.CUresult(code),)
    assert last_error() == "not today"
    assert cuda.cuDeviceGetCount()[0] == cuda.CUresult.CUDA_ERROR_NOT_INITIALIZED


@pytest.mark.parametrize(
    ("handshake", "reason"),
    [
        (lambda daemon, peer: peer.socket.shutdown(socket.SHUT_RDWR), "conversation was closed"),
        (lambda daemon, peer: peer.socket.sendall(b"\xff" * 64), "over the maximum"),
        (lambda daemon, peer: peer.socket.sendall(b"\x00\x00\x00\x00\xff\xff\x00\x00"), "unknown message kind"),
        (lambda daemon, peer: peer.send(ContextClosed(1)), "answered with ContextClosed"),
        (lambda daemon, peer: peer.send(SessionGranted(1, 1, 1)), "answered with SessionGranted"),
        (lambda daemon, peer: peer.send(Refused(1, "no"), os.dup(0)), "no"),
    ],
)
def test_a_daemon_that_breaks_the_rules_is_not_connected_to(
    daemon: FakeDaemon, handshake: Callable[[FakeDaemon, Peer], None], reason: str
) -> None:
    daemon.handshake = handshake
    daemon.start()
    with pytest.raises(CudaError, match=reason):
        request_session(connect(daemon), daemon.environment)


def test_a_daemon_that_ends_without_an_answer_gets_no_second_request(
    daemon: FakeDaemon, fresh_process: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.handshake = lambda daemon, peer: peer.socket.shutdown(socket.SHUT_RDWR)
    daemon.start()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(daemon.directory))
    assert cuda.cuInit(0) == (cuda.CUresult(CONNECTION_FAILED),)
    assert "the conversation was closed; the reason may be in control.log" in last_error()
    listener = daemon.sockets[0]
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize("peer_name", ["the daemon", "the server"])
def test_a_long_wait_causes_one_warning_and_continues(
    daemon: FakeDaemon, fresh_process: object, monkeypatch: pytest.MonkeyPatch, peer_name: str
) -> None:
    warnings_seen: list[tuple[str, type[Warning], str]] = []
    is_shown = threading.Event()

    def show(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        warnings_seen.append((str(message), category, filename))
        is_shown.set()

    def answer_after_the_warning(daemon: FakeDaemon, peer: Peer) -> None:
        own_end, peer_end = socket.socketpair()
        server = Peer(daemon._own(own_end))
        if peer_name == "the server":
            monkeypatch.setattr(handshake, "SILENT_WAIT_S", 0.001)
            peer.send(SessionGranted(1, 7, 4321), peer_end.detach())
            peer = server
        peer_end.close()
        assert is_shown.wait(30)
        peer.send(Refused(SERVER_NOT_READY, "not today"))

    monkeypatch.setattr(handshake, "SILENT_WAIT_S", 0.001 if peer_name == "the daemon" else 60.0)
    for name, value in daemon.environment.items():
        monkeypatch.setenv(name, value)
    daemon.handshake = answer_after_the_warning
    daemon.start()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        assert cuda.cuInit(0) == (cuda.CUresult(SERVER_NOT_READY),)
    ((message, category, filename),) = warnings_seen
    expected = {
        "the daemon": f"the MPS control daemon at {daemon.directory}/control: others have their turn, or ",
        "the server": "the welcome of its MPS server (PID 4321), which is stopped or busy",
    }
    assert expected[peer_name] in message
    assert (category, filename) == (RuntimeWarning, __file__), "it points at the program"


def test_a_server_that_does_not_welcome_is_not_connected_to(daemon: FakeDaemon) -> None:
    def grant_and_leave(daemon: FakeDaemon, peer: Peer) -> None:
        own_end, peer_end = socket.socketpair()
        peer.send(SessionGranted(1, 7, 4321), peer_end.detach())
        own_end.close()

    daemon.handshake = grant_and_leave
    daemon.start()
    with pytest.raises(CudaError, match="the MPS server: the conversation was closed") as caught:
        request_session(connect(daemon), daemon.environment)
    assert caught.value.code == CONNECTION_FAILED


@pytest.mark.parametrize("uid", [4711, 65534])
def test_another_users_daemon_is_not_trusted(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    daemon.handshake = lambda daemon, peer: None
    daemon.start()
    connection = connect(daemon)
    monkeypatch.setattr(daemon_owner, "uid_of", lambda connection: uid)
    with pytest.raises(CudaError, match=f"runs as uid {uid}; only root's and your own") as caught:
        request_session(connection, daemon.environment)
    assert caught.value.code == CONNECTION_FAILED
    daemon.stop()
    assert daemon.hellos == [None]


@pytest.mark.parametrize("path", ["/nonexistent", "/" + "x" * 200, "/dev/null"])
def test_a_missing_daemon_is_reported_with_its_path(path: str) -> None:
    why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": path})
    assert isinstance(why, NoDaemon)
    assert why.reason.startswith(f"no MPS control daemon at {path}/control (")


def test_a_dead_daemons_socket_is_not_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "control_lock").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "control"))
    why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert isinstance(why, NoDaemon)
    assert "Connection refused" in why.reason
    assert not why.drivers
    assert not why.limited


def test_the_vendors_daemon_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert why == NoDaemon(
        f"the MPS control daemon at {tmp_path}/control manages the driver's own server", drivers=True
    )


# --- the percentage of each context


def _record_requests(daemon: FakeDaemon, requests: list[OpenContext]) -> Callable[[Peer, object], None]:
    def serve(server: Peer, request: object) -> None:
        if isinstance(request, OpenContext):
            requests.append(request)
            server.send(make_opened(request), *(daemon.stream() if len(requests) == 1 else ()))

    return serve


def test_under_partitioning_the_percentage_is_read_when_the_context_is_made(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[OpenContext] = []
    daemon.in_session = _record_requests(daemon, requests)
    daemon.start()
    session = session_of(daemon, **{PER_CONTEXT_PARTITIONING: "1"})
    for text in ("20", "33.3", "0", "-5", "101", "x", ""):
        monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", text)
        session.open_context(session.devices[0], 0)
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    session.open_context(session.devices[0], 0, 24)
    session.close()
    assert [request.thread_percentage for request in requests] == [20, 33.3, *[None] * 6]
    assert [request.affinity for request in requests] == [*[None] * 7, 24]


@pytest.mark.parametrize("began_with", [None, "0"])
def test_without_partitioning_a_contexts_percentage_is_its_processs(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, began_with: str | None
) -> None:
    """The variable counts as it was when the process began (MPS documents, 4.2.6)."""
    requests: list[OpenContext] = []
    daemon.in_session = _record_requests(daemon, requests)
    daemon.start()
    environment = {} if began_with is None else {PER_CONTEXT_PARTITIONING: began_with}
    session = session_of(daemon, **environment)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20")
    monkeypatch.setenv(PER_CONTEXT_PARTITIONING, "1")
    session.open_context(session.devices[0], 0)
    session.close()
    assert [request.thread_percentage for request in requests] == [None]
