// The same bits as float32, flushed, as TF32, and both: what a load by a tensor map makes of them.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_formats(unsigned* out, const __grid_constant__ Map plain, const __grid_constant__ Map ftz,
                                              const __grid_constant__ Map tf32, const __grid_constant__ Map tf32_ftz) {
    __shared__ alignas(128) unsigned tile[256];
    __shared__ alignas(8) unsigned long long barrier;
    const Map* maps[4] = {&plain, &ftz, &tf32, &tf32_ftz};
    const int start[1] = {0};
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, 1024);
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, maps[blockIdx.x], start, &barrier);
    }
    __syncthreads();
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    out[blockIdx.x * 256 + threadIdx.x] = tile[threadIdx.x];
}
