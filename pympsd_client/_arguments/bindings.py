"""The only module that imports cuda-bindings: its enums and handle types, never its driver calls.

(Programs that run natively call the driver through cuda-bindings: `_objects.process`.)

cuda-bindings is imported when the first of its names is used, because the import takes 40 ms, and cuInit of a native
program does not need it.
"""

import ctypes
from importlib import import_module
from typing import Any, Final


class _Bindings:
    """The module ``cuda.bindings.driver``, imported when the first of its names is used."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("cuda.bindings.driver"), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return dir(import_module("cuda.bindings.driver"))


bindings: Final[Any] = _Bindings()
"""The module ``cuda.bindings.driver``, for its names."""


def __getattr__(name: str) -> Any:
    """Return what cuda.bindings has under a name; ``DONE`` is the result tuple of a successful call without outputs.

    ``SUCCESS`` is CUDA_SUCCESS.
    """
    if name == "SUCCESS":
        return bindings.CUresult.CUDA_SUCCESS
    if name == "DONE":
        return (bindings.CUresult.CUDA_SUCCESS,)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(bindings, name)


def name_of(function: str) -> str:
    """Return a driver function's name in cuda.bindings, where most names have no version suffix."""
    return function if hasattr(bindings, function) else function.removesuffix("_v2")


def members(enum: str, prefix: str) -> dict[str, int]:
    """Return the values of an enum of cuda-bindings by name without prefix, aliases included."""
    names = vars(getattr(bindings, enum))
    return {name.removeprefix(prefix): int(names[name]) for name in names if name.startswith(prefix)}


def make_struct(name: str, data: bytes) -> Any:
    """Return a new structure of cuda.bindings with the given name; its first bytes are ``data``, the others 0."""
    structure = getattr(bindings, name)()
    ctypes.memmove(structure.getPtr(), data, len(data))
    return structure
