"""cudaDeviceProp and cudaFuncAttributes: structures whose fields are attributes of a device or a kernel.

cudaDeviceProp differs between versions of CUDA: 13 lacks fields that 12 has, and 12 has more than 11. What is written
depends on the caller's version (`LAYOUTS`), because more bytes than the caller has would overwrite its other
variables. The version is in the function's C type in the table of a shared library; in Python it is that of the
installed cuda.bindings.
"""

import ctypes
import re
from ctypes import memmove
from typing import Any, Final, NamedTuple

from pympsd_client._api.device import uuid_bytes
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.values import check_not_null
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.code.library import function_of
from pympsd_client.routing.runtime.symbols import kernel_at

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _map_by_name(fields: str) -> dict[str, str]:
    """Return the attributes of fields whose names differ only in case and underscores."""
    return {field: _WORD.sub("_", field).upper() for field in fields.split()}


_PROPERTIES: Final = """
name![256] uuid![16] luid![8] luidDeviceNodeMask totalGlobalMem+ sharedMemPerBlock+ regsPerBlock warpSize memPitch+
maxThreadsPerBlock maxThreadsDim[3] maxGridSize[3] 12:clockRate totalConstMem+ major minor textureAlignment+
texturePitchAlignment+ 12:deviceOverlap multiProcessorCount 12:kernelExecTimeoutEnabled integrated canMapHostMemory
12:computeMode maxTexture1D maxTexture1DMipmap 12:maxTexture1DLinear maxTexture2D[2] maxTexture2DMipmap[2]
maxTexture2DLinear[3] maxTexture2DGather[2] maxTexture3D[3] maxTexture3DAlt[3] maxTextureCubemap
maxTexture1DLayered[2] maxTexture2DLayered[3] maxTextureCubemapLayered[2] maxSurface1D maxSurface2D[2]
maxSurface3D[3] maxSurface1DLayered[2] maxSurface2DLayered[3] maxSurfaceCubemap maxSurfaceCubemapLayered[2]
surfaceAlignment+ concurrentKernels ECCEnabled pciBusID pciDeviceID pciDomainID tccDriver asyncEngineCount
unifiedAddressing 12:memoryClockRate memoryBusWidth l2CacheSize persistingL2CacheMaxSize maxThreadsPerMultiProcessor
streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported sharedMemPerMultiprocessor+
regsPerMultiprocessor managedMemory isMultiGpuBoard multiGpuBoardGroupID hostNativeAtomicSupported
12:singleToDoublePrecisionPerfRatio pageableMemoryAccess concurrentManagedAccess computePreemptionSupported
canUseHostPointerForRegisteredMem cooperativeLaunch 12:cooperativeMultiDeviceLaunch sharedMemPerBlockOptin+
pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost maxBlocksPerMultiProcessor
accessPolicyMaxWindowSize reservedSharedMemPerBlock+ hostRegisterSupported sparseCudaArraySupported
hostRegisterReadOnlySupported timelineSemaphoreInteropSupported memoryPoolsSupported gpuDirectRDMASupported
gpuDirectRDMAFlushWritesOptions gpuDirectRDMAWritesOrdering memoryPoolSupportedHandleTypes
deferredMappingCudaArraySupported ipcEventSupported clusterLaunch unifiedFunctionPointers 13:deviceNumaConfig
13:deviceNumaId 13:mpsEnabled 13:hostNumaId 13:gpuPciDeviceID 13:gpuPciSubsystemID 13:hostNumaMultinodeIpcSupported
12:reserved[63] 13:reserved[56]
"""
"""The fields of cudaDeviceProp in CUDA 12 and 13.

A field is an int unless it is marked: ``+`` stands for a size_t, ``!`` for bytes. ``12:`` and ``13:`` mark fields
that only this version has.
"""
_CHOICE: Final = [
    "major",
    "minor",
    "multiProcessorCount",
    "totalGlobalMem",
    "sharedMemPerBlock",
    "maxThreadsPerBlock",
    "regsPerBlock",
]
"""The fields of cudaDeviceProp that cudaChooseDevice compares."""
_NUMBERS: Final = {
    **_map_by_name(
        """
        asyncEngineCount canMapHostMemory canUseHostPointerForRegisteredMem clusterLaunch
        computePreemptionSupported concurrentKernels concurrentManagedAccess cooperativeLaunch
        deferredMappingCudaArraySupported directManagedMemAccessFromHost ECCEnabled globalL1CacheSupported
        gpuDirectRDMASupported hostNativeAtomicSupported hostRegisterSupported integrated ipcEventSupported
        l2CacheSize localL1CacheSupported managedMemory maxThreadsPerBlock memoryPoolsSupported
        multiGpuBoardGroupID pageableMemoryAccess pageableMemoryAccessUsesHostPageTables pciBusID
        pciDeviceID pciDomainID sparseCudaArraySupported streamPrioritiesSupported surfaceAlignment
        tccDriver textureAlignment texturePitchAlignment timelineSemaphoreInteropSupported unifiedAddressing
        clockRate computeMode cooperativeMultiDeviceLaunch hostNumaId hostNumaMultinodeIpcSupported memoryClockRate
        mpsEnabled singleToDoublePrecisionPerfRatio unifiedFunctionPointers warpSize
        """
    ),
    "accessPolicyMaxWindowSize": "MAX_ACCESS_POLICY_WINDOW_SIZE",
    "hostRegisterReadOnlySupported": "READ_ONLY_HOST_REGISTER_SUPPORTED",
    "deviceNumaConfig": "NUMA_CONFIG",
    "deviceNumaId": "NUMA_ID",
    "deviceOverlap": "GPU_OVERLAP",
    "gpuDirectRDMAFlushWritesOptions": "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
    "gpuDirectRDMAWritesOrdering": "GPU_DIRECT_RDMA_WRITES_ORDERING",
    "isMultiGpuBoard": "MULTI_GPU_BOARD",
    "kernelExecTimeoutEnabled": "KERNEL_EXEC_TIMEOUT",
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "maxBlocksPerMultiProcessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "maxSurface1D": "MAXIMUM_SURFACE1D_WIDTH",
    "maxSurfaceCubemap": "MAXIMUM_SURFACECUBEMAP_WIDTH",
    "maxTexture1D": "MAXIMUM_TEXTURE1D_WIDTH",
    "maxTexture1DLinear": "MAXIMUM_TEXTURE1D_LINEAR_WIDTH",
    "maxTexture1DMipmap": "MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH",
    "maxTextureCubemap": "MAXIMUM_TEXTURECUBEMAP_WIDTH",
    "maxThreadsPerMultiProcessor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "memoryBusWidth": "GLOBAL_MEMORY_BUS_WIDTH",
    "memoryPoolSupportedHandleTypes": "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    "memPitch": "MAX_PITCH",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "multiProcessorCount": "MULTIPROCESSOR_COUNT",
    "persistingL2CacheMaxSize": "MAX_PERSISTING_L2_CACHE_SIZE",
    "regsPerBlock": "MAX_REGISTERS_PER_BLOCK",
    "regsPerMultiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "reservedSharedMemPerBlock": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "sharedMemPerBlock": "MAX_SHARED_MEMORY_PER_BLOCK",
    "sharedMemPerBlockOptin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "sharedMemPerMultiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "totalConstMem": "TOTAL_CONSTANT_MEMORY",
}
"""The device's attribute in each field of cudaDeviceProp."""
_EXTENTS: Final = """
maxGridSize MAX_GRID_DIM X Y Z
maxThreadsDim MAX_BLOCK_DIM X Y Z
maxTexture2D MAXIMUM_TEXTURE2D WIDTH HEIGHT
maxTexture2DGather MAXIMUM_TEXTURE2D_GATHER WIDTH HEIGHT
maxTexture2DLinear MAXIMUM_TEXTURE2D_LINEAR WIDTH HEIGHT PITCH
maxTexture2DMipmap MAXIMUM_TEXTURE2D_MIPMAPPED WIDTH HEIGHT
maxTexture1DLayered MAXIMUM_TEXTURE1D_LAYERED WIDTH LAYERS
maxTexture2DLayered MAXIMUM_TEXTURE2D_LAYERED WIDTH HEIGHT LAYERS
maxTextureCubemapLayered MAXIMUM_TEXTURECUBEMAP_LAYERED WIDTH LAYERS
maxTexture3DAlt MAXIMUM_TEXTURE3D WIDTH_ALTERNATE HEIGHT_ALTERNATE DEPTH_ALTERNATE
maxSurface1DLayered MAXIMUM_SURFACE1D_LAYERED WIDTH LAYERS
maxSurface2DLayered MAXIMUM_SURFACE2D_LAYERED WIDTH HEIGHT LAYERS
maxSurfaceCubemapLayered MAXIMUM_SURFACECUBEMAP_LAYERED WIDTH LAYERS
maxTexture3D MAXIMUM_TEXTURE3D WIDTH HEIGHT DEPTH
maxSurface2D MAXIMUM_SURFACE2D WIDTH HEIGHT
maxSurface3D MAXIMUM_SURFACE3D WIDTH HEIGHT DEPTH
"""
"""The fields of cudaDeviceProp with several values, each with the beginning of the attributes' names and the ends."""
_LISTS: Final = {
    field: tuple(f"{name}_{end}" for end in ends)
    for field, name, *ends in (line.split() for line in _EXTENTS.strip().splitlines())
}
_FUNCTION_FIELDS: Final = {
    **_map_by_name(
        """
        binaryVersion cacheModeCA clusterSchedulingPolicyPreference constSizeBytes localSizeBytes
        maxDynamicSharedSizeBytes maxThreadsPerBlock nonPortableClusterSizeAllowed numRegs ptxVersion
        requiredClusterDepth requiredClusterHeight requiredClusterWidth sharedSizeBytes
        """
    ),
    "clusterDimMustBeSet": "CLUSTER_SIZE_MUST_BE_SET",
    "preferredShmemCarveout": "PREFERRED_SHARED_MEMORY_CARVEOUT",
}
"""The kernel's attribute in each field of cudaFuncAttributes."""


