// An ordinary program of the CUDA runtime: says "connected" with a context made, waits for a line, computes.
#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

static void check(cudaError_t code)
{
    if (code != cudaSuccess) {
        std::printf("%s\n", cudaGetErrorName(code));
        std::exit(1);
    }
}

int main()
{
    const int n = 1 << 20;
    std::vector<float> a(n), b(n), c(n);
    float *at[3];
    char line[64];
    check(cudaFree(nullptr));
    std::printf("connected\n");
    std::fflush(stdout);
    if (!std::fgets(line, sizeof line, stdin))
        return 1;
    for (int i = 0; i < n; i++)
        a[i] = i, b[i] = 2 * i;
    for (auto &pointer : at)
        check(cudaMalloc(&pointer, n * sizeof(float)));
    for (int round = 0; round < 100; round++) {
        check(cudaMemcpy(at[0], a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
        check(cudaMemcpy(at[1], b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
        add<<<(n + 255) / 256, 256>>>(at[0], at[1], at[2], n);
        check(cudaMemcpy(c.data(), at[2], n * sizeof(float), cudaMemcpyDeviceToHost));
        for (int i = 0; i < n; i++)
            if (c[i] != a[i] + b[i]) {
                std::printf("wrong at %d\n", i);
                return 1;
            }
    }
    std::printf("right\n");
    return 0;
}
