// Boxes narrower than the span of their swizzle, to a place in shared memory that is no multiple of 1024: where rows lie.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_narrow(unsigned* out, const __grid_constant__ Map by32, const __grid_constant__ Map by64,
                                             const __grid_constant__ Map by128, const __grid_constant__ Map three) {
    __shared__ alignas(1024) unsigned tile[1024];
    __shared__ alignas(8) unsigned long long barrier;
    const Map* maps[4] = {&by32, &by64, &by128, &three};
    const int sizes[4] = {16 * 12, 32 * 12, 16 * 12, 48 * 12};
    const int start[2] = {4, 1};
    int i = threadIdx.x, kind = blockIdx.y;
    for (int at = i; at < 1024; at += 64) tile[at] = 0xC0DE0000 + at;
    ptx::fence_proxy_async(ptx::space_shared);
    if (i == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    if (i == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizes[kind]);
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile + 96 * blockIdx.x, maps[kind], start, &barrier);
    }
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    for (int at = i; at < 1024; at += 64) out[(blockIdx.y * 3 + blockIdx.x) * 1024 + at] = tile[at];
}
