// Functions that start from an approximate reciprocal and refine it.
extern "C" __global__ void math_f64_approx(double* out, const double* a, const double* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i];
    out[0 * n + i] = rsqrt(x);
    out[1 * n + i] = cbrt(x);
    out[2 * n + i] = tan(x);
    out[3 * n + i] = asin(x);
    out[4 * n + i] = acos(x);
    out[5 * n + i] = atan(x);
    out[6 * n + i] = cosh(x);
    out[7 * n + i] = tanh(x);
    out[8 * n + i] = asinh(x);
    out[9 * n + i] = acosh(x);
    out[10 * n + i] = atanh(x);
    out[11 * n + i] = log(x);
    out[12 * n + i] = log2(x);
    out[13 * n + i] = log10(x);
    out[14 * n + i] = log1p(x);
    out[15 * n + i] = erf(x);
    out[16 * n + i] = erfc(x);
    out[17 * n + i] = pow(x, y);
    out[18 * n + i] = hypot(x, y);
}
