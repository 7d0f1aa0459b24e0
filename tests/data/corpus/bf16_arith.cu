// bfloat16 arithmetic with sm_90's own instructions.
#include <cuda_bf16.h>
extern "C" __global__ void bf16_arith(__nv_bfloat16* out, float* wide, int* flags, const __nv_bfloat16* a,
                                      const __nv_bfloat16* b, const __nv_bfloat16* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 x = a[i], y = b[i], z = c[i];
    out[0 * n + i] = __hadd_rn(x, y);
    out[1 * n + i] = __hsub_rn(x, y);
    out[2 * n + i] = __hmul_rn(x, y);
    out[3 * n + i] = __hfma(x, y, z);
    out[4 * n + i] = __hfma_relu(x, y, z);
    out[5 * n + i] = __hneg(x);
    out[6 * n + i] = __habs(x);
    out[7 * n + i] = __float2bfloat16_rn(__bfloat162float(x) / 3.0f);
    out[8 * n + i] = __float2bfloat16_rz(__bfloat162float(x) / 3.0f);
    __nv_bfloat162 p = __hfma2(__halves2bfloat162(x, y), __halves2bfloat162(y, z), __halves2bfloat162(z, x));
    out[9 * n + i] = __low2bfloat16(p);
    out[10 * n + i] = __high2bfloat16(p);
    wide[i] = __bfloat162float(x);
    flags[i] = __heq(x, y) | __hne(x, y) << 1 | __hlt(x, y) << 2 | __hge(x, y) << 3 | __hisnan(x) << 4;
}
