/* The baseline for pympsd: a native CUDA client, which reads commands from standard input.
 *
 *   baseline PTX          one client: one stream. Several such processes share the GPU by time slicing, or by the
 *                         vendor's MPS where CUDA_MPS_PIPE_DIRECTORY names one's.
 *   baseline PTX threads  the prototype of a one-context design: `grow N` makes N streams, and `launch`
 *                         runs on each in a thread of its own, with nothing between the thread and the driver.
 *
 * Times are nanoseconds of CLOCK_MONOTONIC. Each command is answered by a line of `ok` and numbers; after a failure the
 * process prints the reason on standard error and ends:
 *
 *   launch NS BLOCKS THREADS BATCH BEGIN FINISH STOP   launches/s of each stream between BEGIN and FINISH; the work
 *                         goes on until STOP, so that no stream's figure profits from others' ends. The stream is
 *                         synchronised after each BATCH launches (0: never, only the driver's queue bounds it).
 *   wait NS BLOCKS THREADS BEGIN FINISH MOST           ns of each launch and synchronise, at most MOST of them
 *   fill NS BLOCKS THREADS BEGIN STOP                  keeps up to four launches unfinished; the number of launches
 *   allocate TIMES                                     ns of each cuMemAlloc and cuMemFree
 *   copies BYTES TIMES                                 ns of each copy: pageable to device, to host, pinned to
 *                                                      device, to host; TIMES of each
 *   attribute NUMBER                                   a device attribute
 *   grow N                                             have N streams
 *
 * No CUDA header is needed to build this (driver.h).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_STREAMS 256
#define RING 4

#define DRIVER(X) \
    X(Init, "cuInit", unsigned) \
    X(DeviceGet, "cuDeviceGet", CUdevice *, int) \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", int *, int, CUdevice) \
    X(DevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags_v2", CUdevice, unsigned) \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", Handle *, CUdevice) \
    X(CtxSetCurrent, "cuCtxSetCurrent", Handle) \
    X(ModuleLoadData, "cuModuleLoadData", Handle *, const void *) \
    X(ModuleGetFunction, "cuModuleGetFunction", Handle *, Handle, const char *) \
    X(StreamCreate, "cuStreamCreate", Handle *, unsigned) \
    X(StreamSynchronize, "cuStreamSynchronize", Handle) \
    X(EventCreate, "cuEventCreate", Handle *, unsigned) \
    X(EventRecord, "cuEventRecord", Handle, Handle) \
    X(EventSynchronize, "cuEventSynchronize", Handle) \
    X(LaunchKernel, "cuLaunchKernel", Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
      Handle, void **, void **) \
    X(MemAlloc, "cuMemAlloc_v2", CUdeviceptr *, size_t) \
    X(MemFree, "cuMemFree_v2", CUdeviceptr) \
    X(MemcpyHtoD, "cuMemcpyHtoD_v2", CUdeviceptr, const void *, size_t) \
    X(MemcpyDtoH, "cuMemcpyDtoH_v2", void *, CUdeviceptr, size_t) \
    X(MemAllocHost, "cuMemAllocHost_v2", void **, size_t) \
    X(MemFreeHost, "cuMemFreeHost", void *)

#include "driver.h"

static CUdevice device;
static Handle context, function, streams[MOST_STREAMS];
static int stream_count;

static void sleep_until(int64_t moment)
{
    struct timespec t = {moment / 1000000000, moment % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void grow(int count)
{
    if (count < 1 || count > MOST_STREAMS)
        fail("grow", "more streams than there is room for");
    for (; stream_count < count; stream_count++)
        CHECK(StreamCreate, &streams[stream_count], 1); /* CU_STREAM_NON_BLOCKING */
}

static void set_up(const char *path, int threads)
{
    const char *ptx = read_ptx(path);
    load_driver();
    CHECK(Init, 0);
    CHECK(DeviceGet, &device, 0);
    if (threads) /* more threads wait than there are cores: CU_CTX_SCHED_YIELD */
        CHECK(DevicePrimaryCtxSetFlags, device, 2);
    CHECK(DevicePrimaryCtxRetain, &context, device);
    CHECK(CtxSetCurrent, context);
    Handle module;
    CHECK(ModuleLoadData, &module, ptx);
    CHECK(ModuleGetFunction, &function, module, "spin");
    grow(1);
}

