"""Unsupported features of CUDA: peer access, and writes of other devices; refused by name.

Each call exists, returns the result that CUDA documents for a device without the feature, and `last_error` says what
to do instead. The device attributes agree.
"""

from __future__ import annotations

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._objects.context import context_of, current

_PEER: Final = (
    "peer access is not supported (cuDeviceCanAccessPeer answers 0). Copy with cuMemcpyPeer or cuMemcpyDtoD, which "
    "need none"
)


def flush_remote_writes(name: str) -> None:
    """Refuse with CUDA_ERROR_NOT_SUPPORTED: no other device writes to memory here."""
    current().usable()  # a missing context, or one in error, takes precedence
    reason = "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS of this device is 0"
    raise CudaError(Result.ERROR_NOT_SUPPORTED, f"{name}: {reason}")


def enable_peer(peer: int, flags: int) -> None:
    """Refuse with CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: cuMemcpyPeer and cuMemcpyDtoD need no peer access.

    INVALID_CONTEXT for the current context itself, and for none; INVALID_VALUE for flags.
    """
    own = current()
    own.usable()
    if context_of(peer) is own:
        raise CudaError(Result.ERROR_INVALID_CONTEXT, "the current context is not a peer of itself")
    if flags:
        raise invalid_value(f"cuCtxEnablePeerAccess takes no flags: 0, not {flags:#x}")
    raise CudaError(Result.ERROR_PEER_ACCESS_UNSUPPORTED, f"cuCtxEnablePeerAccess: {_PEER}")


def disable_peer(peer: int) -> None:
    """Refuse with CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: there is no peer access. INVALID_CONTEXT for no context."""
    current().usable()
    context_of(peer)
    raise CudaError(Result.ERROR_PEER_ACCESS_NOT_ENABLED, f"cuCtxDisablePeerAccess: {_PEER}")
