/* Prints the processor time of the first cuInit, and the seconds of cuCtxGetCurrent and of a launch: the program of
 * native.py. */

#include "../../tests/native_programs/driver.h"

#include <time.h>

enum { CALLS = 20000, LAUNCHES = 20, TIMES = 60 };

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double now(void) {
    return seconds(CLOCK_MONOTONIC);
}

static int compare(const void *first, const void *second) {
    double difference = *(const double *)first - *(const double *)second;
    return (difference > 0) - (difference < 0);
}

int main(void) {
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    double taken[TIMES], init, current, start = seconds(CLOCK_PROCESS_CPUTIME_ID);
    CHECK(cuInit(0));
    init = seconds(CLOCK_PROCESS_CPUTIME_ID) - start;
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuModuleLoadData(&module, TWICE));
    CHECK(cuModuleGetFunction(&function, module, "twice"));
    CHECK(cuMemAlloc_v2(&memory, 128));
    for (int time = 0; time < TIMES; time++) {
        start = now();
        for (int call = 0; call < CALLS / TIMES; call++)
            cuCtxGetCurrent(&context);
        taken[time] = (now() - start) / (CALLS / TIMES);
    }
    qsort(taken, TIMES, sizeof taken[0], compare);
    current = taken[TIMES / 2];
    void *parameters[] = {&memory};
    for (int time = 0; time < TIMES; time++) {
        start = now();
        for (int call = 0; call < LAUNCHES; call++)
            cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
        taken[time] = (now() - start) / LAUNCHES;
        CHECK(cuCtxSynchronize());
    }
    qsort(taken, TIMES, sizeof taken[0], compare);
    printf("%.9f %.9f %.9f\n", init, current, taken[TIMES / 2]);
    return 0;
}
