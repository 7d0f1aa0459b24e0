"""A program's variables in one client's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pympsd_server.backends.emulated.memory.address_space import AddressSpace
from pympsd_server.backends.emulated.ptx.codegen.literals import initial_bytes
from pympsd_server.backends.emulated.ptx.program import Program
from pympsd_server.backends.emulated.ptx.runtime.facilities import Facilities
from pympsd_server.backends.emulated.ptx.runtime.heap import DeviceHeap


class LoadedModule:
    """A program whose variables are in `space`. Raises OutOfMemory when they do not fit."""

    def __init__(
        self, program: Program, space: AddressSpace, multiprocessors: int = 1, facilities: Facilities | None = None
    ) -> None:
        """`multiprocessors` is what %nsmid reads, `facilities` the context's for its kernels."""
        self.program = program
        self.space = space
        self.multiprocessors = multiprocessors
        self.facilities = facilities or Facilities(DeviceHeap(space.allocate))
        self._addresses: dict[str, int] = {}
        self._functions: dict[str, list[Callable[..., Any]]] = {}
        try:
            for name, variable in program.variables.items():
                alignment = max(variable.alignment, 512)
                self._addresses[name] = space.allocate(max(variable.size, 1), alignment)
            known = {**program.functions, **self._addresses}
            for name, variable in program.variables.items():
                if variable.initial:
                    space.write(self._addresses[name], initial_bytes(variable, known))
        except BaseException:
            self.unload()
            raise

    def address_of(self, name: str) -> int:
        """Return the device address of a global or constant. Raises KeyError."""
        return self._addresses[name]

    @property
    def addresses(self) -> Mapping[str, int]:
        return self._addresses

    def functions(self, kernel_name: str) -> list[Callable[..., Any]]:
        """Return the kernel's block functions, bound to this module's addresses."""
        found = self._functions.get(kernel_name)
        if found is None:
            translation = self.program.kernels[kernel_name].translation
            found = self._functions[kernel_name] = translation.functions(self._addresses)
        return found

    def unload(self) -> None:
        """Free the variables. Batches of this module must be finished or dropped."""
        addresses, self._addresses, self._functions = self._addresses, {}, {}
        for address in addresses.values():
            self.space.free(address)
