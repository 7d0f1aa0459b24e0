// Conversions of float and half to e4m3 and e5m2 and back, and of float to tf32.
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void fp8_convert(unsigned short* small, __half* back, unsigned* tf32, const float* a,
                                       const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float2 pair = make_float2(a[i], b[i]);
    __half2 half = __floats2half2_rn(a[i], b[i]);
    small[0 * n + i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    small[1 * n + i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E5M2);
    small[2 * n + i] = __nv_cvt_halfraw2_to_fp8x2(half, __NV_SATFINITE, __NV_E4M3);
    small[3 * n + i] = __nv_cvt_halfraw2_to_fp8x2(half, __NV_SATFINITE, __NV_E5M2);
    unsigned short code = i * 257u ^ 0x5a;
    back[0 * n + i] = __half2(__nv_cvt_fp8x2_to_halfraw2(code, __NV_E4M3)).x;
    back[1 * n + i] = __half2(__nv_cvt_fp8x2_to_halfraw2(code, __NV_E5M2)).y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32[0 * n + i]) : "f"(a[i]));
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(tf32[1 * n + i]) : "f"(a[i]));
    asm("cvt.rz.relu.tf32.f32 %0, %1;" : "=r"(tf32[2 * n + i]) : "f"(b[i]));
}
