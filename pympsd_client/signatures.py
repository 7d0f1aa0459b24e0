"""The functions of the driver API, one row each: name, parameters as in C, and the core function behind it.

A row is ``name(parameters) = core``. Parameters stand in C's order with C's types; ``out`` marks those that C
returns through a pointer and Python returns in the tuple. The core is a function in ``pympsd_client``, in the
chapter's module where no other is named. It gets the inputs in order, or what its own parentheses list, as plain
ints, structs, names and `HostMemory`, returns the outputs as plain values, and raises CudaError.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from attrs import frozen


class Calling(Enum):
    """How a function is called."""

    INITIALIZED = "initialized"
    """After cuInit, with its arguments converted."""
    BEFORE_INIT = "before init"
    """Before cuInit too."""
    ANYWHERE = "anywhere"
    """Always: in host functions, in a forked child, and by this client where the program runs natively."""
    UNCONVERTED = "unconverted"
    """The core converts its arguments, for it knows those that it has seen before."""
    VARIANTS = "variants"
    """Versions of cuda-bindings differ in its parameters: what is given is not converted."""


@frozen
class Parameter:
    """One parameter as in C; the type of an output is that of what its pointer points to."""

    type: str
    name: str
    is_output: bool


@frozen
class Signature:
    """One row. ``arguments`` are what the core gets: names of inputs, their fields, or constants."""

    name: str
    parameters: tuple[Parameter, ...]
    module: str
    core: str
    arguments: str
    calling: Calling

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The parameters that a caller gives."""
        return tuple(one for one in self.parameters if not one.is_output)

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """The parameters that are returned beside the result."""
        return tuple(one for one in self.parameters if one.is_output)


_ROW: Final = re.compile(r"(\w+)\((.*?)\) = (?:([\w.]+)\.)?(\w+)(?:\((.*)\))?")
_PARAMETER: Final = re.compile(r"(out )?(.*?) ?(\w+)")


def _parameters(text: str) -> tuple[Parameter, ...]:
    found = [_PARAMETER.fullmatch(one.strip()) for one in text.split(",") if one]
    return tuple(Parameter(one[2], one[3], one[1] is not None) for one in found if one is not None)


def _chapter(module: str, rows: str, calling: Calling = Calling.INITIALIZED) -> tuple[Signature, ...]:
    signatures = []
    for row in rows.replace("\n    ", " ").strip().splitlines():
        match = _ROW.fullmatch(row)
        if match is None:
            raise ValueError(f"not a row: {row}")
        name, text, elsewhere, core, arguments = match.groups()
        parameters = _parameters(text)
        if arguments is None:
            arguments = ", ".join(one.name for one in parameters if not one.is_output)
        signatures.append(Signature(name, parameters, elsewhere or module, core, arguments, calling))
    return tuple(signatures)


_ERRORS: Final = """
cuGetErrorName(CUresult error, out char *pStr) = name
cuGetErrorString(CUresult error, out char *pStr) = description
"""

_INITIALIZATION: Final = """
cuInit(int Flags) = initialize
cuDriverGetVersion(out int driverVersion) = driver_version
"""

_DEVICES: Final = """
cuDeviceGet(out CUdevice device, int ordinal) = device
cuDeviceGetCount(out int count) = count
cuDeviceGetName(out char *name, int length, CUdevice dev) = name
cuDeviceGetUuid(out CUuuid uuid, CUdevice dev) = uuid
cuDeviceGetUuid_v2(out CUuuid uuid, CUdevice dev) = uuid
cuDeviceTotalMem(out size_t bytes, CUdevice dev) = total_memory
cuDeviceGetAttribute(out int pi, CUdevice_attribute attrib, CUdevice dev) = attribute
cuDeviceGetExecAffinitySupport(out int pi, CUexecAffinityType typename, CUdevice dev) = execution_affinity_support
cuDeviceGetByPCIBusId(out CUdevice dev, char *pciBusId) = device_by_pci_bus_id
cuDeviceGetPCIBusId(out char *pciBusId, int length, CUdevice dev) = pci_bus_id
cuDeviceCanAccessPeer(out int canAccessPeer, CUdevice dev, CUdevice peerDev) = can_access_peer
cuDeviceGetP2PAttribute(out int value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
    = peer_attribute
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
cuCtxDestroy(CUcontext ctx) = destroy
cuCtxGetCurrent(out CUcontext pctx) = current_handle
cuCtxSetCurrent(CUcontext ctx) = set_current
cuCtxPushCurrent(CUcontext ctx) = push_current
cuCtxPopCurrent(out CUcontext pctx) = pop_current
cuCtxGetDevice(out CUdevice device) = device_of_current
cuCtxSynchronize() = synchronize
cuCtxGetFlags(out unsigned int flags) = flags_of_current
cuCtxGetApiVersion(CUcontext ctx, out unsigned int version) = api_version
cuCtxGetExecAffinity(out CUexecAffinityParam pExecAffinity, CUexecAffinityType typename) = execution_affinity
cuCtxGetStreamPriorityRange(out int leastPriority, out int greatestPriority) = stream_priority_range
"""

