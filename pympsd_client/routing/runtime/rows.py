"""The functions of the runtime: those that are functions of the driver with another name, and rows for all others.

`EQUAL` has the functions for which a function of the driver with the same parameters is called. The rows are like
those of `pympsd_client.signatures`.
"""

from typing import Final

from pympsd_client.signatures.rows import Calling, chapter

_SAME_NAMES: Final = """
CtxResetPersistingL2Cache DeviceCanAccessPeer DeviceGetAttribute DeviceGetByPCIBusId DeviceGetDefaultMemPool
DeviceGetDevResource DeviceGetGraphMemAttribute DeviceGetMemPool DeviceGetP2PAttribute DeviceGetPCIBusId
DeviceGraphMemTrim DeviceSetGraphMemAttribute DeviceSetMemPool DevResourceGenerateDesc DevSmResourceSplit
DevSmResourceSplitByCount DriverGetVersion EventDestroy EventElapsedTime EventQuery EventRecord EventRecordWithFlags
EventSynchronize FuncGetName FuncGetParamInfo FuncSetAttribute FuncSetCacheConfig FuncSetSharedMemConfig
GraphAddChildGraphNode GraphAddDependencies GraphAddEmptyNode GraphAddEventRecordNode GraphAddEventWaitNode
GraphAddHostNode GraphAddMemAllocNode GraphAddMemFreeNode GraphChildGraphNodeGetGraph GraphClone GraphCreate
GraphDebugDotPrint GraphDestroy GraphDestroyNode GraphEventRecordNodeGetEvent GraphEventRecordNodeSetEvent
GraphEventWaitNodeGetEvent GraphEventWaitNodeSetEvent GraphExecChildGraphNodeSetParams GraphExecDestroy
GraphExecEventRecordNodeSetEvent GraphExecEventWaitNodeSetEvent GraphExecGetFlags GraphExecGetId
GraphExecHostNodeSetParams GraphExecUpdate GraphGetEdges GraphGetId GraphGetNodes GraphGetRootNodes
GraphHostNodeGetParams GraphHostNodeSetParams GraphInstantiate GraphInstantiateWithParams
GraphKernelNodeCopyAttributes GraphKernelNodeGetAttribute GraphKernelNodeSetAttribute GraphLaunch
GraphMemAllocNodeGetParams GraphMemFreeNodeGetParams GraphMemsetNodeGetParams GraphMemsetNodeSetParams
GraphNodeFindInClone GraphNodeGetContainingGraph GraphNodeGetDependencies GraphNodeGetDependentNodes
GraphNodeGetEnabled GraphNodeGetLocalId GraphNodeGetToolsId GraphNodeGetType GraphNodeSetEnabled
GraphReleaseUserObject GraphRemoveDependencies GraphRetainUserObject GraphUpload IpcCloseMemHandle IpcGetEventHandle
IpcGetMemHandle IpcOpenEventHandle IpcOpenMemHandle LaunchHostFunc LibraryEnumerateKernels LibraryGetGlobal
LibraryGetKernel LibraryGetKernelCount LibraryGetManaged LibraryGetUnifiedFunction LibraryLoadData
LibraryLoadFromFile LibraryUnload LogsCurrent LogsDumpToFile LogsDumpToMemory LogsRegisterCallback
LogsUnregisterCallback MemAdvise MemcpyBatchAsync MemDiscardAndPrefetchBatchAsync MemDiscardBatchAsync
MemGetDefaultMemPool MemGetInfo MemGetMemPool MemPoolCreate MemPoolDestroy MemPoolExportPointer
MemPoolExportToShareableHandle MemPoolGetAccess MemPoolGetAttribute MemPoolImportFromShareableHandle
MemPoolImportPointer MemPoolSetAccess MemPoolSetAttribute MemPoolTrimTo MemPrefetchAsync MemPrefetchBatchAsync
MemRangeGetAttribute MemRangeGetAttributes MemSetMemPool OccupancyAvailableDynamicSMemPerBlock
OccupancyMaxActiveBlocksPerMultiprocessor OccupancyMaxActiveBlocksPerMultiprocessorWithFlags ProfilerStart
ProfilerStop StreamAddCallback StreamAttachMemAsync StreamBeginCapture StreamBeginCaptureToGraph
StreamCopyAttributes StreamCreateWithPriority StreamDestroy StreamEndCapture StreamGetAttribute StreamGetCaptureInfo
StreamGetDevResource StreamGetFlags StreamGetId StreamGetPriority StreamIsCapturing StreamQuery StreamSetAttribute
StreamSynchronize StreamUpdateCaptureDependencies StreamWaitEvent ThreadExchangeStreamCaptureMode UserObjectCreate
UserObjectRelease UserObjectRetain
"""
"""Names that have the prefix ``cuda`` in the runtime and ``cu`` in the driver."""

