"""Unsupported features of CUDA: peer access, and writes of other devices; refused by name.

Each call exists, returns the result that CUDA documents for a device without the feature, and `last_error` says what
to do instead. The device attributes agree.
"""

from __future__ import annotations

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._objects.context import current

_PEER: Final = (
    "peer access is not supported (cuDeviceCanAccessPeer answers 0). Copy with cuMemcpyPeer or cuMemcpyDtoD, which "
    "need none"
)


def flush_remote_writes(name: str) -> None:
    """Refuse with CUDA_ERROR_NOT_SUPPORTED: no other device writes to memory here."""
    _refuse(Result.ERROR_NOT_SUPPORTED, name, "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS of this device is 0")


def enable_peer(name: str) -> None:
    """Refuse with CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: cuMemcpyPeer and cuMemcpyDtoD need no peer access."""
    _refuse(Result.ERROR_PEER_ACCESS_UNSUPPORTED, name, _PEER)


def disable_peer(name: str) -> None:
    """Refuse with CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: there is no peer access."""
    _refuse(Result.ERROR_PEER_ACCESS_NOT_ENABLED, name, _PEER)


def _refuse(code: int, name: str, reason: str) -> None:
    current().usable()  # a missing context, or one in error, takes precedence
    raise CudaError(code, f"{name}: {reason}")
