// Blelloch's work-efficient exclusive scan in shared memory, two elements a thread.
extern "C" __global__ void prefix_sum(unsigned* out, const unsigned* a) {
    __shared__ unsigned s[256];
    int t = threadIdx.x, base = blockIdx.x * 256, step = 1;
    s[2 * t] = a[base + 2 * t];
    s[2 * t + 1] = a[base + 2 * t + 1];
    for (int d = 128; d > 0; d >>= 1, step *= 2) {
        __syncthreads();
        if (t < d) s[step * (2 * t + 2) - 1] += s[step * (2 * t + 1) - 1];
    }
    if (t == 0) s[255] = 0;
    for (int d = 1; d < 256; d *= 2) {
        step >>= 1;
        __syncthreads();
        if (t < d) {
            unsigned lo = s[step * (2 * t + 1) - 1], hi = s[step * (2 * t + 2) - 1];
            s[step * (2 * t + 1) - 1] = hi;
            s[step * (2 * t + 2) - 1] = lo + hi;
        }
    }
    __syncthreads();
    out[base + 2 * t] = s[2 * t];
    out[base + 2 * t + 1] = s[2 * t + 1];
}
