// sm_80's minima and maxima that hand NaN on, and with the sign exclusive-ored (sm_86).
extern "C" __global__ void min_max_nan(float* out, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i], r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    out[0 * n + i] = r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    out[1 * n + i] = r;
    asm("min.xorsign.abs.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    out[2 * n + i] = r;
    asm("max.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    out[3 * n + i] = r + 0.0f;
}
