// 16-bit signed and unsigned arithmetic, promoted to int and narrowed again by the stores.
extern "C" __global__ void int16_arith(short* so, unsigned short* uo, const short* a, const short* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    short x = a[i], y = b[i];
    short d = y == 0 ? 7 : y;
    int s = y & 15;
    so[0 * n + i] = x + y;
    so[1 * n + i] = x - y;
    so[2 * n + i] = x * y;
    so[3 * n + i] = x / d;
    so[4 * n + i] = x % d;
    so[5 * n + i] = x >> s;
    so[6 * n + i] = min(x, y);
    so[7 * n + i] = max(x, y);
    so[8 * n + i] = -x;
    so[9 * n + i] = x < y;
    unsigned short ux = x, uy = y, ud = d;
    uo[0 * n + i] = ux + uy;
    uo[1 * n + i] = ux - uy;
    uo[2 * n + i] = ux * uy;
    uo[3 * n + i] = ux / ud;
    uo[4 * n + i] = ux % ud;
    uo[5 * n + i] = ux >> s;
    uo[6 * n + i] = ux << s;
    uo[7 * n + i] = ux & uy;
    uo[8 * n + i] = ux | uy;
    uo[9 * n + i] = ux ^ ~uy;
    uo[10 * n + i] = ux < uy;
}