_OTHER_NAMES: Final = """
cudaDeviceGetCacheConfig cuCtxGetCacheConfig
cudaDeviceGetLimit cuCtxGetLimit
cudaDeviceGetSharedMemConfig cuCtxGetSharedMemConfig
cudaDeviceGetStreamPriorityRange cuCtxGetStreamPriorityRange
cudaDeviceSetCacheConfig cuCtxSetCacheConfig
cudaDeviceSetLimit cuCtxSetLimit
cudaDeviceSetSharedMemConfig cuCtxSetSharedMemConfig
cudaDeviceSynchronize cuCtxSynchronize
cudaDestroySurfaceObject cuSurfObjectDestroy
cudaDestroyTextureObject cuTexObjectDestroy
cudaEventCreateWithFlags cuEventCreate
cudaFreeAsync cuMemFreeAsync
cudaGetMipmappedArrayLevel cuMipmappedArrayGetLevel
cudaGraphInstantiateWithFlags cuGraphInstantiate
cudaHostGetDevicePointer cuMemHostGetDevicePointer
cudaHostUnregister cuMemHostUnregister
cudaMallocFromPoolAsync cuMemAllocFromPoolAsync
cudaStreamCreateWithFlags cuStreamCreate
cudaThreadGetCacheConfig cuCtxGetCacheConfig
cudaThreadGetLimit cuCtxGetLimit
cudaThreadSetCacheConfig cuCtxSetCacheConfig
cudaThreadSetLimit cuCtxSetLimit
cudaThreadSynchronize cuCtxSynchronize
"""

EQUAL: Final = {
    **{f"cuda{name}": f"cu{name}" for name in _SAME_NAMES.split()},
    **dict(line.split() for line in _OTHER_NAMES.strip().splitlines()),
}
"""The driver's functions with the same parameters, by the runtime's names."""

_NEED_NO_CONTEXT: Final = """
DeviceCanAccessPeer DeviceGetAttribute DeviceGetByPCIBusId DeviceGetCount DeviceGetDefaultMemPool DeviceGetMemPool
DeviceGetP2PAttribute DeviceGetPCIBusId LogsCurrent LogsDumpToFile LogsDumpToMemory LogsRegisterCallback
LogsUnregisterCallback
"""
NEED_NO_CONTEXT: Final = frozenset(f"cu{name}" for name in _NEED_NO_CONTEXT.split())
"""The functions of the driver for which the runtime does not make a context current."""

_ERRORS: Final = """
cudaGetLastError() = take_last
cudaPeekAtLastError() = last
pympsd_keep_error(int error) = keep
"""

_DEVICES: Final = """
cudaGetDevice(out int device) = current
cudaSetDevice(int device) = set_current
cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags) = initialize
cudaDeviceReset() = reset
cudaGetDeviceFlags(out unsigned int flags) = flags
cudaSetDeviceFlags(unsigned int flags) = set_flags
cudaGetDeviceCount(out int count) = count
cudaGetDeviceProperties(cudaDeviceProp *prop, int device) = properties
cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) = enable_peer_access
cudaDeviceDisablePeerAccess(int peerDevice) = disable_peer_access
cudaSetValidDevices(int *device_arr, int len) = set_valid
cudaChooseDevice(out int device, cudaDeviceProp *prop) = choose
cudaDeviceGetTexture1DLinearMaxWidth(out size_t maxWidthInElements, cudaChannelFormatDesc *fmtDesc, int device)
    = max_texture_width
cudaThreadExit() = reset
pympsd_ready() = ready
"""

