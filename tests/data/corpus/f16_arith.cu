// Half precision, scalar and packed, from the toolkit's header.
#include <cuda_fp16.h>
extern "C" __global__ void f16_arith(__half* out, float* wide, int* flags, const __half* a, const __half* b,
                                     const __half* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half x = a[i], y = b[i], z = c[i];
    out[0 * n + i] = __hadd_rn(x, y);
    out[1 * n + i] = __hsub_rn(x, y);
    out[2 * n + i] = __hmul_rn(x, y);
    out[3 * n + i] = __hfma(x, y, z);
    out[4 * n + i] = __hadd_sat(x, y);
    out[5 * n + i] = __hneg(x);
    out[6 * n + i] = __habs(x);
    __half2 p = __hfma2(__halves2half2(x, y), __halves2half2(y, z), __halves2half2(z, x));
    out[7 * n + i] = __low2half(p);
    out[8 * n + i] = __high2half(p);
    out[9 * n + i] = __float2half_rn(__half2float(x) / 3.0f);
    out[10 * n + i] = __int2half_rn(__half2int_rz(x));
    out[11 * n + i] = __hfma_sat(x, y, z);
    wide[0 * n + i] = __half2float(x);
    wide[1 * n + i] = __half2float(__hmul_rn(x, y));
    flags[i] = __heq(x, y) | __hne(x, y) << 1 | __hlt(x, y) << 2 | __hle(x, y) << 3 | __hgt(x, y) << 4 |
               __hge(x, y) << 5 | __hisnan(x) << 6 | __hltu(x, y) << 7 | __hequ(x, y) << 8;
}
