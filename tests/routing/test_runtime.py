"""The functions of the CUDA runtime: a program of cuda.bindings.runtime alone."""

from __future__ import annotations

from pathlib import Path

from tests.routing.conftest import Run

BEGINNING = """
import ctypes
from cuda.bindings import runtime

def ok(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

Kind = runtime.cudaMemcpyKind
"""


def test_the_runtime_describes_devices(run: Run) -> None:
    program = """
print(ok(runtime.cudaGetDeviceCount()) > 0, ok(runtime.cudaGetDevice()), ok(runtime.cudaRuntimeGetVersion()) > 12000)
found = ok(runtime.cudaGetDeviceProperties(0))
print(found.name[:6], found.warpSize, found.maxThreadsPerBlock, found.maxGridSize[0], any(found.uuid.bytes))
Attribute = runtime.cudaDeviceAttr
print(ok(runtime.cudaDeviceGetAttribute(Attribute.cudaDevAttrMultiProcessorCount, 0)) == found.multiProcessorCount)
print(int(runtime.cudaSetDevice(99)[0]), int(runtime.cudaPeekAtLastError()[0]))
print(int(runtime.cudaGetLastError()[0]), int(runtime.cudaGetLastError()[0]))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [
        "True 0 True", "b'NVIDIA' 32 1024 2147483647 True", "True", "101 101", "101 0",
    ]  # fmt: skip


def test_functions_for_devices_are_not_permitted_in_a_host_function(run: Run) -> None:
    program = """
results = []
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def call(_):
    answers = runtime.cudaGetDevice(), runtime.cudaGetDeviceFlags(), runtime.cudaSetDevice(0), runtime.cudaFree(0)
    results.extend(int(answer[0]) for answer in answers)
    results.extend(int(answer[0]) for answer in (runtime.cudaGetDeviceCount(), runtime.cudaGetDeviceProperties(0)))
ok(runtime.cudaFree(0))
ok(runtime.cudaLaunchHostFunc(0, runtime.cudaHostFn_t(ctypes.cast(call, ctypes.c_void_p).value), 0))
ok(runtime.cudaDeviceSynchronize())
print(results)
"""
    assert run(program, begin=BEGINNING).stdout == "[800, 800, 800, 800, 0, 0]\n"


def test_a_forked_child_only_learns_which_devices_there_are(run: Run) -> None:
    """As on an H200."""
    program = """
import os
ok(runtime.cudaFree(0))
read, write = os.pipe()
if not os.fork():
    answers = [runtime.cudaGetDeviceCount(), runtime.cudaGetDeviceProperties(0)]
    answers += [runtime.cudaGetDevice(), runtime.cudaFree(0)]
    os.write(write, str([int(answer[0]) for answer in answers]).encode())
    os._exit(0)
print(os.read(read, 100).decode())
"""
    assert run(program, begin=BEGINNING).stdout == "[0, 0, 3, 3]\n"


def test_memory_and_copies(run: Run) -> None:
    program = """
memory, host = ok(runtime.cudaMalloc(64)), (ctypes.c_ubyte * 64)(*range(64))
back, at = (ctypes.c_ubyte * 64)(), ctypes.addressof
ok(runtime.cudaMemcpy(memory, at(host), 64, Kind.cudaMemcpyHostToDevice))
ok(runtime.cudaMemset(memory, 0x1FF, 4))
ok(runtime.cudaMemcpy(at(back), memory, 64, Kind.cudaMemcpyDefault))
print(list(back[:6]), back[63])
stream = ok(runtime.cudaStreamCreate())
ok(runtime.cudaMemcpy2DAsync(memory, 16, at(host), 8, 2, 3, Kind.cudaMemcpyHostToDevice, stream))
ok(runtime.cudaMemcpyAsync(at(back), memory, 64, Kind.cudaMemcpyDeviceToHost, stream))
ok(runtime.cudaStreamSynchronize(stream))
print(list(back[:3]), list(back[16:19]), list(back[32:35]))
print([int(ok(runtime.cudaPointerGetAttributes(one)).type) for one in (memory, at(host))])
ok(runtime.cudaFree(memory)); ok(runtime.cudaFree(0))
print(ok(runtime.cudaMalloc(0)), int(runtime.cudaFree(memory)[0]), int(runtime.cudaMemcpy(1, 2, 3, 9)[0]))
print(int(runtime.cudaMalloc(1 << 63)[0]))
managed, place = int(ok(runtime.cudaMallocManaged(64, 1))), runtime.cudaMemLocation()
place.type = runtime.cudaMemLocationType.cudaMemLocationTypeHost
if hasattr(runtime, "cudaMemDiscardBatchAsync"):
    ok(runtime.cudaMemDiscardBatchAsync([managed], [64], 1, 0, stream))
    ok(runtime.cudaMemPrefetchBatchAsync([managed], [64], 1, [place], [0], 1, 0, stream))
    last = runtime.cudaMemRangeAttribute.cudaMemRangeAttributeLastPrefetchLocation
    assert ok(runtime.cudaMemRangeGetAttribute(4, last, managed, 64)) == -1
    assert int(runtime.cudaMemDiscardAndPrefetchBatchAsync([8], [64], 1, [place], [0], 1, 0, stream)[0]) == 1
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [
        "[255, 255, 255, 255, 4, 5] 63", "[0, 1, 255] [8, 9, 18] [16, 17, 34]", "[2, 0]", "0 1 21", "2",
    ]  # fmt: skip


