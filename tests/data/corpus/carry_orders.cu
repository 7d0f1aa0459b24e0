// The carry flag between two instructions of every kind, in every order, after one that makes a flag of the data.
typedef unsigned long long ull;
#define OP(name, T, d, a, b, c) name "." T " " d ", " a ", " b "; "
#define ADD_CC(T, d, a, b, c) OP("add.cc", T, d, a, b, c)
#define ADDC(T, d, a, b, c) OP("addc", T, d, a, b, c)
#define ADDC_CC(T, d, a, b, c) OP("addc.cc", T, d, a, b, c)
#define SUB_CC(T, d, a, b, c) OP("sub.cc", T, d, a, b, c)
#define SUBC(T, d, a, b, c) OP("subc", T, d, a, b, c)
#define SUBC_CC(T, d, a, b, c) OP("subc.cc", T, d, a, b, c)
#define MAD(name, T, d, a, b, c) name "." T " " d ", " a ", " b ", " c "; "
#define MAD_LO_CC(T, d, a, b, c) MAD("mad.lo.cc", T, d, a, b, c)
#define MAD_HI_CC(T, d, a, b, c) MAD("mad.hi.cc", T, d, a, b, c)
#define MADC_LO(T, d, a, b, c) MAD("madc.lo", T, d, a, b, c)
#define MADC_HI(T, d, a, b, c) MAD("madc.hi", T, d, a, b, c)
#define MADC_LO_CC(T, d, a, b, c) MAD("madc.lo.cc", T, d, a, b, c)
#define MADC_HI_CC(T, d, a, b, c) MAD("madc.hi.cc", T, d, a, b, c)
#define CHAIN(k, T, L, one, two) \
    asm("{ sub.cc." T " %0, %4, %5; " one(T, "%0", "%3", "%4", "%5") two(T, "%1", "%5", "%3", "%4") \
        "addc." T " %2, 0, 0; }" : "=&" L (p), "=&" L (q), "=&" L (r) : L (x), L (y), L (z)); \
    out[(8 + k) * 32 + i] = q; \
    flags |= (ull)(r & 1) << (k)
#define AFTER(k, T, L, one) \
    CHAIN(8 * k + 0, T, L, one, ADDC); \
    CHAIN(8 * k + 1, T, L, one, SUBC); \
    CHAIN(8 * k + 2, T, L, one, MADC_LO); \
    CHAIN(8 * k + 3, T, L, one, MADC_HI); \
    CHAIN(8 * k + 4, T, L, one, ADDC_CC); \
    CHAIN(8 * k + 5, T, L, one, SUBC_CC); \
    CHAIN(8 * k + 6, T, L, one, MADC_LO_CC); \
    CHAIN(8 * k + 7, T, L, one, MADC_HI_CC); \
    out[(k) * 32 + i] = p
#define ORDERS(name, word, T, L) \
    __device__ ull name(word* out, int i, word x, word y, word z) { \
        word p, q, r; \
        ull flags = 0; \
        AFTER(0, T, L, ADD_CC); \
        AFTER(1, T, L, ADDC_CC); \
        AFTER(2, T, L, SUB_CC); \
        AFTER(3, T, L, SUBC_CC); \
        AFTER(4, T, L, MAD_LO_CC); \
        AFTER(5, T, L, MAD_HI_CC); \
        AFTER(6, T, L, MADC_LO_CC); \
        AFTER(7, T, L, MADC_HI_CC); \
        return flags; \
    }
ORDERS(unsigned32, unsigned, "u32", "r")
ORDERS(signed32, unsigned, "s32", "r")
ORDERS(unsigned64, ull, "u64", "l")
ORDERS(signed64, ull, "s64", "l")
extern "C" __global__ void carry_orders(unsigned* words, ull* wide, ull* flags, unsigned* guarded, const unsigned* a,
                                        const unsigned* b, const unsigned* c, const ull* d, const ull* e,
                                        const ull* f) {
    int i = threadIdx.x;
    flags[i] = unsigned32(words, i, a[i], b[i], c[i]);
    flags[32 + i] = signed32(words + 72 * 32, i, a[i], b[i], c[i]);
    flags[64 + i] = unsigned64(wide, i, d[i], e[i], f[i]);
    flags[96 + i] = signed64(wide + 72 * 32, i, d[i], e[i], f[i]);
    unsigned p, q, r;
    asm("{ .reg .pred is; setp.lt.u32 is, %3, %4; add.cc.u32 %0, %3, %4; @is sub.cc.u32 %0, %5, %4; addc.u32 %1, 0, 0; "
        "@!is subc.cc.u32 %0, %3, %5; addc.u32 %2, 0, 0; }"
        : "=&r"(p), "=&r"(q), "=&r"(r) : "r"(a[i]), "r"(b[i]), "r"(c[i]));
    guarded[i] = p;
    guarded[32 + i] = 2 * q + r;
}
