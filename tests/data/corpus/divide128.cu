// Quotients and remainders of 128 bits as the compiler makes them: long divisions that ask the carry flag.
typedef unsigned long long ull;
extern "C" __global__ void divide128(ull* out, const ull* a, const ull* b, const ull* c) {
    int i = threadIdx.x, n = blockDim.x;
    unsigned __int128 x = (unsigned __int128)a[i] << 64 | b[i];
    // Divisors of all lengths, and never 0.
    unsigned __int128 y = ((unsigned __int128)c[i] << 64 | a[(i + 5) % n]) >> (i * 3 % 127) | 1;
    __int128 s = x, t = i & 1 ? -(__int128)(y >> 1 | 1) : (__int128)(y >> 1 | 1);
    unsigned __int128 results[4] = {x / y, x % y, (unsigned __int128)(s / t), (unsigned __int128)(s % t)};
    for (int k = 0; k < 4; k++) {
        out[(2 * k) * n + i] = (ull)results[k];
        out[(2 * k + 1) * n + i] = (ull)(results[k] >> 64);
    }
}
