"""Processes under a debugger: how /proc/self/status shows it, and what the daemon answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pympsd.wire.framing import FrameReader
from pympsd.wire.messages import ClientHello, GoWithoutMps, decode, encode
from pympsd_client._connect import handshake
from pympsd_client._connect.discovery import NoDaemon, is_traced


@pytest.mark.parametrize(
    ("status", "traced"),
    [
        (b"Name:\tp\nPid:\t7\nTracerPid:\t0\nUid:\t0\n", False),
        (b"Name:\tp\nPid:\t7\nTracerPid:\t1234\nUid:\t0\n", True),
        (b"Name:\tTracerPid:\t9\nPid:\t7\nTracerPid:\t0\n", False),
        (b"Name:\tp\n", False),
        (b"", False),
    ],
)
def test_a_status_with_a_tracer_is_traced(status: bytes, traced: bool) -> None:
    assert is_traced(status) is traced


def test_this_process_is_not_traced() -> None:
    assert not is_traced(Path("/proc/self/status").read_bytes())


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end and a daemon's."""
    own_end, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    peer_end.settimeout(30)
    with own_end, peer_end:
        yield own_end, peer_end


@pytest.mark.parametrize("traced", [False, True])
def test_the_hello_reports_a_tracer_and_the_answer_is_a_reason(
    ends: tuple[socket.socket, socket.socket], traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, daemon = ends
    monkeypatch.setattr(handshake, "_is_being_traced", lambda: traced)
    daemon.sendall(encode(GoWithoutMps("because")))
    assert handshake.request_session(client, {}) == NoDaemon("because")
    (frame,) = FrameReader(fds_allowed=0).feed(daemon.recv(65536))
    hello = decode(frame)
    assert isinstance(hello, ClientHello)
    assert (hello.pid, hello.traced) == (os.getpid(), traced)


def test_a_traced_process_that_requires_mps_sends_no_hello(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, daemon = ends
    monkeypatch.setattr(handshake, "_is_being_traced", lambda: True)
    answer = handshake.request_session(client, {"PYMPSD_REQUIRE_MPS": "1"})
    assert isinstance(answer, NoDaemon)
    assert "is being debugged" in answer.reason
    assert daemon.recv(1) == b""
