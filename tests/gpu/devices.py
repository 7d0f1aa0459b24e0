"""The open devices of a keeper's worker, for tests: kernels run on them through the port, with a time limit."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import FunctionLayout

SECONDS = 60.0
"""The absolute limit of one request; after it the process that holds the GPU is killed."""
VARIABLE = "PYMPSD_TEST_DEVICES"
"""Backends, separated by commas: the others are compared with the first."""


class Refused(Exception):
    """Raised when the port refuses: ``code`` is the CUresult."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{Result(code).name}: {reason}")
        self.code = code


class Lost(AssertionError):
    """Raised when the worker is gone, or took too long; the next request goes to another worker."""


@frozen
class Loaded:
    """A module on a device."""

    number: int
    functions: Mapping[str, FunctionLayout]
    variables: Mapping[str, int]

    def packed(self, name: str, arguments: Sequence[Any]) -> bytes:
        """Return the parameter buffer: ints have their parameter's size, bytes and NumPy values their own."""
        layout = self.functions[name]
        buffer = bytearray(layout.parameter_bytes)
        for (offset, size), value in zip(layout.parameters, arguments, strict=True):
            if isinstance(value, int):
                data = struct.pack("<q" if value < 0 else "<Q", value)[:size]
            else:
                data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
            buffer[offset : offset + len(data)] = data
        return bytes(buffer)


@define
class OneDevice:
    """A device of the worker's; a new context for every user of it."""

    devices: Devices
    which: int

    @property
    def backend(self) -> str:
        """Return the name of the backend."""
        return self.devices.backends[self.which]

    def fresh(self) -> OneDevice:
        """Make a new context; everything in the previous one is gone."""
        self._ask("fresh")
        return self

    def put(self, array: np.ndarray[Any, Any]) -> int:
        """Return the address of a copy of an array."""
        data = np.ascontiguousarray(array).tobytes()
        address: int = self._ask("allocate", max(len(data), 1))
        self.write(address, data)
        return address

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to the device."""
        if data:
            self._ask("write", address, data)

    def read(self, address: int, count: int) -> bytes:
        """Copy bytes from the device."""
        data: bytes = self._ask("read", address, count)
        return data

    def load(self, image: bytes) -> Loaded:
        """Load code; raise Refused if the port refuses it."""
        number, functions, variables = self._ask("load", image)
        return Loaded(number, {function.name: function for function in functions}, variables)

    def launch(self, module: Loaded, name: str, grid: Any, block: Any, shared: int, arguments: Sequence[Any]) -> None:
        """Launch a kernel and wait for its end. If it fails, open its device again and raise AssertionError."""
        parameters = module.packed(name, arguments)
        code, reason = self._ask("launch", module.number, name, grid, block, shared, parameters)
        if code:
            self.devices.drop()
            raise AssertionError(f"{name} on the {self.backend} device: {Result(code).name}: {reason}")

    def _ask(self, verb: str, *arguments: Any) -> Any:
        return self.devices.ask(self.which, verb, *arguments)


@define
class Devices:
    """The devices of a keeper; ``start`` it before a test looks at its children and descriptors."""

    backends: tuple[str, ...]
    _keeper: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)

    def __getitem__(self, which: int) -> OneDevice:
        return OneDevice(self, which)

    @property
    def last(self) -> OneDevice:
        """Return the tested device."""
        return self[len(self.backends) - 1]

    def start(self) -> None:
        """Start the keeper, which opens the devices."""
        own_end, peer_end = socket.socketpair()
        with peer_end:
            fd = peer_end.fileno()
            command = [sys.executable, "-m", "tests.gpu.device_lease", str(fd), *self.backends]
            self._keeper = subprocess.Popen(command, pass_fds=(fd,), stdin=subprocess.DEVNULL)
        self._connection = Connection(own_end.detach())
        for which in range(len(self.backends)):
            self[which].fresh()

    def ask(self, *request: Any) -> Any:
        """Return the worker's answer; raise Refused if the port refused, and Lost if no answer came."""
        assert self._connection is not None, f"no devices are open: {VARIABLE} names none (scripts/test-gpu sets it)"
        self._connection.send((SECONDS, request))
        kind, answer = self._connection.recv()
        if kind == "refused":
            raise Refused(*answer)
        if kind == "lost":
            raise Lost(f"{request[1]}: {answer}")
        return answer

    def drop(self) -> None:
        """End the worker; the next request goes to a new one, which opens the devices again."""
        assert self._connection is not None
        self._connection.send(None)
        self._connection.recv()

    def close(self) -> None:
        """End the keeper, and with it the worker."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._keeper is not None:
            self._keeper.wait(SECONDS)
            self._keeper = None


DEVICES = Devices(tuple(filter(None, os.environ.get(VARIABLE, "").split(","))))
