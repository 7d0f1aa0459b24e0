// Clusters of four blocks: each loads a quarter of a tile for all of them, and a quarter of a row by a bulk copy.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void __cluster_dims__(4, 1, 1)
    tensor_map_multicast(unsigned* out, const unsigned* row, const __grid_constant__ Map map) {
    __shared__ alignas(1024) unsigned tile[512];
    __shared__ alignas(128) unsigned line[64];
    __shared__ alignas(8) unsigned long long barrier;
    int i = threadIdx.x, rank = blockIdx.x % 4;
    const int start[2] = {8 * (int)(blockIdx.x / 4), 4 * rank - 2};
    if (i == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, 2048 + 256);
    }
    __syncthreads();
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    if (i == 0) {
        unsigned short mask = 15;
        auto to = ptx::space_cluster;
        auto from = ptx::space_global;
        ptx::cp_async_bulk_tensor(to, from, tile + 128 * rank, &map, start, &barrier, mask);
        ptx::cp_async_bulk(to, from, line + 16 * rank, row + 16 * rank, 64, &barrier, mask);
    }
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    for (int at = i; at < 512; at += 64) out[blockIdx.x * 576 + at] = tile[at];
    out[blockIdx.x * 576 + 512 + i] = line[i];
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
}
