"""A whole server, whose daemons the test plays: what it reports to the next one over its link, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from attrs import define, field
from processes import SECONDS, alive, children_of, suspend, wait_until

from pympsd.channel.descriptors import close_all, descriptors_in
from pympsd.channel.message_channel import CONTINUED, PACKET_BYTES
from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import LimitsInForce
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.framing import FrameReader
from pympsd.wire.messages import Versions

Reports = tuple[link.ServerReturn, list[link.ReturningClient]]
SETUP = link.ServerSetup(0, "control", "emulated", describe("H200"), 100.0, 0, {})


@define
class Peer:
    """The test's end of a conversation with the server."""

    socket: socket.socket
    _reader: FrameReader = field(factory=lambda: FrameReader(fds_allowed=2))
    _messages: list[Any] = field(factory=list)

    def send(self, message: object, *fds: int) -> None:
        """Send a message with descriptors, which stay the caller's."""
        socket.send_fds(self.socket, [messages.encode(message, len(fds))], fds)

    def receive(self) -> Any:
        """Return the next message, None at the end; descriptors are closed."""
        while not self._messages:
            data, controls, _, _ = self.socket.recvmsg(1 << 16, 1024)
            if not data:
                return None
            close_all(descriptors_in(controls))
            self._messages += [messages.decode(frame) for frame in self._reader.feed(data, descriptors_in(controls))]
        return self._messages.pop(0)

    def expect(self, kind: type) -> Any:
        """Return the next message of a kind; others are passed over."""
        while (message := self.receive()) is not None:
            if isinstance(message, kind):
                return message
        raise EOFError(f"it ended without a {kind.__name__}")


@define
class Played:
    """A server's process and the daemon that it has, over a link that is never closed in between."""

    process: subprocess.Popen[bytes]
    daemon: Peer
    clients: list[Peer] = field(factory=list)

    @classmethod
    def start(cls) -> Played:
        """Start a server; no message has been sent to it."""
        own_end, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_end.settimeout(SECONDS)
        null = subprocess.DEVNULL
        with peer_end:
            words = [sys.executable, "-m", "pympsd_server", "--link-fd", str(peer_end.fileno())]
            process = subprocess.Popen(words, pass_fds=(peer_end.fileno(),), stdin=null, stdout=null)
        return cls(process, Peer(own_end))

    def serve(self) -> Played:
        """Set the server up."""
        self.daemon.send(SETUP)
        while self.daemon.expect(link.StatusChanged).status != "ACTIVE":
            pass
        return self

    def admit(self, client: int) -> Peer:
        """Hand a client over that opens a context; return the client's end of its session."""
        own_end, peer_end = socket.socketpair()
        own_end.settimeout(SECONDS)
        with peer_end:
            admitted = link.AdmitClient(client, 4000 + client, 500, "train", 99, 500, 0, {})
            self.daemon.send(admitted, peer_end.fileno())
        self.clients.append(Peer(own_end))
        assert isinstance(self.clients[-1].receive(), messages.SessionWelcome)
        self.clients[-1].send(messages.OpenContext(1, 0))
        assert isinstance(self.clients[-1].receive(), messages.ContextOpened)
        return self.clients[-1]

    def next_daemon(self) -> None:
        """Have the link in the hands of another daemon, which knows nothing of what was sent before."""
        self.daemon = Peer(self.daemon.socket)

    def ask(self, token: int, versions: Versions | None = None) -> Reports:
        """Ask for a report and return it; what was sent before is void."""
        self.daemon.send(link.ReportRequest(versions or Versions(), token))
        while (report := self.daemon.expect(link.ServerReturn)).token != token:
            pass
        return report, [self.daemon.receive() for _ in range(report.clients)]

    def end(self) -> int:
        """Wait for the process; return its exit status."""
        return self.process.wait(SECONDS)


@pytest.fixture
def server() -> Iterator[Played]:
    """A server that has just been started."""
    played = Played.start()
    yield played
    for peer in (played.daemon, *played.clients):
        peer.socket.close()
    with suppress(subprocess.TimeoutExpired):
        played.process.wait(SECONDS)
    played.process.kill()
    played.process.wait()


def expected_client(client: int, context: int) -> link.ReturningClient:
    """Return the report of a client with one context."""
    limits_in_force = LimitsInForce(100.0, 0, {}, {0: 132})
    return link.ReturningClient(client, 4000 + client, 500, "train", 99, ((context, 1, 0),), limits=limits_in_force)


def test_every_daemon_gets_a_full_report_and_then_the_changes(server: Played) -> None:
    entry, _ = server.serve().admit(5), server.admit(6)
    server.next_daemon()
    report, clients = server.ask(1)
    assert (report.pid, report.status, report.leaving) == (server.process.pid, "ACTIVE", False)
    assert clients == [expected_client(5, 1), expected_client(6, 2)]
    server.daemon.send(link.ServerAdopted())
    assert server.daemon.expect(link.LogRecord).event == "server_taken_over"
    entry.socket.close()
    assert server.daemon.expect(link.ContextGone) == link.ContextGone(5, 1)
    assert server.daemon.expect(link.ClientGone) == link.ClientGone(5)
    server.daemon.send(link.ShutDown(False))
    server.next_daemon()
    report, clients = server.ask(2)
    assert (report.status, report.leaving, clients) == ("ACTIVE", True, [expected_client(6, 2)])


def test_daemons_that_die_before_reading_their_report_lose_no_client(server: Played) -> None:
    server.serve().admit(5)
    for token in range(1, 4):
        server.daemon.send(link.ReportRequest(Versions(), token))
    server.daemon.expect(link.ServerReturn)
    server.next_daemon()  # in the midst of the first report
    server.daemon.send(link.AdmitClient(7, 4007, 500, "lost", 99, 500, 0, {}))  # its descriptors were lost
    assert server.ask(9)[1] == [expected_client(5, 1)]
    server.admit(8)
    assert server.ask(10)[1] == [expected_client(5, 1), expected_client(8, 2)]


