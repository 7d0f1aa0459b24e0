// Functions whose code has no approximate instruction.
extern "C" __global__ void math_f64(double* out, const double* a, const double* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i];
    out[0 * n + i] = sqrt(x);
    out[1 * n + i] = sin(x);
    out[2 * n + i] = cos(x);
    out[3 * n + i] = sinh(x);
    out[4 * n + i] = exp(x);
    out[5 * n + i] = exp2(x);
    out[6 * n + i] = exp10(x);
    out[7 * n + i] = expm1(x);
    out[8 * n + i] = sinpi(x);
    out[9 * n + i] = cospi(x);
    out[10 * n + i] = floor(x);
    out[11 * n + i] = ceil(x);
    out[12 * n + i] = trunc(x);
    out[13 * n + i] = rint(x);
    out[14 * n + i] = round(x);
    out[15 * n + i] = logb(x);
    out[16 * n + i] = atan2(x, y);
    out[17 * n + i] = fdim(x, y);
    out[18 * n + i] = fmod(x, y);
    out[19 * n + i] = remainder(x, y);
}
