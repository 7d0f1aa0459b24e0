"""A fake nvidia-cuda-mps-server: speaks with the control daemon byte for byte as the recorded one does.

What it does not expect (an unknown command, a message of another size) ends it with status 3 and a line on standard
error: a test of a daemon then fails where the daemon was wrong.
"""

from __future__ import annotations

import os
import selectors
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from . import devices
from .behaviour import Behaviour
from .clients import Clients, Connection, Limits
from .peer import DESCRIPTOR, HELLO, SERVER, connect, pipe_directory, receive, send_credentials
from .server_log import OTHER, write

READY_BYTES = 516
DEVICE_BYTES = 41
DEVICES_WORD = 11024
"""The word that the daemon sends with command 24; its meaning is unknown."""
UNEXPECTED = 3


class Unexpected(Exception):
    """Raised when the daemon sends what the recorded one never sends."""


class End(Exception):
    """Raised to end the server."""


@dataclass(frozen=True)
class Command:
    """One of the daemon's commands: the sizes of its arguments, its answer, and the packets after the answer."""

    follows: tuple[int, ...]
    answer: Callable[[MpsServer, list[bytes]], list[bytes]]
    confirmed: bool = False


class MpsServer:
    """The server's side of its connection to the daemon, and its clients."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.clients = Clients(behaviour.devices)
        self.limits = Limits()
        self.handed: list[int] = []
        """The descriptors of the message that is being read."""
        self._taken: list[bytes] = []
        self._command = 0
        self._awaits_confirmation = False
        self._new_client: Connection | None = None
        """The client that the server is talking to; meanwhile it reads nothing from the daemon."""
        self._awaits_end_of = 0
        """The process that it was asked to terminate twice; it reads no command until this process ends."""
        # Not epoll: a connection that is closed here stays in its set as long as another process has a copy of it.
        self._selector = selectors.PollSelector()

    def start(self) -> None:
        """Connect, register, get ready, and receive the defaults."""
        write("Startup", OTHER)
        write(f"Connecting to control daemon on socket: {pipe_directory()}/control", OTHER)
        self.behaviour.reach("before_hello")
        self.daemon = connect()
        hello = receive(self.daemon)[0]
        _expect(hello == HELLO, f"the hello is {hello!r}")
        send_credentials(self.daemon, *([b"OUTBCRE2\0"] if self.behaviour.wrong_hello else []))
        write("Initializing server process", OTHER)
        self.behaviour.reach("before_role")
        time.sleep(self.behaviour.start_seconds)
        for device in range(self.clients.count):
            write(f"Creating server context on device {device} ({devices.NAME})")
        memory = f"mps.shm.{os.getuid()}.{os.getpid()}"
        write(f"Created anonymous shared memory region {memory}")
        write("CUDA MPS Server for Linux/Unix. Binary version: 13000")
        write("Display Driver version: 580")
        self.daemon.send(struct.pack("<q" if self.behaviour.wrong_role else "<i", SERVER))
        self.behaviour.wait_before_registration()
        size = READY_BYTES + (8 if self.behaviour.wrong_registration else 0)
        self.daemon.send(bytes(256) + memory.encode().ljust(size - 256, b"\0"))
        self.behaviour.reach("after_role")
        self._take_defaults()
        write("Server has started")

    def _take_defaults(self) -> None:
        (percentage,) = struct.unpack("<d", self._next(8))
        self.limits = replace(self.limits, percentage=percentage)
        write(f"Active Threads Percentage set to {percentage:.1f}")
        for _ in range(struct.unpack("<q", self._next(8))[0]):
            self.set_memory_limit([self._next(DEVICE_BYTES), self._next(8)])
        (priority,) = struct.unpack("<i", self._next(4))
        self.limits = replace(self.limits, priority=priority)
        write(f"Server Priority set to {priority}")

    def _next(self, size: int) -> bytes:
        message = receive(self.daemon)[0]
        if not message:
            raise End
        _expect(len(message) == size, f"{len(message)} bytes instead of {size} for the defaults")
        return message

    def run(self) -> None:
        """Serve daemon and clients until the daemon's connection closes or it gets the command to end."""
        self._selector.register(self.daemon, selectors.EVENT_READ, None)
        while True:
            ready = [key for key, _ in self._selector.select()]
            # The daemon last: its answer has all that clients did before. Newest contexts first, as in the logs.
            ready.sort(key=lambda key: -key.data.number if key.data else 2)
            for key in ready:
                if key.data is None:
                    self._hear()
                else:
                    self._serve(key.data)

    def _serve(self, connection: Connection) -> None:
        continues = self.clients.serve(connection)
        if not continues:
            self._selector.unregister(connection.socket)
            if self._awaits_end_of and self._awaits_end_of not in self.clients.processes:
                self._awaits_end_of = 0
                self.daemon.send(struct.pack("<i", 0))
                self._selector.register(self.daemon, selectors.EVENT_READ, None)
        # As measured: after one that leaves without a word it waits for ever.
        if connection is self._new_client and connection.words and (connection.number >= 0 or not continues):
            self._new_client = None
            self._selector.register(self.daemon, selectors.EVENT_READ, None)

    def _hear(self) -> None:
        message, self.handed, _ = receive(self.daemon)
        if not message:
            raise End
        if self._awaits_confirmation:
            _expect(message == bytes(4), f"{message!r} instead of int32 0 after the answer to {self._command}")
            self._awaits_confirmation = False
            return
        if not self._command:
            _expect(len(message) == 4, f"{len(message)} bytes instead of a command")
            (self._command,) = struct.unpack("<i", message)
            _expect(self._command in COMMANDS, f"command {self._command}")
            self.behaviour.crash_at(f"on_command:{self._command}")
            if self.behaviour.hangs_at(self._command):
                self._selector.unregister(self.daemon)
                return
        else:
            size = COMMANDS[self._command].follows[len(self._taken)]
            _expect(len(message) == size, f"{len(message)} bytes instead of {size} after command {self._command}")
            self._taken.append(message)
        if len(self._taken) == len(COMMANDS[self._command].follows):
            self._answer()

    def _answer(self) -> None:
        number, taken = self._command, self._taken
        self._command, self._taken = 0, []
        answer, ends = self.behaviour.changed(number, COMMANDS[number].answer(self, taken))
        self.behaviour.wait_before_answer(number)
        for message in answer:
            self.daemon.send(message)
        if ends or (number == 5 and not self.clients.workers()):
            raise End
        self._awaits_confirmation = COMMANDS[number].confirmed and bool(answer)

    def wait_for_end(self, pid: int) -> None:
        """Read no command until a client's process has ended."""
        self._selector.unregister(self.daemon)
        self._awaits_end_of = pid

    def watch(self, connection: Connection) -> None:
        """Serve a client from now on; read no commands until it has identified itself."""
        self._selector.unregister(self.daemon)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._new_client = connection

    def set_memory_limit(self, words: list[bytes]) -> list[bytes]:
        """Store a device's limit in bytes; the device need not exist."""
        device, (size,) = devices.key(words[0]), struct.unpack("<Q", words[1])
        self.limits = replace(self.limits, memory={**self.limits.memory, device: size})
        write(f"Device pinned memory limit for device {device} set to {size:#x} bytes")
        return []


