// 16x16 tiles through shared memory; sizes need not divide by 16. Compiled without contraction.
extern "C" __global__ void matmul(float* c, const float* a, const float* b, int m, int k, int n) {
    __shared__ float ta[16][16], tb[16][17];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0;
    for (int t = 0; t < k; t += 16) {
        ta[y][x] = row < m && t + x < k ? a[row * k + t + x] : 0;
        tb[y][x] = t + y < k && col < n ? b[(t + y) * n + col] : 0;
        __syncthreads();
        for (int j = 0; j < 16; ++j) sum += ta[y][j] * tb[j][x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}
