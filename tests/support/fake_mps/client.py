"""A fake CUDA program with a fake libcuda: asks for the server as the recorded libcuda does.

It executes standard input line by line and prints one line for each; it exits at the end of the input. It never
gives up waiting for the daemon. The README has the table of its lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
from typing import Any

from .peer import (
    CLIENT,
    CONTEXT,
    DESCRIPTOR,
    GREETING_DESCRIPTORS,
    HELLO,
    INIT,
    connect,
    receive,
    send_credentials,
)

HOLDER_SECONDS = 120
"""Seconds after which a forked child exits; it exits earlier if the input is closed."""
STEP_PAUSE_SECONDS = 0.001
FAILED, LOST = "CUDA_ERROR_MPS_CONNECTION_FAILED", "CUDA_ERROR_MPS_RPC_FAILURE"
SUCCESS = "CUDA_SUCCESS"


class Failure(Exception):
    """Raised when a call fails; the text is the result's name."""


def look() -> None:
    """Test whether a daemon runs: libcuda closes the connection after the hello."""
    with connect() as connection:
        if receive(connection)[0] != HELLO:
            raise Failure(FAILED)


def be_handed_over() -> socket.socket:
    """Ask the daemon for a server; wait without limit; return the connection to the server."""
    with connect() as connection:
        if receive(connection)[0] != HELLO:
            raise Failure(FAILED)
        try:
            send_credentials(connection)
            connection.send(struct.pack("<i", CLIENT))
            message, descriptors, _ = receive(connection)
            if message != DESCRIPTOR or len(descriptors) != 1:
                raise Failure(FAILED)
            server = socket.socket(fileno=descriptors[0])
            with contextlib.suppress(OSError):  # the daemon may have been killed since
                connection.send(bytes(4))
        except OSError:
            raise Failure(FAILED) from None
    return server


def be_greeted(server: socket.socket, words: tuple[int, int]) -> None:
    """Receive the server's first packets and answer them; raise Failure if the server has gone."""
    try:
        for _ in range(GREETING_DESCRIPTORS):
            message, descriptors, _ = receive(server)
            for descriptor in descriptors:
                os.close(descriptor)
            if message != DESCRIPTOR or len(descriptors) != 1:
                raise Failure(LOST)
        if receive(server)[0] != b"\0":
            raise Failure(LOST)
        send_credentials(server)
        for word in words:
            server.send(struct.pack("<i", word))
        if receive(server)[0] != bytes(4):
            raise Failure(LOST)
    except OSError:
        raise Failure(LOST) from None


def ask(server: socket.socket, **request: object) -> dict[str, Any]:
    """Send the server a request; return its answer; raise Failure if it refuses or has gone."""
    try:
        server.send(json.dumps(request).encode())
        message = receive(server)[0]
    except OSError:
        message = b""
    if not message:
        raise Failure(LOST)
    answer: dict[str, Any] = json.loads(message)
    if answer["result"] != SUCCESS:
        raise Failure(answer["result"])
    return answer


class Program:
    """The lines' methods, and their shared state."""

    def __init__(self) -> None:
        self.first: socket.socket | None = None
        """The connection made in cuInit."""
        self.contexts: list[socket.socket | None] = []
        self.steps = 0
        self.value = 0

    def run(self, name: str, *words: str) -> str:
        """Execute one line; return the text to print."""
        try:
            return f"{name} {getattr(self, f'do_{name}')(*words)}"
        except Failure as failure:
            return f"{name} {failure}"

    def do_init(self) -> str:
        try:
            look()
        except OSError:
            return "NO_DAEMON"  # the real one would continue without MPS
        self.first = self._converse()
        return SUCCESS

    def do_ctx(self, device: str) -> str:
        if self.first is None:
            return "CUDA_ERROR_NOT_INITIALIZED"
        self.contexts.append(self._converse(device=int(device)))
        return SUCCESS

    def do_destroy(self, number: str) -> str:
        context = self.contexts[int(number)]
        if context is None:
            return "CUDA_ERROR_INVALID_CONTEXT"
        context.close()
        self.contexts[int(number)] = None
        return SUCCESS

    def do_alloc(self, size: str) -> str:
        return str(self._ask("alloc", bytes=int(size))["result"])

    def do_sms(self) -> str:
        return str(self._ask("sms")["value"])

    def do_sync(self) -> str:
        return str(self._ask("sync")["result"])

    def do_launch(self) -> str:
        return str(self._ask("launch")["result"])

    def do_fault(self) -> str:
        return str(self._ask("fault")["result"])

    def do_fork(self) -> str:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (1, 2):
                os.dup2(nothing, standard)
            leash = select.poll()
            leash.register(0, 0)  # the lines are the parent's; the end of whoever writes them is reported unasked
            leash.poll(HOLDER_SECONDS * 1000)
            os._exit(0)
        return str(pid)

    def step(self) -> None:
        """Make the next computation of the chain, each of which needs the one before."""
        self.value = self._ask("step", number=self.steps)["value"]
        self.steps += 1

    def end(self) -> None:
        """Destroy the contexts, the newest first, as a program does that returns from main."""
        for connection in (*reversed(self.contexts), self.first):
            if connection is not None:
                connection.close()

    def _converse(self, **device: int) -> socket.socket:
        settings: dict[str, float] = {}
        # libcuda ignores a value that is not a number.
        with contextlib.suppress(KeyError, ValueError):
            settings["percentage"] = float(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
        with contextlib.suppress(KeyError, ValueError):
            settings["priority"] = int(os.environ["CUDA_MPS_CLIENT_PRIORITY"])
        try:
            server = be_handed_over()
        except OSError:
            raise Failure(FAILED) from None
        try:
            be_greeted(server, CONTEXT if device else INIT)
            ask(server, **settings, **device)
        except Failure:
            server.close()
            raise
        return server

    def _ask(self, request: str, **more: int) -> dict[str, Any]:
        current = next((context for context in reversed(self.contexts) if context is not None), None)
        if current is None:
            raise Failure("CUDA_ERROR_INVALID_CONTEXT")
        return ask(current, ask=request, **more)


class Lines:
    """Standard input, a line at a time, read without a buffer that hides lines from a poll."""

    def __init__(self) -> None:
        self._rest = b""

    def next(self, seconds: float | None = None) -> str | None:
        """Return the next line, empty at the end; None if no line comes within ``seconds``."""
        while b"\n" not in self._rest:
            if not select.select([0], [], [], seconds)[0]:
                return None
            more = os.read(0, 4096)
            if not more:
                return ""
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode() or " "


def compute(program: Program, lines: Lines) -> None:
    """Make steps until "stop" or the end of the input; answer "steps N" after N more steps."""
    target = 0
    while True:
        line = lines.next(STEP_PAUSE_SECONDS)
        if line is not None and line.startswith("steps "):
            target = program.steps + int(line.split()[1])
        elif line is not None:
            result = SUCCESS
            break
        try:
            program.step()
        except Failure as failure:
            result = str(failure)
            break
        if program.steps == target:
            print(f"steps {program.steps}", flush=True)
    print(f"loop {result} {program.steps} {program.value}", flush=True)


def main(arguments: list[str]) -> int:
    """Run; return the exit status."""
    program, lines = Program(), Lines()
    if arguments == ["--loop"]:
        for words in (("init",), ("ctx", "0")):
            print(program.run(*words), flush=True)
        compute(program, lines)
    while (line := lines.next()) and line != "exit":
        print(program.run(*line.split()), flush=True)
    program.end()
    if line == "exit":
        print("exit", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
