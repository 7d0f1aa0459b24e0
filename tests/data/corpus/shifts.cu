// Shifts by any amount: PTX clamps, C++ leaves this undefined, hence assembly.
#define A32(k, op) asm(op " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(c)); o32[(k) * n + i] = r
#define A64(k, op) asm(op " %0, %1, %2;" : "=l"(q) : "l"(y), "r"(c)); o64[(k) * n + i] = q
#define A16(k, op) asm(op " %0, %1, %2;" : "=h"(h) : "h"(z), "r"(c)); o32[(k) * n + i] = h
extern "C" __global__ void shifts(unsigned* o32, unsigned long long* o64, const unsigned long long* a,
                                  const unsigned* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long y = a[i], q;
    unsigned x = y, c = b[i], r;
    unsigned short z = y, h;
    A32(0, "shl.b32");
    A32(1, "shr.u32");
    A32(2, "shr.s32");
    A16(3, "shl.b16");
    A16(4, "shr.u16");
    A16(5, "shr.s16");
    o32[6 * n + i] = __funnelshift_l(x, (unsigned)(y >> 32), c);
    o32[7 * n + i] = __funnelshift_r(x, (unsigned)(y >> 32), c);
    o32[8 * n + i] = __funnelshift_lc(x, (unsigned)(y >> 32), c);
    o32[9 * n + i] = __funnelshift_rc(x, (unsigned)(y >> 32), c);
    A64(0, "shl.b64");
    A64(1, "shr.u64");
    A64(2, "shr.s64");
}
