"""Errors, initialization, devices, and contexts with their settings."""

from typing import Final

from pympsd_client.signatures.rows import Calling, chapter

_ERRORS: Final = """
cuGetErrorName(CUresult error, out char *pStr) = error_name
cuGetErrorString(CUresult error, out char *pStr) = error_description
"""

_INITIALIZATION: Final = """
cuInit(int Flags) = initialize
cuDriverGetVersion(out int driverVersion) = driver_version
"""

_DEVICES: Final = """
cuDeviceGet(out CUdevice device, int ordinal) = _api.initialization.device
cuDeviceGetCount(out int count) = _api.initialization.count
cuDeviceGetName(out char *name, int length, CUdevice dev) = name
cuDeviceGetUuid(out CUuuid uuid, CUdevice dev) = uuid
cuDeviceGetUuid_v2(out CUuuid uuid, CUdevice dev) = uuid
cuDeviceComputeCapability(out int major, out int minor, CUdevice dev) = compute_capability
cuDeviceGetLuid(out char *luid, out unsigned int deviceNodeMask, CUdevice dev) = luid
cuDeviceTotalMem(out size_t bytes, CUdevice dev) = _api.initialization.total_memory
cuDeviceGetAttribute(out int pi, CUdevice_attribute attrib, CUdevice dev) = attribute
cuDeviceGetProperties(out CUdevprop prop, CUdevice dev) = properties
cuDeviceGetTexture1DLinearMaxWidth(out size_t maxWidthInElements, CUarray_format pformat, unsigned int numChannels,
    CUdevice dev) = linear_texture_width
cuDeviceGetExecAffinitySupport(out int pi, CUexecAffinityType typename, CUdevice dev) = execution_affinity_support
cuDeviceGetByPCIBusId(out CUdevice dev, char *pciBusId) = device_by_pci_bus_id
cuDeviceGetPCIBusId(out char *pciBusId, int length, CUdevice dev) = pci_bus_id
"""

_PEERS: Final = """
cuDeviceCanAccessPeer(out int canAccessPeer, CUdevice dev, CUdevice peerDev) = can_access
cuDeviceGetP2PAttribute(out int value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
    = attribute
cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) = enable
cuCtxDisablePeerAccess(CUcontext peerContext) = disable
"""

# Parameters as in cuda-bindings 13; version 12 has fewer, which does not matter for a refusal.
_WRITES_OF_OTHERS: Final = """
cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
    = flush_remote_writes('cuFlushGPUDirectRDMAWrites')
"""

_CONTEXTS: Final = """
cuDevicePrimaryCtxRetain(out CUcontext pctx, CUdevice dev) = retain_primary
cuDevicePrimaryCtxRelease(CUdevice dev) = release_primary
cuDevicePrimaryCtxReset(CUdevice dev) = reset_primary
cuDevicePrimaryCtxGetState(CUdevice dev, out unsigned int flags, out int active) = primary_state
cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) = set_primary_flags
cuCtxCreate_v3(out CUcontext pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev)
    = create_with_affinity
cuCtxCreate_v4(out CUcontext pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) = create
cuCtxDestroy(nonnull CUcontext ctx) = destroy
cuCtxGetCurrent(out CUcontext pctx) = current_handle
cuCtxSetCurrent(CUcontext ctx) = set_current
cuCtxPushCurrent(nonnull CUcontext ctx) = push_current
cuCtxPopCurrent(out CUcontext pctx) = pop_current
cuCtxGetDevice(out CUdevice device) = device_of(0)
cuCtxGetDevice_v2(out CUdevice device, CUcontext ctx) = device_of
cuCtxSynchronize() = synchronize(0)
cuCtxSynchronize_v2(CUcontext ctx) = synchronize
cuCtxGetFlags(out unsigned int flags) = flags_of_current
cuCtxSetFlags(unsigned int flags) = set_flags_of_current
cuCtxAttach(out CUcontext pctx, unsigned int flags) = attach
cuCtxDetach(CUcontext ctx) = detach
cuCtxGetApiVersion(CUcontext ctx, out unsigned int version) = api_version
cuCtxGetExecAffinity(out CUexecAffinityParam pExecAffinity, CUexecAffinityType typename) = execution_affinity
cuCtxGetStreamPriorityRange(out int leastPriority, out int greatestPriority) = stream_priority_range
"""

