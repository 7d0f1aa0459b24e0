// Integers of every width to float and double, with the rounding modes where the result is inexact.
#define ROUNDED(k, m)                                              \
    f[((k) + 0) * n + i] = __int2float_##m((int)x);                  \
    f[((k) + 1) * n + i] = __uint2float_##m((unsigned)x);            \
    f[((k) + 2) * n + i] = __ll2float_##m(x);                        \
    f[((k) + 3) * n + i] = __ull2float_##m((unsigned long long)x);   \
    d[((k) / 2 + 0) * n + i] = __ll2double_##m(x);                   \
    d[((k) / 2 + 1) * n + i] = __ull2double_##m((unsigned long long)x)
extern "C" __global__ void cvt_int_to_float(float* f, double* d, const long long* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = a[i];
    ROUNDED(0, rn);
    ROUNDED(4, rz);
    ROUNDED(8, ru);
    ROUNDED(12, rd);
    f[16 * n + i] = (signed char)x;
    f[17 * n + i] = (unsigned char)x;
    f[18 * n + i] = (short)x;
    f[19 * n + i] = (unsigned short)x;
    d[8 * n + i] = (int)x;
    d[9 * n + i] = (unsigned)x;
    d[10 * n + i] = (short)x;
    d[11 * n + i] = (unsigned char)x;
}
