// Bit tricks on 32 bits.
extern "C" __global__ void bits32(unsigned* out, const unsigned* a, const unsigned* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i], p = y & 31, w = (y >> 8) & 31;
    out[0 * n + i] = __popc(x);
    out[1 * n + i] = __clz(x);
    out[2 * n + i] = __ffs(x);
    out[3 * n + i] = __brev(x);
    out[4 * n + i] = __byte_perm(x, y, x >> 7);
    out[5 * n + i] = x << p | x >> ((32 - p) & 31);
    out[6 * n + i] = (x >> p) & ((1u << w) - 1);
    out[7 * n + i] = (int)(x << w) >> w;
    unsigned m = ((1u << w) - 1) << p;
    out[8 * n + i] = (x & ~m) | (y << p & m);
    out[9 * n + i] = (x & y) | (x & ~y & 0xf0f0f0f0u) | (~x & 0x0f0f0f0fu);
    out[10 * n + i] = __float_as_uint(__uint_as_float(x)) ^ y;
    out[11 * n + i] = (x >> 24) | (x >> 8 & 0xff00) | (x << 8 & 0xff0000) | x << 24;
    out[12 * n + i] = x & (0u - x);
    out[13 * n + i] = __popc(x ^ y) & 1 ? x : y;
}
