"""The options of cuModuleLoadDataEx: the two logs, and hints to a compiler that the executor does not need."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Final

from attrs import define

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.numbers import number

_OPTIONS: Final = {value: name for name, value in members("CUjit_option", "CU_JIT_").items()}
_REFUSED: Final = frozenset(
    {"GLOBAL_SYMBOL_NAMES", "GLOBAL_SYMBOL_ADDRESSES", "GLOBAL_SYMBOL_COUNT", "LTO", "REFERENCED_KERNEL_NAMES"}
)
"""Options that change what the code is linked with: without them, different code would run."""


@define
class Logs:
    """The caller's log buffers (an object with a buffer, or an address) and their sizes in bytes."""

    info: Any = None
    info_size: int = 0
    error: Any = None
    error_size: int = 0

    def write(self, error: str) -> None:
        """Write the error log (empty on success) and an empty info log, NUL-terminated and cut to size."""
        _write(self.error, self.error_size, error)
        _write(self.info, self.info_size, "")


def read(count: int, options: Sequence[Any] | None, values: Sequence[Any] | None) -> Logs:
    """Return the log buffers; INVALID_VALUE and NOT_SUPPORTED name the option that is wrong."""
    if len(options or ()) < count or len(values or ()) < count:
        raise invalid_value(
            f"numOptions is {count}; there are {len(options or ())} options and {len(values or ())} values"
        )
    logs = Logs()
    for option, value in _pairs(options, values, count):
        name = _OPTIONS.get(option)
        if name is None:
            raise invalid_value(f"there is no JIT option {option}")
        if name in _REFUSED:
            raise CudaError(Result.ERROR_NOT_SUPPORTED, f"JIT option CU_JIT_{name} is not supported; leave it out")
        if name == "INFO_LOG_BUFFER":
            logs.info = value
        elif name == "INFO_LOG_BUFFER_SIZE_BYTES":
            logs.info_size = number(value)
        elif name == "ERROR_LOG_BUFFER":
            logs.error = value
        elif name == "ERROR_LOG_BUFFER_SIZE_BYTES":
            logs.error_size = number(value)
    return logs


def _pairs(options: Sequence[Any] | None, values: Sequence[Any] | None, count: int) -> Iterable[tuple[int, Any]]:
    return zip((number(option) for option in (options or ())[:count]), (values or ())[:count], strict=True)


def _write(buffer: Any, size: int, text: str) -> None:
    if buffer is None or size <= 0:
        return
    # cuda-bindings takes bytes for a log and the driver writes into them: do the same, never beyond their end.
    with HostMemory(buffer) as memory:
        room = size if memory.size is None else min(size, memory.size)
        if room and memory.address:
            data = text.encode("utf-8", "replace")[: room - 1] + b"\0"
            ctypes.memmove(memory.address, data, len(data))
