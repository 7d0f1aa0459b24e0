"""Tensor maps."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

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

ROWS: Final = (*chapter("_api.memory.tensor_map", _MAPS),)
