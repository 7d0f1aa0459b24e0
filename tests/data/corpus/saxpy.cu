// y = a*x + y in a grid-stride loop; compiled with contraction, so the product is not rounded.
extern "C" __global__ void saxpy(float* y, const float* x, float a, unsigned long long n) {
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n;
         i += (unsigned long long)gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}
