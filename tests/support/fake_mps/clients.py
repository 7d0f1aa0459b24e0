"""The fake server's clients: their connections, contexts, limits and faults.

One client is one process. Its first connection comes from cuInit and is called context 0 in the log; each further one
is a context on a device. The first packets of server and client are as recorded; the rest is invented (JSON).
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import devices
from .peer import DESCRIPTOR, GREETING_DESCRIPTORS, SO_PASSCRED, receive
from .server_log import write

MAX_CONTEXTS = 48
ANSWER_PACKETS = 3
"""A client's answer to the server's first packets: its credentials, and two numbers."""
STEP_FACTOR, STEP_TERM, STEP_MODULUS = 6364136223846793005, 1442695040888963407, 1 << 64
"""A context's chain of computations: value * factor + term + number of the step, modulo 2**64."""
ILLEGAL_ADDRESS, TERMINATED = "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MPS_CLIENT_TERMINATED"


@dataclass(frozen=True)
class Limits:
    """The limits of clients that are handed over from now on."""

    percentage: float = 100.0
    memory: dict[str, int] = field(default_factory=dict)
    priority: int = 0


@dataclass(eq=False)
class Connection:
    """A client's connection; it is a context once the client has reported that."""

    socket: socket.socket
    limits: Limits
    pid: int = -1
    number: int = -1
    """-1 until it has sent its hello, 0 for cuInit's, then 1, 2, ... in its process."""
    words: int = 0
    """The number of packets that the client has sent before its hello."""
    device: int = -1
    slot: int = -1
    identifier: int = 0
    percentage: float = 100.0
    priority: int = 0
    allocated: int = 0
    value: int = 0
    error: str = ""

    def __str__(self) -> str:
        return f"{{PID: {self.pid}, Context ID: {self.number}}}"


@dataclass
class Process:
    """A client process."""

    connections: list[Connection] = field(default_factory=list)
    contexts_made: int = 0
    sticky: bool = False


