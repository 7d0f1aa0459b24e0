// Shuffles inside both sides of a branch, each naming just its own lanes.
extern "C" __global__ void shuffle_divergent(int* out, const int* a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, x = a[i], r;
    if (lane % 4 == 0) {
        r = __shfl_sync(0x11111111u, x, (lane + 8) & 31);
        r += __shfl_xor_sync(0x11111111u, r, 4);
    } else if (lane < 16) {
        r = __shfl_sync(0x0000eeeeu, x, lane ^ 1 ? (lane / 4) * 4 + 1 : 1) * 3;
    } else {
        unsigned total = 0;
        for (int j = 17; j < 32; ++j)
            if (j % 4) total = total * 31u + __shfl_sync(0xeeee0000u, x, j);
        r = total;
    }
    __syncwarp();
    out[i] = r + __shfl_sync(~0u, r, 31 - lane);
}
