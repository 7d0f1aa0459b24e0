extern "C" __global__ void vadd(const float* a, const float* b, float* c, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float s[16][16], t[16][16]; int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * 16 + y, j = blockIdx.x * 16 + x; float r = 0;
  for (int k = 0; k < n; k += 16) { s[y][x] = a[i * n + k + x]; t[y][x] = b[(k + y) * n + j]; __syncthreads();
    for (int q = 0; q < 16; q++) r += s[y][q] * t[q][x]; __syncthreads(); }
  c[i * n + j] = r; }
extern "C" __global__ void reduce(const float* a, float* o, int n) { extern __shared__ float s[]; int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  s[t] = i < n ? a[i] : 0; __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); } if (t == 0) atomicAdd(o, s[0]); }
extern "C" __global__ void collatz(const unsigned* a, unsigned* o, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; unsigned long long x = a[i]; unsigned c = 0;
  while (x != 1) { x = x & 1 ? 3 * x + 1 : x >> 1; c++; } o[i] = c; }
extern "C" __global__ void shuffle(const float* a, float* o, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; float v = i < n ? a[i] : 0;
  for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d); if ((threadIdx.x & 31) == 0) atomicAdd(o, v); }
