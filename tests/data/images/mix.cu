extern "C" __global__ void mix(double *x, const float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = sin(x[i]) + pow(x[i], (double)y[i]) + cosf(y[i]);
}
