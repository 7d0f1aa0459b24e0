// Packed bytes and half-words in one register.
extern "C" __global__ void simd_bytes(unsigned* out, const unsigned* a, const unsigned* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i];
    out[0 * n + i] = __vadd4(x, y);
    out[1 * n + i] = __vsub4(x, y);
    out[2 * n + i] = __vaddss4(x, y);
    out[3 * n + i] = __vaddus2(x, y);
    out[4 * n + i] = __vmaxs4(x, y);
    out[5 * n + i] = __vminu2(x, y);
    out[6 * n + i] = __vabsdiffu4(x, y);
    out[7 * n + i] = __vcmpeq4(x, y);
    out[8 * n + i] = __vcmpgts2(x, y);
    out[9 * n + i] = __vavgu4(x, y);
    out[10 * n + i] = __vsadu4(x, y);
    out[11 * n + i] = __vsetltu4(x, y);
}
