// The gamma functions and a Bessel function: long code with many branches.
extern "C" __global__ void math_f32_gamma(float* out, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    out[0 * n + i] = lgammaf(x);
    out[1 * n + i] = tgammaf(x);
    out[2 * n + i] = j0f(x);
    (void)y;
}