def test_slices_of_rows(run: Run) -> None:
    program = """
extent = runtime.cudaExtent()
extent.width, extent.height, extent.depth = 4, 3, 2
made = ok(runtime.cudaMalloc3D(extent))
ok(runtime.cudaMemset3D(made, 7, extent))
host = (ctypes.c_ubyte * 24)()
copy = runtime.cudaMemcpy3DParms()
copy.srcPtr, copy.extent, copy.kind = made, extent, Kind.cudaMemcpyDeviceToHost
target = runtime.cudaPitchedPtr()
target.ptr, target.pitch, target.xsize, target.ysize = ctypes.addressof(host), 4, 4, 3
copy.dstPtr = target
ok(runtime.cudaMemcpy3D(copy))
print(made.pitch, bytes(host) == bytes([7]) * 24)
"""
    assert run(program, begin=BEGINNING).stdout == "512 True\n"


def test_streams_and_events(run: Run) -> None:
    program = """
stream = ok(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
start, end = ok(runtime.cudaEventCreate()), ok(runtime.cudaEventCreateWithFlags(0))
ok(runtime.cudaEventRecord(start, stream)); ok(runtime.cudaEventRecord(end, stream))
ok(runtime.cudaEventSynchronize(end))
print(ok(runtime.cudaEventElapsedTime(start, end)) >= 0, ok(runtime.cudaStreamGetFlags(stream)))
ok(runtime.cudaStreamDestroy(stream))
print(int(runtime.cudaStreamSynchronize(stream)[0]), int(runtime.cudaEventQuery(end)[0]))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["True 1", "400 0"]


def test_the_runtime_copies_arrays(run: Run) -> None:
    program = """
