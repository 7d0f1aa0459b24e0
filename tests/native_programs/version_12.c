/* Functions whose parameters CUDA 13 has changed, as a program for CUDA 12 calls them. Prints "done". */

#include "runtime.h"

enum { GLOBAL = 0, ACTIVE = 1, PREFERRED_LOCATION = 3 };

int cudaStreamBeginCapture(cudaStream_t stream, int mode);
int cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
int cudaStreamGetCaptureInfo(cudaStream_t stream, int *status, unsigned long long *id);
int cudaStreamGetCaptureInfo_v2(cudaStream_t stream, int *status, unsigned long long *id, cudaGraph_t *graph,
                                const cudaGraphNode_t **dependencies, size_t *count);
int cudaMemsetAsync(void *address, int value, size_t size, cudaStream_t stream);
int cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count);
int cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to, size_t count);
int cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to, size_t count);
int cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count);
int cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, size_t *count);
int cudaMallocManaged(void **address, size_t size, unsigned flags);
int cudaMemAdvise(const void *address, size_t size, int advice, int device);
int cudaMemPrefetchAsync(const void *address, size_t size, int device, cudaStream_t stream);
int cudaEventCreate(void **event);
int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end);
int cudaEventRecord(void *event, cudaStream_t stream);
int cudaGetDeviceProperties_v2(void *properties, int device);
int cudaThreadSynchronize(void);

static void test_capture(cudaStream_t stream, void *memory) {
    cudaGraph_t graph, captured;
    const cudaGraphNode_t *dependencies;
    unsigned long long id = 0, other_id = 0;
    size_t count;
    int status;
    CHECK(cudaStreamBeginCapture(stream, GLOBAL));
    CHECK(cudaMemsetAsync(memory, 1, 64, stream));
    CHECK(cudaStreamGetCaptureInfo(stream, &status, &id));
    EXPECT(status == ACTIVE && id != 0);
    CHECK(cudaStreamGetCaptureInfo_v2(stream, &status, &other_id, &captured, &dependencies, &count));
    EXPECT(id == other_id && count == 1 && dependencies[0] != NULL);
    CHECK(cudaStreamEndCapture(stream, &graph));
}

static void test_edges(void) {
    cudaGraph_t graph;
    cudaGraphNode_t nodes[2], from, to;
    size_t count = 1;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddEmptyNode(&nodes[0], graph, NULL, 0));
    CHECK(cudaGraphAddEmptyNode(&nodes[1], graph, NULL, 0));
    CHECK(cudaGraphAddDependencies(graph, &nodes[0], &nodes[1], 1));
    CHECK(cudaGraphGetEdges(graph, &from, &to, &count));
    EXPECT(count == 1 && from == nodes[0] && to == nodes[1]);
    from = NULL;
    CHECK(cudaGraphNodeGetDependencies(nodes[1], &from, &count));
    EXPECT(count == 1 && from == nodes[0]);
    CHECK(cudaGraphRemoveDependencies(graph, &nodes[0], &nodes[1], 1));
    CHECK(cudaGraphGetEdges(graph, NULL, NULL, &count));
    EXPECT(count == 0);
}

int main(void) {
    void *memory, *managed, *events[2];
    unsigned char properties[2048];
    cudaStream_t stream;
    float milliseconds = -1;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&memory, 64));
    test_capture(stream, memory);
    test_edges();
    CHECK(cudaMallocManaged(&managed, 4096, 1));
    CHECK(cudaMemAdvise(managed, 4096, PREFERRED_LOCATION, 0));
    CHECK(cudaMemPrefetchAsync(managed, 4096, 0, stream));
    EXPECT(cudaMemPrefetchAsync(managed, 4096, 99, stream) == 101 && cudaGetLastError() == 101);
    for (int index = 0; index < 2; index++) {
        CHECK(cudaEventCreate(&events[index]));
        CHECK(cudaEventRecord(events[index], stream));
    }
    CHECK(cudaThreadSynchronize());
    CHECK(cudaEventElapsedTime_v2(&milliseconds, events[0], events[1]));
    EXPECT(milliseconds >= 0);
    memset(properties, 0xA5, sizeof properties);
    CHECK(cudaGetDeviceProperties_v2(properties, 0));
    EXPECT(properties[1031] == 0 && properties[1032] == 0xA5); /* the size of CUDA 12's cudaDeviceProp */
    puts("done");
    return 0;
}