static void launch(Handle stream, uint64_t ns, unsigned blocks, unsigned threads)
{
    void *parameters[] = {&ns};
    CHECK(LaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
}

/* --- launches per second */

struct work {
    uint64_t ns;
    unsigned blocks, threads;
    long batch;
    int64_t begin, finish, stop;
    Handle stream;
    double rate;
};

static void *run_launches(void *given)
{
    struct work *work = given;
    long count = 0, first = 0, last = 0, step = work->batch ? work->batch : 64;
    int64_t time, from = 0, to = 0, finish = work->finish, length = finish - work->begin;
    CHECK(CtxSetCurrent, context);
    do { /* before BEGIN to warm up */
        for (long i = 0; i < step; i++)
            launch(work->stream, work->ns, work->blocks, work->threads);
        if (work->batch)
            CHECK(StreamSynchronize, work->stream);
        count += step;
        time = now();
        if (!from && time >= work->begin) {
            from = time; /* after a late start, measure at least half as long */
            first = count;
            finish = finish > from + length / 2 ? finish : from + length / 2;
        } else if (!to && from && time >= finish) {
            to = time;
            last = count;
        }
    } while (!to || time < work->stop);
    CHECK(StreamSynchronize, work->stream);
    work->rate = (double)(last - first) * 1e9 / (double)(to - from);
    return NULL;
}

static void launches(const struct work *asked)
{
    static struct work works[MOST_STREAMS];
    pthread_t threads[MOST_STREAMS];
    for (int i = 0; i < stream_count; i++) {
        works[i] = *asked;
        works[i].stream = streams[i];
        if (pthread_create(&threads[i], NULL, run_launches, &works[i]))
            fail("pthread_create", strerror(errno));
    }
    printf("ok");
    for (int i = 0; i < stream_count; i++) {
        pthread_join(threads[i], NULL);
        printf(" %.3f", works[i].rate);
    }
    printf("\n");
}

/* --- one client: latencies, a neighbour, copies */

static void waits(uint64_t ns, unsigned blocks, unsigned threads, int64_t begin, int64_t finish, long most)
{
    int64_t *taken = malloc((size_t)(most + 1) * sizeof *taken), start, time;
    long count = 0;
    if (!taken)
        fail("wait", "out of memory");
    for (int i = 0; i < 20; i++) {
        launch(streams[0], 0, blocks, threads);
        CHECK(StreamSynchronize, streams[0]);
    }
    sleep_until(begin);
    do {
        start = now();
        launch(streams[0], ns, blocks, threads);
        CHECK(StreamSynchronize, streams[0]);
        taken[count++] = (time = now()) - start;
    } while (count < most && time < finish);
    printf("ok");
    for (long i = 0; i < count; i++)
        printf(" %lld", (long long)taken[i]);
    printf("\n");
    free(taken);
}

static void fill(uint64_t ns, unsigned blocks, unsigned threads, int64_t begin, int64_t stop)
{
    static Handle events[RING];
    long count = 0;
    for (int i = 0; i < RING; i++)
        if (!events[i])
            CHECK(EventCreate, &events[i], 2); /* CU_EVENT_DISABLE_TIMING */
    sleep_until(begin);
    while (now() < stop) {
        if (count >= RING)
            CHECK(EventSynchronize, events[count % RING]);
        launch(streams[0], ns, blocks, threads);
        CHECK(EventRecord, events[count++ % RING], streams[0]);
    }
    CHECK(StreamSynchronize, streams[0]);
    printf("ok %ld\n", count);
}

static void allocations(long times)
{
    printf("ok");
    for (long i = 0; i < times; i++) {
        CUdeviceptr pointer;
        int64_t start = now();
        CHECK(MemAlloc, &pointer, 4096);
        CHECK(MemFree, pointer);
        printf(" %lld", (long long)(now() - start));
    }
    printf("\n");
}

static void time_copies(CUdeviceptr there, char *here, size_t bytes, long times, int to_device)
{
    for (long i = -1; i < times; i++) { /* the first is to warm up */
        int64_t start = now();
        if (to_device)
            CHECK(MemcpyHtoD, there, here, bytes);
        else
            CHECK(MemcpyDtoH, here, there, bytes);
        if (i >= 0)
            printf(" %lld", (long long)(now() - start));
    }
}

static void copies(size_t bytes, long times)
{
    CUdeviceptr there;
    char *pageable = malloc(bytes);
    void *pinned;
    if (!pageable)
        fail("copies", "out of memory");
    memset(pageable, 1, bytes);
    CHECK(MemAlloc, &there, bytes);
    CHECK(MemAllocHost, &pinned, bytes);
    memset(pinned, 1, bytes);
    printf("ok");
    time_copies(there, pageable, bytes, times, 1);
    time_copies(there, pageable, bytes, times, 0);
    time_copies(there, pinned, bytes, times, 1);
    time_copies(there, pinned, bytes, times, 0);
    printf("\n");
    CHECK(MemFreeHost, pinned);
    CHECK(MemFree, there);
    free(pageable);
}

/* --- commands */

static void attribute(int number)
{
    int value;
    CHECK(DeviceGetAttribute, &value, number, device);
    printf("ok %d\n", value);
}

static void do_command(const char *line)
{
    char name[16] = "";
    long long n[7] = {0};
    int given = sscanf(line, "%15s %lld %lld %lld %lld %lld %lld %lld", name, &n[0], &n[1], &n[2], &n[3], &n[4],
                       &n[5], &n[6]) - 1;
    struct work work = {(uint64_t)n[0], (unsigned)n[1], (unsigned)n[2], n[3], n[4], n[5], n[6], NULL, 0};
    if (!strcmp(name, "launch") && given == 7)
        launches(&work);
    else if (!strcmp(name, "wait") && given == 6)
        waits((uint64_t)n[0], (unsigned)n[1], (unsigned)n[2], n[3], n[4], n[5]);
    else if (!strcmp(name, "fill") && given == 5)
        fill((uint64_t)n[0], (unsigned)n[1], (unsigned)n[2], n[3], n[4]);
    else if (!strcmp(name, "allocate") && given == 1)
        allocations(n[0]);
    else if (!strcmp(name, "copies") && given == 2)
        copies((size_t)n[0], n[1]);
    else if (!strcmp(name, "attribute") && given == 1)
        attribute((int)n[0]);
    else if (!strcmp(name, "grow") && given == 1) {
        grow((int)n[0]);
        printf("ok\n");
    } else
        fail("no such command", line);
}

int main(int argc, char **argv)
{
    char line[256];
    if (argc < 2)
        fail("usage", "baseline PTX [threads]");
    set_up(argv[1], argc > 2);
    for (int i = 0; i < 100; i++)
        launch(streams[0], 0, 1, 32);
    CHECK(StreamSynchronize, streams[0]);
    printf("ok\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        do_command(line);
        fflush(stdout);
    }
    return 0;
}
