// 32-bit arithmetic. Signed sums go through unsigned: overflow would be undefined in C++.
extern "C" __global__ void int32_arith(int* so, unsigned* uo, const int* a, const int* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i], d = y == 0 ? 7 : y, s = y & 31;
    if (x == (int)0x80000000 && d == -1) d = -3;  // the one quotient that does not fit
    unsigned ux = x, uy = y, ud = d;
    so[0 * n + i] = ux + uy;
    so[1 * n + i] = ux - uy;
    so[2 * n + i] = ux * uy;
    so[3 * n + i] = x / d;
    so[4 * n + i] = x % d;
    so[5 * n + i] = x >> s;
    so[6 * n + i] = min(x, y);
    so[7 * n + i] = max(x, y);
    so[8 * n + i] = __mulhi(x, y);
    so[9 * n + i] = __mul24(x, y);
    so[10 * n + i] = __hadd(x, y);
    so[11 * n + i] = __rhadd(x, y);
    so[12 * n + i] = __sad(x, y, 5u);
    so[13 * n + i] = 0u - ux;
    so[14 * n + i] = (x < y) | (x <= y) << 1 | (x == y) << 2 | (x != y) << 3 | (x > y) << 4 | (x >= y) << 5;
    uo[0 * n + i] = ux / ud;
    uo[1 * n + i] = ux % ud;
    uo[2 * n + i] = ux >> s;
    uo[3 * n + i] = ux << s;
    uo[4 * n + i] = min(ux, uy);
    uo[5 * n + i] = max(ux, uy);
    uo[6 * n + i] = __umulhi(ux, uy);
    uo[7 * n + i] = __umul24(ux, uy);
    uo[8 * n + i] = __uhadd(ux, uy);
    uo[9 * n + i] = __urhadd(ux, uy);
    uo[10 * n + i] = __usad(ux, uy, 5u);
    uo[11 * n + i] = (ux & uy) ^ (ux | ~uy);
    uo[12 * n + i] = (ux < uy) | (ux <= uy) << 1 | (ux > uy) << 2 | (ux >= uy) << 3;
    uo[13 * n + i] = ux / 10u + ux % 7u;  // divisions by constants become multiplications
    uo[14 * n + i] = ux * 2654435761u + uy;
}
