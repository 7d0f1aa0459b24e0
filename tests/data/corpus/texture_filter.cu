// One image of floats, filtered linearly: by every address mode, and as a volume of layers of its own.
extern "C" __global__ void texture_filter(float* out, const float* x, const float* y, int n,
                                          cudaTextureObject_t wrap, cudaTextureObject_t clamp,
                                          cudaTextureObject_t mirror, cudaTextureObject_t border,
                                          cudaTextureObject_t volume) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    out[i] = tex2D<float>(wrap, x[i], y[i]);
    out[n + i] = tex2D<float>(clamp, x[i] * 8.0f, y[i] * 6.0f);
    out[2 * n + i] = tex2D<float>(mirror, x[i], y[i]);
    out[3 * n + i] = tex2D<float>(border, x[i], y[i]);
    out[4 * n + i] = tex3D<float>(volume, x[i], y[i], x[i] * y[i]);
}
