// Every rounding mode of double arithmetic; one operation a row, so nothing can be contracted.
#define ROUNDED(k, m)                                  \
    out[((k) + 0) * n + i] = __dadd_##m(x, y);        \
    out[((k) + 1) * n + i] = __dsub_##m(x, y);        \
    out[((k) + 2) * n + i] = __dmul_##m(x, y);        \
    out[((k) + 3) * n + i] = __ddiv_##m(x, y);        \
    out[((k) + 4) * n + i] = __fma_##m(x, y, z);        \
    out[((k) + 5) * n + i] = __drcp_##m(x);           \
    out[((k) + 6) * n + i] = __dsqrt_##m(x)
extern "C" __global__ void f64_arith(double* out, const double* a, const double* b, const double* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i], z = c[i];
    ROUNDED(0, rn);
    ROUNDED(7, rz);
    ROUNDED(14, ru);
    ROUNDED(21, rd);
}
