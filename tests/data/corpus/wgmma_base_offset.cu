// Matrix descriptors with a base offset, K-major: swizzled patterns that begin where no multiple of their length is. A
// case has the start and the stride offset (in bytes), the base offset and the swizzle mode of A, then those of B.
#include <cuda_fp16.h>
__device__ unsigned long long descriptor(unsigned base, const int* fields) {
    return (base + fields[0]) >> 4 | 1ull << 16 | (unsigned long long)fields[1] >> 4 << 32 |
           (unsigned long long)fields[2] << 49 | (unsigned long long)fields[3] << 62;
}
extern "C" __global__ void __launch_bounds__(128)
    wgmma_base_offset(float* sums, const signed char* numbers, const int* cases, int count) {
    __shared__ alignas(1024) half s[16384];
    for (int i = threadIdx.x; i < 16384; i += blockDim.x) s[i] = __float2half(numbers[i]);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    unsigned base = __cvta_generic_to_shared(s);
    for (int c = 0; c < count; c++) {
        float d[4] = {0, 0, 0, 0};
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "l"(descriptor(base, cases + 8 * c)), "l"(descriptor(base, cases + 8 * c + 4)));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        for (int i = 0; i < 4; i++) sums[512 * c + 128 * i + threadIdx.x] = d[i];
    }
}
