// What CUDA C++ programs use of the runtime that a program in C cannot write down: each line of output is one feature.

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace groups = cooperative_groups;

#define CHECK(call)                                                                                                     \
    do {                                                                                                                \
        cudaError_t error = (call);                                                                                     \
        if (error != cudaSuccess) {                                                                                     \
            std::fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(error));                      \
            std::exit(1);                                                                                               \
        }                                                                                                               \
    } while (0)

__managed__ int managed = 3;
__constant__ int table[4];

__global__ void count_blocks(int *values) {
    groups::grid_group grid = groups::this_grid();
    if (threadIdx.x == 0)
        atomicAdd(values, 1);
    grid.sync();
    if (grid.thread_rank() == 0)
        values[1] = values[0];
}

__global__ void __cluster_dims__(2, 1, 1) ranks(int *values) {
    values[blockIdx.x] = groups::this_cluster().block_rank();
}

__global__ void cluster_sizes(int *values) {
    values[blockIdx.x] = groups::this_cluster().num_blocks();
}

__global__ void sample(cudaTextureObject_t texture, float *values) {
    values[threadIdx.x] = tex2D<float>(texture, threadIdx.x + 0.5f, 0.5f);
}

template <int N> __global__ void fill(int *values) {
    extern __shared__ int shared[];
    shared[threadIdx.x] = N + table[threadIdx.x % 4];
    __syncthreads();
    values[threadIdx.x] = shared[threadIdx.x];
    if (threadIdx.x == 0)
        atomicAdd(&managed, 1);
}

static int fetch(const int *memory, int index) {
    int value;
    CHECK(cudaMemcpy(&value, memory + index, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

static void launch_with_attributes(int *memory) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {4, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 4;
    config.blockDim = 1;
    config.attrs = attributes;
    config.numAttrs = 2;
    CHECK(cudaLaunchKernelEx(&config, cluster_sizes, memory));
    std::printf("attributes %d\n", fetch(memory, 3));
    int clusters, size;
    config.numAttrs = 1;
    CHECK(cudaOccupancyMaxActiveClusters(&clusters, cluster_sizes, &config));
    CHECK(cudaOccupancyMaxPotentialClusterSize(&size, cluster_sizes, &config));
    std::printf("clusters %d %d\n", clusters > 0, size);
}

static void read_texture(int *memory) {
    float values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    CHECK(cudaMallocArray(&array, &format, 8, 1));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, values, 32, 32, 1, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how = {};
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    sample<<<1, 8>>>(texture, reinterpret_cast<float *>(memory));
    CHECK(cudaMemcpy(values, memory, sizeof values, cudaMemcpyDeviceToHost));
    std::printf("texture %g %g\n", values[1], values[7]);
}

static void capture(int *memory) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaGraphNode_t node;
    cudaKernelNodeParams parameters;
    size_t count = 1;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    fill<5><<<1, 32, 128, stream>>>(memory);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    int first = fetch(memory, 0);
    CHECK(cudaGraphGetNodes(graph, &node, &count));
    CHECK(cudaGraphKernelNodeGetParams(node, &parameters));
    bool is_host_function = parameters.func == reinterpret_cast<void *>(fill<5>);
    parameters.func = reinterpret_cast<void *>(fill<6>);
    CHECK(cudaGraphExecKernelNodeSetParams(executable, node, &parameters));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::printf("graph %d %d %d\n", first, is_host_function, fetch(memory, 0));
}

static void use_threads() {
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; index++)
        threads.emplace_back([&failures] {
            int *memory, value;
            CHECK(cudaMalloc(&memory, 128));
            for (int count = 0; count < 10; count++)
                fill<3><<<1, 32, 128, cudaStreamPerThread>>>(memory);
            CHECK(cudaMemcpyAsync(&value, memory, sizeof value, cudaMemcpyDeviceToHost, cudaStreamPerThread));
            CHECK(cudaStreamSynchronize(cudaStreamPerThread));
            failures += value != 13;
        });
    for (std::thread &thread : threads)
        thread.join();
    std::printf("threads %d\n", failures.load());
}

int main() {
    const int values[4] = {10, 20, 30, 40};
    int *memory, grid, block;
    CHECK(cudaMalloc(&memory, 256));
    CHECK(cudaMemset(memory, 0, 256));
    CHECK(cudaMemcpyToSymbol(table, values, sizeof values));
    void *parameters[] = {&memory};
    CHECK(cudaLaunchCooperativeKernel(count_blocks, dim3(4), dim3(32), parameters, 0, nullptr));
    std::printf("cooperative %d\n", fetch(memory, 1));
    ranks<<<4, 1>>>(memory);
    std::printf("cluster %d %d\n", fetch(memory, 2), fetch(memory, 3));
    launch_with_attributes(memory);
    read_texture(memory);
    CHECK(cudaFuncSetAttribute(fill<7>, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    fill<7><<<1, 32, 100000>>>(memory);
    CHECK(cudaGetLastError());
    std::printf("template %d\n", fetch(memory, 31));
    CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, fill<7>));
    std::printf("occupancy %d %d\n", grid > 0, block);
    capture(memory);
    use_threads();
    CHECK(cudaDeviceSynchronize());
    std::printf("managed %d\n", managed);
    return 0;
}