_MEMORY: Final = """
cudaMalloc(out void *devPtr, size_t size) = allocate
cudaMallocAsync(out void *devPtr, size_t size, cudaStream_t hStream) = allocate_async
cudaMallocHost(out void *ptr, size_t size) = allocate_host
cudaHostAlloc(out void *pHost, size_t size, unsigned int flags) = allocate_host
cudaHostGetFlags(out unsigned int pFlags, void *pHost) = host_flags
cudaMallocManaged(out void *devPtr, size_t size, unsigned int flags) = allocate_managed
cudaMallocPitch(out void *devPtr, out size_t pitch, size_t width, size_t height) = allocate_pitch
cudaMalloc3D(out cudaPitchedPtr pitchedDevPtr, cudaExtent extent) = allocate_3d
cudaFree(void *devPtr) = free
cudaFreeHost(void *ptr) = free_host
cudaHostRegister(void *ptr, size_t size, unsigned int flags) = register
cudaPointerGetAttributes(cudaPointerAttributes *attributes, void *ptr) = pointer_attributes
cudaMemset(void *devPtr, int value, size_t count) = fill
cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream) = fill
cudaMemset2D(void *devPtr, size_t pitch, int value, size_t width, size_t height) = fill_2d
cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) = fill_2d
cudaMemset3D(cudaPitchedPtr pitchedDevPtr, int value, cudaExtent extent) = fill_3d
cudaMemset3DAsync(cudaPitchedPtr pitchedDevPtr, int value, cudaExtent extent, cudaStream_t stream) = fill_3d
"""

_IN_ORDER: Final = ", cudaStream_t stream"
_OFFSETS: Final = "size_t wOffset, size_t hOffset"
_AREA: Final = "size_t width, size_t height, cudaMemcpyKind kind"
_TO_ROWS: Final = f"{{}}(cudaArray_t dst, {_OFFSETS}, void *src, size_t spitch, {_AREA}{{}})"
_FROM_ROWS: Final = f"{{}}(void *dst, size_t dpitch, cudaArray_t src, {_OFFSETS}, {_AREA}{{}})"
_TO_ARRAY: Final = f"{{}}(cudaArray_t dst, {_OFFSETS}, void *src, size_t count, cudaMemcpyKind kind{{}})"
_FROM_ARRAY: Final = f"{{}}(void *dst, cudaArray_t src, {_OFFSETS}, size_t count, cudaMemcpyKind kind{{}})"
_COPIES: Final = """
cudaMemcpy(void *dst, void *src, size_t count, cudaMemcpyKind kind) = copy
cudaMemcpyAsync(void *dst, void *src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) = copy
cudaMemcpyPeer(void *dst, int dstDevice, void *src, int srcDevice, size_t count) = copy_peer
cudaMemcpyPeerAsync(void *dst, int dstDevice, void *src, int srcDevice, size_t count, cudaStream_t stream) = copy_peer
cudaMemcpy2D(void *dst, size_t dpitch, void *src, size_t spitch, size_t width, size_t height, cudaMemcpyKind kind)
    = copy_2d
cudaMemcpy2DAsync(void *dst, size_t dpitch, void *src, size_t spitch, size_t width, size_t height,
    cudaMemcpyKind kind, cudaStream_t stream) = copy_2d
cudaMemcpy3D(cudaMemcpy3DParms *p) = copy_3d
cudaMemcpy3DAsync(cudaMemcpy3DParms *p, cudaStream_t stream) = copy_3d
cudaMemcpy3DPeer(cudaMemcpy3DPeerParms *p) = copy_3d_peer
cudaMemcpy3DPeerAsync(cudaMemcpy3DPeerParms *p, cudaStream_t stream) = copy_3d_peer
"""

