"""A process with open devices, which carries out commands through the port.

``python -m tests.gpu.port_worker FD BACKEND ...`` opens one device a backend, in this one process, each in an address
window of its own. Requests and answers are pickled tuples over a socket; the keeper starts this process again when a
kernel has faulted a device or never ends, because only that makes a GPU usable again.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

from attrs import define, evolve, field

from pympsd.devices.driver_probe import ask_driver
from pympsd.devices.machine import describe
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import ExecutorSetup
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError, Launch, Module
from pympsd_server.executor.main import open_device
from tests.backends.contract.port_user import PortUser

DEVICE_BYTES = 8 << 30


@define
class Bench:
    """A device, its one context in use, and the context's modules."""

    device: Device
    user: PortUser | None = None
    modules: list[Module] = field(factory=list)

    @property
    def at_work(self) -> PortUser:
        """The context in use."""
        assert self.user is not None, "fresh comes first"
        return self.user

    def fresh(self) -> None:
        """Make a new context; what the one before had is gone."""
        if self.user is not None:
            self.user.context.destroy()
        self.modules.clear()
        self.user = PortUser.on(self.device)

    def allocate(self, count: int) -> int:
        """Allocate that many zeroed bytes; return their address."""
        return self.at_work.context.allocate(count)

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to the device."""
        assert self.at_work.write(address, data).wait() == Result.SUCCESS

    def read(self, address: int, count: int) -> bytes:
        """Copy bytes from the device."""
        return self.at_work.read(address, count)

    def load(self, image: bytes) -> tuple[int, list[Any], dict[str, int]]:
        """Load code; return its number, its kernels' layouts, and its variables' addresses."""
        module = self.at_work.context.load_module(image)
        self.modules.append(module)
        functions = [module.function(index) for index in range(len(module.functions))]  # loads a large module's
        return len(self.modules) - 1, functions, {variable.name: variable.address for variable in module.globals}

    def launch(
        self, module: int, name: str, grid: Any, block: Any, shared: int, parameters: bytes
    ) -> tuple[int, str]:
        """Launch and wait; return how the kernel ended, and why if it failed."""
        loaded = self.modules[module]
        index = [function.name for function in loaded.functions].index(name)
        self.at_work.default.launch(Launch(loaded, index, tuple(grid), tuple(block), shared, parameters))
        result = self.at_work.synchronize()
        return int(result), "" if result == Result.SUCCESS else self.at_work.context.status.reason


def properties_of(backend: str) -> DeviceProperties:
    """Return the properties of a backend's device."""
    if backend == "emulated":
        return evolve(describe("H200")[0], memory_bytes=DEVICE_BYTES)
    probed = ask_driver()
    assert probed.devices, f"there is no GPU: {probed.unusable or probed.absent}"
    # With all of its memory: what other processes have of the device counts against it.
    return probed.devices[0]


def main(fd: int, backends: list[str]) -> None:
    """Open the devices, report it, and answer until the socket ends."""
    connection = Connection(fd)
    benches = [
        Bench(open_device(ExecutorSetup("", ordinal, 1, backend, properties_of(backend))))
        for ordinal, backend in enumerate(backends)
    ]
    connection.send(("done", None))
    while True:
        try:
            which, verb, *arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", getattr(benches[which], verb)(*arguments)))
        except BackendError as error:
            connection.send(("refused", (int(error.code), error.reason)))
        except Exception as error:
            connection.send(("lost", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
