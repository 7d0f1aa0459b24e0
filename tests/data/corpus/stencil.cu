// Two-dimensional heat step with a halo in shared memory; compiled without contraction.
extern "C" __global__ void stencil(float* out, const float* in, int width, int height, float k) {
    __shared__ float s[18][18];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    for (int j = threadIdx.y * 16 + threadIdx.x; j < 18 * 18; j += 256) {
        int gx = min(max((int)blockIdx.x * 16 + j % 18 - 1, 0), width - 1);
        int gy = min(max((int)blockIdx.y * 16 + j / 18 - 1, 0), height - 1);
        s[j / 18][j % 18] = in[gy * width + gx];
    }
    __syncthreads();
    if (x >= width || y >= height) return;
    int a = threadIdx.x + 1, b = threadIdx.y + 1;
    out[y * width + x] = s[b][a] + k * (s[b - 1][a] + s[b + 1][a] + s[b][a - 1] + s[b][a + 1] - 4 * s[b][a]);
}
