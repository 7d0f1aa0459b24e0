"""CUDA arrays, textures, surfaces, and tensor maps."""

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
    *chapter("_objects.arrays.array", _ARRAYS),
    *chapter("_api.memory.arrays", _COPIES),
    *chapter("_objects.arrays.texture", _OBJECTS),
    *chapter("_api.memory.tensor_map", _MAPS),
)
