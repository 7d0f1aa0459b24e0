// Pseudo-random streams: xorshift, PCG and a 64-bit multiply.
extern "C" __global__ void xorshift(unsigned* out, unsigned long long seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    unsigned x = i * 747796405u + 1;
    unsigned long long s = seed + i;
    for (int k = 0; k < 32; ++k) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        s = s * 6364136223846793005ull + 1442695040888963407ull;
    }
    unsigned v = ((s >> 18) ^ s) >> 27, r = s >> 59;
    out[i] = x;
    out[n + i] = v >> r | v << ((32 - r) & 31);
}
