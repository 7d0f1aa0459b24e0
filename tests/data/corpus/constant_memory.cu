// Constant memory: initialised in the module, and written by the host (written, weights).
__constant__ int table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
__constant__ float weights[4];
struct Config { char tag; double scale; int bias; };
__constant__ Config config = {'x', 0.25, -7};
__constant__ unsigned char written[5];
extern "C" __global__ void constant_memory(float* out, int* codes, const int* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i];
    codes[i] = table[x & 15] * 100 + written[(unsigned)x % 5] + config.bias + config.tag;
    out[i] = weights[i & 3] * (float)(x * config.scale);
}
