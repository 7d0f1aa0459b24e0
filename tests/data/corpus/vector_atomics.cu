// Vector atomics, and those of halves and bfloat16, on small whole numbers: every order gives the same sums.
extern "C" __global__ void vector_atomics(float* floats, unsigned* halves, unsigned* bfloats, const float* a,
                                          const unsigned* h, const unsigned* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int at = i % 5 * 4;
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(floats + at), "f"(a[i]), "f"(a[n - 1 - i]),
                 "f"(1.0f), "f"(2.0f));
    asm volatile("red.global.add.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(halves + at), "r"(h[i]), "r"(h[n - 1 - i]));
    asm volatile("red.global.max.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(halves + at + 2), "r"(h[i]), "r"(h[n - 1 - i]));
    asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" ::"l"(bfloats + at), "r"(b[i]));
    asm volatile("red.global.min.noftz.v2.bf16x2 [%0], {%1, %2};" ::"l"(bfloats + at + 2), "r"(b[i]), "r"(b[n - 1 - i]));
}
