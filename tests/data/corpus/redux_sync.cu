// Warp-wide reductions in one instruction (sm_80 on), over full and partial masks.
extern "C" __global__ void redux_sync(int* so, unsigned* uo, const int* a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x, lane = threadIdx.x & 31;
    int x = a[i];
    unsigned u = x;
    so[0 * n + i] = __reduce_add_sync(~0u, x);
    so[1 * n + i] = __reduce_min_sync(~0u, x);
    so[2 * n + i] = __reduce_max_sync(~0u, x);
    uo[0 * n + i] = __reduce_add_sync(~0u, u);
    uo[1 * n + i] = __reduce_min_sync(~0u, u);
    uo[2 * n + i] = __reduce_max_sync(~0u, u);
    uo[3 * n + i] = __reduce_and_sync(~0u, u | 0xff);
    uo[4 * n + i] = __reduce_or_sync(~0u, u & 0xf0f0);
    uo[5 * n + i] = __reduce_xor_sync(~0u, u);
    if (lane % 3 == 0)
        uo[6 * n + i] = __reduce_max_sync(0x49249249u, u);
    else
        uo[6 * n + i] = __reduce_xor_sync(~0x49249249u, u);
}
