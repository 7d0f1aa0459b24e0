"""cudaDeviceProp: the fields from the device's attributes."""

from __future__ import annotations

from ctypes import memmove
from importlib import import_module
from typing import Any, Final

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._connect.connection import Device
from pympsd_client.routing.runtime.calls import api

_NUMBERS: Final = {
    "accessPolicyMaxWindowSize": "MAX_ACCESS_POLICY_WINDOW_SIZE",
    "asyncEngineCount": "ASYNC_ENGINE_COUNT",
    "canMapHostMemory": "CAN_MAP_HOST_MEMORY",
    "canUseHostPointerForRegisteredMem": "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    "clusterLaunch": "CLUSTER_LAUNCH",
    "computePreemptionSupported": "COMPUTE_PREEMPTION_SUPPORTED",
    "concurrentKernels": "CONCURRENT_KERNELS",
    "concurrentManagedAccess": "CONCURRENT_MANAGED_ACCESS",
    "cooperativeLaunch": "COOPERATIVE_LAUNCH",
    "deferredMappingCudaArraySupported": "DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED",
    "directManagedMemAccessFromHost": "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST",
    "ECCEnabled": "ECC_ENABLED",
    "globalL1CacheSupported": "GLOBAL_L1_CACHE_SUPPORTED",
    "gpuDirectRDMASupported": "GPU_DIRECT_RDMA_SUPPORTED",
    "hostNativeAtomicSupported": "HOST_NATIVE_ATOMIC_SUPPORTED",
    "hostRegisterReadOnlySupported": "READ_ONLY_HOST_REGISTER_SUPPORTED",
    "hostRegisterSupported": "HOST_REGISTER_SUPPORTED",
    "integrated": "INTEGRATED",
    "ipcEventSupported": "IPC_EVENT_SUPPORTED",
    "isMultiGpuBoard": "MULTI_GPU_BOARD",
    "l2CacheSize": "L2_CACHE_SIZE",
    "localL1CacheSupported": "LOCAL_L1_CACHE_SUPPORTED",
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "managedMemory": "MANAGED_MEMORY",
    "maxBlocksPerMultiProcessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "maxSurface1D": "MAXIMUM_SURFACE1D_WIDTH",
    "maxSurfaceCubemap": "MAXIMUM_SURFACECUBEMAP_WIDTH",
    "maxTexture1D": "MAXIMUM_TEXTURE1D_WIDTH",
    "maxTexture1DMipmap": "MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH",
    "maxTextureCubemap": "MAXIMUM_TEXTURECUBEMAP_WIDTH",
    "maxThreadsPerBlock": "MAX_THREADS_PER_BLOCK",
    "maxThreadsPerMultiProcessor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "memoryBusWidth": "GLOBAL_MEMORY_BUS_WIDTH",
    "memoryPoolSupportedHandleTypes": "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    "memoryPoolsSupported": "MEMORY_POOLS_SUPPORTED",
    "memPitch": "MAX_PITCH",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "multiGpuBoardGroupID": "MULTI_GPU_BOARD_GROUP_ID",
    "multiProcessorCount": "MULTIPROCESSOR_COUNT",
    "pageableMemoryAccess": "PAGEABLE_MEMORY_ACCESS",
    "pageableMemoryAccessUsesHostPageTables": "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    "pciBusID": "PCI_BUS_ID",
    "pciDeviceID": "PCI_DEVICE_ID",
    "pciDomainID": "PCI_DOMAIN_ID",
    "persistingL2CacheMaxSize": "MAX_PERSISTING_L2_CACHE_SIZE",
    "regsPerBlock": "MAX_REGISTERS_PER_BLOCK",
    "regsPerMultiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "reservedSharedMemPerBlock": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "sharedMemPerBlock": "MAX_SHARED_MEMORY_PER_BLOCK",
    "sharedMemPerBlockOptin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "sharedMemPerMultiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "sparseCudaArraySupported": "SPARSE_CUDA_ARRAY_SUPPORTED",
    "streamPrioritiesSupported": "STREAM_PRIORITIES_SUPPORTED",
    "surfaceAlignment": "SURFACE_ALIGNMENT",
    "tccDriver": "TCC_DRIVER",
    "textureAlignment": "TEXTURE_ALIGNMENT",
    "texturePitchAlignment": "TEXTURE_PITCH_ALIGNMENT",
    "timelineSemaphoreInteropSupported": "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED",
    "totalConstMem": "TOTAL_CONSTANT_MEMORY",
    "unifiedAddressing": "UNIFIED_ADDRESSING",
    "unifiedFunctionPointers": "UNIFIED_FUNCTION_POINTERS",
    "warpSize": "WARP_SIZE",
}
_LISTS: Final = {
    "maxGridSize": ("MAX_GRID_DIM_X", "MAX_GRID_DIM_Y", "MAX_GRID_DIM_Z"),
    "maxThreadsDim": ("MAX_BLOCK_DIM_X", "MAX_BLOCK_DIM_Y", "MAX_BLOCK_DIM_Z"),
    "maxTexture2D": ("MAXIMUM_TEXTURE2D_WIDTH", "MAXIMUM_TEXTURE2D_HEIGHT"),
    "maxTexture3D": ("MAXIMUM_TEXTURE3D_WIDTH", "MAXIMUM_TEXTURE3D_HEIGHT", "MAXIMUM_TEXTURE3D_DEPTH"),
    "maxSurface2D": ("MAXIMUM_SURFACE2D_WIDTH", "MAXIMUM_SURFACE2D_HEIGHT"),
    "maxSurface3D": ("MAXIMUM_SURFACE3D_WIDTH", "MAXIMUM_SURFACE3D_HEIGHT", "MAXIMUM_SURFACE3D_DEPTH"),
}


def write(place: int, device: Device) -> None:
    """Write a device's cudaDeviceProp, of which fields that no attribute gives are 0; INVALID_VALUE for NULL."""
    if not place:
        raise invalid_value("the address of the cudaDeviceProp is NULL")
    runtime = import_module("cuda.bindings.runtime")  # not before cuda.bindings.cyruntime has been executed
    facts = device.facts.attributes
    made: Any = runtime.cudaDeviceProp(_ptr=place)
    made.name = device.facts.name.encode()[:255].ljust(256, b"\0")
    made.totalGlobalMem = device.facts.memory_bytes
    memmove(made.uuid.getPtr(), api.cuDeviceGetUuid(device.number), 16)
    for field, attribute in _NUMBERS.items():
        if hasattr(made, field):
            setattr(made, field, facts.get(attribute, 0))
    for field, attributes in _LISTS.items():
        setattr(made, field, [facts.get(attribute, 0) for attribute in attributes])
