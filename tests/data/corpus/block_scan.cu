// Inclusive scan: shuffles inside a warp, shared memory between warps.
extern "C" __global__ void block_scan(int* out, const int* a) {
    __shared__ int warps[32];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5, i = blockIdx.x * blockDim.x + t;
    int v = a[i];
    for (int d = 1; d < 32; d <<= 1) {
        int o = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += o;
    }
    if (lane == 31) warps[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int w = lane < (blockDim.x >> 5) ? warps[lane] : 0;
        for (int d = 1; d < 32; d <<= 1) {
            int o = __shfl_up_sync(~0u, w, d);
            if (lane >= d) w += o;
        }
        warps[lane] = w;
    }
    __syncthreads();
    out[i] = v + (warp ? warps[warp - 1] : 0);
}
