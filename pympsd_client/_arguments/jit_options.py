"""The options of loading and linking: the two logs, the limit of registers, and hints that have no effect here.

Options and values come as lists, as cuda.bindings takes them, or as the addresses of C arrays, into which results
such as the length of a log are written.
"""

import ctypes
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from attrs import define

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import number

_OPTIONS: Final = {value: name for name, value in members("CUjit_option", "CU_JIT_").items()}
_REFUSED: Final = frozenset(
    {"GLOBAL_SYMBOL_NAMES", "GLOBAL_SYMBOL_ADDRESSES", "GLOBAL_SYMBOL_COUNT", "LTO", "REFERENCED_KERNEL_NAMES"}
)
"""Options that change the linked code; ignoring them would run different code."""


_LINE: Final = re.compile(r"line (\d+): (.*)", re.DOTALL)


@define
class _Log:
    """A log buffer of the caller (an object with a buffer, or an address), and its size in bytes.

    ``size_at`` is the address of the option's value, where the number of bytes written is stored, or 0.
    """

    buffer: Any = None
    size: int = 0
    size_at: int = 0

    def write(self, text: str) -> None:
        """Write a text, NUL-terminated and cut to size."""
        written = _write(self.buffer, self.size, text)
        if self.size_at:
            ctypes.c_uint.from_address(self.size_at).value = written


@define
class JitOptions:
    """The values of the options that have an effect here."""

    info: _Log
    error: _Log
    max_registers: int = 0
    """The maximum number of registers of a thread; 0 means no limit."""

    def write(self, error: str, info: str = "") -> None:
        """Write the error log (empty on success) and the info log."""
        self.error.write(error)
        self.info.write(info)

    @property
    def logs(self) -> bool:
        """Whether the caller has passed an error log."""
        return self.error.size > 0

    @contextmanager
    def write_logs(self) -> Iterator[None]:
        """Write the logs at the end of the block: the message of the CudaError that ended it, or empty logs."""
        try:
            yield
        except CudaError as error:
            self.write(ptxas_message(error))
            raise
        self.write("")


def ptxas_message(error: CudaError) -> str:
    """Return the text of the error log for a refused image.

    If the error names a line of the PTX, the text has the form of the driver's ptxas.
    """
    match = _LINE.fullmatch(error.reason) if error.code == Result.ERROR_INVALID_PTX else None
    if match is None:
        return error.reason
    return (
        f"ptxas application ptx input, line {match[1]}; error   : {match[2]}\n"
        "ptxas fatal   : Ptx assembly aborted due to errors"
    )


def read(count: int, options: Sequence[Any] | int | None, values: Sequence[Any] | int | None) -> JitOptions:
    """Return the values of ``count`` options; raise INVALID_VALUE or NOT_SUPPORTED, which name the wrong option."""
    names = enums(options, count)
    slots = _slots(values, count)
    result = JitOptions(_Log(), _Log())
    for option, (value, address) in zip(names, slots, strict=True):
        name = _OPTIONS.get(option, "NUM_OPTIONS")
        if name == "NUM_OPTIONS":
            raise invalid_value(f"there is no JIT option {option}")
        if name in _REFUSED and not (name == "LTO" and number(value) == 0):
            raise not_supported(f"JIT option CU_JIT_{name} is not supported; leave it out")
        if name == "INFO_LOG_BUFFER":
            result.info.buffer = value
        elif name == "INFO_LOG_BUFFER_SIZE_BYTES":
            result.info.size, result.info.size_at = number(value), address
        elif name == "ERROR_LOG_BUFFER":
            result.error.buffer = value
        elif name == "ERROR_LOG_BUFFER_SIZE_BYTES":
            result.error.size, result.error.size_at = number(value), address
        elif name == "MAX_REGISTERS":
            result.max_registers = number(value)
            if not result.max_registers:
                raise invalid_value("CU_JIT_MAX_REGISTERS must be at least 1; leave it out for no limit")
        elif name == "WALL_TIME" and address:
            ctypes.c_float.from_address(address).value = 0.0
    return result


def enums(options: Sequence[Any] | int | None, count: int) -> Iterable[int]:
    """Return the first ``count`` enum values of a list, or of the C array at an address, as numbers.

    A C array is read one element at a time, so that nothing beyond the first wrong option is read. Raise
    INVALID_VALUE if a list has fewer, or the address is NULL.
    """
    if isinstance(options, int):
        if count and not options:
            raise invalid_value(f"numOptions is {count} and the address of the options is NULL")
        return (ctypes.c_int.from_address(options + 4 * index).value for index in range(count))
    if len(options or ()) < count:
        raise invalid_value(f"numOptions is {count} and there are {len(options or ())} options")
    return [number(option) for option in (options or ())[:count]]


def _slots(values: Sequence[Any] | int | None, count: int) -> Iterable[tuple[Any, int]]:
    """Return each option's value, and the value's address in the C array; 0 if the values come as a list."""
    if isinstance(values, int):
        if count and not values:
            raise invalid_value(f"numOptions is {count} and the address of the values is NULL")
        places = range(values, values + count * 8, 8)
        return ((ctypes.c_uint64.from_address(place).value, place) for place in places)
    if len(values or ()) < count:
        raise invalid_value(f"numOptions is {count} and there are {len(values or ())} values")
    return [(value, 0) for value in (values or ())[:count]]


def _write(buffer: Any, size: int, text: str) -> int:
    """Write a text and a NUL into a buffer; return the number of bytes written, without the NUL."""
    if buffer is None or size <= 0:
        return 0
    # With cuda-bindings the driver writes even into bytes objects: do the same, but never beyond their end.
    with HostMemory(buffer) as memory:
        capacity = size if memory.size is None else min(size, memory.size)
        if not (capacity and memory.address):
            return 0
        data = text.encode("utf-8", "replace")[: capacity - 1]
        ctypes.memmove(memory.address, data + b"\0", len(data) + 1)
        return len(data)
