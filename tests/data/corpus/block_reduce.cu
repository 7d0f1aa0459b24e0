// A tree in shared memory, finished by shuffles. The order of the sums is fixed, so float is exact.
extern "C" __global__ void block_reduce(float* sums, int* maxima, const float* a, const int* b, int n) {
    __shared__ float s[256];
    __shared__ int m[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    s[t] = i < n ? a[i] : 0;
    m[t] = i < n ? b[i] : (int)0x80000000;
    __syncthreads();
    for (int d = 128; d >= 32; d >>= 1) {
        if (t < d) {
            s[t] += s[t + d];
            m[t] = max(m[t], m[t + d]);
        }
        __syncthreads();
    }
    if (t < 32) {
        float v = s[t];
        int w = m[t];
        for (int d = 16; d; d >>= 1) {
            v += __shfl_down_sync(~0u, v, d);
            w = max(w, __shfl_xor_sync(~0u, w, d));
        }
        if (t == 0) {
            sums[blockIdx.x] = v;
            maxima[blockIdx.x] = w;
        }
    }
}
