"""Access of other devices to memory (CUDA driver API, Peer Context Memory Access; GPUDirect RDMA, which is refused).

Kernels of one emulated device can access memory of cuMemAlloc and of memory pools on another. Their atomics are
atomic only among the kernels of one device. Other devices have no peer access here, and copies do not need it.
"""

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, check_no_flags, invalid_value, not_supported
from pympsd_client._objects.context import Context, context_of, current
from pympsd_client._objects.memory.peer_access import is_possible, peer_access
from pympsd_client._objects.process import process

_ATTRIBUTES: Final = members("CUdevice_P2PAttribute", "CU_DEVICE_P2P_ATTRIBUTE_")


def can_access(device: int, peer: int) -> int:
    """Return 1 if kernels of a device can access memory of another, else 0; raise INVALID_DEVICE."""
    return int(is_possible(process.device(device), process.device(peer)))


def attribute(requested: int, source: int, destination: int) -> int:
    """Return an attribute of a pair of devices: 1 for ACCESS_SUPPORTED if there is peer access, else 0.

    Raise INVALID_DEVICE, also for a device and itself, and INVALID_VALUE.
    """
    first, second = process.device(source), process.device(destination)
    if first is second:
        raise CudaError(Result.ERROR_INVALID_DEVICE, f"device {source} is not a peer of itself")
    if requested not in _ATTRIBUTES.values():
        raise invalid_value(f"there is no attribute {requested} of a pair of devices")
    return int(requested == _ATTRIBUTES["ACCESS_SUPPORTED"] and is_possible(first, second))


def enable(peer: int, flags: int) -> None:
    """Give kernels of the current context access to the memory of another context.

    Raise PEER_ACCESS_UNSUPPORTED between devices without it (cuDeviceCanAccessPeer), and for the current context
    itself; PEER_ACCESS_ALREADY_ENABLED; INVALID_CONTEXT without a current context; INVALID_VALUE for flags.
    """
    own, peer_context = _pair(peer)
    check_no_flags("cuCtxEnablePeerAccess", flags)
    if not is_possible(own.device, peer_context.device):
        raise CudaError(
            Result.ERROR_PEER_ACCESS_UNSUPPORTED,
            f"cuCtxEnablePeerAccess: device {own.device.number} has no peer access to device "
            f"{peer_context.device.number} (cuDeviceCanAccessPeer answers 0). "
            "Copy with cuMemcpyPeer or cuMemcpyDtoD, which need none",
        )
    peer_access.enable(own, peer_context)


def disable(peer: int) -> None:
    """Undo cuCtxEnablePeerAccess; raise PEER_ACCESS_NOT_ENABLED, INVALID_CONTEXT."""
    peer_access.disable(*_pair(peer))


def flush_remote_writes(name: str) -> None:
    """Raise NOT_SUPPORTED, because only GPUs write to memory here."""
    current().usable()  # a missing context, or one in error, takes precedence
    reason = "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS of this device is 0"
    raise not_supported(f"{name}: {reason}")


def _pair(peer: int) -> tuple[Context, Context]:
    own = current()
    own.usable()
    peer_context = context_of(peer)
    if peer_context is not own:
        peer_context.usable()
    return own, peer_context
