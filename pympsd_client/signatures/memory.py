"""Memory: allocations, copies, host and managed memory, pools, virtual memory, IPC; and arrays.

Arrays come with textures, surfaces and tensor maps, through which kernels read them.
"""

from typing import Final

from pympsd_client.signatures.rows import Calling, chapter

_MEMORY: Final = """
cuMemAlloc(out CUdeviceptr dptr, size_t bytesize) = allocate
cuMemAllocPitch(out CUdeviceptr dptr, out size_t pPitch, size_t WidthInBytes, size_t Height,
    unsigned int ElementSizeBytes) = allocate_pitch
cuMemFree(CUdeviceptr dptr) = free
cuMemGetInfo(out size_t free, out size_t total) = info
cuMemcpyHtoD(CUdeviceptr dstDevice, void *srcHost, size_t ByteCount)
    = _api.memory.copies.copy_host_to_device(dstDevice, srcHost, ByteCount, 0, True)
cuMemcpyHtoDAsync(CUdeviceptr dstDevice, void *srcHost, size_t ByteCount, CUstream hStream)
    = _api.memory.copies.copy_host_to_device
cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
    = _api.memory.copies.copy_device_to_host(dstHost, srcDevice, ByteCount, 0, True)
cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
    = _api.memory.copies.copy_device_to_host
cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
    = _api.memory.copies.copy_device_to_device(dstDevice, srcDevice, ByteCount, 0, True)
cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
    = _api.memory.copies.copy_device_to_device
cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
    = _api.memory.copies.copy_any(dst, src, ByteCount, 0, True)
cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) = _api.memory.copies.copy_any
cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
    size_t ByteCount)
    = _api.memory.copies.copy_peer_to_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, 0)
cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
    size_t ByteCount, CUstream hStream) = _api.memory.copies.copy_peer_to_peer
cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
    size_t *attrsIdxs, size_t numAttrs, CUstream hStream) = _api.memory.batch.copy(dsts, srcs, sizes, count, hStream)
cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N)
    = _api.memory.copies.fill(dstDevice, uc, 1, N, 0, wait=True)
cuMemsetD16(CUdeviceptr dstDevice, unsigned short us, size_t N)
    = _api.memory.copies.fill(dstDevice, us, 2, N, 0, wait=True)
cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N)
    = _api.memory.copies.fill(dstDevice, ui, 4, N, 0, wait=True)
cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
    = _api.memory.copies.fill(dstDevice, uc, 1, N, hStream)
cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
    = _api.memory.copies.fill(dstDevice, us, 2, N, hStream)
cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
    = _api.memory.copies.fill(dstDevice, ui, 4, N, hStream)
cuMemsetD2D8(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height)
    = _api.memory.copies.fill(dstDevice, uc, 1, Width, 0, dstPitch, Height, wait=True)
cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
    CUstream hStream) = _api.memory.copies.fill(dstDevice, uc, 1, Width, hStream, dstPitch, Height)
cuMemsetD2D16(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height)
    = _api.memory.copies.fill(dstDevice, us, 2, Width, 0, dstPitch, Height, wait=True)
cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height,
    CUstream hStream) = _api.memory.copies.fill(dstDevice, us, 2, Width, hStream, dstPitch, Height)
cuMemsetD2D32(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height)
    = _api.memory.copies.fill(dstDevice, ui, 4, Width, 0, dstPitch, Height, wait=True)
cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
    CUstream hStream) = _api.memory.copies.fill(dstDevice, ui, 4, Width, hStream, dstPitch, Height)
cuMemcpy2D(CUDA_MEMCPY2D *pCopy) = _api.memory.region_copy.copy(pCopy, 0, True)
cuMemcpy2DUnaligned(CUDA_MEMCPY2D *pCopy) = _api.memory.region_copy.copy(pCopy, 0, True)
cuMemcpy2DAsync(CUDA_MEMCPY2D *pCopy, CUstream hStream) = _api.memory.region_copy.copy
cuMemcpy3D(CUDA_MEMCPY3D *pCopy) = _api.memory.region_copy.copy(pCopy, 0, True)
cuMemcpy3DAsync(CUDA_MEMCPY3D *pCopy, CUstream hStream) = _api.memory.region_copy.copy
cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags, CUstream hStream)
    = _api.memory.batch.copy_regions
cuMemcpy3DPeer(CUDA_MEMCPY3D_PEER *pCopy) = _api.memory.region_copy.copy_peer(pCopy, 0)
cuMemcpy3DPeerAsync(CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream) = _api.memory.region_copy.copy_peer
"""

