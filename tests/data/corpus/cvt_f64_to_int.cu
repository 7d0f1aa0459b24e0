// double to every integer width.
#define SMALL(k, op) asm(op " %0, %1;" : "=r"(r) : "d"(x)); o32[(k) * n + i] = r
#define HALF(k, op) asm(op " %0, %1;" : "=h"(h) : "d"(x)); o32[(k) * n + i] = h
extern "C" __global__ void cvt_f64_to_int(int* o32, long long* o64, const double* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i];
    int r;
    short h;
    o32[0 * n + i] = __double2int_rn(x);
    o32[1 * n + i] = __double2int_rz(x);
    o32[2 * n + i] = __double2int_ru(x);
    o32[3 * n + i] = __double2int_rd(x);
    o32[4 * n + i] = __double2uint_rn(x);
    o32[5 * n + i] = __double2uint_rz(x);
    o32[6 * n + i] = __double2uint_ru(x);
    o32[7 * n + i] = __double2uint_rd(x);
    SMALL(8, "cvt.rzi.s8.f64");
    SMALL(9, "cvt.rzi.u8.f64");
    HALF(10, "cvt.rni.s16.f64");
    HALF(11, "cvt.rpi.u16.f64");
    o32[12 * n + i] = __double2hiint(x);
    o32[13 * n + i] = __double2loint(x);
    o64[0 * n + i] = __double2ll_rn(x);
    o64[1 * n + i] = __double2ll_rz(x);
    o64[2 * n + i] = __double2ll_ru(x);
    o64[3 * n + i] = __double2ll_rd(x);
    o64[4 * n + i] = __double2ull_rn(x);
    o64[5 * n + i] = __double2ull_rz(x);
    o64[6 * n + i] = __double2ull_ru(x);
    o64[7 * n + i] = __double2ull_rd(x);
}
