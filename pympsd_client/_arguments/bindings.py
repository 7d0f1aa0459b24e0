"""The only module that imports cuda-bindings: its enums and handle types, never its driver calls.

(Only `_fallback` calls the driver, and only when a program runs natively.)
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from cuda.bindings import driver as _driver  # type: ignore[import-not-found,import-untyped,unused-ignore]  # no stubs

bindings: Final[Any] = _driver
"""The module ``cuda.bindings.driver``, for its names."""

CUresult: Final[Any] = _driver.CUresult
CUcontext: Final[Any] = _driver.CUcontext
CUdeviceptr: Final[Any] = _driver.CUdeviceptr
CUexecAffinityParam: Final[Any] = _driver.CUexecAffinityParam
CUexecAffinityType: Final[Any] = _driver.CUexecAffinityType
CUfunction: Final[Any] = _driver.CUfunction
CUmemoryPool: Final[Any] = _driver.CUmemoryPool
CUstream: Final[Any] = _driver.CUstream
cuuint64_t: Final[Any] = _driver.cuuint64_t


def name_of(function: str) -> str:
    """Return the name in cuda.bindings of a driver function; most have none with a version there."""
    return function if hasattr(_driver, function) else function.removesuffix("_v2")


def members(enum: str, prefix: str) -> dict[str, int]:
    """Return the values of an enum of cuda-bindings by name without prefix, aliases included."""
    names = vars(getattr(_driver, enum))
    return {name.removeprefix(prefix): int(names[name]) for name in names if name.startswith(prefix)}


def from_bytes(name: str, data: bytes) -> Any:
    """Return a structure of cuda.bindings, by its name, that begins with these bytes."""
    structure = getattr(_driver, name)()
    ctypes.memmove(structure.getPtr(), data, len(data))
    return structure


def makers(*names: str) -> dict[str, Callable[[bytes], Any]]:
    """Return for each structure of cuda.bindings, by its name, the function that makes one from its bytes."""
    return {name: partial(from_bytes, name) for name in names}