from cuda.bindings import driver
at, size = ctypes.addressof, 4 * 5 * 3 * 2
channels = ok(runtime.cudaCreateChannelDesc(16, 16, 0, 0, runtime.cudaChannelFormatKind.cudaChannelFormatKindSigned))
extent = runtime.cudaExtent()
extent.width, extent.height, extent.depth = 5, 3, 2
cube, flat = ok(runtime.cudaMalloc3DArray(channels, extent, 0)), ok(runtime.cudaMallocArray(channels, 5, 3, 0))
found, shape, flags = ok(runtime.cudaArrayGetInfo(cube))
print(found.x, found.y, found.z, int(found.f), shape.width, shape.height, shape.depth, flags)
print(ok(driver.cuArrayGetDescriptor(int(flat))).NumChannels, ok(runtime.cudaGetChannelDesc(flat)).y)
host, back = (ctypes.c_ubyte * size)(*range(size)), (ctypes.c_ubyte * size)()
source = runtime.cudaPitchedPtr()
source.ptr, source.pitch, source.xsize, source.ysize = at(host), 20, 20, 3
copy = runtime.cudaMemcpy3DParms()
copy.srcPtr, copy.dstArray, copy.extent, copy.kind = source, cube, extent, Kind.cudaMemcpyHostToDevice
ok(runtime.cudaMemcpy3D(copy))
ok(runtime.cudaMemcpyFromArray(at(back), cube, 0, 0, size, Kind.cudaMemcpyDeviceToHost))
print(bytes(back) == bytes(host))
part, box, corner = runtime.cudaMemcpy3DParms(), runtime.cudaExtent(), runtime.cudaPos()
box.width, box.height, box.depth, corner.x, corner.y, corner.z = 2, 1, 1, 3, 1, 1
part.srcArray, part.srcPos, part.dstArray, part.extent = cube, corner, flat, box
part.kind = Kind.cudaMemcpyDeviceToDevice
ok(runtime.cudaMemcpy3DAsync(part, 0))
ok(runtime.cudaMemcpy2DToArray(flat, 8, 2, at(host), 7, 4, 1, Kind.cudaMemcpyHostToDevice))
ok(runtime.cudaMemcpy2DArrayToArray(flat, 12, 2, flat, 8, 2, 4, 1, Kind.cudaMemcpyDeviceToDevice))
ok(runtime.cudaMemcpyArrayToArray(flat, 0, 1, flat, 4, 0, 4, Kind.cudaMemcpyDefault))
memory = ok(runtime.cudaMalloc(64))
ok(runtime.cudaMemcpy2DFromArrayAsync(memory, 20, flat, 0, 0, 20, 3, Kind.cudaMemcpyDeviceToDevice, 0))
ok(runtime.cudaMemcpyToArray(flat, 16, 2, memory, 4, Kind.cudaMemcpyDeviceToDevice))
ok(runtime.cudaMemcpy2DFromArray(at(back), 20, flat, 0, 0, 20, 3, Kind.cudaMemcpyDeviceToHost))
print(list(back[:8]), list(back[20:24]), list(back[48:60]))
peer, back = runtime.cudaMemcpy3DPeerParms(), (ctypes.c_ubyte * size)()
peer.srcPtr, peer.dstArray, peer.extent = runtime.make_cudaPitchedPtr(memory, 20, 5, 3), flat, box
ok(runtime.cudaMemset(memory, 7, 64)); ok(runtime.cudaMemcpy3DPeer(peer)); ok(runtime.cudaMemcpy3DPeerAsync(peer, 0))
ok(runtime.cudaMemcpyFromArray(at(back), flat, 0, 0, 12, Kind.cudaMemcpyDeviceToHost))
peer.dstDevice = 99
print(list(back[:9]), int(runtime.cudaMemcpy3DPeer(peer)[0]))
kind = runtime.cudaChannelFormatKind.cudaChannelFormatKindSignedNormalized16X2
wanted = ok(runtime.cudaCreateChannelDesc(16, 16, 0, 0, kind))
scaled = ok(runtime.cudaGetChannelDesc(ok(runtime.cudaMallocArray(wanted, 4, 4, 0))))
print(scaled.x, scaled.y, scaled.z, scaled.f == kind)
packed = ok(runtime.cudaCreateChannelDesc(10, 10, 10, 2, runtime.cudaChannelFormatKind(31)))
found = ok(runtime.cudaGetChannelDesc(ok(runtime.cudaMallocArray(packed, 4, 4, 0))))
print(found.x, found.y, found.z, found.w, int(found.f))
pyramid = ok(runtime.cudaMallocMipmappedArray(channels, extent, 2, 0))
level = ok(runtime.cudaGetMipmappedArrayLevel(pyramid, 1))
print(ok(runtime.cudaArrayGetInfo(level))[1].width)
ok(runtime.cudaFreeMipmappedArray(pyramid)); ok(runtime.cudaFreeArray(cube)); ok(runtime.cudaFreeArray(0))
odd = ok(runtime.cudaCreateChannelDesc(8, 8, 8, 0, runtime.cudaChannelFormatKind.cudaChannelFormatKindUnsigned))
beyond = runtime.cudaMemcpyToArray(flat, 16, 2, memory, 8, Kind.cudaMemcpyDeviceToDevice)
print([int(one[0]) for one in (runtime.cudaFreeArray(cube), runtime.cudaMallocArray(odd, 1, 1, 0), beyond)])
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [
        "16 16 0 0 5 3 2 0", "2 16", "True",
        f"{[92, 93, 94, 95, 96, 97, 98, 99]} {[96, 97, 98, 99]} {[0, 1, 2, 3, 0, 1, 2, 3, 92, 93, 94, 95]}",
        "[7, 7, 7, 7, 7, 7, 7, 7, 0] 101", "16 16 0 True", "10 10 10 2 31", "2", "[400, 20, 1]",
    ]  # fmt: skip


