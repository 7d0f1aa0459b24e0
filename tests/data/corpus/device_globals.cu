// Module variables with initialisers, pointers among them, changed by the kernel and by the host.
__device__ int scalar = 42;
__device__ unsigned char bytes[7] = {1, 2, 3, 250, 251, 252, 253};
__device__ double matrix[2][3] = {{1.5, -2.5, 3.25}, {1e300, -0.0, 5e-324}};
__device__ int zeroed[8];
__device__ int* alias = &zeroed[2];
__device__ const unsigned char* tail = bytes + 4;
struct Node { int value; Node* next; };
__device__ Node second = {20, nullptr};
__device__ Node first = {10, &second};

extern "C" {
__device__ unsigned long long counter = 0x100000000ull;
__device__ int exported[8] = {5, 4, 3};
__device__ int fed[4];
__global__ void device_globals(double* out, int* ints) {
    int t = threadIdx.x;
    if (t < 6) out[t] = matrix[t / 3][t % 3];
    atomicAdd(&counter, 1ull);
    atomicAdd(&alias[t & 3], t);
    __syncthreads();
    ints[t] = t < 8 ? zeroed[t] : scalar + t;
    if (t < 8) exported[t] = exported[t] * 2 + t;
    __syncthreads();
    if (t == 0) {
        ints[32] = first.value + first.next->value;
        ints[33] = tail[2];
        ints[34] = second.next == nullptr;
        scalar = 43;
        ints[35] = scalar;
        ints[36] = alias == &zeroed[2];
    }
    if (t < 4) ints[40 + t] = fed[t];
    if (t < 7) ints[48 + t] = bytes[t];
}
}