def test_half_a_frame_of_a_killed_daemon_is_ignored(server: Played) -> None:
    server.serve().admit(5)
    environment = {"PYMPSD_X": "x" * (2 * PACKET_BYTES)}
    frame = messages.encode(link.AdmitClient(6, 4006, 500, "train", 99, 500, 0, environment), 1)
    own_end, peer_end = socket.socketpair()
    own_end.settimeout(SECONDS)
    with own_end, peer_end:
        socket.send_fds(server.daemon.socket, [frame[:PACKET_BYTES]], [peer_end.fileno()])
        server.daemon.socket.send(CONTINUED + frame[PACKET_BYTES : 2 * PACKET_BYTES])
        peer_end.close()
        server.next_daemon()
        assert server.ask(1)[1] == [expected_client(5, 1)]
        assert own_end.recv(1) == b"", "the client sees that it was not admitted"


def test_a_daemon_of_another_protocol_version_gets_the_report(server: Played) -> None:
    server.serve().admit(5)
    report, clients = server.ask(1, Versions(oldest=1000, newest=1001))
    assert report.versions == Versions()
    assert clients == [expected_client(5, 1)]


def test_a_server_without_setup_is_set_up_by_the_next_daemon(server: Played) -> None:
    assert server.daemon.expect(link.ServerHello).pid == server.process.pid
    server.next_daemon()
    for token in (1, 2):
        report, clients = server.ask(token)
        assert (report.status, report.leaving, clients) == ("INITIALIZING", False, [])
        assert server.daemon.receive() == link.ServerHello(Versions(), server.process.pid)
    server.daemon.send(link.ServerAdopted())
    server.serve().admit(5)
    assert server.ask(3)[1] == [expected_client(5, 1)]


def test_messages_sent_without_a_daemon_wait_in_the_link(server: Played) -> None:
    client = server.serve().admit(5)
    server.next_daemon()
    client.socket.close()
    events = []
    while "client_disconnected" not in events:
        events.append(server.daemon.expect(link.LogRecord).event)
    assert server.ask(1)[1] == []


# --- its end


def test_closing_the_link_ends_the_server_its_clients_and_its_executors(server: Played) -> None:
    clients = [server.serve().admit(5), server.admit(6)]
    executors = children_of(server.process.pid)
    assert executors
    server.daemon.socket.close()
    assert server.end() == 0
    assert [client.receive() for client in clients] == [None, None]
    wait_until(lambda: not any(map(alive, executors)), "the end of the executors")


def test_a_malformed_frame_ends_the_server_like_the_end_of_the_link(server: Played) -> None:
    client = server.serve().admit(5)
    server.daemon.send(link.ServerAdopted())
    server.daemon.socket.send(b"\x00\x00\x00\x00\xff\xff\x00\x00")
    while (record := server.daemon.expect(link.LogRecord)).event != "server_orphaned":
        pass
    assert record.fields == {"count": 1}
    assert server.end() == 0
    assert client.receive() is None


def test_closing_the_link_ends_a_server_without_setup(server: Played) -> None:
    server.daemon.expect(link.ServerHello)
    server.daemon.socket.close()
    assert server.end() == 0


@pytest.mark.parametrize("reason", ["other devices", ""])
def test_a_dismissed_server_continues_until_its_last_client_has_left(server: Played, reason: str) -> None:
    first, second = server.serve().admit(5), server.admit(6)
    server.ask(1)
    server.daemon.send(link.ServerDismissed(reason))
    while (record := server.daemon.expect(link.LogRecord)).event != "server_dismissed":
        pass
    assert record.fields == {"reason": reason or "the daemon gave no reason"}
    assert server.daemon.receive() is None, "it has closed the link"
    first.socket.close()
    second.send(messages.CloseContext(2, 2))
    assert second.receive() == messages.ContextClosed(2)
    assert server.process.poll() is None
    second.socket.close()
    assert server.end() == 0


def test_a_dismissed_server_without_clients_ends_immediately(server: Played) -> None:
    server.serve().ask(1)
    server.daemon.send(link.ServerDismissed("other devices"))
    assert server.end() == 0


def test_end_if_alone_ends_a_server_with_its_last_client_unless_a_daemon_returns(server: Played) -> None:
    client = server.serve().admit(5)
    server.daemon.send(link.EndIfAlone())
    server.ask(1)
    # There is a daemon again.
    client.socket.close()
    assert server.daemon.expect(link.ClientGone).client == 5
    assert server.ask(2)[0].clients == 0
    client = server.admit(6)
    server.daemon.send(link.EndIfAlone())
    assert server.process.poll() is None
    client.socket.close()
    assert server.end() == 0


def test_a_dismissal_is_received_behind_unread_messages(server: Played) -> None:
    client = server.serve().admit(5)
    assert server.ask(1)[1] == [expected_client(5, 1)]
    suspend(server.process.pid)
    server.daemon.send(link.ReportRequest(Versions(), 2))
    os.kill(server.process.pid, signal.SIGCONT)
    assert server.daemon.socket.recv(1 << 16, socket.MSG_PEEK)
    suspend(server.process.pid)
    server.daemon.send(link.ServerDismissed("other devices"))
    server.daemon.socket.close()  # the server's next receive fails: what it had sent was not read (unix(7))
    os.kill(server.process.pid, signal.SIGCONT)
    client.send(messages.CloseContext(2, 1))
    assert client.receive() == messages.ContextClosed(2)
    client.socket.close()
    assert server.end() == 0