_ARRAYS: Final = """
cudaMallocArray(out cudaArray_t array, cudaChannelFormatDesc *desc, size_t width, size_t height, unsigned int flags)
    = allocate
cudaMalloc3DArray(out cudaArray_t array, cudaChannelFormatDesc *desc, cudaExtent extent, unsigned int flags)
    = allocate_3d
cudaMallocMipmappedArray(out cudaMipmappedArray_t mipmappedArray, cudaChannelFormatDesc *desc, cudaExtent extent,
    unsigned int numLevels, unsigned int flags) = allocate_mipmapped
cudaFreeArray(cudaArray_t array) = free
cudaFreeMipmappedArray(cudaMipmappedArray_t mipmappedArray) = free_mipmapped
cudaArrayGetInfo(out cudaChannelFormatDesc desc, out cudaExtent extent, out unsigned int flags, cudaArray_t array)
    = info
cudaGetChannelDesc(out cudaChannelFormatDesc desc, cudaArray_t array) = channels
"""

_TEXTURES: Final = """
cudaCreateTextureObject(out cudaTextureObject_t pTexObject, cudaResourceDesc *pResDesc, cudaTextureDesc *pTexDesc,
    cudaResourceViewDesc *pResViewDesc) = create
cudaGetTextureObjectResourceDesc(cudaResourceDesc *pResDesc, cudaTextureObject_t texObject) = write_resource
cudaGetTextureObjectTextureDesc(cudaTextureDesc *pTexDesc, cudaTextureObject_t texObject) = write_description
cudaGetTextureObjectResourceViewDesc(cudaResourceViewDesc *pResViewDesc, cudaTextureObject_t texObject) = write_view
cudaCreateSurfaceObject(out cudaSurfaceObject_t pSurfObject, cudaResourceDesc *pResDesc) = create_surface
cudaGetSurfaceObjectResourceDesc(cudaResourceDesc *pResDesc, cudaSurfaceObject_t surfObject)
    = write_resource_of_surface
"""

_ARRAY_COPIES: Final = f"""
{_TO_ROWS.format("cudaMemcpy2DToArray", "")} = rows_to_array
{_TO_ROWS.format("cudaMemcpy2DToArrayAsync", _IN_ORDER)} = rows_to_array
{_FROM_ROWS.format("cudaMemcpy2DFromArray", "")} = rows_from_array
{_FROM_ROWS.format("cudaMemcpy2DFromArrayAsync", _IN_ORDER)} = rows_from_array
cudaMemcpy2DArrayToArray(cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst, cudaArray_t src, size_t wOffsetSrc,
    size_t hOffsetSrc, size_t width, size_t height, cudaMemcpyKind kind) = rows_between_arrays
{_TO_ARRAY.format("cudaMemcpyToArray", "")} = copy_to_array
{_TO_ARRAY.format("cudaMemcpyToArrayAsync", _IN_ORDER)} = copy_to_array
{_FROM_ARRAY.format("cudaMemcpyFromArray", "")} = copy_from_array
{_FROM_ARRAY.format("cudaMemcpyFromArrayAsync", _IN_ORDER)} = copy_from_array
cudaMemcpyArrayToArray(cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst, cudaArray_t src, size_t wOffsetSrc,
    size_t hOffsetSrc, size_t count, cudaMemcpyKind kind) = copy_between_arrays
"""

_STREAMS: Final = """
cudaStreamCreate(out cudaStream_t pStream) = create_default_stream
cudaStreamGetDevice(cudaStream_t hStream, out int device) = device_of_stream
cudaEventCreate(out cudaEvent_t event) = create_event
"""

_KERNELS: Final = """
cudaFuncGetAttributes(cudaFuncAttributes *attr, void *func) = write_function_attributes
cudaOccupancyMaxActiveClusters(out int numClusters, void *func, cudaLaunchConfig_t *launchConfig)
    = routing.runtime.execution.active_clusters
cudaOccupancyMaxPotentialClusterSize(out int clusterSize, void *func, cudaLaunchConfig_t *launchConfig)
    = routing.runtime.execution.largest_cluster
"""

