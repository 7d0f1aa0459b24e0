// Each 64-bit atomic on contended words.
typedef unsigned long long ull;
extern "C" __global__ void atomics64(ull* u, long long* s, const long long* a, int n) {
    __shared__ ull local[2];
    if (threadIdx.x < 2) local[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    long long x = i < n ? a[i] : 0;
    if (i < n) {
        atomicAdd(&u[0], (ull)x);
        atomicMin(&u[1], (ull)x);
        atomicMax(&u[2], (ull)x);
        atomicAnd(&u[3], (ull)x | 0xff00ff00ff00ff00ull >> (i & 7));
        atomicOr(&u[4], 1ull << (x & 63));
        atomicXor(&u[5], (ull)x);
        atomicMin(&s[0], x);
        atomicMax(&s[1], x);
        if (atomicCAS(&u[8 + (i & 7)], 0ull, 1ull << 40) == 0ull) atomicAdd(&u[6], 1ull);
    }
    atomicAdd(&local[0], (ull)x);
    ull old = local[1], seen;
    do {  // a product of odd numbers modulo 2^64, by compare-and-swap
        seen = old;
        old = atomicCAS(&local[1], seen, (seen | 1) * ((ull)x | 1));
    } while (old != seen);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&u[16], local[0]);
        u[17 + blockIdx.x] = local[1];
    }
}
