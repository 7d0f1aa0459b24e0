// A box of shared memory into a tensor of three dimensions by a tensor map.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_store_3d(const __grid_constant__ Map map, int x, int y, int z) {
    __shared__ alignas(1024) unsigned tile[512];
    const int place[3] = {x, y, z};
    for (int at = threadIdx.x; at < 512; at += 64) tile[at] = 1000 + at;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x) return;
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, place, tile);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}
