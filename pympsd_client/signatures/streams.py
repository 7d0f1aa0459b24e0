"""Streams with their attributes, host functions, events, and stream memory operations."""

from typing import Final

from pympsd_client.signatures.rows import chapter

_STREAMS: Final = """
cuStreamCreate(out CUstream phStream, unsigned int Flags) = _api.stream.create(Flags, 0)
cuStreamCreateWithPriority(out CUstream phStream, unsigned int flags, int priority) = _api.stream.create
cuStreamDestroy(CUstream hStream) = destroy
cuStreamQuery(CUstream hStream) = query
cuStreamSynchronize(CUstream hStream) = synchronize
cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) = _api.stream.wait_event
cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, PyObject *userData, unsigned int flags)
    = _api.stream.add_callback
cuStreamGetPriority(CUstream hStream, out int priority) = _api.stream.priority
cuStreamGetFlags(CUstream hStream, out unsigned int flags) = _api.stream.flags
cuStreamGetCtx(CUstream hStream, out CUcontext pctx) = _api.stream.context
cuStreamGetCtx_v2(CUstream hStream, out CUcontext pCtx, out CUgreenCtx pGreenCtx)
    = _api.green_context.contexts_of_stream
cuLaunchHostFunc(CUstream hStream, CUhostFn fn, PyObject *userData) = _objects.host_function.launch
"""

_EVENTS: Final = """
cuEventCreate(out CUevent phEvent, unsigned int Flags) = _api.stream.create_event
cuEventRecord(CUevent hEvent, CUstream hStream) = record
cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) = _api.stream.record_event
cuEventQuery(CUevent hEvent) = query
cuEventSynchronize(CUevent hEvent) = synchronize
cuEventDestroy(CUevent hEvent) = destroy
cuEventElapsedTime(out float pMilliseconds, CUevent hStart, CUevent hEnd) = elapsed_milliseconds
"""

_STREAM_ATTRIBUTES: Final = """
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
    *chapter("_objects.stream", _STREAMS),
    *chapter("_objects.event", _EVENTS),
    *chapter("_api.stream", _STREAM_ATTRIBUTES),
    *chapter("_api.stream_memory", _STREAM_MEMORY),
)
