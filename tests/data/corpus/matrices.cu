// Products of matrices that warps hold, and ldmatrix and its kin. Small numbers: sums are exact in every order.
#define MMA(shape, types, d, a, b) \
    asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]) \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#define IMMA(types, d, a, b) \
    asm volatile("mma.sync.aligned.m16n8k32.row.col." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3]) \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
extern "C" __global__ void matrices(float* floats, unsigned* halves, int* whole, double* doubles, unsigned* moved,
                                    const unsigned* f16, const unsigned* bf16, const unsigned* tf32, const unsigned* fp8,
                                    const unsigned* s8, const double* f64) {
    __shared__ alignas(16) unsigned rows[2][128];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = threadIdx.x, n = blockDim.x;
    float d[4][4];
    for (int k = 0; k < 16; k++) d[k / 4][k % 4] = lane - k;
    MMA("m16n8k16", "f32.f16.f16.f32", d[0], f16 + 6 * i, f16 + 6 * i + 4);
    MMA("m16n8k16", "f32.bf16.bf16.f32", d[1], bf16 + 6 * i, bf16 + 6 * i + 4);
    MMA("m16n8k8", "f32.tf32.tf32.f32", d[2], tf32 + 6 * i, tf32 + 6 * i + 4);
    MMA("m16n8k32", "f32.e4m3.e5m2.f32", d[3], fp8 + 6 * i, fp8 + 6 * i + 4);
    for (int k = 0; k < 16; k++) floats[k * n + i] = d[k / 4][k % 4];
    unsigned h[2] = {0x3c003c00u, 0x40004000u};
    const unsigned* a = f16 + 6 * i;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%0,%1};"
                 : "+r"(h[0]), "+r"(h[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]));
    halves[i] = h[0];
    halves[n + i] = h[1];
    int w[4] = {i, -i, 2147483000, -2147483000}, v[4] = {0, 0, 2147483000, -2147483000};
    IMMA("s32.s8.s8.s32", w, s8 + 6 * i, s8 + 6 * i + 4);
    IMMA("satfinite.s32.s8.u8.s32", v, s8 + 6 * i, s8 + 6 * i + 4);
    for (int k = 0; k < 4; k++) whole[k * n + i] = w[k], whole[(4 + k) * n + i] = v[k];
    double e[2] = {1.0, -2.0}, g[4] = {0.5, 1.5, 2.5, 3.5};
    const double* f = f64 + 6 * i;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(e[0]), "+d"(e[1]) : "d"(f[0]), "d"(f[1]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+d"(g[0]), "+d"(g[1]), "+d"(g[2]), "+d"(g[3])
                 : "d"(f[0]), "d"(f[1]), "d"(f[2]), "d"(f[3]), "d"(f[4]), "d"(f[5]));
    for (int k = 0; k < 2; k++) doubles[k * n + i] = e[k];
    for (int k = 0; k < 4; k++) doubles[(2 + k) * n + i] = g[k];
    for (int k = 0; k < 4; k++) rows[warp][k * 32 + lane] = s8[6 * i + k];
    __syncwarp();
    unsigned at = __cvta_generic_to_shared(&rows[warp][(lane * 5) % 32 * 4]), r[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
    for (int k = 0; k < 4; k++) moved[k * n + i] = r[k];
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r[2]) : "r"(r[3]));
    for (int k = 0; k < 3; k++) moved[(4 + k) * n + i] = r[k];
    __syncwarp();
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(at), "r"(r[3]), "r"(r[0]));
    __syncwarp();
    for (int k = 0; k < 4; k++) moved[(7 + k) * n + i] = rows[warp][k * 32 + lane];
}
