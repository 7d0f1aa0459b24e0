"""The client of pympsd: the CUDA driver API for a program that shares a GPU through an MPS daemon.

``from pympsd_client import driver as cuda``. cuInit looks for the daemon's socket in CUDA_MPS_PIPE_DIRECTORY
(default /tmp/nvidia-mps). Without a daemon the program runs natively where libcuda is, else on a private emulated
device, and a `PrivateExecutorWarning` says so; PYMPSD_REQUIRE_MPS=1 makes it CUDA_ERROR_MPS_CONNECTION_FAILED.
"""

from __future__ import annotations

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
