"""Stream-ordered allocation and memory pools."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_POOLS: Final = """
cuMemAllocAsync(out CUdeviceptr dptr, size_t bytesize, CUstream hStream) = allocate
cuMemAllocFromPoolAsync(out CUdeviceptr dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) = allocate_from
cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) = free
cuDeviceGetDefaultMemPool(out CUmemoryPool pool_out, CUdevice dev) = default_of
cuDeviceGetMemPool(out CUmemoryPool pool, CUdevice dev) = current_of
cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) = set_current
cuMemPoolCreate(out CUmemoryPool pool, CUmemPoolProps *poolProps) = create
cuMemPoolDestroy(CUmemoryPool pool) = destroy
cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) = trim
cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, out void value) = attribute
cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, const void *value) = set_attribute
cuMemPoolSetAccess(CUmemoryPool pool, CUmemAccessDesc *map, size_t count) = set_access
cuMemPoolGetAccess(out CUmemAccess_flags flags, CUmemoryPool memPool, CUmemLocation *location) = access
cuMemGetDefaultMemPool(out CUmemoryPool pool_out, CUmemLocation *location, CUmemAllocationType typename) = default_at
cuMemGetMemPool(out CUmemoryPool pool, CUmemLocation *location, CUmemAllocationType typename) = current_at
cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType typename, CUmemoryPool pool) = set_current_at
"""

_SHARING: Final = """
cuMemPoolExportToShareableHandle(out void handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
    unsigned long long flags) = export
cuMemPoolImportFromShareableHandle(out CUmemoryPool pool_out, void *handle, CUmemAllocationHandleType handleType,
    unsigned long long flags) = import_pool(handle.address, handleType, flags)
cuMemPoolExportPointer(out CUmemPoolPtrExportData shareData_out, CUdeviceptr ptr)
    = export_pointer
cuMemPoolImportPointer(out CUdeviceptr ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData)
    = import_pointer
"""

ROWS: Final = (*chapter("_api.memory.pools", _POOLS), *chapter("_api.memory.pool_sharing", _SHARING))
