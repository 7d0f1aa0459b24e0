// Each 32-bit atomic on contended words; only what the order cannot change is stored.
extern "C" __global__ void atomics32(int* s, unsigned* u, unsigned* sorted, const int* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i];
    atomicAdd(&s[0], x);
    atomicSub(&s[1], x);
    atomicMin(&s[2], x);
    atomicMax(&s[3], x);
    atomicMin(&u[0], (unsigned)x);
    atomicMax(&u[1], (unsigned)x);
    atomicInc(&u[2], 36);
    atomicDec(&u[3], 36);
    atomicAnd(&u[4], x | 0xffff0000u >> (i & 7));
    atomicOr(&u[5], 1u << (x & 31));
    atomicXor(&u[6], (unsigned)x);
    // The olds of adding 1 are a permutation of 0..n-1, so each slot is marked once.
    unsigned old = atomicAdd(&u[7], 1u);
    atomicAdd(&sorted[old], 1u);
    // Compare-and-swap: exactly one wins each of the 16 slots.
    if (atomicCAS(&u[16 + (i & 15)], 0u, 0x80000000u) == 0u) atomicAdd(&u[10], 1u);
    atomicAdd(&u[32 + (x & 31)], 1u);
}
