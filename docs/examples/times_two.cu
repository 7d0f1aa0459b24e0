// data[i] *= 2 for the first n floats: what the second of the two processes runs.
extern "C" __global__ void times_two(float *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= 2.0f;
}
