// Neighbours talk through shared memory with warp barriers alone, then in partial groups.
extern "C" __global__ void warp_exchange(int* out, const int* a) {
    __shared__ int box[128];
    int t = threadIdx.x, lane = t & 31, i = blockIdx.x * 128 + t;
    box[t] = a[i];
    __syncwarp();
    int v = box[t ^ 1];
    for (int r = 1; r < 5; ++r) {
        __syncwarp();
        box[t] = v + r;
        __syncwarp();
        v ^= box[(t & ~31) | ((lane + r * 3) & 31)];
    }
    __syncwarp();
    if (lane < 12) {
        box[t] = v * 2;
        __syncwarp(0x00000fffu);
        v = box[(t & ~31) + 11 - lane];
    } else {
        box[t] = v + 7;
        __syncwarp(0xfffff000u);
        v -= box[(t & ~31) + 12 + (lane + 5) % 20];
    }
    out[i] = v;
}
