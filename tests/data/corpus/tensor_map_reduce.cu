// Reductions of tiles in global memory by tensor maps: every function, on integers and floats, half of them outside.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
template <typename Function>
__device__ void reduce(Function function, const Map& map, const void* tile) {
    const int place[2] = {8, 2};
    ptx::cp_reduce_async_bulk_tensor(ptx::space_global, ptx::space_shared, function, &map, place, tile);
}
extern "C" __global__ void tensor_map_reduce(
    const unsigned* given, const __grid_constant__ Map add_u32, const __grid_constant__ Map add_s64, const __grid_constant__ Map add_f16,
    const __grid_constant__ Map add_bf16, const __grid_constant__ Map add_f32, const __grid_constant__ Map add_f64,
    const __grid_constant__ Map min_s32, const __grid_constant__ Map min_f16, const __grid_constant__ Map max_u64,
    const __grid_constant__ Map max_bf16, const __grid_constant__ Map inc_u32, const __grid_constant__ Map dec_u32,
    const __grid_constant__ Map and_s64, const __grid_constant__ Map or_u32, const __grid_constant__ Map xor_s32) {
    __shared__ alignas(128) unsigned tile[128];
    int i = threadIdx.x, kind = blockIdx.x;
    for (int at = i; at < 128; at += 32) tile[at] = given[kind * 128 + at];
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (i) return;
    if (kind == 0) reduce(ptx::op_add, add_u32, tile);
    if (kind == 1) reduce(ptx::op_add, add_s64, tile);
    if (kind == 2) reduce(ptx::op_add, add_f16, tile);
    if (kind == 3) reduce(ptx::op_add, add_bf16, tile);
    if (kind == 4) reduce(ptx::op_add, add_f32, tile);
    if (kind == 5) reduce(ptx::op_add, add_f64, tile);
    if (kind == 6) reduce(ptx::op_min, min_s32, tile);
    if (kind == 7) reduce(ptx::op_min, min_f16, tile);
    if (kind == 8) reduce(ptx::op_max, max_u64, tile);
    if (kind == 9) reduce(ptx::op_max, max_bf16, tile);
    if (kind == 10) reduce(ptx::op_inc, inc_u32, tile);
    if (kind == 11) reduce(ptx::op_dec, dec_u32, tile);
    if (kind == 12) reduce(ptx::op_and_op, and_s64, tile);
    if (kind == 13) reduce(ptx::op_or_op, or_u32, tile);
    if (kind == 14) reduce(ptx::op_xor_op, xor_s32, tile);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}