_CONTEXT_VARIANTS: Final = """
cuCtxCreate(out CUcontext pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
    = create_variant(*arguments, **keywords)
"""

_MEMORY: Final = """
cuMemAlloc(out CUdeviceptr dptr, size_t bytesize) = allocate
cuMemAllocPitch(out CUdeviceptr dptr, out size_t pPitch, size_t WidthInBytes, size_t Height,
    unsigned int ElementSizeBytes) = allocate_pitch
cuMemFree(CUdeviceptr dptr) = free
cuMemGetInfo(out size_t free, out size_t total) = info
cuMemcpyHtoD(CUdeviceptr dstDevice, void *srcHost, size_t ByteCount)
    = _api.memory.host_to_device(dstDevice, srcHost, ByteCount, 0, True)
cuMemcpyHtoDAsync(CUdeviceptr dstDevice, void *srcHost, size_t ByteCount, CUstream hStream)
    = _api.memory.host_to_device
cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
    = _api.memory.device_to_host(dstHost, srcDevice, ByteCount, 0, True)
cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
    = _api.memory.device_to_host
cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
    = _api.memory.device_to_device(dstDevice, srcDevice, ByteCount, 0)
cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
    = _api.memory.device_to_device
cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) = _api.memory.between_any(dst, src, ByteCount, 0, True)
cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) = _api.memory.between_any
cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
    size_t ByteCount) = _api.memory.peer_to_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, 0)
cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
    size_t ByteCount, CUstream hStream) = _api.memory.peer_to_peer
cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) = _api.memory.fill(dstDevice, uc, 1, N, 0)
cuMemsetD16(CUdeviceptr dstDevice, unsigned short us, size_t N) = _api.memory.fill(dstDevice, us, 2, N, 0)
cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N) = _api.memory.fill(dstDevice, ui, 4, N, 0)
cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
    = _api.memory.fill(dstDevice, uc, 1, N, hStream)
cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
    = _api.memory.fill(dstDevice, us, 2, N, hStream)
cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
    = _api.memory.fill(dstDevice, ui, 4, N, hStream)
cuMemsetD2D8(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height)
    = _api.memory.fill(dstDevice, uc, 1, Width, 0, dstPitch, Height)
cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
    CUstream hStream) = _api.memory.fill(dstDevice, uc, 1, Width, hStream, dstPitch, Height)
cuMemsetD2D16(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height)
    = _api.memory.fill(dstDevice, us, 2, Width, 0, dstPitch, Height)
cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height,
    CUstream hStream) = _api.memory.fill(dstDevice, us, 2, Width, hStream, dstPitch, Height)
cuMemsetD2D32(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height)
    = _api.memory.fill(dstDevice, ui, 4, Width, 0, dstPitch, Height)
cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
    CUstream hStream) = _api.memory.fill(dstDevice, ui, 4, Width, hStream, dstPitch, Height)
cuMemcpy2D(CUDA_MEMCPY2D *pCopy) = _api.region_copy.copy(pCopy, 0, True)
cuMemcpy2DUnaligned(CUDA_MEMCPY2D *pCopy) = _api.region_copy.copy(pCopy, 0, True)
cuMemcpy2DAsync(CUDA_MEMCPY2D *pCopy, CUstream hStream) = _api.region_copy.copy
cuMemcpy3D(CUDA_MEMCPY3D *pCopy) = _api.region_copy.copy(pCopy, 0, True)
cuMemcpy3DAsync(CUDA_MEMCPY3D *pCopy, CUstream hStream) = _api.region_copy.copy
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

_MODULES: Final = """
cuModuleLoad(out CUmodule module, char *fname) = load_file
cuModuleLoadData(out CUmodule module, void *image) = load
cuModuleLoadDataEx(out CUmodule module, void *image, unsigned int numOptions, CUjit_option *options,
    void **optionValues) = load_with_options