def test_the_runtime_creates_textures(run: Run) -> None:
    program = """
from cuda.bindings import driver
at = ctypes.addressof
code = b'''
.version 8.0
.target sm_80
.address_size 64
.visible .entry read(.param .u64 out, .param .u64 tex, .param .u64 line)
{ .reg .b64 %d<4>; .reg .f32 %f<9>;
ld.param.u64 %d0, [out]; ld.param.u64 %d1, [tex]; ld.param.u64 %d2, [line];
tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d1, {0f3F000000, 0f3F000000}];
tex.1d.v4.f32.s32 {%f4, %f5, %f6, %f7}, [%d2, {1}];
st.global.v4.f32 [%d0], {%f0, %f1, %f2, %f4}; ret; }
'''
channels = ok(runtime.cudaCreateChannelDesc(8, 8, 0, 0, runtime.cudaChannelFormatKind.cudaChannelFormatKindUnsigned))
array = ok(runtime.cudaMallocArray(channels, 2, 2, runtime.cudaArraySurfaceLoadStore))
memory = ok(runtime.cudaMalloc(64))
host = (ctypes.c_ubyte * 8)(*range(0, 80, 10))
ok(runtime.cudaMemcpyToArray(array, 0, 0, at(host), 8, Kind.cudaMemcpyHostToDevice))
resource, how = runtime.cudaResourceDesc(), runtime.cudaTextureDesc()
resource.resType, resource.res.array.array = runtime.cudaResourceType.cudaResourceTypeArray, array
how.filterMode = runtime.cudaTextureFilterMode.cudaFilterModeLinear
print(int(runtime.cudaCreateTextureObject(resource, how, None)[0]))
how.readMode, how.normalizedCoords = runtime.cudaTextureReadMode.cudaReadModeNormalizedFloat, 1
how.borderColor, how.maxAnisotropy, how.seamlessCubemap, how.mipmapLevelBias = [1.0, 2.0, 3.0, 4.0], 3, 1, 0.5
texture = ok(runtime.cudaCreateTextureObject(resource, how, None))
found = ok(runtime.cudaGetTextureObjectTextureDesc(texture))
names = [one for one in dir(how) if not one.startswith("_") and one != "getPtr"]
print(all(getattr(found, one) == getattr(how, one) for one in names), len(names))
print(int(ok(runtime.cudaGetTextureObjectResourceDesc(texture)).res.array.array) == int(array))
linear = runtime.cudaResourceDesc()
linear.resType, linear.res.linear.devPtr = runtime.cudaResourceType.cudaResourceTypeLinear, memory
linear.res.linear.desc, linear.res.linear.sizeInBytes = channels, 8
ok(runtime.cudaMemcpy(memory, at(host), 8, Kind.cudaMemcpyHostToDevice))
plain = runtime.cudaTextureDesc()
plain.readMode = runtime.cudaTextureReadMode.cudaReadModeNormalizedFloat
line = ok(runtime.cudaCreateTextureObject(linear, plain, None))
again = ok(runtime.cudaGetTextureObjectResourceDesc(line)).res.linear
of = again.desc
print(int(again.devPtr) == int(memory), again.sizeInBytes, of.x, of.y, of.z, int(of.f))
kernel = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(code)), b"read"))
out, back = ok(runtime.cudaMalloc(16)), (ctypes.c_float * 4)()
values = ((int(out), int(texture), int(line)), (ctypes.c_uint64,) * 3)
ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, values, 0))
ok(runtime.cudaMemcpy(at(back), out, 16, Kind.cudaMemcpyDeviceToHost))
print([round(one * 255, 3) for one in back])
surface = ok(runtime.cudaCreateSurfaceObject(resource))
print(int(ok(runtime.cudaGetSurfaceObjectResourceDesc(surface)).res.array.array) == int(array))
print(int(runtime.cudaGetTextureObjectResourceViewDesc(texture)[0]))
view = runtime.cudaResourceViewDesc()
view.width = view.height = 2
seen = ok(runtime.cudaCreateTextureObject(resource, how, view))
print(ok(runtime.cudaGetTextureObjectResourceViewDesc(seen)).height)
ok(runtime.cudaDestroySurfaceObject(surface)); ok(runtime.cudaDestroyTextureObject(texture))
print(int(runtime.cudaDestroyTextureObject(texture)[0]))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [
        "1", "True 13", "True", "True 8 8 8 0 1", "[30.0, 40.0, 0.0, 20.0]", "True", "1", "2", "400",
    ]  # fmt: skip


def test_the_runtime_and_the_driver_together(run: Run) -> None:
    program = """
from cuda.bindings import driver
print(ok(runtime.cudaGetDeviceCount()) > 0, int(ok(driver.cuCtxGetCurrent())))
memory = ok(runtime.cudaMalloc(64))
print(int(ok(driver.cuCtxGetCurrent())) != 0, int(driver.cuMemsetD8(memory, 1, 64)[0]))
ok(runtime.cudaDeviceReset())
print(int(runtime.cudaFree(memory)[0]), ok(runtime.cudaMalloc(64)) != 0, ok(runtime.cudaGetDevice()))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["True 0", "True 0", "1 True 0"]


