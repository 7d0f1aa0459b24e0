// Functions built on approximate instructions, which need not round as NumPy does.
extern "C" __global__ void math_f32_approx(float* out, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    out[0 * n + i] = rsqrtf(x);
    out[1 * n + i] = cbrtf(x);
    out[2 * n + i] = rcbrtf(x);
    out[3 * n + i] = tanf(x);
    out[4 * n + i] = asinf(x);
    out[5 * n + i] = acosf(x);
    out[6 * n + i] = atanf(x);
    out[7 * n + i] = sinhf(x);
    out[8 * n + i] = coshf(x);
    out[9 * n + i] = tanhf(x);
    out[10 * n + i] = asinhf(x);
    out[11 * n + i] = acoshf(x);
    out[12 * n + i] = atanhf(x);
    out[13 * n + i] = expf(x);
    out[14 * n + i] = exp2f(x);
    out[15 * n + i] = exp10f(x);
    out[16 * n + i] = expm1f(x);
    out[17 * n + i] = erff(x);
    out[18 * n + i] = erfcf(x);
    out[19 * n + i] = erfinvf(x);
    out[20 * n + i] = normcdff(x);
    out[21 * n + i] = powf(x, y);
}
