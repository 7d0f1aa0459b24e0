"""Sessions thrown at a live daemon: afterwards it answers, and has no more descriptors or memory than before."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

from attrs import frozen
from fuzz_lines import Lines, conversation
from processes import DaemonProcess, alive, wait_until

from pympsd.commands.grammar.line import parse

AT_ONCE = 8


@frozen
class Found:
    """The daemon's resources before and after, and what happened in between."""

    commands: int
    unreadable: int
    """Connections closed because of what they sent."""
    servers: int
    descriptors_before: int
    descriptors_after: int
    kib_before: int
    kib_after: int


def descriptors(pid: int) -> int:
    """Return the number of descriptors that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kib(pid: int) -> int:
    """Return a process's resident memory."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def _harmless(line: bytes, source: random.Random) -> bytes:
    """Return the line, or a harmless one if it would end the daemon or, in most sessions, start a server."""
    name = parse(line, 2).command
    if name == "quit" or (name == "start_server" and source.random() > 0.02):
        return b"get_server_list"
    return line


def _open(control: str, data: bytes, source: random.Random) -> socket.socket | None:
    """Send it; close immediately, or leave the connection to be read from later."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(30)
        sock.connect(control)
        sock.settimeout(0)
        while data:
            data = data[sock.send(data) :]
    except BlockingIOError:
        pass  # it waits for us to read: then the rest is not said
    except (BrokenPipeError, ConnectionResetError):
        sock.close()
        return None
    if source.random() < 0.4:
        sock.close()
        return None
    return sock


def _read_to_its_end(sock: socket.socket) -> None:
    try:
        sock.settimeout(30)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        raise AssertionError("the daemon did not end a conversation that had ended") from None
    except OSError:
        pass  # it hung up first
    finally:
        sock.close()


def fuzz_daemon(daemon: DaemonProcess, seed: int, sessions: int) -> Found:
    """Run that many sessions, some at the same time; raise AssertionError if the daemon was harmed."""
    control = str(daemon.directory / "pipe" / "control")
    assert daemon.run_command("ps") == "Server not found\n"
    wait_until(lambda: daemon.log()[-1] == "UI closed", "the end of the first session")
    before, fat = descriptors(daemon.pid), resident_kib(daemon.pid)
    open_ones: list[socket.socket] = []
    for number in range(sessions):
        source = random.Random(f"{seed}/live/{number}")
        maker = Lines(source, (daemon.pid, os.getpid()))
        lines = [_harmless(maker.line(), source) for _ in range(source.randint(0, 12))]
        sock = _open(control, _without_quit(conversation(source, lines)), source)
        if sock is not None:
            open_ones.append(sock)
        if len(open_ones) >= AT_ONCE:
            _read_to_its_end(open_ones.pop(source.randrange(len(open_ones))))
        assert alive(daemon.pid), f"session {number} of seed {seed} ended the daemon"
    for sock in open_ones:
        _read_to_its_end(sock)
    assert daemon.run([], "ps").returncode == 0
    quiet = "the end of the servers that were asked for, and the daemon's descriptors back to before"
    wait_until(lambda: _quiet(daemon) and descriptors(daemon.pid) <= before, quiet)
    # In bytes: a command is logged as it came.
    log = (daemon.directory / "log" / "control.log").read_bytes()
    assert b"internal error" not in log
    return Found(
        log.count(b"] Cmd:"),
        log.count(b"] Unable to read new connection type information"),
        log.count(b"] Starting new server "),
        before,
        descriptors(daemon.pid),
        fat,
        resident_kib(daemon.pid),
    )


def _without_quit(data: bytes) -> bytes:
    # A spoilt byte may make one again.
    return data.replace(b"quit", b"QUIT")


def _quiet(daemon: DaemonProcess) -> bool:
    """Whether no server is left; ask those that run to end."""
    for server in daemon.servers():
        daemon.run_command(f"shutdown_server {server} -f")
    return not daemon.servers()
