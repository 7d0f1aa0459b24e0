"""Managed memory."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import Calling, chapter

_MANAGED: Final = """
cuMemAllocManaged(out CUdeviceptr dptr, size_t bytesize, unsigned int flags) = allocate
cuMemRangeGetAttribute(out void data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr,
    size_t count) = attribute
cuMemRangeGetAttributes(out void *data, size_t *dataSizes, CUmem_range_attribute *attributes, size_t numAttributes,
    CUdeviceptr devPtr, size_t count) = attributes
cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags) = attach
"""

# Before CUDA 13 a device's number stood in the place of the location.
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

ROWS: Final = (
    *chapter("_api.memory.managed", _MANAGED),
    *chapter("_api.memory.managed", _LOCATED, Calling.VARIANTS),
    *chapter("_api.memory.batch", _BATCHES),
)