def test_a_missing_runtime_function_is_reported_as_not_supported(run: Run) -> None:
    program = "print(int(runtime.cudaDeviceFlushGPUDirectRDMAWrites(0, 100)[0]))"
    done = run(program, begin=BEGINNING, PYMPSD_EXPLAIN="1")
    assert done.stdout == "801\n"
    assert "pympsd does not have cudaDeviceFlushGPUDirectRDMAWrites yet" in done.stderr


def test_graphs_made_by_hand(run: Run) -> None:
    program = """
stream, graph = ok(runtime.cudaStreamCreate()), ok(runtime.cudaGraphCreate(0))
memory, host = ok(runtime.cudaMalloc(64)), (ctypes.c_ubyte * 64)()
fill = runtime.cudaMemsetParams()
fill.dst, fill.value, fill.elementSize, fill.width, fill.height = memory, 7, 1, 64, 1
first = ok(runtime.cudaGraphAddMemsetNode(graph, None, 0, fill))
toHost = Kind.cudaMemcpyDeviceToHost
second = ok(runtime.cudaGraphAddMemcpyNode1D(graph, [first], 1, ctypes.addressof(host), memory, 64, toHost))
ready = ok(runtime.cudaGraphInstantiate(graph, 0))
ok(runtime.cudaGraphLaunch(ready, stream)); ok(runtime.cudaStreamSynchronize(stream))
print(bytes(host) == bytes([7]) * 64, ok(runtime.cudaGraphGetNodes(graph))[1])
ok(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal))
ok(runtime.cudaMemsetAsync(memory, 1, 64, stream))
print(ok(runtime.cudaGraphGetNodes(ok(runtime.cudaStreamEndCapture(stream))))[1])
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["True 2", "1"]


def test_nodes_of_any_kind(run: Run) -> None:
    program = """
from cuda.bindings import driver
ok(runtime.cudaFree(0))
module = ok(driver.cuModuleLoadData(b'''.version 8.3
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry count_down(.param .u64 handle, .param .u64 where)
{
    .reg .b32 %r<2>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [handle]; ld.param.u64 %rd2, [where];
    ld.global.u32 %r1, [%rd2]; sub.u32 %r1, %r1, 1; st.global.u32 [%rd2], %r1;
    { .param .b64 p0; st.param.b64 [p0], %rd1; .param .b32 p1; st.param.b32 [p1], %r1;
      call.uni cudaGraphSetConditional, (p0, p1); }
    ret;
}'''))
Type = runtime.cudaGraphNodeType

def node(graph, kind, *after):
    given = runtime.cudaGraphNodeParams()
    given.type = kind
    yield given
    yield ok(runtime.cudaGraphAddNode(graph, list(after), None, len(after), given))

stream, graph, memory = ok(runtime.cudaStreamCreate()), ok(runtime.cudaGraphCreate(0)), ok(runtime.cudaMalloc(8))
handle = ok(runtime.cudaGraphConditionalHandleCreate(graph, 1, 1))
same = ok(runtime.cudaGraphConditionalHandleCreate_v2(graph, None, 1, 1))
fill = node(graph, Type.cudaGraphNodeTypeMemset)
given = next(fill)
given.memset.dst, given.memset.value, given.memset.elementSize = memory, 5, 4
given.memset.width, given.memset.height = 2, 1
loop = node(graph, Type.cudaGraphNodeTypeConditional, next(fill))
given = next(loop)
given.conditional.handle, given.conditional.size = handle, 1
given.conditional.type = runtime.cudaGraphConditionalNodeType.cudaGraphCondTypeWhile
looped, host = next(loop), (ctypes.c_uint * 2)()
kernel = node(given.conditional.phGraph_out[0], Type.cudaGraphNodeTypeKernel)
given = next(kernel)
given.kernel.func = int(ok(driver.cuModuleGetFunction(module, b"count_down")))
for dimensions in (given.kernel.gridDim, given.kernel.blockDim):
    dimensions.x = dimensions.y = dimensions.z = 1
given.kernel.kernelParams = ((int(handle), memory), (ctypes.c_uint64, ctypes.c_uint64))
next(kernel)
copy = node(graph, Type.cudaGraphNodeTypeMemcpy, looped)
given = next(copy)
given.memcpy.copyParams.srcPtr = runtime.make_cudaPitchedPtr(memory, 8, 8, 1)
given.memcpy.copyParams.dstPtr = runtime.make_cudaPitchedPtr(ctypes.addressof(host), 8, 8, 1)
given.memcpy.copyParams.extent = runtime.make_cudaExtent(8, 1, 1)
given.memcpy.copyParams.kind = Kind.cudaMemcpyDeviceToHost
next(copy)
ready = ok(runtime.cudaGraphInstantiate(graph, 0))
ok(runtime.cudaGraphLaunch(ready, stream)); ok(runtime.cudaStreamSynchronize(stream))
print(list(host), ok(runtime.cudaGraphGetNodes(graph))[1])
"""
    assert run(program, begin=BEGINNING).stdout == "[0, 5] 3\n"


def test_the_runtime_creates_execution_contexts(run: Run) -> None:
    program = """
