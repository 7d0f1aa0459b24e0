// Functions kept out of line: many arguments, structures in and out, pointers to locals, recursion.
struct Pair { double d; int i; char c; };
__device__ __noinline__ Pair make(int a, double b, char c, short d, unsigned long long e) {
    return {b * a + (double)d, (int)(e >> 8) ^ a, (char)(c + 1)};
}
__device__ __noinline__ float mix(Pair p, float f, bool up) { return up ? (float)p.d + f : p.i - f; }
__device__ __noinline__ void bump(int* p, int by) { *p = *p * 3 + by; }
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
extern "C" __global__ void calls(float* f, int* r, const int* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = i;
    Pair p = make(x & 0xfff, 0.5 * i, (char)x, (short)(x >> 16), (unsigned long long)(unsigned)x << 7);
    if (x & 1) bump(&y, x & 0xff);
    f[i] = mix(p, 1.25f, x & 2);
    r[i] = y + p.c + fib(i & 7);
}
