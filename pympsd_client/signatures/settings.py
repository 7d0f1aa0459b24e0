"""Limits, preferences, identifiers and attributes of contexts and streams; stream memory operations."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_CONTEXTS: Final = """
cuCtxGetLimit(out size_t pvalue, CUlimit limit) = limit
cuCtxSetLimit(CUlimit limit, size_t value) = set_limit
cuCtxGetCacheConfig(out CUfunc_cache pconfig) = cache_preference
cuCtxSetCacheConfig(CUfunc_cache config) = set_cache_preference
cuCtxGetSharedMemConfig(out CUsharedconfig pConfig) = bank_size
cuCtxSetSharedMemConfig(CUsharedconfig config) = set_bank_size
cuCtxGetId(CUcontext ctx, out unsigned long long ctxId) = context_id
cuCtxResetPersistingL2Cache() = reset_persisting_cache
cuProfilerStart() = start_profiler
cuProfilerStop() = stop_profiler
cuCoredumpGetAttribute(CUcoredumpSettings attrib, out void value) = dump_setting
cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, out void value) = global_dump_setting
cuCoredumpSetAttribute(CUcoredumpSettings attrib, const void *value) = set_dump_setting
cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, const void *value) = set_global_dump_setting
"""

_STREAMS: Final = """
cuStreamGetId(CUstream hStream, out unsigned long long streamId) = stream_id
cuStreamGetDevice(CUstream hStream, out CUdevice device) = device
cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, out CUstreamAttrValue value_out) = attribute
cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value) = set_attribute
cuStreamCopyAttributes(CUstream dst, CUstream src) = copy_attributes
"""

_STREAM_MEMORY: Final = """
cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) = write_value32
cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) = write_value64
cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) = wait_value32
cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) = wait_value64
cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned int flags)
    = batch
"""

ROWS: Final = (
    *chapter("_api.settings", _CONTEXTS),
    *chapter("_api.stream_settings", _STREAMS),
    *chapter("_api.stream_memory", _STREAM_MEMORY),
)
