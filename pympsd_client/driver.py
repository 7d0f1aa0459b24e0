"""The CUDA driver API by the names, argument order and returns of ``cuda.bindings.driver``.

``from pympsd_client import driver as cuda`` and go on as with ``from cuda.bindings import driver as cuda``: every
call returns ``(CUresult, output, ...)``; `pympsd_client.last_error` returns the message of a failed one. Enums,
handle and structure types are those of cuda-bindings, reached through this module too.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

from pympsd_client._api import entry_point as _entry_point
from pympsd_client._arguments.bindings import bindings as _bindings
from pympsd_client._objects.process import process as _process
from pympsd_client.signatures import SIGNATURES as _SIGNATURES

_CUDA_12: Final = frozenset({"cuCtxCreate_v3", "cuCtxCreate_v4"})
"""Functions of the MPS documents that cuda-bindings 13 has no more: here by their names, and not in ``import *``."""
_FUNCTIONS: Final = tuple(sorted(name for name in _SIGNATURES if name not in _CUDA_12))
"""The driver functions that are here; what a program takes with ``import *`` has the types and constants too."""
_making: Final = Lock()


def __getattr__(name: str) -> Any:
    """Return a driver function, or what cuda-bindings has: enums, types, constants."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SIGNATURES:
        with _making:
            if name not in globals():
                globals()[name] = _entry_point.make(_SIGNATURES[name])
        return globals()[name]
    value = getattr(_bindings, name)
    # A driver function that pympsd does not have is there only where the program runs natively.
    if _is_driver_function(name) and _process.native is None:
        raise AttributeError(_missing(name))
    return value


def _missing(name: str) -> str:
    from difflib import get_close_matches  # not on the way of a program that is right

    near = ", ".join(get_close_matches(name, _FUNCTIONS))
    nearest = f" (the nearest names it has: {near})" if near else ""
    missing = f"pympsd does not have {name} yet{nearest}"
    return f"{missing}; docs/differences.md says what is missing"


def _is_driver_function(name: str) -> bool:
    return name.startswith("cu") and not isinstance(getattr(_bindings, name), type)


def __dir__() -> list[str]:
    """List the functions that are here, and the types and constants of cuda-bindings."""
    public = (name for name in dir(_bindings) if not name.startswith("_"))
    return sorted({*_FUNCTIONS, *(name for name in public if not _is_driver_function(name))})


cuLaunchKernel = _entry_point.make(_SIGNATURES["cuLaunchKernel"])  # at once: the launch cache is made with it
__all__ = __dir__()  # made from the rows