_HOST_MEMORY: Final = """
cuMemAllocHost(out void *pp, size_t bytesize) = allocate(bytesize, 0)
cuMemHostAlloc(out void *pp, size_t bytesize, unsigned int Flags) = allocate
cuMemFreeHost(void *p) = free(p.address)
cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) = register
cuMemHostUnregister(void *p) = unregister(p.address)
cuMemHostGetFlags(out unsigned int pFlags, void *p) = flags(p.address)
cuMemHostGetDevicePointer(out CUdeviceptr pdptr, void *p, unsigned int Flags) = device_pointer(p.address, Flags)
"""

_POINTERS: Final = """
cuPointerGetAttribute(out void data, CUpointer_attribute attribute, CUdeviceptr ptr) = attribute
cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, out void *data, CUdeviceptr ptr)
    = attributes
cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) = set_attribute
cuMemGetAddressRange(out CUdeviceptr pbase, out size_t psize, CUdeviceptr dptr) = address_range
"""

_MANAGED: Final = """
cuMemAllocManaged(out CUdeviceptr dptr, size_t bytesize, unsigned int flags) = allocate
cuMemRangeGetAttribute(out void data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr,
    size_t count) = attribute
cuMemRangeGetAttributes(out void *data, size_t *dataSizes, CUmem_range_attribute *attributes, size_t numAttributes,
    CUdeviceptr devPtr, size_t count) = attributes
cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags) = attach
"""

# Before CUDA 13 the parameter was a device's number instead of a location.
_LOCATED: Final = """
cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
    = advise(*arguments, **keywords)
cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream hStream)
    = prefetch(*arguments, **keywords)
"""

_BATCHES: Final = """
cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, const CUmemLocation *prefetchLocs,
    size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)
    = prefetch('cuMemPrefetchBatchAsync', dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags,
    hStream)
cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, unsigned long long flags, CUstream hStream)
    = discard
cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, const CUmemLocation *prefetchLocs,
    size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)
    = prefetch('cuMemDiscardAndPrefetchBatchAsync', dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
    numPrefetchLocs, flags, hStream)
"""

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

_IPC: Final = """
cuIpcGetMemHandle(out CUipcMemHandle pHandle, CUdeviceptr dptr) = memory_handle
cuIpcOpenMemHandle(out CUdeviceptr pdptr, CUipcMemHandle handle, unsigned int Flags) = open_memory
cuIpcCloseMemHandle(CUdeviceptr dptr) = close_memory
cuIpcGetEventHandle(out CUipcEventHandle pHandle, nonnull CUevent event) = event_handle
cuIpcOpenEventHandle(out CUevent phEvent, CUipcEventHandle handle) = open_event
"""

_ARRAYS: Final = """
cuArrayCreate(out CUarray pHandle, CUDA_ARRAY_DESCRIPTOR *pAllocateArray) = create
cuArray3DCreate(out CUarray pHandle, CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) = create
cuArrayDestroy(CUarray hArray) = destroy
cuArrayGetDescriptor(out CUDA_ARRAY_DESCRIPTOR pArrayDescriptor, CUarray hArray) = _api.memory.arrays.description
cuArray3DGetDescriptor(out CUDA_ARRAY3D_DESCRIPTOR pArrayDescriptor, CUarray hArray)
    = _api.memory.arrays.description_3d
cuMipmappedArrayCreate(out CUmipmappedArray pHandle, CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
    unsigned int numMipmapLevels) = create_mipmapped
cuMipmappedArrayGetLevel(out CUarray pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level) = level_of
cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) = destroy_mipmapped
"""

