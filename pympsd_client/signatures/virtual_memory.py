"""Virtual memory management."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_VIRTUAL_MEMORY: Final = """
cuMemAddressReserve(out CUdeviceptr ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
    = reserve
cuMemAddressFree(CUdeviceptr ptr, size_t size) = free_addresses
cuMemCreate(out CUmemGenericAllocationHandle handle, size_t size, CUmemAllocationProp *prop, unsigned long long flags)
    = create
cuMemRelease(CUmemGenericAllocationHandle handle) = release
cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
    = map_memory
cuMemUnmap(CUdeviceptr ptr, size_t size) = unmap
cuMemSetAccess(CUdeviceptr ptr, size_t size, CUmemAccessDesc *desc, size_t count) = set_access
cuMemGetAccess(out unsigned long long flags, CUmemLocation *location, CUdeviceptr ptr) = access
cuMemGetAllocationGranularity(out size_t granularity, CUmemAllocationProp *prop,
    CUmemAllocationGranularity_flags option) = granularity
cuMemRetainAllocationHandle(out CUmemGenericAllocationHandle handle, void *addr) = retain(addr.address)
cuMemGetAllocationPropertiesFromHandle(out CUmemAllocationProp prop, CUmemGenericAllocationHandle handle)
    = properties_of
cuMemExportToShareableHandle(out void shareableHandle, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType handleType, unsigned long long flags) = export
cuMemImportFromShareableHandle(out CUmemGenericAllocationHandle handle, void *osHandle,
    CUmemAllocationHandleType shHandleType) = import_descriptor(osHandle.address, shHandleType)
"""

ROWS: Final = chapter("_api.memory.virtual", _VIRTUAL_MEMORY)
