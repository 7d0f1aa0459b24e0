// Functions whose code has no approximate instruction (or, for the remainders, an exact result).
extern "C" __global__ void math_f32(float* out, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    out[0 * n + i] = sqrtf(x);
    out[1 * n + i] = sinf(x);
    out[2 * n + i] = cosf(x);
    out[3 * n + i] = logf(x);
    out[4 * n + i] = log2f(x);
    out[5 * n + i] = log10f(x);
    out[6 * n + i] = log1pf(x);
    out[7 * n + i] = sinpif(x);
    out[8 * n + i] = cospif(x);
    out[9 * n + i] = floorf(x);
    out[10 * n + i] = ceilf(x);
    out[11 * n + i] = truncf(x);
    out[12 * n + i] = rintf(x);
    out[13 * n + i] = roundf(x);
    out[14 * n + i] = logbf(x);
    out[15 * n + i] = atan2f(x, y);
    out[16 * n + i] = hypotf(x, y);
    out[17 * n + i] = fdimf(x, y);
    out[18 * n + i] = fmodf(x, y);
    out[19 * n + i] = remainderf(x, y);
}