class Layout(NamedTuple):
    """The cudaDeviceProp of a version of CUDA: its class, and how many of its bytes are written."""

    fields: Any
    size: int


def _structure(name: str, words: str, version: int = 0) -> Any:
    """Return the structure with the fields that a major version of CUDA has.

    A word is ``NAME[COUNT]``, after ``VERSION:`` if only that version has the field. A field is an int, with ``+``
    after its name a size_t, with ``!`` bytes.
    """
    fields: list[tuple[str, Any]] = []
    for word in words.split():
        only, _, field = word.rpartition(":")
        name_and_type, _, count = field.rstrip("]").partition("[")
        if only in ("", str(version)):
            type_: Any = {"+": ctypes.c_size_t, "!": ctypes.c_ubyte}.get(name_and_type[-1], ctypes.c_int)
            fields.append((name_and_type.rstrip("+!"), type_ * int(count) if count else type_))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_OF_12, _OF_13 = (_structure("cudaDeviceProp", _PROPERTIES, version) for version in (12, 13))
LAYOUTS: Final = {
    "cudaDeviceProp_v11 *": Layout(_OF_12, _OF_12.hostRegisterSupported.offset),
    "cudaDeviceProp_v12 *": Layout(_OF_12, ctypes.sizeof(_OF_12)),
    "cudaDeviceProp_v13 *": Layout(_OF_13, ctypes.sizeof(_OF_13)),
}
"""The layouts by the C types in the tables of pympsd's libraries.

Old programs get CUDA 11's layout from CUDA 12's runtime.
"""
OF_BINDINGS: Final = LAYOUTS[f"cudaDeviceProp_v{bindings.CUDA_VERSION // 1000} *"]
_FUNCTION_ATTRIBUTES: Final = """
sharedSizeBytes+ constSizeBytes+ localSizeBytes+ maxThreadsPerBlock numRegs ptxVersion binaryVersion cacheModeCA
maxDynamicSharedSizeBytes preferredShmemCarveout clusterDimMustBeSet requiredClusterWidth requiredClusterHeight
requiredClusterDepth clusterSchedulingPolicyPreference nonPortableClusterSizeAllowed reserved[16]
"""
_FunctionAttributes: Final = _structure("cudaFuncAttributes", _FUNCTION_ATTRIBUTES)