_REGISTRATIONS: Final = """
pympsd_set_registry(void *find, void *wrapper_at) = set_registry
pympsd_unload(void *wrapper) = unload
"""
"""The rows of functions that only the C code of libcudart calls (native/src/cudart)."""

_SYMBOLS: Final = """
pympsd_kernel(out cudaKernel_t kernel, void *host) = find_registered_kernel
pympsd_variable(out void *address, out size_t size, void *host) = variable_at
cudaGetKernel(out cudaKernel_t kernelPtr, void *entryFuncAddr) = find_registered_kernel
cudaGetFuncBySymbol(out cudaFunction_t functionPtr, void *symbolPtr) = function_at
cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attr, int value, int device)
    = set_kernel_attribute
cudaGetSymbolAddress(out void *devPtr, void *symbol) = address
cudaGetSymbolSize(out size_t size, void *symbol) = size
cudaMemcpyToSymbol(void *symbol, void *src, size_t count, size_t offset, cudaMemcpyKind kind) = copy_to
cudaMemcpyToSymbolAsync(void *symbol, void *src, size_t count, size_t offset, cudaMemcpyKind kind,
    cudaStream_t stream) = copy_to
cudaMemcpyFromSymbol(void *dst, void *symbol, size_t count, size_t offset, cudaMemcpyKind kind) = copy_from
cudaMemcpyFromSymbolAsync(void *dst, void *symbol, size_t count, size_t offset, cudaMemcpyKind kind,
    cudaStream_t stream) = copy_from
"""

_DEPENDENCIES: Final = "out cudaGraphNode_t pGraphNode, cudaGraph_t graph, cudaGraphNode_t *pDependencies"
_EXECUTABLE: Final = "cudaGraphExec_t hGraphExec, cudaGraphNode_t node"
_BYTES: Final = "void *dst, void *src, size_t count, cudaMemcpyKind kind"
_TO_SYMBOL: Final = "void *symbol, void *src, size_t count, size_t offset, cudaMemcpyKind kind"
_FROM_SYMBOL: Final = "void *dst, void *symbol, size_t count, size_t offset, cudaMemcpyKind kind"
_GRAPHS: Final = f"""
cudaGraphAddKernelNode({_DEPENDENCIES}, size_t numDependencies, cudaKernelNodeParams *pNodeParams) = add_kernel
cudaGraphAddMemcpyNode({_DEPENDENCIES}, size_t numDependencies, cudaMemcpy3DParms *pCopyParams) = add_copy
cudaGraphAddMemcpyNode1D({_DEPENDENCIES}, size_t numDependencies, {_BYTES}) = add_copy_1d
cudaGraphAddMemcpyNodeToSymbol({_DEPENDENCIES}, size_t numDependencies, {_TO_SYMBOL})
    = add_copy_to_symbol
cudaGraphAddMemcpyNodeFromSymbol({_DEPENDENCIES}, size_t numDependencies, {_FROM_SYMBOL})
    = add_copy_from_symbol
cudaGraphAddMemsetNode({_DEPENDENCIES}, size_t numDependencies, cudaMemsetParams *pMemsetParams) = add_fill
cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node, cudaMemsetParams *pNodeParams)
    = set_fill
cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams *pNodeParams) = get_kernel
cudaGraphKernelNodeSetParams(cudaGraphNode_t node, cudaKernelNodeParams *pNodeParams) = set_kernel
cudaGraphExecKernelNodeSetParams({_EXECUTABLE}, cudaKernelNodeParams *pNodeParams) = set_executable_kernel
cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms *pNodeParams) = get_copy
cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, cudaMemcpy3DParms *pNodeParams) = set_copy
cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, {_BYTES}) = set_copy_1d
cudaGraphMemcpyNodeSetParamsToSymbol(cudaGraphNode_t node, {_TO_SYMBOL}) = set_copy_to_symbol
cudaGraphMemcpyNodeSetParamsFromSymbol(cudaGraphNode_t node, {_FROM_SYMBOL}) = set_copy_from_symbol
cudaGraphExecMemcpyNodeSetParams({_EXECUTABLE}, cudaMemcpy3DParms *pNodeParams) = set_executable_copy
cudaGraphExecMemcpyNodeSetParams1D({_EXECUTABLE}, {_BYTES}) = set_executable_copy_1d
cudaGraphExecMemcpyNodeSetParamsToSymbol({_EXECUTABLE}, {_TO_SYMBOL}) = set_executable_copy_to_symbol
cudaGraphExecMemcpyNodeSetParamsFromSymbol({_EXECUTABLE}, {_FROM_SYMBOL}) = set_executable_copy_from_symbol
cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams *nodeParams) = set_any
cudaGraphExecNodeSetParams({_EXECUTABLE}, cudaGraphNodeParams *nodeParams) = set_executable_any
cudaGraphAddNode({_DEPENDENCIES}, cudaGraphEdgeData *dependencyData, size_t numDependencies,
    cudaGraphNodeParams *nodeParams) = add_any
cudaGraphConditionalHandleCreate(out cudaGraphConditionalHandle pHandle_out, cudaGraph_t graph,
    unsigned int defaultLaunchValue, unsigned int flags) = create_condition
cudaGraphConditionalHandleCreate_v2(out cudaGraphConditionalHandle pHandle_out, cudaGraph_t graph,
    cudaExecutionContext_t ctx, unsigned int defaultLaunchValue, unsigned int flags) = create_condition_of
"""

