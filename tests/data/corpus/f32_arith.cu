// Every rounding mode of float arithmetic; one operation a row, so nothing can be contracted.
#define ROUNDED(k, m)                                  \
    out[((k) + 0) * n + i] = __fadd_##m(x, y);        \
    out[((k) + 1) * n + i] = __fsub_##m(x, y);        \
    out[((k) + 2) * n + i] = __fmul_##m(x, y);        \
    out[((k) + 3) * n + i] = __fdiv_##m(x, y);        \
    out[((k) + 4) * n + i] = __fmaf_##m(x, y, z);        \
    out[((k) + 5) * n + i] = __frcp_##m(x);           \
    out[((k) + 6) * n + i] = __fsqrt_##m(x)
extern "C" __global__ void f32_arith(float* out, const float* a, const float* b, const float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i], z = c[i];
    ROUNDED(0, rn);
    ROUNDED(7, rz);
    ROUNDED(14, ru);
    ROUNDED(21, rd);
}
