// Clusters of 2 by 2 blocks: ids, barriers, and reads and atomics in other blocks' shared memory.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 2, 1) cluster(int* out, int n) {
    __shared__ int own[32];
    auto all = cg::this_cluster();
    int i = threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
    own[i] = block * 100 + i;
    all.sync();
    int count = all.num_blocks(), rank = all.block_rank();
    int other = all.map_shared_rank(own, (rank + 1) % count)[31 - i];
    all.sync();
    atomicAdd(all.map_shared_rank(own, (rank + 2) % count) + i % 4, 5);
    all.sync();
    int* row = out + block * 32 + i;
    row[0 * n] = other;
    row[1 * n] = own[i];
    row[2 * n] = rank | all.block_index().x << 4 | all.block_index().y << 8 | all.dim_blocks().x << 12;
    int x, y;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(x));
    asm("mov.u32 %0, %%nclusterid.y;" : "=r"(y));
    row[3 * n] = x << 8 | y;
}
