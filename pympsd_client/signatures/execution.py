"""Modules, libraries, linking, launches and occupancy; streams, host functions, events, stream memory operations."""

from typing import Final

from pympsd_client.signatures.rows import Calling, chapter

_MODULES: Final = """
cuModuleLoad(out CUmodule module, char *fname) = load_file
cuModuleLoadData(out CUmodule module, void *image) = load
cuModuleLoadDataEx(out CUmodule module, void *image, unsigned int numOptions, CUjit_option *options,
    void **optionValues) = load_with_options
cuModuleLoadFatBinary(out CUmodule module, void *fatCubin) = load
cuModuleUnload(CUmodule hmod) = unload
cuModuleGetFunction(out CUfunction hfunc, CUmodule hmod, char *name) = function
cuModuleGetGlobal(out CUdeviceptr dptr, out size_t bytes, CUmodule hmod, char *name) = variable
cuModuleGetLoadingMode(out CUmoduleLoadingMode mode) = loading_mode
cuModuleGetFunctionCount(out unsigned int count, CUmodule mod) = function_count
cuModuleEnumerateFunctions(out CUfunction *functions, unsigned int numFunctions, CUmodule mod) = enumerate_functions
cuFuncGetAttribute(out int pi, CUfunction_attribute attrib, CUfunction hfunc) = attribute
cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) = set_attribute
cuFuncGetName(out char *name, nonnull CUfunction hfunc) = name_of_function
cuFuncGetModule(out CUmodule hmod, nonnull CUfunction hfunc) = module_of_function
cuFuncGetParamInfo(nonnull CUfunction func, size_t paramIndex, out size_t paramOffset, out size_t paramSize)
    = parameter
cuFuncGetParamCount(CUfunction func, out size_t paramCount) = parameter_count
cuFuncIsLoaded(out CUfunctionLoadingState state, CUfunction function) = loading_state
cuFuncLoad(CUfunction function) = load_function
cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) = set_cache_preference
cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) = set_bank_size
"""

_LAUNCHES: Final = """
cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
    unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
    CUstream hStream, void **kernelParams, void **extra) = launch(f, (gridDimX, gridDimY, gridDimZ,
    blockDimX, blockDimY, blockDimZ, sharedMemBytes), hStream, kernelParams, extra)
cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
    unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
    CUstream hStream, void **kernelParams) = launch_cooperative(f, (gridDimX, gridDimY, gridDimZ,
    blockDimX, blockDimY, blockDimZ, sharedMemBytes), hStream, kernelParams)
cuLaunchKernelEx(CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) = launch_with_attributes
"""

_OLD_LAUNCHES: Final = """
cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) = set_block
cuFuncSetSharedSize(CUfunction hfunc, unsigned int numbytes) = set_shared
cuParamSetSize(CUfunction hfunc, unsigned int numbytes) = set_size
cuParamSeti(CUfunction hfunc, int offset, unsigned int value) = set_integer
cuParamSetf(CUfunction hfunc, int offset, float value) = set_float
cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes) = set_bytes
cuLaunch(CUfunction f) = launch(f, 1, 1, 0)
cuLaunchGrid(CUfunction f, int grid_width, int grid_height) = launch(f, grid_width, grid_height, 0)
cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) = launch
"""

_OCCUPANCY: Final = """
cuOccupancyMaxActiveBlocksPerMultiprocessor(out int numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize)
    = active_blocks
cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out int numBlocks, CUfunction func, int blockSize,
    size_t dynamicSMemSize, unsigned int flags) = active_blocks
cuOccupancyMaxPotentialBlockSize(out int minGridSize, out int blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit) = best_block
cuOccupancyMaxPotentialBlockSizeWithFlags(out int minGridSize, out int blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags)
    = best_block
cuOccupancyAvailableDynamicSMemPerBlock(out size_t dynamicSmemSize, CUfunction func, int numBlocks, int blockSize)
    = available_dynamic_bytes
cuOccupancyMaxPotentialClusterSize(out int clusterSize, nonnull CUfunction func, CUlaunchConfig *config)
    = largest_cluster
cuOccupancyMaxActiveClusters(out int numClusters, nonnull CUfunction func, CUlaunchConfig *config) = active_clusters
"""

_LIBRARIES: Final = """
cuLibraryLoadData(out CUlibrary library, void *code, CUjit_option *jitOptions, void **jitOptionsValues,
    unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
    unsigned int numLibraryOptions) = load
cuLibraryLoadFromFile(out CUlibrary library, char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
    unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
    unsigned int numLibraryOptions) = load_from_file
cuLibraryUnload(CUlibrary library) = unload
cuLibraryGetKernel(out CUkernel pKernel, CUlibrary library, char *name) = kernel
cuLibraryGetKernelCount(out unsigned int count, CUlibrary lib) = kernel_count
cuLibraryEnumerateKernels(out CUkernel *kernels, unsigned int numKernels, CUlibrary lib) = enumerate_kernels
cuLibraryGetModule(out CUmodule pMod, CUlibrary library) = module
cuLibraryGetGlobal(out CUdeviceptr dptr, out size_t numbytes, CUlibrary library, char *name) = variable
cuLibraryGetManaged(out CUdeviceptr dptr, out size_t numbytes, CUlibrary library, char *name) = managed_variable
cuLibraryGetUnifiedFunction(out void *fptr, CUlibrary library, char *symbol) = unified_function
cuKernelGetFunction(out CUfunction pFunc, CUkernel kernel) = function
cuKernelGetLibrary(out CUlibrary pLib, CUkernel kernel) = library_of_kernel
cuKernelGetName(out char *name, nonnull CUkernel hfunc) = name
cuKernelGetAttribute(out int pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) = attribute
cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) = set_attribute
cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) = set_cache_preference
cuKernelGetParamInfo(nonnull CUkernel kernel, size_t paramIndex, out size_t paramOffset, out size_t paramSize)
    = parameter
cuKernelGetParamCount(CUkernel kernel, out size_t paramCount) = parameter_count
"""

_LINKS: Final = """
cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues, out CUlinkState stateOut) = create
cuLinkAddData(CUlinkState state, CUjitInputType typename, void *data, size_t size, char *name,
    unsigned int numOptions, CUjit_option *options, void **optionValues) = add
cuLinkAddFile(CUlinkState state, CUjitInputType typename, char *path, unsigned int numOptions, CUjit_option *options,
    void **optionValues) = add_file
cuLinkComplete(CUlinkState state, out void *cubinOut, out size_t sizeOut) = complete
cuLinkDestroy(CUlinkState state) = destroy
"""

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
cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
    = write(stream, addr, value, 4, flags)
cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
    = write(stream, addr, value, 8, flags)
cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
    = wait(stream, addr, value, 4, flags)
cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
    = wait(stream, addr, value, 8, flags)
cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned int flags)
    = batch
"""

ROWS: Final = (
    *chapter("_api.module", _MODULES),
    *chapter("_api.launch", _LAUNCHES, Calling.UNCONVERTED),
    *chapter("_api.old_launch", _OLD_LAUNCHES),
    *chapter("_api.occupancy", _OCCUPANCY),
    *chapter("_api.library", _LIBRARIES),
    *chapter("_api.library", _LINKS),
    *chapter("_objects.stream", _STREAMS),
    *chapter("_objects.event", _EVENTS),
    *chapter("_api.stream", _STREAM_ATTRIBUTES),
    *chapter("_api.stream_memory", _STREAM_MEMORY),
)
