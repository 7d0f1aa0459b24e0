// Tiles of shared memory into tables by tensor maps with each swizzle, also across the edges, and in steps.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_store(const __grid_constant__ Map plain, const __grid_constant__ Map by32,
                                            const __grid_constant__ Map by64, const __grid_constant__ Map by128,
                                            const __grid_constant__ Map steps) {
    __shared__ alignas(1024) unsigned tile[512];
    const int places[3][2] = {{8, 1}, {-4, 9}, {40, -3}};
    const int cube[3][3] = {{0, 0, 0}, {4, -2, 3}, {-4, 5, 1}};
    const Map* maps[4] = {&plain, &by32, &by64, &by128};
    int i = threadIdx.x, kind = blockIdx.x;
    for (int at = 0; at < 3; at++) {
        for (int each = i; each < 512; each += 64) tile[each] = (kind * 3 + at) * 1000 + each;
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (i == 0) {
            if (kind < 4) ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, maps[kind], places[at], tile);
            else ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &steps, cube[at], tile);
            ptx::cp_async_bulk_commit_group();
            ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
        }
        __syncthreads();
    }
}
