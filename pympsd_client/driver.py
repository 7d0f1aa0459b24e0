"""The CUDA driver API by the names, argument order and returns of ``cuda.bindings.driver``.

Import it as ``from pympsd_client import driver as cuda`` and use it like ``from cuda.bindings import driver as
cuda``:

- Every function returns a tuple: the `CUresult`, then its outputs, which on failure are None. Functions raise only
  for arguments of wrong types (TypeError, OverflowError), as those of cuda.bindings do.
- `pympsd_client.last_error` returns the message of the thread's last failed call: what was wrong, what is allowed,
  what to do.
- Enums, handle types, structures and constants are those of cuda-bindings, reached through this module too.
- Sizes are in bytes unless a name states another unit. Handles are ints or objects of cuda-bindings; 0 and None are
  NULL.
- Host memory is an address, or an object with a buffer (bytes, bytearray, a NumPy array). It need not be page-locked.
- As in CUDA, a later call in the same context reports asynchronous errors.

>>> import numpy as np
>>> from pympsd_client import driver as cuda
>>> cuda.cuInit(0)
(<CUresult.CUDA_SUCCESS: 0>,)
>>> result, context = cuda.cuDevicePrimaryCtxRetain(0)
>>> cuda.cuCtxSetCurrent(context)
(<CUresult.CUDA_SUCCESS: 0>,)
>>> values = np.arange(4, dtype=np.float32)
>>> result, address = cuda.cuMemAlloc(values.nbytes)
>>> cuda.cuMemcpyHtoD(address, values, values.nbytes)
(<CUresult.CUDA_SUCCESS: 0>,)
>>> copy = np.empty_like(values)
>>> cuda.cuMemcpyDtoH(copy, address, copy.nbytes)
(<CUresult.CUDA_SUCCESS: 0>,)
>>> copy.tolist()
[0.0, 1.0, 2.0, 3.0]

Functions are made from the rows of `pympsd_client.signatures` when they are first used. ``help`` shows each
function's effect, its parameters with C's types, and its outputs:

>>> print(cuda.cuMemGetInfo.__doc__.splitlines()[-1])
cuMemGetInfo() -> (CUresult, size_t free, size_t total)

A driver function that pympsd does not have raises an AttributeError that names similar ones, unless the program runs
natively and gets the driver's own. docs/differences.md lists the missing functions and the differences.
"""

from threading import Lock
from typing import Any, Final

from pympsd_client._api import entry_point as _entry_point
from pympsd_client._arguments.bindings import bindings as _bindings
from pympsd_client._objects.process import process as _process
from pympsd_client.signatures import SIGNATURES as _SIGNATURES

_CUDA_12: Final = frozenset({"cuCtxCreate_v3", "cuCtxCreate_v4", "cuGraphInstantiateWithFlags"})
"""Functions of the MPS documents or libcuda that cuda-bindings 13 lacks. They are not part of ``import *``."""
_FUNCTIONS: Final = tuple(sorted(name for name in _SIGNATURES if name not in _CUDA_12))
"""The driver functions in ``import *``, which also has the types and constants of cuda-bindings."""
_making: Final = Lock()


def __getattr__(name: str) -> Any:
    """Return a driver function, made from its row on first use, or an enum, type or constant of cuda-bindings.

    Raise AttributeError for a driver function that pympsd does not have, unless the program runs natively.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SIGNATURES:
        with _making:
            if name not in globals():
                globals()[name] = _entry_point.make(_SIGNATURES[name])
        return globals()[name]
    value = getattr(_bindings, name)
    # Only a program that runs natively gets functions that pympsd does not have.
    if _is_driver_function(name) and _process.native is None:
        raise AttributeError(_explain_missing(name))
    return value


def _explain_missing(name: str) -> str:
    from difflib import get_close_matches  # imported here, because a correct program does not need it

    near = ", ".join(get_close_matches(name, _FUNCTIONS))
    nearest = f" (the nearest names it has: {near})" if near else ""
    missing = f"pympsd does not have {name} yet{nearest}"
    return f"{missing}; docs/differences.md lists what is missing"


def _is_driver_function(name: str) -> bool:
    return name.startswith("cu") and not isinstance(getattr(_bindings, name), type)


def __dir__() -> list[str]:
    """List the functions that pympsd has, and the types and constants of cuda-bindings."""
    public = (name for name in dir(_bindings) if not name.startswith("_"))
    return sorted({*_FUNCTIONS, *(name for name in public if not _is_driver_function(name))})


cuLaunchKernel = _entry_point.make(_SIGNATURES["cuLaunchKernel"])  # now, because the launch cache is made with it
__all__ = __dir__()  # made from the rows
