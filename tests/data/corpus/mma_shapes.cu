// The shapes and types of mma that matrices.cu leaves out. Whole numbers: sums are exact in every order.
#define SHAPE(shape, types) "mma.sync.aligned." shape ".row.col." types " "
template <class To>
__device__ void numbers_of(To* to, const signed char* numbers, int count) {
    for (int k = 0; k < count; k++) to[k] = numbers[k];
}
// Of fp8 each thread has six words: four of A, two of B.
#define FP8(types, d, w)                                                                                        \
    asm volatile(SHAPE("m16n8k32", types) "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"               \
                 : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])                                       \
                 : "r"((w)[0]), "r"((w)[1]), "r"((w)[2]), "r"((w)[3]), "r"((w)[4]), "r"((w)[5]))
#define S8_SMALL(types, d, w)                                              \
    asm volatile(SHAPE("m8n8k16", types) "{%0,%1}, {%2}, {%3}, {%0,%1};"   \
                 : "+r"((d)[0]), "+r"((d)[1]) : "r"((w)[0]), "r"((w)[1]))
#define S8(types, d, w)                                                                          \
    asm volatile(SHAPE("m16n8k16", types) "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"         \
                 : "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3])                        \
                 : "r"((w)[0]), "r"((w)[1]), "r"((w)[2]))
extern "C" __global__ void mma_shapes(float* floats, unsigned* halves, int* whole, double* doubles,
                                      const signed char* numbers, const unsigned* f16, const unsigned* e4m3,
                                      const unsigned* e5m2, const unsigned* s8) {
    int i = threadIdx.x, n = blockDim.x;
    const signed char* own = numbers + 16 * i;
    float d[3][4], t[3];
    for (int k = 0; k < 12; k++) d[k / 4][k % 4] = own[k];
    numbers_of(t, own + 5, 3);
    asm volatile(SHAPE("m16n8k4", "f32.tf32.tf32.f32") "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
                 : "r"(__float_as_uint(t[0])), "r"(__float_as_uint(t[1])), "r"(__float_as_uint(t[2])));
    FP8("f32.e4m3.e4m3.f32", d[1], e4m3 + 6 * i);
    FP8("f32.e5m2.e5m2.f32", d[2], e5m2 + 6 * i);
    for (int k = 0; k < 12; k++) floats[k * n + i] = d[k / 4][k % 4];
    const unsigned* w = f16 + 6 * i;
    unsigned h[2] = {f16[i], f16[i + 1]};
    asm volatile(SHAPE("m16n8k16", "f16.f16.f16.f16") "{%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                 : "+r"(h[0]), "+r"(h[1]) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(w[4]), "r"(w[5]));
    for (int k = 0; k < 2; k++) halves[k * n + i] = h[k];
    int q[16];
    for (int k = 0; k < 16; k++) q[k] = k < 12 ? own[k] : k % 2 ? -2147483600 : 2147483600;
    w = s8 + 3 * i;
    S8_SMALL("s32.s8.s8.s32", q, w);
    S8_SMALL("s32.u8.s8.s32", q + 2, w);
    S8("s32.s8.s8.s32", q + 4, w);
    S8("s32.u8.u8.s32", q + 8, w);
    S8("satfinite.s32.s8.u8.s32", q + 12, w);
    for (int k = 0; k < 16; k++) whole[k * n + i] = q[k];
    double e[8], a[12];
    numbers_of(e, own, 8);
    numbers_of(a, own + 3, 12);
    asm volatile(SHAPE("m16n8k4", "f64.f64.f64.f64") "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+d"(e[0]), "+d"(e[1]), "+d"(e[2]), "+d"(e[3]) : "d"(a[0]), "d"(a[1]), "d"(a[2]));
    asm volatile(SHAPE("m16n8k16", "f64.f64.f64.f64")
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};"
                 : "+d"(e[4]), "+d"(e[5]), "+d"(e[6]), "+d"(e[7])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
                   "d"(a[8]), "d"(a[9]), "d"(a[10]), "d"(a[11]));
    for (int k = 0; k < 8; k++) doubles[k * n + i] = e[k];
}
