// Floating-point instructions that C++ seldom makes: tests, sets, saturation, flushing.
#define F2(k, op) asm(op " %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); out[(k) * n + i] = r
#define TEST(k, op) asm("{ .reg .pred p; testp." op ".f32 p, %1; selp.s32 %0, 1, 0, p; }" : "=r"(t) : "f"(x)); f |= t << (k)
#define SETP(k, op) asm("{ .reg .pred p; setp." op ".f32 p, %1, %2; selp.s32 %0, 1, 0, p; }" \
                        : "=r"(t) : "f"(x), "f"(y)); f |= t << (k)
extern "C" __global__ void asm_float(float* out, int* flags, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i], r;
    int f = 0, t;
    F2(0, "copysign.f32");
    F2(1, "add.rn.ftz.f32");
    F2(2, "mul.rn.sat.f32");
    F2(3, "add.rz.sat.f32");
    F2(4, "mul.rp.ftz.f32");
    F2(5, "div.rn.ftz.f32");
    F2(6, "set.ge.f32.f32");
    F2(7, "set.neu.ftz.f32.f32");
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %1;" : "=f"(r) : "f"(x), "f"(y));
    out[8 * n + i] = r;
    asm("slct.f32.f32 %0, %1, %2, %2;" : "=f"(r) : "f"(x), "f"(y));
    out[9 * n + i] = r;
    asm("sqrt.rn.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    out[10 * n + i] = r;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, lo}; }" : "=f"(r) : "f"(x));
    out[11 * n + i] = r;
    TEST(0, "finite");
    TEST(1, "infinite");
    TEST(2, "number");
    TEST(3, "notanumber");
    TEST(4, "normal");
    TEST(5, "subnormal");
    SETP(6, "equ");
    SETP(7, "neu");
    SETP(8, "ltu");
    SETP(9, "leu");
    SETP(10, "gtu");
    SETP(11, "geu");
    SETP(12, "num");
    SETP(13, "nan");
    SETP(14, "lt.ftz");
    asm("{ .reg .pred p, q, c; setp.lt.s32 c, %3, 64; setp.gt.and.f32 p|q, %1, %2, c; selp.s32 %0, 1, 0, p;"
        " @q add.s32 %0, %0, 2; }" : "=&r"(t) : "f"(x), "f"(y), "r"(i & 127));
    f |= t << 15;
    flags[i] = f;
}
