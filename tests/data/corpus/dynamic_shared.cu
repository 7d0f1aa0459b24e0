// Dynamic shared memory beside static, cut into differently typed parts.
extern __shared__ double pool[];
extern "C" __global__ void dynamic_shared(double* out, const double* a, int n) {
    __shared__ int order[64];
    double* values = pool;
    short* keys = (short*)(pool + n);
    int t = threadIdx.x;
    for (int j = t; j < n; j += blockDim.x) {
        values[j] = a[blockIdx.x * n + j];
        keys[j] = (short)((j * 37) % n);
    }
    order[t] = (t * 5 + blockIdx.x) & 63;
    __syncthreads();
    for (int j = order[t]; j < n; j += 64) out[blockIdx.x * n + j] = values[keys[j]] - values[j];
}
