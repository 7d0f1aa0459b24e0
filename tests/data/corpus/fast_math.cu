// Fast intrinsics and approximate instructions by themselves.
#define APPROX(k, op) asm(op " %0, %1;" : "=f"(r) : "f"(x)); out[(k) * n + i] = r
extern "C" __global__ void fast_math(float* out, float* rough, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i], p = fabsf(x), r;
    out[0 * n + i] = __sinf(x);
    out[1 * n + i] = __cosf(x);
    out[2 * n + i] = __expf(x);
    out[3 * n + i] = __exp10f(x);
    out[4 * n + i] = __logf(p);
    out[5 * n + i] = __log2f(p);
    out[6 * n + i] = __log10f(p);
    out[7 * n + i] = __powf(p, y);
    out[8 * n + i] = __fdividef(x, y);
    out[9 * n + i] = __saturatef(x);
    out[10 * n + i] = __frsqrt_rn(p);
    APPROX(11, "rcp.approx.f32");
    APPROX(12, "sqrt.approx.f32");
    APPROX(13, "rcp.approx.ftz.f32");
    APPROX(14, "ex2.approx.ftz.f32");
    APPROX(15, "lg2.approx.f32");
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    rough[i] = r;
}
