"""Programs that make tensor maps by cuda.bindings, and kernels that copy by them."""

from __future__ import annotations

from tests.routing.conftest import Run

PROGRAM = """
context()
KERNEL = b'''
.version 8.0
.target sm_90
.address_size 64
.visible .entry copy(.param .align 64 .b8 map[128], .param .u64 out)
{ .reg .b64 %d<5>; .reg .b32 %r<9>; .reg .pred %p<3>; .shared .align 128 .b8 s[512]; .shared .align 8 .b64 bar;
mov.b64 %d0, map; cvta.param.u64 %d0, %d0; ld.param.u64 %d1, [out]; mov.u32 %r0, s; mov.u32 %r1, bar;
mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {8, 1}], [%r1];
wait: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0; @!%p0 bra wait;
cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r0], 512; cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0; ret; }
'''
def encode(**more):
    given = dict(
        tensorDataType=cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, tensorRank=2, globalAddress=int(a),
        globalDim=[cuda.cuuint64_t(32), cuda.cuuint64_t(16)], globalStrides=[cuda.cuuint64_t(128)],
        boxDim=[cuda.cuuint32_t(16), cuda.cuuint32_t(8)], elementStrides=[cuda.cuuint32_t(1)] * 2,
        interleave=cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle=cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
        l2Promotion=cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        oobFill=cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return cuda.cuTensorMapEncodeTiled(**{**given, **more})

host, result = (ctypes.c_float * 512)(*range(512)), (ctypes.c_float * 128)()
a, b, c = (ok(cuda.cuMemAlloc(2048)) for _ in range(3))
ok(cuda.cuMemcpyHtoD(a, ctypes.addressof(host), 2048))
ok(cuda.cuMemcpyDtoD(b, a, 2048))
function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL)), b"copy"))

def launch(map):
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ((map, c), (None, None)), 0))
    ok(cuda.cuCtxSynchronize())
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(result), c, 512))
    print(result[0], result[15], result[16], result[127])
"""


def test_a_tile_is_loaded(run: Run) -> None:
    assert run(PROGRAM + "launch(ok(encode()))").stdout == "40.0 55.0 72.0 279.0\n"


def test_the_address_is_replaced(run: Run) -> None:
    program = """
map = ok(encode(globalAddress=16))
ok(cuda.cuTensorMapReplaceAddress(map, int(b)))
launch(map)
print(int(cuda.cuTensorMapReplaceAddress(map, 8)[0]))
"""
    assert run(PROGRAM + program).stdout == "40.0 55.0 72.0 279.0\n1\n"


def test_pixels_are_loaded(run: Run) -> None:
    program = """
print(int(cuda.cuTensorMapEncodeIm2col(
    cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, int(a), [cuda.cuuint64_t(4)] * 4,
    [cuda.cuuint64_t(16 * 4**index) for index in range(3)], [-1, -1], [-1, -1], 4, 16, [cuda.cuuint32_t(1)] * 4,
    cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
    cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)[0]))
"""
    assert run(PROGRAM + program).stdout == "0\n"


def test_why_a_map_is_refused(run: Run) -> None:
    done = run(
        PROGRAM + "print(int(encode(globalAddress=8)[0]), ok(cuda.cuDeviceGetAttribute(127, 0)))", PYMPSD_EXPLAIN="1"
    )
    assert done.stdout == "1 1\n"
    assert "globalAddress is 0x8; a multiple of 16 is needed" in done.stderr
