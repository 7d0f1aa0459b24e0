// cp.async in two stages, with zero bytes filled in; and bulk copies in and out with an mbarrier.
#include <cuda_pipeline.h>
extern "C" __global__ void async_copies(int* out, int* bulk, const int* in, int stages) {
    __shared__ alignas(16) int buffer[2][128];
    __shared__ alignas(128) int block[128];
    __shared__ alignas(8) unsigned long long barrier;
    int i = threadIdx.x, sum = 0;
    for (int s = 0; s <= stages; s++) {
        if (s < stages) {
            __pipeline_memcpy_async(&buffer[s % 2][i], in + s * 128 + i, 4, i % 4);
            __pipeline_commit();
        }
        if (s > 0) {
            if (s < stages) __pipeline_wait_prior(1);
            else __pipeline_wait_prior(0);
            __syncthreads();
            sum = sum * 3 + buffer[(s - 1) % 2][127 - i];
            __syncthreads();
        }
    }
    out[blockIdx.x * 128 + i] = sum;
    unsigned at = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(block);
    const int* from = in + blockIdx.x * 128;
    if (i == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (i == 0) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 512;" ::"r"(at));
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" ::"r"(to),
                     "l"(from), "r"(at));
    }
    unsigned long long state;
    int done = 0;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at));
    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(at), "l"(state) : "memory");
    int value = block[127 - i];
    __syncthreads();
    block[i] = value * 5 + i;
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();
    if (i == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" ::"l"(bulk + blockIdx.x * 128), "r"(to));
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;");
    }
}
