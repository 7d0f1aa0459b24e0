// Exchanges, and swaps after comparison, of 128 bits; loads and stores of as many.
typedef unsigned long long ull;
struct alignas(16) Pair {
    ull low, high;
};
#define SWAP(space, place, old, expected, value) \
    asm volatile("{ .reg .b128 q, e, v; mov.b128 e, {%3, %4}; mov.b128 v, {%5, %6}; " \
                 "atom" space ".cas.b128 q, [%2], e, v; mov.b128 {%0, %1}, q; }" \
                 : "=l"((old).low), "=l"((old).high) \
                 : "l"(place), "l"((expected).low), "l"((expected).high), "l"((value).low), "l"((value).high) : "memory")
#define EXCHANGE(space, place, old, value) \
    asm volatile("{ .reg .b128 q, v; mov.b128 v, {%3, %4}; atom" space ".exch.b128 q, [%2], v; mov.b128 {%0, %1}, q; }" \
                 : "=l"((old).low), "=l"((old).high) : "l"(place), "l"((value).low), "l"((value).high) : "memory")
#define LOAD(op, place, value) \
    asm volatile("{ .reg .b128 q; ld" op ".b128 q, [%2]; mov.b128 {%0, %1}, q; }" \
                 : "=l"((value).low), "=l"((value).high) : "l"(place) : "memory")
#define STORE(op, place, value) \
    asm volatile("{ .reg .b128 q, v; mov.b128 v, {%1, %2}; mov.b128 q, v; st" op ".b128 [%0], q; }" \
                 ::"l"(place), "l"((value).low), "l"((value).high) : "memory")
extern "C" __global__ void wide_atomics(Pair* out, Pair* own, Pair* counters, const Pair* given) {
    __shared__ Pair slots[32], counter;
    Pair frame[2], old, value = given[threadIdx.x], other = given[(threadIdx.x + 7) % 64];
    int i = threadIdx.x, n = blockDim.x;
    if (i == 0) counter = {0, 0};
    __syncthreads();
    // Every fourth is equal; of the others one half, or both, differ.
    Pair expected = own[i];
    if (i & 1) expected.low ^= 1ull << i % 64;
    if (i & 2) expected.high += 1;
    SWAP(".acq_rel.gpu.global", own + i, old, expected, value);
    out[i] = old;
    EXCHANGE(".relaxed.sys.global", own + n + i, old, value);
    out[n + i] = old;
    SWAP("", own + 2 * n + i, old, other, value);
    out[2 * n + i] = old;
    // Counters that carry over from one half to the other: every thread adds its own number once.
    ull add = 0x4000000000000000ull + i;
    LOAD(".relaxed.gpu.global", counters, old);
    do {
        expected = old;
        Pair sum = {expected.low + add, expected.high + (expected.low + add < add)};
        SWAP(".global", counters, old, expected, sum);
    } while (old.low != expected.low || old.high != expected.high);
    ull place = __cvta_generic_to_shared(&counter);
    LOAD(".shared", place, old);
    do {
        expected = old;
        Pair sum = {expected.low + add, expected.high + (expected.low + add < add)};
        SWAP(".shared::cta", place, old, expected, sum);
    } while (old.low != expected.low || old.high != expected.high);
    __syncthreads();
    if (i == 0) STORE(".release.sys.global", counters + 1, counter);
    if (i < 32) {
        place = __cvta_generic_to_shared(slots + i);
        STORE(".shared", place, other);
        EXCHANGE(".shared", place, old, value);
        out[3 * n + i] = old;
        LOAD("", slots + i, old);
        out[3 * n + 32 + i] = old;
    }
    STORE("", frame, value);
    STORE("", frame + 1, other);
    LOAD("", frame + i % 2, old);
    STORE(".global", out + 4 * n + i, old);
}
