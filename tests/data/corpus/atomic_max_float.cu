// A float maximum by compare-and-swap, NaN left out; and 16-bit compare-and-swap.
extern "C" __global__ void atomic_max_float(float* out, unsigned short* half, const float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i];
    int* word = (int*)&out[i % 5];
    int old = *(volatile int*)word, seen;
    do {
        seen = old;
        if (!(x > __int_as_float(seen))) break;
        old = atomicCAS(word, seen, __float_as_int(x));
    } while (old != seen);
    unsigned short* h = &half[i % 3];
    unsigned short was = *(volatile unsigned short*)h, expect;
    do {
        expect = was;
        was = atomicCAS(h, expect, (unsigned short)(expect + 3));
    } while (was != expect);
}
