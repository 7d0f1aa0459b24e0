"""Link a program: place its variables in one client's memory.

All clients that load the same image share a program. Each client has its own `LoadedModule`: memory with the
variables and their initial values, and the kernels' functions bound to its addresses. All constants are in one
allocation, so that 32 bits distinguish their addresses, as PTX allows for .const. The variables in global memory
share an allocation, too, unless bounds are strict. Each managed variable has an allocation of its own, because it is
moved later.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from pympsd_server.backends.emulated.memory.address_space import AddressSpace
from pympsd_server.ptx.loading.program import Program
from pympsd_server.ptx.numpy_tier.literals import initial_bytes
from pympsd_server.ptx.numpy_tier.writer import CONSTANTS
from pympsd_server.ptx.runtime.facilities import DeviceHeap, Facilities
from pympsd_server.ptx.syntax.tree import Variable

_ALIGNMENT: Final = 512
_VARIABLE_ALIGNMENT: Final = 256
"""The minimum alignment of a variable in global memory, in bytes (CUDA Programming Guide, Device Memory Accesses)."""


class LoadedModule:
    """A program whose variables are in `space`. Raises OutOfMemory if they do not fit."""

    def __init__(
        self,
        program: Program,
        space: AddressSpace,
        multiprocessors: int = 1,
        facilities: Facilities | None = None,
        resident_warps: int = 64,
    ) -> None:
        """`multiprocessors` and `resident_warps` are the values of %nsmid and %nwarpid.

        `facilities` are the context's, which its kernels share.
        """
        self.program = program
        self.space = space
        self.multiprocessors, self.resident_warps = multiprocessors, resident_warps
        self.facilities = facilities or Facilities(DeviceHeap(space.allocate))
        self._addresses: dict[str, int] = {}
        self._allocations: list[int] = []
        self._managed: dict[str, int] = {}
        self._functions: dict[str, list[Callable[..., Any]]] = {}
        self.bound: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        """Kernels of the compiled tier, bound to this module's addresses."""
        self.kept: dict[object, Any] = {}
        """Finished batches of the compiled tier, for later launches of the same shape."""
        variables = program.variables.values()
        elsewhere = [v for v in variables if v.space != "const"]
        is_strict = space.bounds.is_strict
        alone = [v for v in elsewhere if v.managed or is_strict]
        try:
            self._addresses[CONSTANTS] = self._place([v for v in variables if v.space == "const"])
            self._place([v for v in elsewhere if not (v.managed or is_strict)], _VARIABLE_ALIGNMENT)
            for variable in alone:
                self._place([variable], _VARIABLE_ALIGNMENT)
            self._managed = {v.name: self._addresses[v.name] for v in alone if v.managed}
            self._initialise()
        except BaseException:
            self.unload()
            raise

    def _place(self, variables: Sequence[Variable], alignment: int = 1) -> int:
        """Place variables in one allocation; return its address, or 0 without variables.

        ``alignment`` is the smallest alignment of each variable, in bytes; a variable may require a larger one.
        """
        if not variables:
            return 0
        offsets, end, largest = {}, 0, _ALIGNMENT
        for variable in variables:
            unit = max(alignment, variable.alignment)
            offsets[variable.name] = end + -end % unit
            end = offsets[variable.name] + variable.size
            largest = max(largest, unit)
        start = self.space.allocate_at_end(max(end, 1), largest)
        self._allocations.append(start)
        self._addresses |= {name: start + offset for name, offset in offsets.items()}
        return start

    def _initialise(self, except_for: Container[str] = ()) -> None:
        addresses = self.addresses
        for name, variable in self.program.variables.items():
            if variable.initial and name not in except_for:
                self.space.write(self._addresses[name], initial_bytes(variable, addresses))

    def place_managed(self, addresses: Mapping[str, int], *, is_in_use: bool) -> None:
        """Move the managed variables to other addresses, which the host can access.

        Call this before the first kernel of the module runs. The memory belongs to the caller. It must be zeroed, and
        gets the initial values, unless ``is_in_use``: then it has the values of another module's variables.
        """
        for name, address in addresses.items():
            self.space.free(self._managed[name])
            self._allocations.remove(self._managed.pop(name))
            self._addresses[name] = address
        self._functions.clear()
        self.bound.clear()
        self.kept.clear()
        self._initialise(except_for=addresses if is_in_use else ())

    def address_of(self, name: str) -> int:
        """Return the device address of a global variable or a constant. Raises KeyError if the name is unknown."""
        return self._addresses[name]

    @property
    def addresses(self) -> dict[str, int]:
        """The device addresses of all variables and functions by name, and the constants' address as CONSTANTS."""
        return {**self.program.functions, **self._addresses}

    @property
    def allocations(self) -> Sequence[int]:
        """The addresses of the module's allocations, without the managed variables that were moved."""
        return self._allocations

    def functions(self, kernel_name: str) -> list[Callable[..., Any]]:
        """Return the functions of a kernel's blocks, bound to this module's addresses."""
        functions = self._functions.get(kernel_name)
        if functions is None:
            translation = self.program.kernels[kernel_name].translation
            functions = self._functions[kernel_name] = translation.functions(self._addresses)
        return functions

    def unload(self) -> None:
        """Free the variables. Batches of this module must be finished or dropped."""
        allocations, self._allocations, self._addresses, self._functions = self._allocations, [], {}, {}
        self.kept.clear()
        for address in allocations:
            self.space.free(address)
