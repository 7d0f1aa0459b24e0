// Functions that call themselves and each other, with structures, and virtual functions.
struct Six {
    int a[6];
    double d;
};
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ int odd(int n);
__device__ __noinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }
__device__ __noinline__ Six deep(Six s, int n) {
    if (n == 0) return s;
    int kept[8];
    s.a[n % 6] += n;
    s.d *= 1.5;
    for (int i = 0; i < 8; i++) kept[i] = s.a[i % 6];
    Six t = deep(s, n - 1);
    t.a[0] += kept[n % 8];
    return t;
}
struct Shape {
    int a;
    __device__ virtual int area(int x) = 0;
};
struct Line : Shape {
    __device__ Line(int q) { a = q; }
    __device__ int area(int x) override { return x * a; }
};
struct Square : Shape {
    __device__ Square(int q) { a = q; }
    __device__ int area(int x) override { return x * x + a; }
};
extern "C" __global__ void recursion(int* out, int* structures, double* doubles, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Line line(i);
    Square square(i);
    Shape* shape = i % 3 ? (Shape*)&line : (Shape*)&square;
    out[0 * n + i] = fibonacci(i % 12);
    out[1 * n + i] = even(i % 32);
    out[2 * n + i] = shape->area(i + 1);
    Six s;
    for (int k = 0; k < 6; k++) s.a[k] = i * k;
    s.d = 1 + i;
    s = deep(s, i % 7);
    for (int k = 0; k < 6; k++) structures[k * n + i] = s.a[k];
    doubles[i] = s.d;
}
