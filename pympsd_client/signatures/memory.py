"""Device memory, copies, fills, and page-locked host memory."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_MEMORY: Final = """
cuMemAlloc(out CUdeviceptr dptr, size_t bytesize) = allocate
cuMemAllocPitch(out CUdeviceptr dptr, out size_t pPitch, size_t WidthInBytes, size_t Height,
    unsigned int ElementSizeBytes) = allocate_pitch
cuMemFree(CUdeviceptr dptr) = free
cuMemGetInfo(out size_t free, out size_t total) = info
cuMemcpyHtoD(CUdeviceptr dstDevice, void *srcHost, size_t ByteCount)
    = _api.memory.copies.host_to_device(dstDevice, srcHost, ByteCount, 0, True)
cuMemcpyHtoDAsync(CUdeviceptr dstDevice, void *srcHost, size_t ByteCount, CUstream hStream)
    = _api.memory.copies.host_to_device
cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
    = _api.memory.copies.device_to_host(dstHost, srcDevice, ByteCount, 0, True)
cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
    = _api.memory.copies.device_to_host
cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
    = _api.memory.copies.device_to_device(dstDevice, srcDevice, ByteCount, 0, True)
cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
    = _api.memory.copies.device_to_device
cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
    = _api.memory.copies.between_any(dst, src, ByteCount, 0, True)
cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) = _api.memory.copies.between_any
cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
    size_t ByteCount) = _api.memory.copies.peer_to_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, 0)
cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
    size_t ByteCount, CUstream hStream) = _api.memory.copies.peer_to_peer
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

ROWS: Final = (
    *chapter("_objects.memory.allocations", _MEMORY),
    *chapter("_api.memory.host", _HOST_MEMORY),
    *chapter("_api.memory.pointer", _POINTERS),
)
