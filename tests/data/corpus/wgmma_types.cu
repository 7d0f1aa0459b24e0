// Products of warp groups by type, A from shared memory and from registers. Whole numbers: sums are exact in every order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define GROUPED(instruction) \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); \
    instruction; \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); \
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
#define WGMMA "wgmma.mma_async.sync.aligned.m64n16"
#define EIGHT(c, d) \
    c(d[0]), c(d[1]), c(d[2]), c(d[3]), c(d[4]), c(d[5]), c(d[6]), c(d[7])
#define FROM_MEMORY(c, types, tail, d) \
    GROUPED(asm volatile(WGMMA types " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, " tail ";" : EIGHT(c, d) : "l"(at), "l"(at + 128)))
#define FROM_REGISTERS(c, types, tail, d) \
    GROUPED(asm volatile(WGMMA types " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, " tail ";" \
                         : EIGHT(c, d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at + 128)))
#define HALVES_FROM_MEMORY(types, tail, d) \
    GROUPED(asm volatile(WGMMA types " {%0,%1,%2,%3}, %4, %5, " tail ";" \
                         : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "l"(at), "l"(at + 128)))
#define HALVES_FROM_REGISTERS(types, tail, d) \
    GROUPED(asm volatile(WGMMA types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, " tail ";" \
                         : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at + 128)))
#define FLOAT "+f"
#define WHOLE "+r"
__shared__ alignas(1024) unsigned words[1280];
// A fills 2 KiB, B the next half, and what A is in registers the rest.
template <class T>
__device__ void fill(const signed char* numbers, unsigned* a) {
    __syncthreads();
    for (int i = threadIdx.x; i < sizeof(words) / sizeof(T); i += blockDim.x) ((T*)words)[i] = T((float)numbers[i]);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < 4; i++) a[i] = words[640 + threadIdx.x * 4 + i];
}
template <class T>
__device__ void start(T* d, int by) {
    for (int i = 0; i < 8; i++) d[i] = (int)threadIdx.x - by * i;
}
template <class T>
__device__ void keep(T* to, int product, const T* d, int count) {
    for (int i = 0; i < count; i++) to[(product * count + i) * 128 + threadIdx.x] = d[i];
}
extern "C" __global__ void __launch_bounds__(128)
    wgmma_types(float* floats, unsigned* halves, int* whole, const signed char* numbers, const signed char* bytes, int scale) {
    unsigned a[4];
    // No swizzle: 128 bytes to the next chunk of K, 256 to the next 8 rows.
    unsigned long long at = __cvta_generic_to_shared(words) >> 4 | 128ull >> 4 << 16 | 256ull >> 4 << 32;
    float d[8];
    unsigned h[4];
    int w[8];
    fill<__nv_bfloat16>(numbers, a);
    start(d, 1);
    FROM_MEMORY(FLOAT, "k16.f32.bf16.bf16", "1, 1, 1, 0, 0", d);
    keep(floats, 0, d, 8);
    FROM_REGISTERS(FLOAT, "k16.f32.bf16.bf16", "1, -1, 1, 0", d);
    keep(floats, 1, d, 8);
    fill<float>(numbers, a);
    FROM_MEMORY(FLOAT, "k8.f32.tf32.tf32", "0, 1, 1", d);
    keep(floats, 2, d, 8);
    FROM_REGISTERS(FLOAT, "k8.f32.tf32.tf32", "1, 1, -1", d);
    keep(floats, 3, d, 8);
    fill<__nv_fp8_e4m3>(numbers, a);
    FROM_MEMORY(FLOAT, "k32.f32.e4m3.e4m3", "1, 1, 1", d);
    keep(floats, 4, d, 8);
    for (int i = 0; i < 4; i++) h[i] = 0x3c004000;
    HALVES_FROM_MEMORY("k32.f16.e4m3.e4m3", "1, 1, 1", h);
    keep(halves, 0, h, 4);
    fill<__nv_fp8_e5m2>(numbers, a);
    FROM_REGISTERS(FLOAT, "k32.f32.e5m2.e5m2", "1, -1, -1", d);
    keep(floats, 5, d, 8);
    HALVES_FROM_REGISTERS("k32.f16.e5m2.e5m2", "1, 1, -1", h);
    keep(halves, 1, h, 4);
    fill<__half>(numbers, a);
    FROM_REGISTERS(FLOAT, "k16.f32.f16.f16", "1, 1, 1, 1", d);
    keep(floats, 6, d, 8);
    FROM_MEMORY(FLOAT, "k16.f32.f16.f16", "1, -1, 1, 1, 0", d);
    keep(floats, 7, d, 8);
    HALVES_FROM_MEMORY("k16.f16.f16.f16", "0, 1, 1, 0, 1", h);
    keep(halves, 2, h, 4);
    HALVES_FROM_REGISTERS("k16.f16.f16.f16", "1, 1, 1, 0", h);
    keep(halves, 3, h, 4);
    fill<signed char>(bytes, a);
    start(w, 3);
    FROM_MEMORY(WHOLE, "k32.s32.s8.s8", "1", w);
    keep(whole, 0, w, 8);
    for (int i = 0; i < 8; i++) w[i] = 2147483647 - 1000 * i;
    FROM_REGISTERS(WHOLE, "k32.s32.u8.s8", "1", w);
    keep(whole, 1, w, 8);
    for (int i = 0; i < 8; i++) w[i] = i % 2 ? 2147483647 - 1000 * i : -2147483647 + 1000 * i;
    FROM_REGISTERS(WHOLE, "k32.satfinite.s32.s8.u8", "1", w);
    keep(whole, 2, w, 8);
    // A scale that is a predicate.
    for (int i = 0; i < 2; i++) {
        start(w, 5);
        GROUPED(asm volatile("{ .reg .pred p; setp.ne.s32 p, %10, 0; " WGMMA
                             "k32.s32.u8.u8 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p; }"
                             : EIGHT(WHOLE, w) : "l"(at), "l"(at + 128), "r"(scale + i)));
        keep(whole, 3 + i, w, 8);
    }
}
