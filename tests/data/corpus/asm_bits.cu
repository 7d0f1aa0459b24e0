// Integer instructions that C++ seldom makes.
#define U2(k, op) asm(op " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)); out[(k) * n + i] = r
#define U1(k, op) asm(op " %0, %1;" : "=r"(r) : "r"(x)); out[(k) * n + i] = r
#define U3(k, op) asm(op " %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); out[(k) * n + i] = r
#define LUT(k, lut) asm("lop3.b32 %0, %1, %2, %3, " lut ";" : "=r"(r) : "r"(x), "r"(y), "r"(z)); out[(k) * n + i] = r
#define BF(k, op) asm(op " %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(p), "r"(q)); out[(k) * n + i] = r
extern "C" __global__ void asm_bits(unsigned* out, unsigned long long* wide, const unsigned* a, const unsigned* b,
                                    const unsigned* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i], z = c[i], p = y & 63, q = z & 63, r;
    unsigned long long w = (unsigned long long)x << 32 | y, v;
    U1(0, "bfind.u32");
    U1(1, "bfind.s32");
    U1(2, "bfind.shiftamt.u32");
    U1(3, "bfind.shiftamt.s32");
    asm("bfind.u64 %0, %1;" : "=r"(r) : "l"(w));
    out[4 * n + i] = r;
    asm("bfind.s64 %0, %1;" : "=r"(r) : "l"(w));
    out[5 * n + i] = r;
    BF(6, "bfe.u32");
    BF(7, "bfe.s32");
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(x), "r"(z), "r"(p), "r"(q));
    out[8 * n + i] = r;
    LUT(9, "0x80");
    LUT(10, "0xca");
    LUT(11, "0x96");
    LUT(12, "0x1b");
    U3(13, "prmt.b32");
    U3(14, "prmt.b32.f4e");
    U3(15, "prmt.b32.b4e");
    U3(16, "prmt.b32.rc8");
    U3(17, "prmt.b32.ecl");
    U3(18, "prmt.b32.ecr");
    U3(19, "prmt.b32.rc16");
    U3(20, "sad.u32");
    U3(21, "sad.s32");
    U3(22, "slct.u32.s32");
    U2(23, "set.gt.u32.s32");
    U2(24, "set.lo.u32.u32");
    U3(25, "shf.l.clamp.b32");
    U3(26, "shf.r.wrap.b32");
    U3(27, "mad.hi.s32");
    U3(28, "mad24.lo.u32");
    U2(29, "mul24.hi.s32");
    asm("cnot.b32 %0, %1;" : "=r"(r) : "r"(x & (y & 3)));
    out[30 * n + i] = r;
    U3(31, "mad.hi.sat.s32");
    U1(32, "abs.s32");
    asm("bfe.u64 %0, %1, %2, %3;" : "=l"(v) : "l"(w), "r"(p), "r"(q));
    wide[0 * n + i] = v;
    asm("bfe.s64 %0, %1, %2, %3;" : "=l"(v) : "l"(w), "r"(p), "r"(q));
    wide[1 * n + i] = v;
    asm("bfi.b64 %0, %1, %2, %3, %4;" : "=l"(v) : "l"(w), "l"(~w * 3), "r"(p), "r"(q));
    wide[2 * n + i] = v;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(v) : "r"(x), "r"(y));
    wide[3 * n + i] = v;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(v) : "r"(x), "r"(y), "l"(w));
    wide[4 * n + i] = v;
    asm("mul.wide.s16 %0, %1, %2;" : "=r"(r) : "h"((short)x), "h"((short)y));
    wide[5 * n + i] = r;
    asm("mov.b64 %0, {%1, %2};" : "=l"(v) : "r"(y), "r"(z));
    wide[6 * n + i] = v;
}