cuModuleUnload(CUmodule hmod) = unload
cuModuleGetFunction(out CUfunction hfunc, CUmodule hmod, char *name) = function
cuModuleGetGlobal(out CUdeviceptr dptr, out size_t bytes, CUmodule hmod, char *name) = variable
cuFuncGetAttribute(out int pi, CUfunction_attribute attrib, CUfunction hfunc) = attribute
cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) = set_attribute
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
cuLaunchHostFunc(CUstream hStream, CUhostFn fn, PyObject *userData) = _objects.host_function.launch
"""

_EVENTS: Final = """
cuEventCreate(out CUevent phEvent, unsigned int Flags) = _api.stream.create_event
cuEventRecord(CUevent hEvent, CUstream hStream) = record
cuEventQuery(CUevent hEvent) = query
cuEventSynchronize(CUevent hEvent) = synchronize
cuEventDestroy(CUevent hEvent) = destroy
cuEventElapsedTime(out float pMilliseconds, CUevent hStart, CUevent hEnd) = elapsed_milliseconds
"""

# Parameters as in cuda-bindings 13; 12 has fewer for some, which makes no difference to a refusal.
_REFUSED: Final = """
cuIpcGetMemHandle(out CUipcMemHandle pHandle, CUdeviceptr dptr) = ipc('cuIpcGetMemHandle')
cuIpcOpenMemHandle(out CUdeviceptr pdptr, CUipcMemHandle handle, unsigned int Flags) = ipc('cuIpcOpenMemHandle')
cuIpcCloseMemHandle(CUdeviceptr dptr) = ipc('cuIpcCloseMemHandle')
cuIpcGetEventHandle(out CUipcEventHandle pHandle, CUevent event) = ipc('cuIpcGetEventHandle')
cuIpcOpenEventHandle(out CUevent phEvent, CUipcEventHandle handle) = ipc('cuIpcOpenEventHandle')
cuMemAllocManaged(out CUdeviceptr dptr, size_t bytesize, unsigned int flags) = managed('cuMemAllocManaged')
cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) = managed('cuMemAdvise')
cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream hStream)
    = managed('cuMemPrefetchAsync')
cuMemRangeGetAttribute(out void *data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr,
    size_t count) = managed('cuMemRangeGetAttribute')
cuMemRangeGetAttributes(out void **data, size_t *dataSizes, CUmem_range_attribute *attributes, size_t numAttributes,
    CUdeviceptr devPtr, size_t count) = managed('cuMemRangeGetAttributes')
cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags)
    = managed('cuStreamAttachMemAsync')
cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) = enable_peer('cuCtxEnablePeerAccess')
cuCtxDisablePeerAccess(CUcontext peerContext) = disable_peer('cuCtxDisablePeerAccess')
"""

SIGNATURES: Final = {
    signature.name: signature
    for signature in (
        *_chapter("_api.errors", _ERRORS, Calling.ANYWHERE),
        *_chapter("_api.device", _INITIALIZATION, Calling.BEFORE_INIT),
        *_chapter("_api.device", _DEVICES),
        *_chapter("_api.context", _CONTEXTS),
        *_chapter("_api.context", _CONTEXT_VARIANTS, Calling.VARIANTS),
        *_chapter("_objects.memory", _MEMORY),
        *_chapter("_api.host_memory", _HOST_MEMORY),
        *_chapter("_api.module", _MODULES),
        *_chapter("_api.launch", _LAUNCHES, Calling.UNCONVERTED),
        *_chapter("_api.occupancy", _OCCUPANCY),
        *_chapter("_objects.stream", _STREAMS),
        *_chapter("_objects.event", _EVENTS),
        *_chapter("_api.unsupported", _REFUSED, Calling.VARIANTS),
    )
}
"""The rows by name."""
