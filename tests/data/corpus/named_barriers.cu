// Two halves of a block meet at barriers of their own, then hand over: arrive on one side, wait on the other.
extern "C" __global__ void named_barriers(int* out, const int* a) {
    __shared__ int s[128], box[64];
    int t = threadIdx.x, i = blockIdx.x * 128 + t, half = t >> 6;
    s[t] = a[i];
    if (half == 0) {
        for (int k = 0; k < 3; ++k) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            int v = s[(t + 1) & 63];
            asm volatile("bar.sync 1, 64;" ::: "memory");
            s[t] = v * 2 + k;
        }
        box[t] = s[t];
        asm volatile("bar.arrive 3, 128;" ::: "memory");
    } else {
        for (int k = 0; k < 5; ++k) {
            asm volatile("barrier.sync 2, 64;" ::: "memory");
            int v = s[64 + ((t + 3) & 63)];
            asm volatile("barrier.sync 2, 64;" ::: "memory");
            s[t] = v ^ k;
        }
        asm volatile("bar.sync 3, 128;" ::: "memory");
        s[t] += box[t & 63];
    }
    out[i] = s[t];
}
