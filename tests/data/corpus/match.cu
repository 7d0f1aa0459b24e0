// match.any and match.all, 32 and 64 bits, full and partial masks.
extern "C" __global__ void match(unsigned* out, const int* a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x, lane = threadIdx.x & 31, x = a[i], p;
    out[0 * n + i] = __match_any_sync(~0u, x & 7);
    out[1 * n + i] = __match_any_sync(~0u, (unsigned long long)(x & 3) << 33);
    out[2 * n + i] = __match_all_sync(~0u, x, &p);
    out[3 * n + i] = p;
    out[4 * n + i] = __match_all_sync(~0u, threadIdx.x / 32, &p);
    out[5 * n + i] = p;
    if (lane & 1)
        out[6 * n + i] = __match_any_sync(0xaaaaaaaau, x & 3);
    else
        out[6 * n + i] = __match_all_sync(0x55555555u, 5, &p);
}