_COPIES: Final = """
cuMemcpyHtoA(CUarray dstArray, size_t dstOffset, void *srcHost, size_t ByteCount)
    = copy_from_host(dstArray, dstOffset, srcHost, ByteCount, 0, True)
cuMemcpyHtoAAsync(CUarray dstArray, size_t dstOffset, void *srcHost, size_t ByteCount, CUstream hStream)
    = copy_from_host
cuMemcpyAtoH(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
    = copy_to_host(dstHost, srcArray, srcOffset, ByteCount, 0, True)
cuMemcpyAtoHAsync(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream)
    = copy_to_host
cuMemcpyDtoA(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) = copy_from_device
cuMemcpyAtoD(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) = copy_to_device
cuMemcpyAtoA(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount)
    = copy_between
"""

_OBJECTS: Final = """
cuTexObjectCreate(out CUtexObject pTexObject, CUDA_RESOURCE_DESC *pResDesc, CUDA_TEXTURE_DESC *pTexDesc,
    CUDA_RESOURCE_VIEW_DESC *pResViewDesc) = create_texture
cuTexObjectDestroy(CUtexObject texObject) = destroy_texture
cuTexObjectGetResourceDesc(out CUDA_RESOURCE_DESC pResDesc, CUtexObject texObject) = resource_of_texture
cuTexObjectGetTextureDesc(out CUDA_TEXTURE_DESC pTexDesc, CUtexObject texObject) = texture_description
cuTexObjectGetResourceViewDesc(out CUDA_RESOURCE_VIEW_DESC pResViewDesc, CUtexObject texObject) = view_of_texture
cuSurfObjectCreate(out CUsurfObject pSurfObject, CUDA_RESOURCE_DESC *pResDesc) = create_surface
cuSurfObjectDestroy(CUsurfObject surfObject) = destroy_surface
cuSurfObjectGetResourceDesc(out CUDA_RESOURCE_DESC pResDesc, CUsurfObject surfObject) = resource_of_surface
"""

_MAPS: Final = """
cuTensorMapEncodeTiled(out CUtensorMap tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    CUdeviceptr globalAddress, cuuint64_t *globalDim, cuuint64_t *globalStrides, cuuint32_t *boxDim,
    cuuint32_t *elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) = encode_tiled
cuTensorMapEncodeIm2col(out CUtensorMap tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    CUdeviceptr globalAddress, cuuint64_t *globalDim, cuuint64_t *globalStrides, int *pixelBoxLowerCorner,
    int *pixelBoxUpperCorner, cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn, cuuint32_t *elementStrides,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill) = encode_im2col
cuTensorMapEncodeIm2colWide(out CUtensorMap tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    CUdeviceptr globalAddress, cuuint64_t *globalDim, cuuint64_t *globalStrides, int pixelBoxLowerCornerWidth,
    int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
    cuuint32_t *elementStrides, CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
    = encode_im2col_wide()
cuTensorMapReplaceAddress(CUtensorMap *tensorMap, CUdeviceptr globalAddress) = replace_address
"""

ROWS: Final = (
    *chapter("_objects.memory.allocations", _MEMORY),
    *chapter("_api.memory.host", _HOST_MEMORY),
    *chapter("_api.memory.pointer", _POINTERS),
    *chapter("_api.memory.managed", _MANAGED),
    *chapter("_api.memory.managed", _LOCATED, Calling.VARIANTS),
    *chapter("_api.memory.batch", _BATCHES),
    *chapter("_api.memory.pools", _POOLS),
    *chapter("_api.memory.pools", _SHARING),
    *chapter("_api.memory.virtual", _VIRTUAL_MEMORY),
    *chapter("_api.memory.ipc", _IPC),
    *chapter("_objects.arrays.array", _ARRAYS),
    *chapter("_api.memory.arrays", _COPIES),
    *chapter("_objects.arrays.texture", _OBJECTS),
    *chapter("_api.memory.tensor_map", _MAPS),
)
