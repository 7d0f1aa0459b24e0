// Data-dependent trip counts: every lane leaves the loop at its own time.
extern "C" __global__ void collatz(unsigned* steps, unsigned* peak, const unsigned* start, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = start[i], s = 0, p = x;
    while (x > 1 && s < 300) {
        x = x & 1 ? 3 * x + 1 : x / 2;
        p = max(p, x);
        ++s;
    }
    steps[i] = s;
    peak[i] = p;
}
