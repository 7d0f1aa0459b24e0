"""What CUDA has and clients of MPS here do not: IPC handles, managed memory, peer access. Refused by name.

Each call is there, returns the result that CUDA documents for a device without the feature, and `last_error` says
what to do instead. The device attributes say the same.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.entry_point import Door, door
from pympsd_client._arguments.errors import CudaError
from pympsd_client._objects.process import current, here

_IPC: Final = (
    "CUDA IPC handles are not supported: each process has its own address space on the device. Exchange data through "
    "host memory that the processes share (multiprocessing.shared_memory) and copy it"
)
_MANAGED: Final = (
    "managed memory is not supported (device attribute MANAGED_MEMORY is 0). Use cuMemAlloc, and cuMemcpyHtoD and "
    "cuMemcpyDtoH"
)
_PEER: Final = (
    "peer access is not supported (cuDeviceCanAccessPeer answers 0). Copy with cuMemcpyPeer or cuMemcpyDtoD, which "
    "need none"
)


def _refused(name: str, arguments: str, outputs: int, reason: str, code: int = Result.ERROR_NOT_SUPPORTED) -> Door:
    """Return the door of a call that is refused, once there is a context that works; natively it is CUDA's own."""

    def refuse(*_: Any) -> tuple[Any, ...]:
        here.require()
        current().usable()
        raise CudaError(code, f"{name}: {reason}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Refused with CUDA_{Result(code).name}: {reason}."
    made = door(outputs)(refuse)
    parameters = [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD) for one in arguments.split()]
    made.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what inspect and help show
    return made


# Arguments as in cuda-bindings 13; 12 has fewer for some, which makes no difference to a refusal.
cuIpcGetMemHandle: Final = _refused("cuIpcGetMemHandle", "dptr", 1, _IPC)
cuIpcOpenMemHandle: Final = _refused("cuIpcOpenMemHandle", "handle Flags", 1, _IPC)
cuIpcCloseMemHandle: Final = _refused("cuIpcCloseMemHandle", "dptr", 0, _IPC)
cuIpcGetEventHandle: Final = _refused("cuIpcGetEventHandle", "event", 1, _IPC)
cuIpcOpenEventHandle: Final = _refused("cuIpcOpenEventHandle", "handle", 1, _IPC)

cuMemAllocManaged: Final = _refused("cuMemAllocManaged", "bytesize flags", 1, _MANAGED)
cuMemAdvise: Final = _refused("cuMemAdvise", "devPtr count advice location", 0, _MANAGED)
cuMemPrefetchAsync: Final = _refused("cuMemPrefetchAsync", "devPtr count location flags hStream", 0, _MANAGED)
cuMemRangeGetAttribute: Final = _refused("cuMemRangeGetAttribute", "dataSize attribute devPtr count", 1, _MANAGED)
cuMemRangeGetAttributes: Final = _refused(
    "cuMemRangeGetAttributes", "dataSizes attributes numAttributes devPtr count", 1, _MANAGED
)
cuStreamAttachMemAsync: Final = _refused("cuStreamAttachMemAsync", "hStream dptr length flags", 0, _MANAGED)

cuCtxEnablePeerAccess: Final = _refused(
    "cuCtxEnablePeerAccess", "peerContext Flags", 0, _PEER, Result.ERROR_PEER_ACCESS_UNSUPPORTED
)
cuCtxDisablePeerAccess: Final = _refused(
    "cuCtxDisablePeerAccess", "peerContext", 0, _PEER, Result.ERROR_PEER_ACCESS_NOT_ENABLED
)
