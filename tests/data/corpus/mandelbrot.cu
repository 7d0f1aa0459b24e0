// Escape times; compiled without contraction, so every step is rounded.
extern "C" __global__ void mandelbrot(unsigned char* out, int width, int height, double left, double top, double step) {
    int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= width || py >= height) return;
    double cx = left + px * step, cy = top + py * step, x = 0, y = 0;
    int k = 0;
    for (; k < 200 && x * x + y * y <= 4; ++k) {
        double t = x * x - y * y + cx;
        y = 2 * x * y + cy;
        x = t;
    }
    out[py * width + px] = k;
}
