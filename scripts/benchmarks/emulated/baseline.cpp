// The algorithms of kernels.cu as a C++ programmer writes them for one thread.
#include <cmath>
#include <cstdint>

extern "C" {

void vadd(const float *a, const float *b, float *c, int n)
{
    for (int i = 0; i < n; i++)
        c[i] = a[i] + b[i];
}

void matrixMul32(float *c, const float *a, const float *b, int a_width, int b_width)
{
    for (int i = 0; i < 320; i++)
        for (int j = 0; j < b_width; j++) {
            float sum = 0;
            for (int k = 0; k < a_width; k++)
                sum += a[i * a_width + k] * b[k * b_width + j];
            c[i * b_width + j] = sum;
        }
}

void matmul(const float *a, const float *b, float *c, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int k = 0; k < n; k++)
                sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

void reduce(const float *a, float *out, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i];
    *out += sum;
}

void histogram(const uint8_t *a, unsigned *out, int n)
{
    for (int i = 0; i < n; i++)
        out[a[i]]++;
}

void collatz(const unsigned *a, unsigned *out, int n)
{
    for (int i = 0; i < n; i++) {
        unsigned long long x = a[i];
        unsigned steps = 0;
        while (x != 1) {
            x = x & 1 ? 3 * x + 1 : x >> 1;
            steps++;
        }
        out[i] = steps;
    }
}

void nbody(const float *p, float *out, int n)
{
    for (int i = 0; i < n; i++) {
        float x = p[4 * i], y = p[4 * i + 1], z = p[4 * i + 2], ax = 0, ay = 0, az = 0;
        for (int j = 0; j < n; j++) {
            float dx = p[4 * j] - x, dy = p[4 * j + 1] - y, dz = p[4 * j + 2] - z;
            float squared = dx * dx + dy * dy + dz * dz + 1e-3f, inverse = 1.0f / std::sqrt(squared);
            float weight = p[4 * j + 3] * inverse * inverse * inverse;
            ax += dx * weight;
            ay += dy * weight;
            az += dz * weight;
        }
        out[4 * i] = ax;
        out[4 * i + 1] = ay;
        out[4 * i + 2] = az;
        out[4 * i + 3] = 0;
    }
}

void mandelbrot(int *out, int width, int height, int most)
{
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            float cr = -2.0f + 3.0f * x / width, ci = -1.5f + 3.0f * y / height, r = 0, i = 0;
            int k = 0;
            while (k < most && r * r + i * i <= 4.0f) {
                float next = r * r - i * i + cr;
                i = 2 * r * i + ci;
                r = next;
                k++;
            }
            out[y * width + x] = k;
        }
}

void rounds(unsigned *out, int n)
{
    for (int t = 0; t < 128; t++) {
        unsigned x = t + 1, c = 0;
        for (int k = 0; k < n; k++) {
            x = x * 1664525u + 1013904223u;
            c += (x >> 16) ^ k;
            if (c & 1)
                c += 3;
        }
        out[t] = c;
    }
}

static float normal(float d)
{
    float k = 1.0f / (1.0f + 0.2316419f * std::fabs(d));
    float tail = 0.39894228040143267794f * std::exp(-0.5f * d * d)
        * (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0 ? 1.0f - tail : tail;
}

void blackscholes(float *call, float *put, const float *s, const float *x, const float *t, float r, float v, int n)
{
    for (int i = 0; i < n; i++) {
        float root = std::sqrt(t[i]), d1 = (std::log(s[i] / x[i]) + (r + 0.5f * v * v) * t[i]) / (v * root);
        float a = normal(d1), b = normal(d1 - v * root), discount = std::exp(-r * t[i]);
        call[i] = s[i] * a - x[i] * discount * b;
        put[i] = x[i] * discount * (1.0f - b) - s[i] * (1.0f - a);
    }
}

void scan(const int *a, int *out, int n)
{
    for (int block = 0; block < n; block += 512) {
        int sum = 0;
        for (int i = block; i < block + 512; i++) {
            sum += a[i];
            out[i] = sum;
        }
    }
}

void stencil(const float *a, float *out, int w, int h)
{
    for (int y = 2; y < h - 2; y++)
        for (int x = 2; x < w - 2; x++) {
            int i = y * w + x;
            out[i] = 0.5f * a[i] + 0.1f * (a[i - 1] + a[i + 1] + a[i - w] + a[i + w])
                + 0.025f * (a[i - 2] + a[i + 2] + a[i - 2 * w] + a[i + 2 * w]);
        }
}

}
