// Function pointers from a table and a virtual method: calls whose target is data, different between lanes.
typedef int (*Op)(int, int);
__device__ __noinline__ int add(int a, int b) { return (int)((unsigned)a + b); }
__device__ __noinline__ int sub(int a, int b) { return (int)((unsigned)a - b); }
__device__ __noinline__ int mul(int a, int b) { return (int)((unsigned)a * b); }
__device__ __noinline__ int pick(int a, int b) { return a > b ? a : ~b; }
__device__ Op ops[4] = {add, sub, mul, pick};
struct Shape {
    __device__ virtual int area(int s) const = 0;
};
struct Square : Shape {
    __device__ int area(int s) const override { return s * s; }
};
struct Box : Shape {
    int h;
    __device__ Box(int h) : h(h) {}
    __device__ int area(int s) const override { return s * h; }
};
extern "C" __global__ void indirect_calls(int* out, const int* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i];
    int r = ops[x & 3](x, i);
    r = ops[(i >> 1) & 3](r, 17);
    Square s;
    Box b(i & 31);
    const Shape* shape = x & 4 ? (const Shape*)&s : &b;
    out[i] = r ^ shape->area(x & 0xff);
}
