"""The client of pympsd: the CUDA driver API for a program that shares a GPU through an MPS daemon.

Public names:

- `driver`: the functions of the driver API, by the names and with the arguments of ``cuda.bindings.driver``.
- `last_error`: the message of this thread's last failed call.
- `PrivateExecutorWarning`: the warning of a program that finds no daemon and no GPU.
- `pympsd_client.pytest_plugin`: fixtures for tests of programs that use MPS.
- ``python -m pympsd_client``: a report of the devices that a program sees here, and of errors.

A program that uses cuda.bindings itself, as PyTorch does, is started with ``pympsd-run`` and needs none of these.

An example: allocate memory on the first device, and free it twice.

>>> from pympsd_client import driver as cuda, last_error
>>> cuda.cuInit(0)
(<CUresult.CUDA_SUCCESS: 0>,)
>>> result, context = cuda.cuDevicePrimaryCtxRetain(0)
>>> cuda.cuCtxSetCurrent(context)
(<CUresult.CUDA_SUCCESS: 0>,)
>>> result, address = cuda.cuMemAlloc(64)
>>> cuda.cuMemFree(address)
(<CUresult.CUDA_SUCCESS: 0>,)
>>> cuda.cuMemFree(address)
(<CUresult.CUDA_ERROR_INVALID_VALUE: 1>,)
>>> last_error()
'0x... is not the start of an allocation of this process'

cuInit decides how the program runs:

1. It looks for the daemon's socket in the pipe directory, CUDA_MPS_PIPE_DIRECTORY (default /tmp/nvidia-mps). A daemon
   gives the program a server of its user; the call waits while the program is queued.
2. Without a daemon, on a machine with libcuda, the program runs natively, so that every call goes to the driver. This
   step is skipped if PYMPSD_BACKEND=emulated or PYMPSD_EMULATED_DEVICES selects the emulated GPU.
3. Otherwise the program runs on a private emulated device, and a `PrivateExecutorWarning` reports that.

With PYMPSD_REQUIRE_MPS=1, cuInit returns CUDA_ERROR_MPS_CONNECTION_FAILED instead of steps 2 and 3. With
PYMPSD_EXPLAIN=1 every failed call and its message are written to standard error. With PYMPSD_TRACE=FILE all calls and
their times are written to a file.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pympsd_client._arguments.errors import last_error
    from pympsd_client._connect.private_executor import PrivateExecutorWarning

__all__ = ["PrivateExecutorWarning", "driver", "last_error"]


def __getattr__(name: str) -> Any:
    """Import an attribute's module when it is first used."""
    if name == "last_error":
        from pympsd_client._arguments import errors

        return errors.last_error
    if name == "PrivateExecutorWarning":
        from pympsd_client._connect import private_executor

        return private_executor.PrivateExecutorWarning
    if name == "driver":
        from importlib import import_module

        return import_module("pympsd_client.driver")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