def write(address: int, device: VisibleDevice, layout: Layout) -> None:
    """Write a device's cudaDeviceProp, in which fields without an attribute are 0; raise INVALID_VALUE for NULL."""
    check_not_null("the cudaDeviceProp", address)
    attributes = device.properties.attributes
    properties = layout.fields()
    properties.name[:] = device.properties.name.encode()[:255].ljust(256, b"\0")
    properties.totalGlobalMem = device.properties.memory_bytes
    properties.uuid[:] = uuid_bytes(device)
    for field, attribute in _NUMBERS.items():
        if hasattr(properties, field):
            setattr(properties, field, attributes.get(attribute, 0))
    for field, names in _LISTS.items():
        getattr(properties, field)[:] = [attributes.get(name, 0) for name in names]
    memmove(address, bytes(properties), layout.size)


def read_requirements(address: int, layout: Layout) -> tuple[int, ...]:
    """Return the minimums in cudaChooseDevice's cudaDeviceProp, 0 for fields without a requirement."""
    check_not_null("the cudaDeviceProp", address)
    properties = layout.fields.from_address(address)
    return tuple(getattr(properties, field) for field in _CHOICE)


def write_function_attributes(address: int, function: int) -> None:
    """Write the cudaFuncAttributes of a kernel, with unknown ones 0; raise the errors of `symbols.kernel_at`."""
    check_not_null("the cudaFuncAttributes", address)
    kernel = function_of(kernel_at(function))
    kernel.context.usable()
    attributes = _FunctionAttributes()
    for field, name in _FUNCTION_FIELDS.items():
        setattr(attributes, field, kernel.attributes.get(name, 0))
    memmove(address, bytes(attributes), ctypes.sizeof(attributes))