_CONTEXT_VARIANTS: Final = """
cuCtxCreate(out CUcontext pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
    = create_variant(*arguments, **keywords)
"""

_GREEN_CONTEXTS: Final = """
cuDeviceGetDevResource(CUdevice device, out CUdevResource resource, CUdevResourceType typename) = read_device_resource
cuCtxGetDevResource(CUcontext hCtx, out CUdevResource resource, CUdevResourceType typename) = read_context_resource
cuGreenCtxGetDevResource(CUgreenCtx hCtx, out CUdevResource resource, CUdevResourceType typename)
    = read_green_context_resource
cuStreamGetDevResource(CUstream hStream, out CUdevResource resource, CUdevResourceType typename)
    = read_stream_resource
cuDevSmResourceSplitByCount(out CUdevResource *result, inout unsigned int nbGroups, CUdevResource *input_,
    out CUdevResource remainder, unsigned int flags, unsigned int minCount) = split_by_count
cuDevSmResourceSplit(out CUdevResource *result, unsigned int nbGroups, CUdevResource *input_,
    out CUdevResource remainder, unsigned int flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *groupParams) = split
cuDevResourceGenerateDesc(out CUdevResourceDesc phDesc, CUdevResource *resources, unsigned int nbResources) = describe
cuGreenCtxCreate(out CUgreenCtx phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) = create
cuGreenCtxDestroy(CUgreenCtx hCtx) = destroy
cuCtxFromGreenCtx(out CUcontext pContext, CUgreenCtx hCtx) = convert
cuGreenCtxStreamCreate(out CUstream phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) = create_stream
cuStreamGetGreenCtx(CUstream hStream, out CUgreenCtx phCtx) = find_green_context_of_stream
cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) = record_event
cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) = wait_event
cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) = record_event_in_context
cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) = wait_event_in_context
cuGreenCtxGetId(CUgreenCtx greenCtx, out unsigned long long greenCtxId) = number
"""

_CONTEXT_SETTINGS: Final = """
cuCtxGetLimit(out size_t pvalue, CUlimit limit) = limit
cuCtxSetLimit(CUlimit limit, size_t value) = set_limit
cuCtxGetCacheConfig(out CUfunc_cache pconfig) = cache_preference
cuCtxSetCacheConfig(CUfunc_cache config) = set_cache_preference
cuCtxGetSharedMemConfig(out CUsharedconfig pConfig) = bank_size
cuCtxSetSharedMemConfig(CUsharedconfig config) = set_bank_size
cuCtxGetId(CUcontext ctx, out unsigned long long ctxId) = context_id
cuCtxResetPersistingL2Cache() = accept
cuProfilerStart() = accept
cuProfilerStop() = accept
cuCoredumpGetAttribute(CUcoredumpSettings attrib, out void value) = dump_setting
cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, out void value) = global_dump_setting
cuCoredumpSetAttribute(CUcoredumpSettings attrib, const void *value) = set_dump_setting
cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, const void *value) = set_global_dump_setting
"""

ROWS: Final = (
    *chapter("_arguments.errors", _ERRORS, Calling.ANYWHERE),
    *chapter("_api.initialization", _INITIALIZATION, Calling.BEFORE_INIT),
    *chapter("_api.device", _DEVICES),
    *chapter("_api.peer_access", _PEERS),
    *chapter("_api.peer_access", _WRITES_OF_OTHERS, Calling.VARIANTS),
    *chapter("_api.context", _CONTEXTS),
    *chapter("_api.context", _CONTEXT_VARIANTS, Calling.VARIANTS),
    *chapter("_api.green_context", _GREEN_CONTEXTS),
    *chapter("_api.settings", _CONTEXT_SETTINGS),
)