class Clients:
    """All client processes."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: dict[int, Process] = {}
        self.fault = False
        self._destroyed: set[int] = set()
        self._slots: dict[int, Connection] = {}
        self._free = list(range(MAX_CONTEXTS))
        """The most recently freed slot is used first, so lists of clients are not always in the order of arrival."""
        self._identifiers = 0
        self._asked_last = (-1333654781, 0)
        """The vendor's line about a new request names whoever asked before, and at first nobody."""

    # --- what the daemon asks for

    def contexts(self) -> Iterator[Connection]:
        """Return the contexts in the order of the lists."""
        return (self._slots[slot] for slot in sorted(self._slots))

    def pids(self) -> list[int]:
        """Return the processes for command 6: those with a context."""
        return list(dict.fromkeys(context.pid for context in self.contexts()))

    def workers(self) -> int:
        """Return the number of connections that have sent their hello."""
        return sum(len(process.connections) for process in self.processes.values())

    def ps_records(self) -> list[bytes]:
        """Return the records for command 14: the first context of each process."""
        firsts: dict[int, Connection] = {}
        for context in self.contexts():
            if context.pid not in firsts or context.number < firsts[context.pid].number:
                firsts[context.pid] = context
        return [
            struct.pack("<ii4xi16sii", c.pid, c.number, c.device, devices.uuid(c.device), c.identifier, c.priority)
            for c in firsts.values()
        ]

    def device_records(self) -> list[bytes]:
        """Return the messages for command 7, without the first."""
        output = []
        for device in range(self.count):
            here = [struct.pack("<ii32x", c.pid, c.number) for c in self.contexts() if c.device == device]
            output += [devices.uuid(device), devices.client_list_record(device), struct.pack("<i", len(here)), *here]
        return output

    def terminate(self, pid: int) -> int | None:
        """End a process's contexts; return 0, 201 when it has none, and None if one has been terminated before."""
        present = [context for context in self.contexts() if context.pid == pid]
        if not present:
            write(f"Client termination request failed: There is no active client context found for process {pid}.")
            write("Client termination failed with invalid device context.")
            return 201
        hangs = any(context.error == TERMINATED for context in present)
        for context in present:
            write(f"MPS server requesting client {context} to exit")
            context.error = TERMINATED
        if hangs:
            return None
        write("Client termination succeeded.")
        return 0

    # --- connections

    def hand_over(self, descriptor: int, limits: Limits) -> Connection | None:
        """Take a client's connection; return None for one that is never answered, as it does not say whose it is."""
        write("Received new client request for {{PID: {}, Context ID: {}}}".format(*self._asked_last))
        taken = socket.socket(fileno=descriptor)
        if not taken.getsockopt(socket.SOL_SOCKET, SO_PASSCRED):
            taken.detach()  # it stays open for ever: the client waits, and is sent nothing
            return None
        with contextlib.suppress(OSError):  # it has gone, and its end comes next
            _greet(taken)
        return Connection(taken, limits)

    def serve(self, connection: Connection) -> bool:
        """Take one packet, or the end; return whether the connection continues."""
        message, descriptors, pid = receive(connection.socket)
        for descriptor in descriptors:
            os.close(descriptor)
        if not message and not connection.words:
            write("User did not send valid credentials")
            connection.socket.close()
            return False
        if not connection.words:
            connection.pid = pid or 0
        if connection.number < 0 and message and connection.words < ANSWER_PACKETS:
            connection.words += 1
            if connection.words == ANSWER_PACKETS:
                with contextlib.suppress(OSError):
                    connection.socket.send(bytes(4))
            return True
        request = _request_of(message)
        if request is None:
            if connection.number < 0:
                self._connect(connection, connection.pid, 0)
            self._gone(connection)
            return False
        answer = (
            self._hello(connection, pid or 0, request) if connection.number < 0 else _ask(self, connection, request)
        )
        with contextlib.suppress(OSError):  # it has gone, and its end comes next
            connection.socket.send(json.dumps(answer).encode())
        if connection.number < 0:
            connection.socket.close()
        return connection.number >= 0

    def _hello(self, connection: Connection, pid: int, request: dict[str, Any]) -> dict[str, Any]:
        process = self.processes.get(pid, Process())
        device = request.get("device")
        number = 0 if device is None else process.contexts_made + 1
        name = f"{{PID: {pid}, Context ID: {number}}}"
        self._asked_last = (pid, number)
        if self.fault:
            write(f"Server teardown in progress. Refusing to accept new client {name}")
            write(f"Failed to accept client {name} with status 807")
            return {"result": "CUDA_ERROR_MPS_SERVER_NOT_READY"}
        if device is not None and not 0 <= device < self.count:
            return {"result": "CUDA_ERROR_INVALID_DEVICE"}
        if device is not None and not self._free:
            write(f"Failed to accept new client. Maximum number of clients ({MAX_CONTEXTS}) reached.")
            return {"result": "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"}
        for destroyed in sorted(self._destroyed):
            write(f"Creating server context on device {destroyed} ({devices.NAME})")
        self._destroyed.clear()
        self._connect(connection, pid, number)
        connection.percentage = min(connection.limits.percentage, request.get("percentage", 100.0))
        connection.priority = request.get("priority", connection.limits.priority)
        if device is not None:
            self._identifiers += 1
            self.processes[pid].contexts_made = number
            connection.device, connection.slot, connection.identifier = device, self._free.pop(0), self._identifiers
            self._slots[connection.slot] = connection
            write(f"Device {devices.NAME} (uuid {devices.uuid_text(device)}) is associated")
            write(f"Status of client {name} is ACTIVE")
        return {"result": "CUDA_SUCCESS"}

    def _connect(self, connection: Connection, pid: int, number: int) -> None:
        self.processes.setdefault(pid, Process()).connections.append(connection)
        connection.pid, connection.number = pid, number
        write(f"Client {connection} connected")
        write(f"Creating worker thread for client {connection}")

    def used(self, device: int, pid: int | None = None) -> int:
        """Return the bytes allocated on a device, by all or by one process."""
        here = (c for c in self.contexts() if c.device == device and pid in (None, c.pid))
        return sum(context.allocated for context in here)

    # --- ends

    def _gone(self, connection: Connection) -> None:
        connection.socket.close()
        if connection.number < 0:
            return
        process = self.processes[connection.pid]
        if connection.number == 0 and connection.pid and any(c.number for c in process.connections):
            connection.number = -2  # a killed process: its contexts follow immediately, and are logged before it
            return
        process.connections.remove(connection)
        write(f"Server failed to recevie command with status 806, assuming client {connection} exit")
        if connection.number:
            self._context_gone(connection)
            last = process.connections[0] if len(process.connections) == 1 else None
            if last is not None and last.number == -2:
                last.number = 0
                self._gone(last)
                return
        else:
            write(f"Client process {connection.pid} disconnected")
        if not process.connections:
            del self.processes[connection.pid]
            if self.fault and not any(process.sticky for process in self.processes.values()):
                self.fault = False

    def _context_gone(self, context: Connection) -> None:
        del self._slots[context.slot]
        self._free.insert(0, context.slot)
        remaining = sum(other.device == context.device for other in self.contexts())
        write(f"Client {context} exiting. Number of active client contexts is {remaining}.")
        if self.processes[context.pid].sticky and not remaining:
            self._destroyed.add(context.device)
            write(f"Destroy server context on device {context.device} ({devices.NAME})")

    # --- faults

    def fail(self, culprit: Connection) -> None:
        """Handle a fatal error: it takes all processes on the device, and all on the other devices of those."""
        write(f"Client {{PID: {culprit.pid}, Context: {culprit.number}}} encountered a fatal GPU error.")
        write("Server is handling a fatal GPU error.")
        self.fault = True
        reset: list[int] = []
        struck: list[int] = []
        self._reset(culprit.device, reset, struck)
        for pid in struck:  # it grows
            write(f"All clients belonging to error trigging process {pid} will be torn down")
            own = [context for context in self.contexts() if context.pid == pid]
            for context in own:
                write(f"Client {context} on the error-trigging process {pid} to be torn down")
            for context in own:
                self._reset(context.device, reset, struck)
            self.processes[pid].sticky = True
            for context in own:
                context.error = ILLEGAL_ADDRESS
        for line in ("The following devices will be reset:", *map(str, sorted(reset))):
            write(line)
        for line in ("The following client process have a sticky error set:", *map(str, struck)):
            write(line)

    def _reset(self, device: int, reset: list[int], struck: list[int]) -> None:
        if device in reset:
            return
        reset.append(device)
        for context in self.contexts():
            if context.device == device:
                write(f"Client {context} on device {device} to be torn down")
                if context.pid not in struck:
                    struck.append(context.pid)


