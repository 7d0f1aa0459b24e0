// 64-bit arithmetic, and 32-bit operands with a 64-bit product.
typedef long long ll;
typedef unsigned long long ull;
extern "C" __global__ void int64_arith(ll* so, ull* uo, const ll* a, const ll* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    ll x = a[i], y = b[i], d = y == 0 ? 7 : y;
    int s = y & 63;
    if (x == (ll)0x8000000000000000ull && d == -1) d = -3;
    ull ux = x, uy = y, ud = d;
    so[0 * n + i] = ux + uy;
    so[1 * n + i] = ux - uy;
    so[2 * n + i] = ux * uy;
    so[3 * n + i] = x / d;
    so[4 * n + i] = x % d;
    so[5 * n + i] = x >> s;
    so[6 * n + i] = min(x, y);
    so[7 * n + i] = max(x, y);
    so[8 * n + i] = __mul64hi(x, y);
    so[9 * n + i] = (ll)(int)x * (int)y;
    so[10 * n + i] = (x < y) | (x <= y) << 1 | (x == y) << 2 | (x > y) << 3;
    so[11 * n + i] = (signed char)x + (ll)(short)y;
    uo[0 * n + i] = ux / ud;
    uo[1 * n + i] = ux % ud;
    uo[2 * n + i] = ux >> s;
    uo[3 * n + i] = ux << s;
    uo[4 * n + i] = min(ux, uy);
    uo[5 * n + i] = max(ux, uy);
    uo[6 * n + i] = __umul64hi(ux, uy);
    uo[7 * n + i] = (ull)(unsigned)x * (unsigned)y;
    uo[8 * n + i] = (ux & uy) ^ (ux | ~uy);
    uo[9 * n + i] = (ux < uy) | (ux >= uy) << 1;
    uo[10 * n + i] = ux / 1000000007ull;
    uo[11 * n + i] = (unsigned)x * (ull)(unsigned)y + ux;
}
