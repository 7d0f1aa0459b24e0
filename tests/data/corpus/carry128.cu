// 128-bit sums, differences and products with the carry flag.
typedef unsigned long long ull;
extern "C" __global__ void carry128(ull* out, unsigned* out32, const ull* a, const ull* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    ull al = a[i], ah = a[(i + 1) % n], bl = b[i], bh = b[(i + 1) % n], lo, hi;
    asm("add.cc.u64 %0, %2, %4; addc.u64 %1, %3, %5;" : "=&l"(lo), "=l"(hi) : "l"(al), "l"(ah), "l"(bl), "l"(bh));
    out[0 * n + i] = lo;
    out[1 * n + i] = hi;
    asm("sub.cc.u64 %0, %2, %4; subc.u64 %1, %3, %5;" : "=&l"(lo), "=l"(hi) : "l"(al), "l"(ah), "l"(bl), "l"(bh));
    out[2 * n + i] = lo;
    out[3 * n + i] = hi;
    asm("mul.lo.u64 %0, %2, %4; mul.hi.u64 %1, %2, %4; mad.lo.u64 %1, %2, %5, %1; mad.lo.u64 %1, %3, %4, %1;"
        : "=&l"(lo), "=&l"(hi) : "l"(al), "l"(ah), "l"(bl), "l"(bh));
    out[4 * n + i] = lo;
    out[5 * n + i] = hi;
    unsigned x0 = al, x1 = al >> 32, y0 = bl, y1 = bl >> 32, r0, r1, r2, r3;
    asm("{ mul.lo.u32 %0, %4, %6; mul.hi.u32 %1, %4, %6;"
        " mad.lo.cc.u32 %1, %4, %7, %1; madc.hi.u32 %2, %4, %7, 0;"
        " mad.lo.cc.u32 %1, %5, %6, %1; madc.hi.cc.u32 %2, %5, %6, %2; addc.u32 %3, 0, 0;"
        " mad.lo.cc.u32 %2, %5, %7, %2; madc.hi.u32 %3, %5, %7, %3; }"
        : "=&r"(r0), "=&r"(r1), "=&r"(r2), "=&r"(r3) : "r"(x0), "r"(x1), "r"(y0), "r"(y1));
    out32[0 * n + i] = r0;
    out32[1 * n + i] = r1;
    out32[2 * n + i] = r2;
    out32[3 * n + i] = r3;
    __int128 wide = (__int128)(long long)al * (long long)bl;
    out[6 * n + i] = (ull)(wide >> 64);
    out[7 * n + i] = (ull)((unsigned __int128)al * bl >> 61);
}
