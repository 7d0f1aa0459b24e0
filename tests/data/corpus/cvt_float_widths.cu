// Between float, double and half, and to integral values within one type.
#define F(k, op) asm(op " %0, %1;" : "=f"(r) : "f"(x)); f[(k) * n + i] = r
#define D(k, op) asm(op " %0, %1;" : "=d"(q) : "d"(y)); d[(k) * n + i] = q
#define H(k, op) asm(op " %0, %1;" : "=h"(t) : "f"(x)); h[(k) * n + i] = t
extern "C" __global__ void cvt_float_widths(float* f, double* d, unsigned short* h, const double* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double y = a[i], q;
    float r, x;
    unsigned short t;
    f[0 * n + i] = x = __double2float_rn(y);
    f[1 * n + i] = __double2float_rz(y);
    f[2 * n + i] = __double2float_ru(y);
    f[3 * n + i] = __double2float_rd(y);
    F(4, "cvt.rni.f32.f32");
    F(5, "cvt.rzi.f32.f32");
    F(6, "cvt.rmi.f32.f32");
    F(7, "cvt.rpi.f32.f32");
    F(8, "cvt.sat.f32.f32");
    F(9, "cvt.ftz.f32.f32");
    F(10, "abs.ftz.f32");
    F(11, "neg.f32");
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(t) : "f"(x));
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(t));
    f[12 * n + i] = r;
    D(0, "cvt.rni.f64.f64");
    D(1, "cvt.rzi.f64.f64");
    D(2, "cvt.rmi.f64.f64");
    D(3, "cvt.rpi.f64.f64");
    D(4, "cvt.sat.f64.f64");
    d[5 * n + i] = (double)x;
    d[6 * n + i] = rint(y) - floor(y);
    H(0, "cvt.rn.f16.f32");
    H(1, "cvt.rz.f16.f32");
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(t) : "d"(y));
    h[2 * n + i] = t;
}
