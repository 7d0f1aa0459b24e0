// One lock for all blocks, by compare-and-swap; the guarded sums are plain loads and stores.
__device__ int lock = 0;
extern "C" __global__ void spin_lock(unsigned* shared_sums, int n) {
    __shared__ unsigned mine;
    if (threadIdx.x == 0) mine = 0;
    __syncthreads();
    atomicAdd(&mine, threadIdx.x * blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int round = 0; round < n; ++round) {
            while (atomicCAS(&lock, 0, 1) != 0) {
            }
            __threadfence();
            volatile unsigned* v = shared_sums;
            v[0] = v[0] + mine;
            v[1] = v[1] + 1;
            v[2] = v[2] ^ (mine + round);
            __threadfence();
            atomicExch(&lock, 0);
        }
    }
}
