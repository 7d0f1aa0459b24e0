// Comparisons, ordered and not, and what follows from them, over NaN, infinities, zeros and denormals.
extern "C" __global__ void f64_compare(int* flags, double* out, const double* a, const double* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i];
    int f = (x == y) | (x != y) << 1 | (x < y) << 2 | (x <= y) << 3 | (x > y) << 4 | (x >= y) << 5;
    f |= !(x < y) << 6 | !(x <= y) << 7 | !(x > y) << 8 | !(x >= y) << 9;
    f |= (x != x || y != y) << 10 | (x == x && y == y) << 11 | (x < y || x > y) << 12;
    f |= (isnan(x) != 0) << 13 | (isinf(x) != 0) << 14 | (signbit(x) != 0) << 15 | (isfinite(x) != 0) << 16;
    flags[i] = f;
    out[0 * n + i] = x < y ? x : y;
    out[1 * n + i] = x > y ? x : y;
    out[2 * n + i] = fmin(x, y) + (double)0;  // adding +0 takes the sign off a zero, whose choice is free
    out[3 * n + i] = fmax(x, y) + (double)0;
    out[4 * n + i] = fabs(x);
    out[5 * n + i] = -x;
    out[6 * n + i] = copysign(x, y);
    out[7 * n + i] = fdim(x, y);
    out[8 * n + i] = x * (double)1;
    out[9 * n + i] = nextafter(x, y);
}
