// Bit tricks on 64 bits.
typedef unsigned long long ull;
extern "C" __global__ void bits64(ull* out, const ull* a, const ull* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    ull x = a[i], y = b[i];
    int p = y & 63;
    out[0 * n + i] = __popcll(x);
    out[1 * n + i] = __clzll(x);
    out[2 * n + i] = __ffsll(x);
    out[3 * n + i] = __brevll(x);
    out[4 * n + i] = x << p | x >> ((64 - p) & 63);
    out[5 * n + i] = (x >> p) & 0x1ff;
    out[6 * n + i] = (ull)__double_as_longlong(__longlong_as_double(x)) ^ y;
    out[7 * n + i] = (x & y) ^ (x | y);
    out[8 * n + i] = ~x;
    out[9 * n + i] = x > y ? x - y : y - x;
}
