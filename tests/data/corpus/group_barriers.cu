// cuda::barrier with memcpy_async, and cooperative groups: tiles, coalesced and labelled groups, scans.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/barrier>
namespace cg = cooperative_groups;
extern "C" __global__ void group_barriers(int* out, const int* in, int n) {
    __shared__ alignas(16) int buffer[128];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int i = block.thread_rank(), at = blockIdx.x * blockDim.x + i;
    if (i == 0) init(&barrier, blockDim.x);
    block.sync();
    cuda::memcpy_async(block, buffer, in + blockIdx.x * blockDim.x, cuda::aligned_size_t<16>(sizeof(int) * blockDim.x),
                       barrier);
    barrier.arrive_and_wait();
    int value = buffer[i] + buffer[(i + 1) % blockDim.x];
    auto token = barrier.arrive();
    value *= 3;
    barrier.wait(std::move(token));
    out[0 * n + at] = value;
    out[1 * n + at] = cg::reduce(tile, value, cg::plus<int>());
    out[2 * n + at] = cg::inclusive_scan(tile, value & 255);
    auto labelled = cg::labeled_partition(tile, (int)(tile.thread_rank() % 3));
    out[3 * n + at] = cg::reduce(labelled, value, cg::greater<int>());
    int odd = 0;
    if (i % 2) {
        auto active = cg::coalesced_threads();
        odd = active.thread_rank() * 7 + active.shfl(i, 1) + active.ballot(i % 3);
    }
    out[4 * n + at] = odd;
}
