/* A whole program: doubles some numbers on the device, then waits for the end of its input before it exits. */

#include "driver.h"

int main(void) {
    enum { COUNT = 32 };
    int values[COUNT], version;
    char name[100];
    CUdevice device;
    CUcontext context, current;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    CHECK(cuDriverGetVersion(&version));
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuCtxGetCurrent(&current));
    CHECK(cuModuleLoadData(&module, TWICE));
    CHECK(cuModuleGetFunction(&function, module, "twice"));
    CHECK(cuMemAlloc_v2(&memory, sizeof values));
    for (int index = 0; index < COUNT; index++)
        values[index] = index;
    CHECK(cuMemcpyHtoD_v2(memory, values, sizeof values));
    void *parameters[] = {&memory};
    CHECK(cuLaunchKernel(function, 1, 1, 1, COUNT, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(values, memory, sizeof values));
    for (int index = 0; index < COUNT; index++)
        if (values[index] != 2 * index)
            return 2;
    printf("%d %s %d\n", version >= 12000, name, current == context);
    fflush(stdout);
    getchar();
    return 0;
}
