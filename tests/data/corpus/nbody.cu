// Forces between all pairs through shared tiles; compiled without contraction.
extern "C" __global__ void nbody(float4* out, const float4* body, int n) {
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 me = body[i];
    float ax = 0, ay = 0, az = 0;
    for (int t = 0; t < n; t += 64) {
        tile[threadIdx.x] = body[t + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < 64; ++j) {
            float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            float d = dx * dx + dy * dy + dz * dz + 0.01f;
            float s = tile[j].w / (d * sqrtf(d));
            ax += s * dx;
            ay += s * dy;
            az += s * dz;
        }
        __syncthreads();
    }
    out[i] = make_float4(ax, ay, az, me.w);
}
