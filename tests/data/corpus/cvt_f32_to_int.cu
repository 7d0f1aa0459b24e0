// float to every integer width; PTX saturates and turns NaN to 0 (64-bit: to the sign bit).
#define SMALL(k, op) asm(op " %0, %1;" : "=r"(r) : "f"(x)); o32[(k) * n + i] = r
#define HALF(k, op) asm(op " %0, %1;" : "=h"(h) : "f"(x)); o32[(k) * n + i] = h
extern "C" __global__ void cvt_f32_to_int(int* o32, long long* o64, const float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i];
    int r;
    short h;
    o32[0 * n + i] = __float2int_rn(x);
    o32[1 * n + i] = __float2int_rz(x);
    o32[2 * n + i] = __float2int_ru(x);
    o32[3 * n + i] = __float2int_rd(x);
    o32[4 * n + i] = __float2uint_rn(x);
    o32[5 * n + i] = __float2uint_rz(x);
    o32[6 * n + i] = __float2uint_ru(x);
    o32[7 * n + i] = __float2uint_rd(x);
    SMALL(8, "cvt.rzi.s8.f32");
    SMALL(9, "cvt.rzi.u8.f32");
    HALF(10, "cvt.rni.s16.f32");
    HALF(11, "cvt.rpi.u16.f32");
    SMALL(12, "cvt.rni.ftz.s32.f32");
    o64[0 * n + i] = __float2ll_rn(x);
    o64[1 * n + i] = __float2ll_rz(x);
    o64[2 * n + i] = __float2ll_ru(x);
    o64[3 * n + i] = __float2ll_rd(x);
    o64[4 * n + i] = __float2ull_rn(x);
    o64[5 * n + i] = __float2ull_rz(x);
    o64[6 * n + i] = __float2ull_ru(x);
    o64[7 * n + i] = __float2ull_rd(x);
}