def _hand_over(server: MpsServer, words: list[bytes]) -> list[bytes]:
    _expect(words[0] == DESCRIPTOR and len(server.handed) == 1, f"{words[0]!r} with {len(server.handed)} descriptors")
    client = server.clients.hand_over(server.handed[0], server.limits)
    if client is not None:
        server.watch(client)
    return []


def _shut_down(server: MpsServer, words: list[bytes]) -> list[bytes]:
    write("Server has been notified to shutdown")
    workers = server.clients.workers()
    if workers:
        write(f"Server was unable to shutdown due to {workers} active clients")
    else:
        write("Waiting for current clients to finish")
        write("Exiting")
    return [struct.pack("<i", workers)]


def _client_list(server: MpsServer, words: list[bytes]) -> list[bytes]:
    pids = server.clients.pids()
    return [struct.pack("<i", word) for word in (len(pids), *pids)]


def _device_clients(server: MpsServer, words: list[bytes]) -> list[bytes]:
    return [struct.pack("<i", server.clients.count), *server.clients.device_records()]


def _percentage(server: MpsServer, words: list[bytes]) -> list[bytes]:
    return [struct.pack("<d", server.limits.percentage)]


def _set_percentage(server: MpsServer, words: list[bytes]) -> list[bytes]:
    server.limits = replace(server.limits, percentage=struct.unpack("<d", words[0])[0])
    return []


def _terminate(server: MpsServer, words: list[bytes]) -> list[bytes]:
    (pid,) = struct.unpack("<i", words[0])
    code = server.clients.terminate(pid)
    if code is None:  # as measured
        server.wait_for_end(pid)
        return []
    return [struct.pack("<i", code)]


def _ps(server: MpsServer, words: list[bytes]) -> list[bytes]:
    records = server.clients.ps_records()
    return [struct.pack("<i", len(records)), *records]


def _set_priority(server: MpsServer, words: list[bytes]) -> list[bytes]:
    server.limits = replace(server.limits, priority=struct.unpack("<i", words[0])[0])
    write(f"Client Priority set to {server.limits.priority}")
    return []


def _status(server: MpsServer, words: list[bytes]) -> list[bytes]:
    return [struct.pack("<i", 0 if server.clients.fault else 1)]


def _memory_limit(server: MpsServer, words: list[bytes]) -> list[bytes]:
    return [struct.pack("<Q", server.limits.memory.get(devices.key(words[0]), 0))]


def _device_query(server: MpsServer, words: list[bytes]) -> list[bytes]:
    _expect(struct.unpack("<q", words[0]) == (DEVICES_WORD,), f"{words[0]!r} with command 24")
    count = server.clients.count
    write(f"Received device query command. There are {count} devices")
    return [struct.pack("<i", count), *map(devices.query_record, range(count))]


COMMANDS = {
    2: Command((len(DESCRIPTOR),), _hand_over),
    5: Command((), _shut_down),
    6: Command((), _client_list),
    7: Command((), _device_clients),
    8: Command((), _percentage),
    9: Command((8,), _set_percentage),
    13: Command((4,), _terminate),
    14: Command((), _ps, confirmed=True),
    15: Command((4,), _set_priority),
    17: Command((), _status),
    19: Command((DEVICE_BYTES,), _memory_limit),
    20: Command((DEVICE_BYTES, 8), MpsServer.set_memory_limit),
    24: Command((8,), _device_query),
}


def _expect(met: bool, problem: str) -> None:
    if not met:
        raise Unexpected(problem)


def main(behaviour_file: str, arguments: list[str]) -> int:
    """Run as the server; return the exit status."""
    if arguments not in ([], ["-multiuser-server"]):
        print(f"nvidia-cuda-mps-server: unexpected arguments: {arguments}", file=sys.stderr)
        return UNEXPECTED
    try:
        server = MpsServer(Behaviour(behaviour_file))
        server.start()
        server.run()
    except Unexpected as error:
        print(f"nvidia-cuda-mps-server: unexpected: {error}", file=sys.stderr)
        return UNEXPECTED
    except (End, BrokenPipeError, ConnectionResetError):
        return 0
    except (FileNotFoundError, ConnectionRefusedError):
        return 1
    return 0
