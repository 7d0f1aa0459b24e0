"""Stands in for the server: starts a real executor process and talks to it over its link."""

from __future__ import annotations

import array
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.process import version
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import Quota
from pympsd.wire import messages
from pympsd.wire.executor_messages import (
    AskTrace,
    Attach,
    Attached,
    ContextFaulted,
    Detach,
    DropClient,
    ExecutorReady,
    ExecutorSetup,
    Trace,
)
from pympsd.wire.framing import FrameReader
from tests.executor.raw_client import RawClient

PROGRAM = Path(__file__).resolve().parents[2] / "pympsd_server" / "executor" / "__main__.py"
SECONDS = 30.0
"""The absolute limit of every wait."""
GENERATION = 7


def current_build() -> str:
    """Return the build id of the sources as they are now: others may edit them while tests run."""
    version._build.clear()
    return version.build_id()


@define
class ExecutorOwner:
    """``process`` is the executor, ``link`` our end of the link. Close it in any case."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    by_ring: bool = False
    """Whether clients' records go by the ring that native workers have."""
    _reader: FrameReader = field(factory=lambda: FrameReader(fds_allowed=2))
    _waiting: list[tuple[Any, tuple[int, ...]]] = field(factory=list)
    _clients: list[RawClient] = field(factory=list)
    _ids: set[int] = field(factory=set)
    """Of the clients that were attached."""
    _request: int = 0

    @classmethod
    def start(cls, *options: str, **popen: Any) -> ExecutorOwner:
        """Start an executor that has not received any message yet."""
        own_end, peer_end = socket.socketpair()
        own_end.settimeout(SECONDS)
        interpreter = [sys.executable, "-I", *popen.pop("python_options", ())]
        with peer_end:
            process = subprocess.Popen(
                [
                    *interpreter,
                    str(PROGRAM),
                    "--link-fd",
                    str(peer_end.fileno()),
                    *options,
                ],
                pass_fds=(peer_end.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=popen.pop("stdout", subprocess.DEVNULL),
                **popen,
            )
        return cls(process, own_end)

    def set_up(self, device: DeviceProperties | None = None, **changes: Any) -> Any:
        """Send it its device; return its first message."""
        build = changes.get("build", current_build())
        backend = changes.get("backend", "emulated")
        properties = device or describe("H200")[0]
        self.send(ExecutorSetup(build, changes.get("ordinal", 0), GENERATION, backend, properties))
        return self.receive()[0]

    def ready(self, device: DeviceProperties | None = None) -> ExecutorOwner:
        """Set it up and expect it to be ready."""
        first = self.set_up(device)
        assert first == ExecutorReady(self.process.pid), first
        return self

    # --- the link

    def send(self, message: object) -> None:
        """Send a message."""
        self.link.sendall(messages.encode(message))

    def receive(self) -> tuple[Any, tuple[int, ...]]:
        """Return the next message and its descriptors; EOFError when the executor is gone."""
        while not self._waiting:
            room = socket.CMSG_SPACE(2 * array.array("i").itemsize)
            data, ancillary, _, _ = self.link.recvmsg(1 << 16, room)
            if not data:
                raise EOFError
            fds = array.array("i")
            for _, _, content in ancillary:
                fds.frombytes(content)
            frames = self._reader.feed(data, tuple(fds))
            self._waiting += [(messages.decode(frame), frame.fds) for frame in frames]
        message, taken = self._waiting.pop(0)
        return message, taken

    def ask(self, kind: type, **fields: Any) -> tuple[Any, tuple[int, ...]]:
        """Send a request and return its answer; a fault may be reported at any time, so before it too."""
        self._request += 1
        if kind is Attach:
            self._ids.add(fields["client"])
        self.send(kind(request=self._request, **fields))
        faults = []
        while isinstance((received := self.receive())[0], ContextFaulted):
            faults.append(received)
        self._waiting[:0] = faults
        answer, fds = received
        assert answer.request == self._request
        return answer, fds

    def attach(self, client: int = 1, context: int = 1, **limits: int) -> RawClient:
        """Attach a client with its first context."""
        answer, fds = self.ask(Attach, **self.request(client, context, True, **limits))
        assert isinstance(answer, Attached), answer
        assert len(fds) == 2
        raw = RawClient.from_fds(fds, context, GENERATION, answer, self.by_ring)
        self._clients.append(raw)
        return raw

    @staticmethod
    def request(client: int, context: int, new_stream: bool, **limits: Any) -> dict[str, Any]:
        """Return the fields of an Attach."""
        return {
            "client": client,
            "context": context,
            "new_stream": new_stream,
            "quota": Quota(**{"multiprocessors": 0, "memory_bytes": 0, "priority": 0} | limits),
        }

    def detach(self, context: int) -> Any:
        """Destroy a context."""
        return self.ask(Detach, context=context)[0]

    def drop(self, client: int) -> Any:
        """Drop a client process."""
        return self.ask(DropClient, client=client)[0]

    def drop_all(self) -> None:
        """Drop all client processes, and forget what was reported of them."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        while self._ids:
            self.drop(self._ids.pop())
        self._waiting.clear()

    def trace(self) -> Trace:
        """Ask what the device did."""
        answer, fds = self.ask(AskTrace)
        assert isinstance(answer, Trace), answer
        assert fds == ()
        return answer

    # --- the process

    def wait_for_exit(self) -> int:
        """Return the executor's exit status."""
        return self.process.wait(SECONDS)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def fd_count(self) -> int:
        """Return how many descriptors the executor has."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def close(self) -> None:
        """End the link, which must end the executor; kill it if it does not, and report it."""
        for client in self._clients:
            client.close()
        self.link.close()
        try:
            self.process.wait(SECONDS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            if self.process.stderr is not None:
                self.process.stderr.close()


def readable(sock: socket.socket, seconds: float) -> bool:
    """Return whether something can be read within a number of seconds."""
    return bool(select.select([sock], [], [], seconds)[0])