SMS = runtime.cudaDevResourceType.cudaDevResourceTypeSm
whole = ok(runtime.cudaDeviceGetDevResource(0, SMS))
parts, number, rest = ok(runtime.cudaDevSmResourceSplitByCount(2, whole, 0, 16))
groups = [runtime.cudaDevSmResourceGroupParams(), runtime.cudaDevSmResourceGroupParams()]
groups[0].smCount, groups[0].coscheduledSmCount = 4, 2
made, left = ok(runtime.cudaDevSmResourceSplit(2, whole, 0, groups))
print([one.sm.smCount for one in (*parts, rest, *made)], number)
description = ok(runtime.cudaDevResourceGenerateDesc(parts, 2))
green, own = ok(runtime.cudaGreenCtxCreate(description, 0, 0)), ok(runtime.cudaDeviceGetExecutionCtx(0))
print([ok(runtime.cudaExecutionCtxGetDevResource(one, SMS)).sm.smCount for one in (green, own)])
print([ok(runtime.cudaExecutionCtxGetDevice(one)) for one in (green, own)])
print(len({ok(runtime.cudaExecutionCtxGetId(one)) for one in (green, own, own)}))
memory, event = ok(runtime.cudaMalloc(64)), ok(runtime.cudaEventCreateWithFlags(2))
for one in (green, own):
    stream = ok(runtime.cudaExecutionCtxStreamCreate(one, 1, 0))
    print(ok(runtime.cudaStreamGetDevResource(stream, SMS)).sm.smCount)
    ok(runtime.cudaMemsetAsync(memory, 7, 64, stream))
    ok(runtime.cudaExecutionCtxRecordEvent(one, event)); ok(runtime.cudaEventSynchronize(event))
    ok(runtime.cudaExecutionCtxWaitEvent(own, event)); ok(runtime.cudaExecutionCtxSynchronize(one))
graph, create = ok(runtime.cudaGraphCreate(0)), getattr(runtime, "cudaGraphConditionalHandleCreate_v2", None)
if create is not None:
    assert len({int(ok(create(graph, one, 0, 0))) for one in (green, own, None)}) == 3
ok(runtime.cudaExecutionCtxDestroy(green))
if create is not None:
    assert int(create(graph, green, 0, 0)[0]) and int(create(graph, 12345, 0, 0)[0]) and int(create(0, own, 0, 0)[0])
print(int(runtime.cudaExecutionCtxDestroy(green)[0]), int(runtime.cudaExecutionCtxDestroy(own)[0]))
print(int(runtime.cudaGreenCtxCreate(description, 0, 5)[0]))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [
        "[16, 16, 100, 4, 128] 2", "[32, 132]", "[0, 0]", "2", "32", "132", "1 1", "1",
    ]  # fmt: skip


def test_slices_between_devices(run: Run) -> None:
    program = """
memory, other = ok(runtime.cudaMalloc(1024)), ok(runtime.cudaMalloc(1024))
host, back = (ctypes.c_ubyte * 1024)(*[each % 251 for each in range(1024)]), (ctypes.c_ubyte * 1024)()
ok(runtime.cudaMemcpy(memory, ctypes.addressof(host), 1024, Kind.cudaMemcpyHostToDevice))
copy = runtime.cudaMemcpy3DPeerParms()
copy.srcPtr, copy.dstPtr = (runtime.make_cudaPitchedPtr(one, 256, 256, 2) for one in (memory, other))
copy.extent = runtime.make_cudaExtent(100, 2, 2)
ok(runtime.cudaMemcpy3DPeer(copy))
ok(runtime.cudaMemcpy3DPeerAsync(copy, 0)); ok(runtime.cudaDeviceSynchronize())
ok(runtime.cudaMemcpy(ctypes.addressof(back), other, 1024, Kind.cudaMemcpyDeviceToHost))
sent, got = bytes(host), bytes(back)
print(all(got[row:row + 100] == sent[row:row + 100] for row in range(0, 1024, 256)), any(got[100:256]))
copy.srcDevice = 99
print(int(runtime.cudaMemcpy3DPeer(copy)[0]))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == ["True False", "101"]


def test_the_runtime_enables_peer_access(run: Run, tmp_path: Path) -> None:
    program = """
