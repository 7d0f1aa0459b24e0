// Tiles of a table by tensor maps with each swizzle: inside, at the edges and outside; out as they lie in shared memory.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_load(unsigned* out, const __grid_constant__ Map plain, const __grid_constant__ Map by32,
                                           const __grid_constant__ Map by64, const __grid_constant__ Map by128) {
    __shared__ alignas(1024) unsigned tile[640];
    __shared__ alignas(8) unsigned long long barrier;
    const int places[6][2] = {{0, 0}, {4, 3}, {-8, -2}, {24, 7}, {-4, 11}, {64, -20}};
    const Map* maps[4] = {&plain, &by32, &by64, &by128};
    const int sizes[4] = {256 * 9, 32 * 9, 64 * 9, 128 * 9};
    int i = threadIdx.x, kind = blockIdx.y;
    for (int at = i; at < 640; at += 64) tile[at] = 0xC0DE0000 + at;
    ptx::fence_proxy_async(ptx::space_shared);
    if (i == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    if (i == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizes[kind]);
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, maps[kind], places[blockIdx.x], &barrier);
    }
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    for (int at = i; at < 640; at += 64) out[(blockIdx.y * 6 + blockIdx.x) * 640 + at] = tile[at];
}
