// Float and double sums of small multiples of 1/8: exact in every order.
extern "C" __global__ void atomics_float(float* f, double* d, const float* a, int n) {
    __shared__ float s;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&f[i & 7], a[i]);
        atomicAdd(&d[i & 3], (double)a[i] * 0.5);
        atomicAdd(&s, a[i]);
    }
    __syncthreads();
    if (threadIdx.x == 0) f[8 + blockIdx.x] = s;
}
