"""The CUDA driver API by the names, argument order and returns of ``cuda.bindings.driver``.

``from pympsd_client import driver as cuda`` and go on as with ``from cuda.bindings import driver as cuda``: every
call returns ``(CUresult, output, ...)``; `pympsd_client.last_error` tells in words what a failed one meant. Enums,
handle and structure types are those of cuda-bindings, reached through this module too.
"""

from __future__ import annotations

from typing import Any, Final

from pympsd_client._api.context import (
    cuCtxCreate,
    cuCtxCreate_v3,
    cuCtxCreate_v4,
    cuCtxDestroy,
    cuCtxGetApiVersion,
    cuCtxGetCurrent,
    cuCtxGetDevice,
    cuCtxGetExecAffinity,
    cuCtxGetFlags,
    cuCtxGetStreamPriorityRange,
    cuCtxPopCurrent,
    cuCtxPushCurrent,
    cuCtxSetCurrent,
    cuCtxSynchronize,
    cuDevicePrimaryCtxGetState,
    cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxReset,
    cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxSetFlags,
)
from pympsd_client._api.device import (
    cuDeviceCanAccessPeer,
    cuDeviceGet,
    cuDeviceGetAttribute,
    cuDeviceGetByPCIBusId,
    cuDeviceGetCount,
    cuDeviceGetExecAffinitySupport,
    cuDeviceGetName,
    cuDeviceGetP2PAttribute,
    cuDeviceGetPCIBusId,
    cuDeviceGetUuid,
    cuDeviceGetUuid_v2,
    cuDeviceTotalMem,
    cuDriverGetVersion,
    cuInit,
)
from pympsd_client._api.errors import cuGetErrorName, cuGetErrorString
from pympsd_client._api.host_memory import (
    cuMemAllocHost,
    cuMemFreeHost,
    cuMemHostAlloc,
    cuMemHostGetDevicePointer,
    cuMemHostGetFlags,
    cuMemHostRegister,
    cuMemHostUnregister,
)
from pympsd_client._api.memory import (
    cuMemAlloc,
    cuMemcpy,
    cuMemcpyAsync,
    cuMemcpyDtoD,
    cuMemcpyDtoDAsync,
    cuMemcpyDtoH,
    cuMemcpyDtoHAsync,
    cuMemcpyHtoD,
    cuMemcpyHtoDAsync,
    cuMemcpyPeer,
    cuMemcpyPeerAsync,
    cuMemFree,
    cuMemGetInfo,
    cuMemsetD8,
    cuMemsetD8Async,
    cuMemsetD16,
    cuMemsetD16Async,
    cuMemsetD32,
    cuMemsetD32Async,
)
from pympsd_client._api.module import (
    cuFuncGetAttribute,
    cuFuncSetAttribute,
    cuLaunchKernel,
    cuModuleGetFunction,
    cuModuleGetGlobal,
    cuModuleLoad,
    cuModuleLoadData,
    cuModuleLoadDataEx,
    cuModuleUnload,
)
from pympsd_client._api.occupancy import (
    cuLaunchCooperativeKernel,
    cuLaunchKernelEx,
    cuOccupancyMaxActiveBlocksPerMultiprocessor,
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    cuOccupancyMaxPotentialBlockSize,
    cuOccupancyMaxPotentialBlockSizeWithFlags,
)
from pympsd_client._api.stream import (
    cuEventCreate,
    cuEventDestroy,
    cuEventElapsedTime,
    cuEventQuery,
    cuEventRecord,
    cuEventSynchronize,
    cuLaunchHostFunc,
    cuStreamAddCallback,
    cuStreamCreate,
    cuStreamCreateWithPriority,
    cuStreamDestroy,
    cuStreamGetCtx,
    cuStreamGetFlags,
    cuStreamGetPriority,
    cuStreamQuery,
    cuStreamSynchronize,
    cuStreamWaitEvent,
)
from pympsd_client._api.unsupported import (
    cuCtxDisablePeerAccess,
    cuCtxEnablePeerAccess,
    cuIpcCloseMemHandle,
    cuIpcGetEventHandle,
    cuIpcGetMemHandle,
    cuIpcOpenEventHandle,
    cuIpcOpenMemHandle,
    cuMemAdvise,
    cuMemAllocManaged,
    cuMemPrefetchAsync,
    cuMemRangeGetAttribute,
    cuMemRangeGetAttributes,
    cuStreamAttachMemAsync,
)
from pympsd_client._arguments.bindings import bindings as _bindings
from pympsd_client._objects.process import here as _here

__all__ = [
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxDisablePeerAccess",
    "cuCtxEnablePeerAccess",
    "cuCtxGetApiVersion",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetExecAffinity",
    "cuCtxGetFlags",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetByPCIBusId",
    "cuDeviceGetCount",
    "cuDeviceGetExecAffinitySupport",
    "cuDeviceGetName",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxSetFlags",
    "cuDeviceTotalMem",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcGetEventHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenEventHandle",
    "cuIpcOpenMemHandle",
    "cuLaunchCooperativeKernel",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemAdvise",
    "cuMemAlloc",
    "cuMemAllocHost",
    "cuMemAllocManaged",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemGetInfo",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
    "cuMemHostGetFlags",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemPrefetchAsync",
    "cuMemRangeGetAttribute",
    "cuMemRangeGetAttributes",
    "cuMemcpy",
    "cuMemcpyAsync",
    "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
    "cuMemsetD8",
    "cuMemsetD8Async",
    "cuMemsetD16",
    "cuMemsetD16Async",
    "cuMemsetD32",
    "cuMemsetD32Async",
    "cuModuleGetFunction",
    "cuModuleGetGlobal",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuStreamAddCallback",
    "cuStreamAttachMemAsync",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamGetPriority",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
]


_FUNCTIONS: Final = tuple(__all__)
"""The driver functions that are here; what a program takes with ``import *`` has the types and constants too."""
_CUDA_12: Final = {"cuCtxCreate_v3": cuCtxCreate_v3, "cuCtxCreate_v4": cuCtxCreate_v4}
"""Names that are here where the installed cuda-bindings has them too."""
del cuCtxCreate_v3, cuCtxCreate_v4


def __getattr__(name: str) -> Any:
    """Give what cuda-bindings has: enums, types, constants; a driver function missing here is named as such."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(_bindings, name)
    if name in _CUDA_12:
        return _CUDA_12[name]
    # A driver function that pympsd does not have is there only where the program runs natively.
    if _is_driver_function(name) and _here.native is None:
        raise AttributeError(_missing(name))
    return found


def _missing(name: str) -> str:
    from difflib import get_close_matches  # not on the way of a program that is right

    near = ", ".join(get_close_matches(name, _FUNCTIONS))
    nearest = f" (the nearest names it has: {near})" if near else ""
    missing = f"pympsd does not have {name} yet{nearest}"
    return f"{missing}; README.md, How it differs from the vendor's MPS, says what is missing"


def _is_driver_function(name: str) -> bool:
    return name.startswith("cu") and not isinstance(getattr(_bindings, name), type)


def __dir__() -> list[str]:
    """List the functions that are here, and the types and constants of cuda-bindings."""
    public = (name for name in dir(_bindings) if not name.startswith("_"))
    return sorted({*_FUNCTIONS, *(name for name in public if not _is_driver_function(name))})


__all__ += [name for name in __dir__() if name not in _FUNCTIONS]