_EXECUTION_CONTEXTS: Final = """
cudaDeviceGetExecutionCtx(out cudaExecutionContext_t ctx, int device) = routing.runtime.devices.primary_handle
cudaGreenCtxCreate(out cudaExecutionContext_t phCtx, cudaDevResourceDesc_t desc, int device, unsigned int flags)
    = create
cudaExecutionCtxDestroy(cudaExecutionContext_t ctx) = destroy
cudaExecutionCtxGetDevResource(cudaExecutionContext_t ctx, out cudaDevResource resource, cudaDevResourceType type)
    = resource
cudaExecutionCtxGetDevice(out int device, cudaExecutionContext_t ctx) = device
cudaExecutionCtxGetId(cudaExecutionContext_t ctx, out unsigned long long ctxId) = number
cudaExecutionCtxStreamCreate(out cudaStream_t phStream, cudaExecutionContext_t greenCtx, unsigned int flags,
    int priority) = create_stream
cudaExecutionCtxSynchronize(cudaExecutionContext_t ctx) = synchronize
cudaExecutionCtxRecordEvent(cudaExecutionContext_t ctx, cudaEvent_t event) = record_event
cudaExecutionCtxWaitEvent(cudaExecutionContext_t ctx, cudaEvent_t event) = wait_event
"""

_FOLDER: Final = "routing.runtime"

ROWS: Final = {
    row.name: row
    for row in (
        *chapter(f"{_FOLDER}.functions", _ERRORS, Calling.ANYWHERE),
        *chapter(f"{_FOLDER}.devices", _DEVICES, Calling.BEFORE_INIT),
        *chapter(f"{_FOLDER}.memory", _MEMORY),
        *chapter(f"{_FOLDER}.copies", _COPIES),
        *chapter(f"{_FOLDER}.arrays", _ARRAYS),
        *chapter(f"{_FOLDER}.copies", _ARRAY_COPIES),
        *chapter(f"{_FOLDER}.arrays", _TEXTURES),
        *chapter(f"{_FOLDER}.execution", _STREAMS),
        *chapter(f"{_FOLDER}.properties", _KERNELS),
        *chapter(f"{_FOLDER}.symbols", _REGISTRATIONS, Calling.ANYWHERE),
        *chapter(f"{_FOLDER}.symbols", _SYMBOLS),
        *chapter(f"{_FOLDER}.graphs", _GRAPHS),
        *chapter(f"{_FOLDER}.execution", _EXECUTION_CONTEXTS),
    )
}
