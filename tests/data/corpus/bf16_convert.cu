// Conversions of bfloat16 from and to doubles and integers.
#include <cuda_bf16.h>
extern "C" __global__ void bf16_convert(__nv_bfloat16* out, int* whole, long long* wide, const double* a,
                                        const long long* b, const __nv_bfloat16* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = b[i];
    out[0 * n + i] = __double2bfloat16(a[i]);
    out[1 * n + i] = __ll2bfloat16_rn(x);
    out[2 * n + i] = __ll2bfloat16_rz(x);
    out[3 * n + i] = __ull2bfloat16_ru(x);
    out[4 * n + i] = __int2bfloat16_rd((int)x);
    out[5 * n + i] = __uint2bfloat16_rn((unsigned)x);
    out[6 * n + i] = __short2bfloat16_rn((short)x);
    out[7 * n + i] = __ushort2bfloat16_rz((unsigned short)x);
    whole[0 * n + i] = __bfloat162short_rn(c[i]);
    whole[1 * n + i] = __bfloat162ushort_rd(c[i]);
    whole[2 * n + i] = __bfloat162int_ru(c[i]);
    whole[3 * n + i] = __bfloat162uint_rz(c[i]);
    wide[0 * n + i] = __bfloat162ll_rn(c[i]);
    wide[1 * n + i] = __bfloat162ull_rz(c[i]);
}
