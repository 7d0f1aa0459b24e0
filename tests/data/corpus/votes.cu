// Votes, ballots and counting barriers, with full and partial masks.
extern "C" __global__ void votes(unsigned* out, const int* a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x, lane = threadIdx.x & 31, x = a[i];
    unsigned odd = __ballot_sync(~0u, x & 1);
    out[0 * n + i] = odd;
    out[1 * n + i] = __all_sync(~0u, x > -90) | __any_sync(~0u, x > 95) << 1;
    out[2 * n + i] = __popc(odd & ((1u << lane) - 1));
    if (lane >= 20)
        out[3 * n + i] = __ballot_sync(0xfff00000u, x > 0);
    else
        out[3 * n + i] = __all_sync(0x000fffffu, x < 99) + 2 * __any_sync(0x000fffffu, x > 90);
    int u;
    asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, 0; vote.sync.uni.pred q, p, 0xffffffff; "
                 "selp.s32 %0, 1, 0, q; }" : "=r"(u) : "r"(threadIdx.x < 32 ? 1 : x));
    out[4 * n + i] = u;
    out[5 * n + i] = __syncthreads_count(x & 2);
    out[6 * n + i] = (__syncthreads_and(x > -100) != 0) | (__syncthreads_or(x > 97) != 0) << 1;
}
