"""CUDA arrays, textures and surfaces."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

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
    = from_host(dstArray, dstOffset, srcHost, ByteCount, 0, True)
cuMemcpyHtoAAsync(CUarray dstArray, size_t dstOffset, void *srcHost, size_t ByteCount, CUstream hStream) = from_host
cuMemcpyAtoH(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
    = to_host(dstHost, srcArray, srcOffset, ByteCount, 0, True)
cuMemcpyAtoHAsync(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream) = to_host
cuMemcpyDtoA(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) = from_device
cuMemcpyAtoD(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) = to_device
cuMemcpyAtoA(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount) = between
"""

ROWS: Final = (*chapter("_objects.arrays.array", _ARRAYS), *chapter("_api.memory.arrays", _COPIES))
