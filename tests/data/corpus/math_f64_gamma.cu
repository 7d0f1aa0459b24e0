// The gamma functions and a Bessel function, in double.
extern "C" __global__ void math_f64_gamma(double* out, const double* a, const double* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i];
    out[0 * n + i] = lgamma(x);
    out[1 * n + i] = tgamma(x);
    out[2 * n + i] = j0(x);
    out[3 * n + i] = erfinv(x);
    out[4 * n + i] = normcdf(x);
    (void)y;
}
