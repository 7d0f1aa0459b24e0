"""Packets of the vendor's wire, valid, damaged and random, to a daemon that manages the driver's server, and to our
tool."""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import struct
from pathlib import Path

from attrs import define, field, frozen
from fake_mps.peer import CLIENT, CREDENTIALS, HELLO, SERVER
from fake_mps.their_daemon import END, TheirDaemon
from fake_mps.visitor import TOOL, Visitor, visitor
from fuzz_daemon import descriptors, resident_kib
from fuzz_lines import Lines
from processes import DaemonProcess, alive, wait_until

from pympsd.cli import control_client, driver_daemon
from pympsd.commands.grammar.line import parse

SIZES = (0, 1, 3, 4, 5, 8, 9, 12, 40, 41, 172, 516, 4096, 5000)
INTEGERS = (0, 1, 2, 3, 4, 5, 17, 24, -1, 2**31 - 1, -(2**31))


@frozen
class Found:
    """What happened to a fuzzed daemon, and what is left of it."""

    commands: int
    unreadable: int
    descriptors_before: int
    descriptors_after: int
    kib_before: int
    kib_after: int


@define
class Packets:
    """Makes packets; ``lines`` those of operators."""

    source: random.Random
    lines: Lines = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make lines from the same source."""
        self.lines = Lines(self.source, (os.getpid(),))

    def spoilt(self, packet: bytes) -> bytes:
        """Return a packet: mostly unchanged, otherwise with other bytes or another size."""
        kind = self.source.random()
        if kind < 0.7 or not packet:
            return packet
        spoiled = bytearray(packet)
        if kind < 0.85:
            spoiled[self.source.randrange(len(spoiled))] = self.source.randint(0, 255)
            return bytes(spoiled)
        return (packet + bytes(5000))[: self.source.choice(SIZES)]

    def role(self) -> bytes:
        """Return a role."""
        return struct.pack("<i", self.source.choice((SERVER, CLIENT, TOOL, TOOL, TOOL, 0, 3, 5, -1)))

    def line(self) -> tuple[bytes, bytes]:
        """Return the packets of a line that neither ends a daemon nor starts a server."""
        line = self.lines.line()
        if parse(line, 2).command in ("quit", "start_server") or b"quit" in line:
            line = b"get_server_list"
        length = self.source.choice((len(line) + 2, len(line) + 2, len(line) + 2, -1, 1, 2**40))
        return struct.pack("<q", length), line + b"\n\0"

    def anything(self) -> bytes:
        """Return a packet of any of the conversations."""
        kind = self.source.randint(0, 4)
        if kind == 0:
            return self.source.randbytes(self.source.choice(SIZES))
        if kind == 1:
            return struct.pack("<i", self.source.choice(INTEGERS))
        if kind == 2:
            return struct.pack("<q", self.source.choice(INTEGERS))
        if kind == 3:
            return bytes(256) + b"mps.shm.0.1".ljust(260, b"\0")
        return bytes(4) + self.source.randbytes(self.source.randint(0, 50))


def _session(here: Visitor, packets: Packets) -> None:
    """Send what a peer sends, with an error in most sessions, and perhaps descriptors."""
    source = packets.source
    fds = [0] * source.choice((0, 0, 0, 1, 200))
    here.introduce(packets.spoilt(CREDENTIALS), fds)
    role = packets.role()
    here.send(packets.spoilt(role), fds=fds)
    for _ in range(source.randint(0, 8)):
        if role[0] == TOOL and source.random() < 0.9:
            for packet in packets.line():
                here.send(packets.spoilt(packet), fds=fds)
        else:
            here.send(packets.anything() or b"\0", fds=fds)
    if source.random() < 0.5:
        here.connection.shutdown(socket.SHUT_WR)
        while here.hear():
            pass


def fuzz_driver_daemon(daemon: DaemonProcess, seed: int, sessions: int) -> Found:
    """Run that many sessions; raise AssertionError if the daemon was harmed."""
    daemon.run_command("get_server_list")
    wait_until(lambda: daemon.log()[-1] == "UI closed")
    before, fat = descriptors(daemon.pid), resident_kib(daemon.pid)
    for number in range(sessions):
        packets = Packets(random.Random(f"{seed}/driver/{number}"))
        name = packets.source.choice(("control", "control_privileged"))
        # It hangs up at what is wrong, perhaps before all is reported.
        gone = contextlib.suppress(BrokenPipeError, ConnectionResetError)
        with gone, visitor(daemon.directory / "pipe" / name) as here:
            _session(here, packets)
        assert alive(daemon.pid), f"session {number} of seed {seed} ended the daemon"
    # One more is of this very process, which was a client: see tests/flows/test_driver_bad_input.py.
    wait_until(
        lambda: _shut_servers_down(daemon) and descriptors(daemon.pid) <= before + 1,
        "the end of all servers, and the daemon's descriptors back to before",
    )
    # In bytes: a command is logged as it came.
    log = (daemon.directory / "log" / "control.log").read_bytes()
    assert b"internal error" not in log
    return Found(
        log.count(b"] Cmd:"),
        log.count(b"] Unable to read new connection type information"),
        before,
        descriptors(daemon.pid),
        fat,
        resident_kib(daemon.pid),
    )


def _shut_servers_down(daemon: DaemonProcess) -> bool:
    """Shut down all servers; return whether there was none. One may have been started for a client that has left."""
    servers = daemon.servers()
    for server in servers:
        daemon.run([], f"shutdown_server {server} -f\n")
    return not servers


def _lies(packets: Packets) -> list[bytes]:
    source = packets.source
    output = []
    for _ in range(source.randint(0, 12)):
        text = bytes(4) + source.randbytes(source.choice((0, 1, 40, 4000, 60_000)))
        output.append(packets.spoilt(text) if source.random() < 0.8 else packets.anything())
    if source.random() < 0.7:
        output.append(END)
    return [packet or b"\0" for packet in output]


def _all(daemon: socket.socket, lines: list[bytes]) -> tuple[list[bytes], bool]:
    """Send all lines: the daemon is one of this user."""
    return lines, False


def fuzz_tool(theirs: TheirDaemon, pipe_directory: Path, seed: int, sessions: int) -> dict[int, int]:
    """Give commands to a daemon that lies; return how often each exit status came. Anything else is raised."""
    statuses: dict[int, int] = {}
    for number in range(sessions):
        packets = Packets(random.Random(f"{seed}/tool/{number}"))
        theirs.hello = packets.spoilt(HELLO) or b"\0"
        theirs.raw = _lies(packets)
        printed, complained = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            path = os.fsencode(pipe_directory / "control")
            try:
                status = driver_daemon.give_commands(path, [[b"ps"]], strict=False, timeout=10, select=_all)
            except ConnectionError:
                status = control_client.UNREACHABLE
        assert complained.getvalue() == "", f"session {number} of seed {seed}"
        statuses[status] = statuses.get(status, 0) + 1
    return statuses
