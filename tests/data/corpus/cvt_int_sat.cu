// Narrowing between integers, saturating and not, and sign or zero extension.
#define S32(k, op) asm(op " %0, %1;" : "=r"(r) : "r"(x)); out[(k) * n + i] = r
#define S64(k, op) asm(op " %0, %1;" : "=r"(r) : "l"(y)); out[(k) * n + i] = r
extern "C" __global__ void cvt_int_sat(int* out, long long* wide, const long long* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long y = a[i];
    int x = (int)y, r;
    S32(0, "cvt.sat.s8.s32");
    S32(1, "cvt.sat.u8.s32");
    S32(2, "cvt.sat.u8.u32");
    S32(3, "cvt.sat.s8.u32");
    S32(4, "cvt.sat.u32.s32");
    S32(5, "cvt.sat.s32.u32");
    S64(6, "cvt.sat.s32.s64");
    S64(7, "cvt.sat.u32.s64");
    S64(8, "cvt.sat.u32.u64");
    S64(9, "cvt.sat.s8.s64");
    S32(10, "cvt.s32.s8");
    S32(11, "cvt.u32.u8");
    S64(12, "cvt.s32.s16");
    S64(13, "cvt.u32.u64");
    asm("add.sat.s32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"((int)(y >> 32)));
    out[14 * n + i] = r;
    asm("sub.sat.s32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"((int)(y >> 32)));
    out[15 * n + i] = r;
    wide[0 * n + i] = (signed char)y;
    wide[1 * n + i] = (unsigned short)y;
    wide[2 * n + i] = (int)y;
    wide[3 * n + i] = (unsigned)y;
}
