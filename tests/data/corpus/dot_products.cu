// dp4a and dp2a, signed and unsigned.
extern "C" __global__ void dot_products(int* out, const int* a, const int* b, const int* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i], z = c[i];
    out[0 * n + i] = __dp4a(x, y, z);
    out[1 * n + i] = __dp4a((unsigned)x, (unsigned)y, (unsigned)z);
    out[2 * n + i] = __dp2a_lo(x, y, z);
    out[3 * n + i] = __dp2a_hi(x, y, z);
    out[4 * n + i] = __dp2a_lo((unsigned)x, (unsigned)y, (unsigned)z);
    int r;
    asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    out[5 * n + i] = r;
    asm("dp2a.hi.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    out[6 * n + i] = r;
}
