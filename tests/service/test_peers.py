"""The peer of a connection: credentials, groups and a pidfd of a real child."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pympsd.service.processes import peers
from pympsd.service.processes.peers import (
    KnownPeer,
    command_of,
    command_of_hidden,
    credentials,
    namespace_of,
    open_pidfd,
)
from pympsd.vocabulary.identities import Peer

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
CALL = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """A listening socket that every user can reach."""
    where = socket.socket(socket.AF_UNIX)
    where.bind(f"\0pympsd-test-{os.getpid()}-{tmp_path.name}")  # abstract: no folder on the way
    where.listen()
    where.settimeout(20)
    yield where
    where.close()


def _caller(listener: socket.socket, **identity: object) -> tuple[subprocess.Popen[bytes], socket.socket]:
    program = CALL.replace("sys.argv[1]", repr(listener.getsockname()))
    child = subprocess.Popen(["/usr/bin/env", "python3", "-c", program], cwd="/", **identity)  # type: ignore[call-overload]
    return child, listener.accept()[0]


def _end(child: subprocess.Popen[bytes], sock: socket.socket) -> None:
    sock.close()
    child.wait(20)


@as_root
def test_the_kernel_identifies_a_peer(listener: socket.socket) -> None:
    child, sock = _caller(listener, user=12345, group=23456, extra_groups=[23456, 34567])
    assert credentials(sock) == Peer(child.pid, 12345, 23456, (23456, 34567))
    _end(child, sock)


@as_root
def test_more_groups_than_getsockopt_returns_are_all_found(listener: socket.socket) -> None:
    many = list(range(50_000, 50_400))
    child, sock = _caller(listener, user=12345, group=23456, extra_groups=many)
    assert sorted(credentials(sock).groups) == many
    _end(child, sock)


def test_a_pidfd_shows_the_peers_end(listener: socket.socket) -> None:
    child, sock = _caller(listener)
    known_peer = open_pidfd(sock, credentials(sock))
    assert known_peer.peer.pid == child.pid
    assert known_peer.pidfd >= 0
    assert not os.get_inheritable(known_peer.pidfd)
    assert select.select([known_peer.pidfd], [], [], 0)[0] == []
    _end(child, sock)
    assert select.select([known_peer.pidfd], [], [], 20)[0] == [known_peer.pidfd]
    known_peer.close()
    known_peer.close()
    assert known_peer.pidfd == -1


def test_before_linux_6_5_a_peer_without_a_visible_pid_has_no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)  # no option
    own_end, peer_end = socket.socketpair()
    known_peer = open_pidfd(own_end, Peer(0, 1, 1))
    assert known_peer.pidfd == -1
    known_peer.close()
    own_end.close()
    peer_end.close()


def test_a_command_line_comes_from_the_kernel_as_one_line() -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", program, "a b", "c\nd"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # wait for exec: before it, its arguments are not there
        shown = command_of(child.pid, "reported")
    assert shown.endswith(f"{program} a b c d")


def test_what_cannot_be_read_is_as_reported() -> None:
    assert command_of(1 << 30, "reported\nby itself") == "reported by itself"
    assert namespace_of(KnownPeer(Peer(1 << 30, 0, 0), -1), 77) == 77
    assert namespace_of(KnownPeer(Peer(os.getpid(), 0, 0), -1), 77) == os.stat("/proc/self/ns/pid").st_ino
    assert command_of_hidden(KnownPeer(Peer(0, 1234, 0), -1)) == "[user 1234]"
