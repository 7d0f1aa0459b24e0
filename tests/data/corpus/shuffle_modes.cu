// Every shuffle over every width, of 32 and 64 bits; lanes out of range keep their own value.
extern "C" __global__ void shuffle_modes(int* out, double* wide, const int* a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x, x = a[i], k = 0;
    for (int width = 2; width <= 32; width *= 2, k += 4) {
        out[(k + 0) * n + i] = __shfl_sync(~0u, x, x & 31, width);
        out[(k + 1) * n + i] = __shfl_up_sync(~0u, x, width / 4 + 1, width);
        out[(k + 2) * n + i] = __shfl_down_sync(~0u, x, width / 4 + 1, width);
        out[(k + 3) * n + i] = __shfl_xor_sync(~0u, x, width - 1, width);
    }
    wide[0 * n + i] = __shfl_sync(~0u, x * 0.1, 5);
    wide[1 * n + i] = __shfl_xor_sync(~0u, x * 0.1, 17);
    int r, p;
    asm volatile("{ .reg .pred q; shfl.sync.down.b32 %0|q, %2, 7, 31, 0xffffffff; selp.s32 %1, 1, 0, q; }"
                 : "=r"(r), "=r"(p) : "r"(x));
    out[20 * n + i] = r;
    out[21 * n + i] = p;
}
