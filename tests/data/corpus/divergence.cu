// Nested branches, a switch with fall-through and early returns.
extern "C" __global__ void divergence(int* out, const int* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], r = 0;
    if (x < -50) {
        out[i] = -1;
        return;
    }
    if (x & 1) {
        if (x & 2) {
            r += x > 10 ? 100 : 200;
            if (x & 4) r *= 3;
        } else {
            r -= x;
        }
    } else if (x % 3 == 0) {
        r = 7;
    }
    switch (x & 7) {
        case 0: r += 1;
        case 1: r += 10; break;
        case 2: r ^= 0x55; break;
        case 3: out[i] = r; return;
        case 5: r = -r;
        case 6: r <<= 1; break;
        default: r += 1000;
    }
    if (x > 40 && (x > 45 || (x & 1))) r ^= x;
    out[i] = r;
}
