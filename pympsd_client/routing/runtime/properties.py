"""cudaDeviceProp and cudaFuncAttributes: structures whose fields are attributes of a device, or of a kernel."""

import re
from ctypes import memmove
from importlib import import_module
from typing import Any, Final

from pympsd_client._arguments.values import check_not_null
from pympsd_client._connect.connection import Device
from pympsd_client._objects.code.library import function_of
from pympsd_client.routing.driver import api

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _by_name(fields: str) -> dict[str, str]:
    """Return the attributes of fields that have the same names, in capitals with underscores."""
    return {field: _WORD.sub("_", field).upper() for field in fields.split()}


_NUMBERS: Final = {
    **_by_name(
        """
        asyncEngineCount canMapHostMemory canUseHostPointerForRegisteredMem clusterLaunch
        computePreemptionSupported concurrentKernels concurrentManagedAccess cooperativeLaunch
        deferredMappingCudaArraySupported directManagedMemAccessFromHost ECCEnabled globalL1CacheSupported
        gpuDirectRDMASupported hostNativeAtomicSupported hostRegisterSupported integrated ipcEventSupported
        l2CacheSize localL1CacheSupported managedMemory maxThreadsPerBlock memoryPoolsSupported
        multiGpuBoardGroupID pageableMemoryAccess pageableMemoryAccessUsesHostPageTables pciBusID
        pciDeviceID pciDomainID sparseCudaArraySupported streamPrioritiesSupported surfaceAlignment
        tccDriver textureAlignment texturePitchAlignment timelineSemaphoreInteropSupported unifiedAddressing
        unifiedFunctionPointers warpSize
        """
    ),
    "accessPolicyMaxWindowSize": "MAX_ACCESS_POLICY_WINDOW_SIZE",
    "hostRegisterReadOnlySupported": "READ_ONLY_HOST_REGISTER_SUPPORTED",
    "isMultiGpuBoard": "MULTI_GPU_BOARD",
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "maxBlocksPerMultiProcessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "maxSurface1D": "MAXIMUM_SURFACE1D_WIDTH",
    "maxSurfaceCubemap": "MAXIMUM_SURFACECUBEMAP_WIDTH",
    "maxTexture1D": "MAXIMUM_TEXTURE1D_WIDTH",
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
"""The attribute of a device by the field of cudaDeviceProp."""
_LISTS: Final = {
    "maxGridSize": ("MAX_GRID_DIM_X", "MAX_GRID_DIM_Y", "MAX_GRID_DIM_Z"),
    "maxThreadsDim": ("MAX_BLOCK_DIM_X", "MAX_BLOCK_DIM_Y", "MAX_BLOCK_DIM_Z"),
    "maxTexture2D": ("MAXIMUM_TEXTURE2D_WIDTH", "MAXIMUM_TEXTURE2D_HEIGHT"),
    "maxTexture3D": ("MAXIMUM_TEXTURE3D_WIDTH", "MAXIMUM_TEXTURE3D_HEIGHT", "MAXIMUM_TEXTURE3D_DEPTH"),
    "maxSurface2D": ("MAXIMUM_SURFACE2D_WIDTH", "MAXIMUM_SURFACE2D_HEIGHT"),
    "maxSurface3D": ("MAXIMUM_SURFACE3D_WIDTH", "MAXIMUM_SURFACE3D_HEIGHT", "MAXIMUM_SURFACE3D_DEPTH"),
}
_FUNCTION_FIELDS: Final = {
    **_by_name(
        """
        binaryVersion cacheModeCA clusterSchedulingPolicyPreference constSizeBytes localSizeBytes
        maxDynamicSharedSizeBytes maxThreadsPerBlock nonPortableClusterSizeAllowed numRegs ptxVersion
        requiredClusterDepth requiredClusterHeight requiredClusterWidth sharedSizeBytes
        """
    ),
    "clusterDimMustBeSet": "CLUSTER_SIZE_MUST_BE_SET",
    "preferredShmemCarveout": "PREFERRED_SHARED_MEMORY_CARVEOUT",
}
"""The attribute of a function by the field of cudaFuncAttributes."""


def write(place: int, device: Device) -> None:
    """Write a device's cudaDeviceProp, fields without an attribute are 0; INVALID_VALUE for NULL."""
    check_not_null("the cudaDeviceProp", place)
    runtime = import_module("cuda.bindings.runtime")  # not before cuda.bindings.cyruntime has been executed
    attributes = device.properties.attributes
    properties: Any = runtime.cudaDeviceProp(_ptr=place)
    properties.name = device.properties.name.encode()[:255].ljust(256, b"\0")
    properties.totalGlobalMem = device.properties.memory_bytes
    memmove(properties.uuid.getPtr(), api.cuDeviceGetUuid(device.number), 16)
    for field, attribute in _NUMBERS.items():
        if hasattr(properties, field):
            setattr(properties, field, attributes.get(attribute, 0))
    for field, names in _LISTS.items():
        setattr(properties, field, [attributes.get(name, 0) for name in names])


def write_function_attributes(place: int, function: int) -> None:
    """Write the cudaFuncAttributes of a kernel, unknown ones are 0; INVALID_HANDLE."""
    check_not_null("the cudaFuncAttributes", place)
    kernel = function_of(function)
    kernel.context.usable()
    attributes: Any = import_module("cuda.bindings.runtime").cudaFuncAttributes(_ptr=place)
    for field, name in _FUNCTION_FIELDS.items():
        setattr(attributes, field, kernel.attributes.get(name, 0))
