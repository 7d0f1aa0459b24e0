// Products of matrices of bits: mma of all shapes, and wmma with its loads and its store.
#define PAIR(k, op) \
    asm volatile("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32." op ".popc {%0,%1}, {%2}, {%3}, {%4,%5};" \
                 : "=r"(d[0]), "=r"(d[1]) : "r"(a[i]), "r"(b[i]), "r"(c[i]), "r"(c[32 + i])); \
    for (int e = 0; e < 2; e++) out[(k + e) * 32 + i] = d[e]
#define FOUR(k, op) \
    asm volatile("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32." op ".popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};" \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
                 : "r"(a[i]), "r"(a[32 + i]), "r"(b[i]), "r"(c[i]), "r"(c[32 + i]), "r"(c[64 + i]), "r"(c[96 + i])); \
    for (int e = 0; e < 4; e++) out[(k + e) * 32 + i] = d[e]
#define LONG(k, op) \
    asm volatile("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32." op ".popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
                 : "r"(a[i]), "r"(a[32 + i]), "r"(a[64 + i]), "r"(a[96 + i]), "r"(b[i]), "r"(b[32 + i]), \
                   "r"(c[i]), "r"(c[32 + i]), "r"(c[64 + i]), "r"(c[96 + i])); \
    for (int e = 0; e < 4; e++) out[(k + e) * 32 + i] = d[e]
#define WARP(k, op) \
    asm volatile("wmma.mma." op ".popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%0,%1}, {%2}, {%3}, {%4,%5};" \
                 : "=r"(d[0]), "=r"(d[1]) : "r"(left), "r"(right), "r"(s[0]), "r"(s[1])); \
    asm volatile("wmma.store.d.sync.aligned.row.m8n8k128.s32 [%0], {%1,%2}, %3;" \
                 ::"l"(out + (k) * 32), "r"(d[0]), "r"(d[1]), "r"(8))
extern "C" __global__ void bit_products(int* out, const unsigned* a, const unsigned* b, const int* c) {
    int i = threadIdx.x, d[4], s[2];
    unsigned left, right;
    PAIR(0, "xor");
    PAIR(2, "and");
    FOUR(4, "xor");
    FOUR(8, "and");
    LONG(12, "xor");
    LONG(16, "and");
    // Rows 256 bits apart, and columns with none between them; sums by columns, 16 apart.
    asm volatile("wmma.load.a.sync.aligned.row.m8n8k128.b1 {%0}, [%1], %2;" : "=r"(left) : "l"(a), "r"(256));
    asm volatile("wmma.load.b.sync.aligned.col.m8n8k128.b1 {%0}, [%1];" : "=r"(right) : "l"(b));
    asm volatile("wmma.load.c.sync.aligned.col.m8n8k128.s32 {%0,%1}, [%2], %3;"
                 : "=r"(s[0]), "=r"(s[1]) : "l"(c), "r"(16));
    WARP(20, "xor");
    WARP(22, "and");
}