print(ok(runtime.cudaDeviceCanAccessPeer(0, 1)), int(runtime.cudaDeviceDisablePeerAccess(1)[0]))
ok(runtime.cudaDeviceEnablePeerAccess(1, 0))
print(int(runtime.cudaDeviceEnablePeerAccess(1, 0)[0]), int(runtime.cudaDeviceEnablePeerAccess(0, 0)[0]))
ok(runtime.cudaDeviceDisablePeerAccess(1))
"""
    alone = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "nobody"), "PYMPSD_EMULATED_DEVICES": "2xH200"}
    ended = run(program, begin=BEGINNING, PYMPSD_BACKEND="emulated", **alone)
    assert ended.stdout.splitlines() == ["1 705", "704 217"], ended.stderr


def test_copies_beyond_device_memory_are_refused_before_host_memory_is_read(run: Run) -> None:
    program = """
memory, host = ok(runtime.cudaMalloc(1 << 20)), (ctypes.c_ubyte * (1 << 20))()
freed, at, huge = ok(runtime.cudaMalloc(1 << 20)), ctypes.addressof(host), 1 << 33
ok(runtime.cudaFree(freed))
for kind in (Kind.cudaMemcpyHostToDevice, Kind.cudaMemcpyDefault):
    for to, size in ((memory, huge), (freed, huge)):
        print(int(runtime.cudaMemcpy(to, at, size, kind)[0]), int(runtime.cudaMemcpyAsync(to, at, size, kind, 0)[0]))
print(int(runtime.cudaMemcpy2D(memory, 1 << 20, at, 1 << 20, 1 << 20, 1 << 13, Kind.cudaMemcpyHostToDevice)[0]))
print(int(runtime.cudaDeviceSynchronize()[0]))
"""
    assert run(program, begin=BEGINNING).stdout.split() == ["1"] * 9 + ["0"]


def test_attributes_and_occupancy_of_a_librarys_kernel(run: Run) -> None:
    program = """
image = b'''
.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel() { .shared .b8 room[128]; ret; }
\\0'''
kernel = ok(runtime.cudaLibraryGetKernel(ok(runtime.cudaLibraryLoadData(image, [], [], 0, [], [], 0)), b"kernel"))
Attribute = runtime.cudaFuncAttribute
ok(runtime.cudaFuncSetAttribute(kernel, Attribute.cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 16))
found = ok(runtime.cudaFuncGetAttributes(kernel))
print(found.sharedSizeBytes, found.maxThreadsPerBlock, found.maxDynamicSharedSizeBytes)
print(ok(runtime.cudaOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 1024, 0)))
print(ok(runtime.cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(kernel, 1024, 0, 0)))
print(ok(runtime.cudaOccupancyAvailableDynamicSMemPerBlock(kernel, 2, 1024)) > 0)
"""
    assert run(program, begin=BEGINNING).stdout.split() == ["128", "1024", "65536", "2", "2", "True"]


def test_changes_of_nodes(run: Run) -> None:
    program = """
from cuda.bindings import driver
stream, graph = ok(runtime.cudaStreamCreate()), ok(runtime.cudaGraphCreate(0))
memory, other, host = ok(runtime.cudaMalloc(64)), ok(runtime.cudaMalloc(64)), (ctypes.c_ubyte * 64)(*range(64))
ok(runtime.cudaMemset(other, 9, 64))
at, toHost, toDevice = ctypes.addressof(host), Kind.cudaMemcpyDeviceToHost, Kind.cudaMemcpyHostToDevice
code = b'''
.version 7.0
.target sm_60
.address_size 64
.visible .entry put(.param .u64 to, .param .u32 value)
{ .reg .b64 %d; .reg .b32 %r; ld.param.u64 %d, [to]; ld.param.u32 %r, [value]; st.global.u32 [%d], %r; ret; }
\\0'''
kernel = ok(runtime.cudaLibraryGetKernel(ok(runtime.cudaLibraryLoadData(code, [], [], 0, [], [], 0)), b"put"))
launch = runtime.cudaKernelNodeParams()
launch.func = int(kernel)
for sizes in (launch.gridDim, launch.blockDim):
    sizes.x = sizes.y = sizes.z = 1
types = (ctypes.c_uint64, ctypes.c_uint32)
launch.kernelParams = ((memory, 5), types)
node = ok(runtime.cudaGraphAddKernelNode(graph, None, 0, launch))
copy = ok(runtime.cudaGraphAddMemcpyNode1D(graph, [node], 1, at, memory, 4, toHost))
found = ok(runtime.cudaGraphMemcpyNodeGetParams(copy))
print(int(found.dstPtr.ptr) == at, found.extent.width, found.extent.height, found.kind.name)
ready = ok(runtime.cudaGraphInstantiate(graph, 0))
def result(executable=None):
    ok(runtime.cudaGraphLaunch(executable or ready, stream)); ok(runtime.cudaStreamSynchronize(stream))
    return list(host[:5])
