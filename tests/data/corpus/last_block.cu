// The last block to finish adds up what all left behind.
__device__ unsigned finished = 0;
extern "C" __global__ void last_block(long long* total, long long* partial, const int* a, int n) {
    __shared__ long long s[64];
    __shared__ bool last;
    int t = threadIdx.x;
    long long sum = 0;
    for (int i = blockIdx.x * 64 + t; i < n; i += gridDim.x * 64) sum += a[i];
    s[t] = sum;
    __syncthreads();
    for (int d = 32; d; d >>= 1) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
    if (t == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) {
        long long sum = 0;
        __threadfence();
        for (unsigned b = 0; b < gridDim.x; ++b) sum += ((volatile long long*)partial)[b];
        total[0] = sum;
        total[1] = finished;
    }
}
