// A tile reduced into a table by a tensor map; the function is a parameter, and the map has the type.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_reduce_2d(const unsigned* given, const __grid_constant__ Map map, int function, int x, int y) {
    __shared__ alignas(128) unsigned tile[128];
    const int place[2] = {x, y};
    for (int at = threadIdx.x; at < 128; at += 32) tile[at] = given[at];
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x) return;
    auto to = ptx::space_global;
    auto from = ptx::space_shared;
    if (function == 0) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_add, &map, place, tile);
    if (function == 1) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_min, &map, place, tile);
    if (function == 2) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_max, &map, place, tile);
    if (function == 3) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_inc, &map, place, tile);
    if (function == 4) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_dec, &map, place, tile);
    if (function == 5) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_and_op, &map, place, tile);
    if (function == 6) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_or_op, &map, place, tile);
    if (function == 7) ptx::cp_reduce_async_bulk_tensor(to, from, ptx::op_xor_op, &map, place, tile);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}
