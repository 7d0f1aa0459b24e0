// Loads and stores of 2, 4, 8 and 16 bytes at once, cache hints, and the read-only path.
extern "C" __global__ void vector_types(float4* f, double2* d, uchar4* b, short2* s, const float4* a,
                                        const ulonglong2* u) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 v = __ldg(&a[i]);
    ulonglong2 q = __ldcg(&u[i]);
    f[i] = make_float4(v.w, v.z, -v.y, v.x + 1.0f);
    __stcs(&d[i], make_double2((double)v.x, (double)q.y));
    b[i] = make_uchar4(q.x, q.x >> 8, q.y >> 16, q.y >> 60);
    s[i] = make_short2(q.x >> 32, ~q.y);
}
