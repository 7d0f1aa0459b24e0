// The approximations of exp2 and tanh for halves and bfloat16, and minima with .relu.
extern "C" __global__ void half_functions(unsigned short* f16, unsigned short* bf16, int* least, const unsigned short* a,
                                          const unsigned short* b, const int* c, const int* d, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned pair;
    asm("ex2.approx.f16 %0, %1;" : "=h"(f16[0 * n + i]) : "h"(a[i]));
    asm("tanh.approx.f16 %0, %1;" : "=h"(f16[1 * n + i]) : "h"(a[i]));
    asm("ex2.approx.f16x2 %0, %1;" : "=r"(pair) : "r"(a[i] << 16 | a[n - 1 - i]));
    f16[2 * n + i] = pair;
    f16[3 * n + i] = pair >> 16;
    asm("ex2.approx.ftz.bf16 %0, %1;" : "=h"(bf16[0 * n + i]) : "h"(b[i]));
    asm("tanh.approx.bf16 %0, %1;" : "=h"(bf16[1 * n + i]) : "h"(b[i]));
    asm("min.relu.s32 %0, %1, %2;" : "=r"(least[0 * n + i]) : "r"(c[i]), "r"(d[i]));
    asm("max.relu.s16x2 %0, %1, %2;" : "=r"(least[1 * n + i]) : "r"(c[i]), "r"(d[i]));
    asm("cvt.pack.sat.s16.s32 %0, %1, %2;" : "=r"(least[2 * n + i]) : "r"(c[i]), "r"(d[i]));
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(least[3 * n + i]) : "r"(c[i]), "r"(d[i]), "r"(i));
}
