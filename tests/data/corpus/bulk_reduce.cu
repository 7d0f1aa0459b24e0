// Reductions by bulk copies in global memory and in the next block's, and its memory written and added to from afar.
#include <cuda/ptx>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cooperative_groups.h>
namespace ptx = cuda::ptx;
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1)
    bulk_reduce(unsigned* out, const unsigned* given, unsigned* sums, double* doubles, __half* halves, __nv_bfloat16* least,
                long long* most, unsigned* turns, unsigned* bits) {
    __shared__ alignas(128) unsigned from[32], to[32], stored[8];
    __shared__ alignas(8) unsigned long long barrier, large;
    int i = threadIdx.x, rank = blockIdx.x % 2;
    auto all = cg::this_cluster();
    from[i] = given[blockIdx.x * 32 + i];
    to[i] = 1000 + i;
    if (i < 8) stored[i] = 7 * i;
    if (i == 0) {
        large = 1ull << 33;
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, 128 + 16 + 4 + 4 + 8);
    }
    ptx::fence_proxy_async(ptx::space_shared);
    all.sync();
    if (i == 0) {
        auto shared = ptx::space_shared;
        auto global = ptx::space_global;
        unsigned long long* bar = all.map_shared_rank(&barrier, 1 - rank);
        unsigned* there = all.map_shared_rank(stored, 1 - rank);
        ptx::cp_reduce_async_bulk(ptx::space_cluster, shared, ptx::op_add, all.map_shared_rank(to, 1 - rank), from, 128, bar);
        const unsigned vector[4] = {1, 2, 3, 4u + blockIdx.x};
        ptx::st_async(there, vector, bar);
        ptx::red_async(ptx::op_inc, there + 4, 100u, bar);
        ptx::red_async(ptx::op_max, (int*)there + 5, -5, bar);
        ptx::red_async(ptx::op_add, all.map_shared_rank(&large, 1 - rank), 5ull, bar);
        ptx::cp_reduce_async_bulk(global, shared, ptx::op_add, sums, from, 128);
        ptx::cp_reduce_async_bulk(global, shared, ptx::op_inc, turns + 32 * blockIdx.x, from, 128);
        ptx::cp_reduce_async_bulk(global, shared, ptx::op_xor_op, bits, from, 128);
        ptx::cp_reduce_async_bulk(global, shared, ptx::op_max, most, (long long*)from, 128);
        if (blockIdx.x == 0) {
            ptx::cp_reduce_async_bulk(global, shared, ptx::op_add, doubles, (double*)from, 128);
            ptx::cp_reduce_async_bulk(global, shared, ptx::op_add, halves, (__half*)from, 128);
            ptx::cp_reduce_async_bulk(global, shared, ptx::op_min, least, (__nv_bfloat16*)from, 128);
        }
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    unsigned* row = out + blockIdx.x * 48;
    row[i] = to[i];
    if (i < 8) row[32 + i] = stored[i];
    if (i < 2) row[40 + i] = large >> 32 * i;
    all.sync();
}
