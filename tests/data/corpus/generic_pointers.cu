// One pointer that is global, shared or local, by lane; address-space tests and conversions.
extern "C" __global__ void generic_pointers(int* out, int* global, const int* a) {
    __shared__ int shared[64];
    int local[4], t = threadIdx.x, i = blockIdx.x * 64 + t, x = a[i];
    shared[t] = x;
    global[i] = x + 1;
    for (int j = 0; j < 4; ++j) local[j] = (int)((unsigned)x * (j + 2));
    __syncthreads();
    int* p = t % 3 == 0 ? &global[i] : t % 3 == 1 ? &shared[t] : &local[x & 3];
    *p = (int)(*p * 5u) + 1;
    int kind = (__isGlobal(p) != 0) | (__isShared(p) != 0) << 1 | (__isLocal(p) != 0) << 2;
    unsigned short* half = (unsigned short*)p;
    half[1] ^= 0x1234;
    __syncthreads();
    out[2 * i] = *p ^ shared[t ^ 32] ^ local[(x >> 2) & 3];
    out[2 * i + 1] = kind | (unsigned)(__cvta_generic_to_shared(&shared[t]) - __cvta_generic_to_shared(shared)) << 8;
}