print(result())
launch.kernelParams = ((memory, 6), types)
ok(runtime.cudaGraphExecKernelNodeSetParams(ready, node, launch))
print(result(), int(ok(runtime.cudaGraphKernelNodeGetParams(node)).func) == int(kernel))
ok(runtime.cudaGraphExecMemcpyNodeSetParams1D(ready, copy, at + 1, memory, 4, toHost))
print(result())
ok(runtime.cudaGraphKernelNodeSetParams(node, launch)); ok(runtime.cudaGraphMemcpyNodeSetParams(copy, found))
launch.kernelParams = ((memory, 8), types)
whole = runtime.cudaGraphNodeParams()
whole.type, whole.kernel.func = runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel, kernel
whole.kernel.kernelParams = ((memory, 8), types)
for sizes in (whole.kernel.gridDim, whole.kernel.blockDim):
    sizes.x = sizes.y = sizes.z = 1
ok(runtime.cudaGraphNodeSetParams(node, whole))
print(result(ok(runtime.cudaGraphInstantiate(graph, 0))))
ok(runtime.cudaGraphMemcpyNodeSetParams1D(copy, at, other, 4, toHost))
print(result(ok(runtime.cudaGraphInstantiate(graph, 0))))
ok(runtime.cudaGraphNodeSetEnabled(ready, copy, 0)); print(ok(runtime.cudaGraphNodeGetEnabled(ready, copy)))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [
        "True 4 1 cudaMemcpyDeviceToHost", "[5, 0, 0, 0, 4]", "[6, 0, 0, 0, 4] True", "[6, 6, 0, 0, 0]",
        "[8, 0, 0, 0, 0]", "[9, 9, 9, 9, 0]", "0",
    ]  # fmt: skip


def test_memory_of_graphs_and_settings_of_streams(run: Run) -> None:
    program = """
stream, graph = ok(runtime.cudaStreamCreate()), ok(runtime.cudaGraphCreate(0))
wanted = runtime.cudaMemAllocNodeParams()
wanted.poolProps.allocType = runtime.cudaMemAllocationType.cudaMemAllocationTypePinned
wanted.poolProps.location.type = runtime.cudaMemLocationType.cudaMemLocationTypeDevice
wanted.bytesize = 1 << 20
node = ok(runtime.cudaGraphAddMemAllocNode(graph, None, 0, wanted))
print(wanted.dptr != 0, ok(runtime.cudaGraphMemAllocNodeGetParams(node)).bytesize)
ok(runtime.cudaGraphAddMemFreeNode(graph, [node], 1, wanted.dptr))
ready = ok(runtime.cudaGraphInstantiate(graph, 0))
ok(runtime.cudaGraphLaunch(ready, stream)); ok(runtime.cudaStreamSynchronize(stream))
Memory = runtime.cudaGraphMemAttributeType
ok(runtime.cudaGraphExecDestroy(ready)); ok(runtime.cudaDeviceGraphMemTrim(0))
print(int(ok(runtime.cudaDeviceGetGraphMemAttribute(0, Memory.cudaGraphMemAttrUsedMemHigh))))
value, Attribute = runtime.cudaStreamAttrValue(), runtime.cudaStreamAttrID
value.syncPolicy = runtime.cudaSynchronizationPolicy.cudaSyncPolicyYield
ok(runtime.cudaStreamSetAttribute(stream, Attribute.cudaLaunchAttributeSynchronizationPolicy, value))
print(ok(runtime.cudaStreamGetAttribute(stream, Attribute.cudaLaunchAttributeSynchronizationPolicy)).syncPolicy.name)
ok(runtime.cudaCtxResetPersistingL2Cache()); ok(runtime.cudaProfilerStart()); ok(runtime.cudaProfilerStop())
channels = ok(runtime.cudaCreateChannelDesc(32, 0, 0, 0, runtime.cudaChannelFormatKind.cudaChannelFormatKindFloat))
print(ok(runtime.cudaDeviceGetTexture1DLinearMaxWidth(channels, 0)) > 1 << 20)
requested = runtime.cudaDeviceProp()
requested.major = 7
print(ok(runtime.cudaChooseDevice(requested)))
"""
    assert run(program, begin=BEGINNING).stdout.splitlines() == [
        "True 1048576", "2097152", "cudaSyncPolicyYield", "True", "0",
    ]  # fmt: skip
