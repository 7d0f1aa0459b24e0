// Elements as they are and from 0 or -1 to 1, of bytes, short integers and halves; gathers, and sizes.
extern "C" __global__ void texture_point(float4* out, int4* raw, const float* x, const float* y, int n,
                                         cudaTextureObject_t bytes, cudaTextureObject_t scaled,
                                         cudaTextureObject_t shorts, cudaTextureObject_t ranged,
                                         cudaTextureObject_t halves) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    out[i] = tex2D<float4>(scaled, x[i], y[i]);
    float2 pair = tex2D<float2>(ranged, x[i] * 8.0f, y[i] * 6.0f);
    float half = tex1D<float>(halves, x[i]);
    out[n + i] = make_float4(pair.x, pair.y, half, 0.0f);
    out[2 * n + i] = tex2Dgather<float4>(scaled, x[i], y[i], 1);
    uchar4 four = tex2D<uchar4>(bytes, x[i], y[i]);
    raw[i] = make_int4(four.x, four.y, four.z, four.w);
    short2 two = tex2D<short2>(shorts, x[i] * 8.0f, y[i] * 6.0f);
    raw[n + i] = make_int4(two.x, two.y, 0, 0);
}