def _greet(client: socket.socket) -> None:
    """Send the packets that a server sends before its client's first one."""
    for _ in range(GREETING_DESCRIPTORS):
        with open(os.devnull, "rb") as nothing:
            rights = array.array("i", [nothing.fileno()])
            client.sendmsg([DESCRIPTOR], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    client.send(b"\0")


def _request_of(message: bytes) -> dict[str, Any] | None:
    """Return the request in a packet; None at the end, and for other packets."""
    with contextlib.suppress(ValueError):
        request = json.loads(message)
        if isinstance(request, dict):
            return request
    return None


def _ask(clients: Clients, context: Connection, request: dict[str, Any]) -> dict[str, Any]:
    """Answer a context's request to its device."""
    if context.error:
        return {"result": context.error}
    question = request["ask"]
    if question == "sms":
        return {"result": "CUDA_SUCCESS", "value": devices.multiprocessors(context.percentage)}
    if question == "alloc":
        return {"result": _allocate(clients, context, request["bytes"])}
    if question == "step":
        context.value = (context.value * STEP_FACTOR + STEP_TERM + request["number"]) % STEP_MODULUS
        return {"result": "CUDA_SUCCESS", "value": context.value}
    if question == "fault":
        clients.fail(context)
        return {"result": context.error}
    return {"result": "CUDA_SUCCESS"}  # sync, launch


def _allocate(clients: Clients, context: Connection, size: int) -> str:
    limit = context.limits.memory.get(str(context.device), 0) or devices.MEMORY_BYTES
    if clients.used(context.device, context.pid) + size > limit:
        return "CUDA_ERROR_OUT_OF_MEMORY"
    if clients.used(context.device) + size > devices.MEMORY_BYTES:
        return "CUDA_ERROR_OUT_OF_MEMORY"
    context.allocated += size
    return "CUDA_SUCCESS"
