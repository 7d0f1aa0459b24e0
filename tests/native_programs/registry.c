/* The registrations of libcudart's C code, which is compiled into this program with sanitizers: thousands of kernels that
 * several libraries register and unregister while another thread launches. Prints "done". */

#include "runtime.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LIBRARIES = 40, KERNELS = 200, MISSING_CONFIGURATION = 52, INVALID_FUNCTION = 98 };

extern int fake_launches, fake_unloads, fake_ready, fake_attached;
extern const void *fake_function;
extern void *(*fake_other_thread)(void *);

static char hosts[LIBRARIES][KERNELS * 16];
static Wrapper wrappers[LIBRARIES];
static void **handles[LIBRARIES];
static const dim3 ONE = {1, 1, 1};
static atomic_int stops;

static void register_library(int library) {
    handles[library] = __cudaRegisterFatBinary(&wrappers[library]);
    for (int kernel = 0; kernel < KERNELS; kernel++)
        __cudaRegisterFunction(handles[library], &hosts[library][16 * kernel], NULL, "kernel", -1, NULL, NULL, NULL, NULL,
                               NULL);
    __cudaRegisterFatBinaryEnd(handles[library]);
}

static void expect_launches(int library) {
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        const char *host = &hosts[library][16 * kernel];
        CHECK(cudaLaunchKernel(host, ONE, ONE, NULL, 0, NULL));
        EXPECT(fake_function == host + 1);
    }
}

static void *launch_once(void *unused) {
    CHECK(cudaLaunchKernel(&hosts[0][16], ONE, ONE, NULL, 0, NULL));
    return unused;
}

static void *launch_always(void *unused) {
    (void)unused;
    while (!atomic_load(&stops))
        CHECK(cudaLaunchKernel(&hosts[0][16], ONE, ONE, NULL, 0, NULL));
    return NULL;
}

int main(void) {
    pthread_t thread;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    void *kernel;
    for (int library = 0; library < LIBRARIES / 2; library++)
        register_library(library);
    EXPECT(fake_attached == 0); /* registrations start nothing */
    fake_other_thread = launch_once;
    expect_launches(0);
    expect_launches(LIBRARIES / 2 - 1);
    EXPECT(fake_attached == 2); /* by two threads, of which neither waits for the other */

    EXPECT(pthread_create(&thread, NULL, launch_always, NULL) == 0);
    for (int library = LIBRARIES / 2; library < LIBRARIES; library++)
        register_library(library);
    for (int library = 1; library < LIBRARIES; library += 2)
        __cudaUnregisterFatBinary(handles[library]);
    atomic_store(&stops, 1);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(fake_unloads == LIBRARIES / 2);
    expect_launches(LIBRARIES - 2);
    EXPECT(__cudaGetKernel(&kernel, &hosts[1][0]) == INVALID_FUNCTION && kernel == NULL);
    EXPECT(cudaGetLastError() == INVALID_FUNCTION);
    register_library(1); /* at the addresses of before */
    expect_launches(1);

    fake_ready = 0;
    CHECK(cudaLaunchKernel(&hosts[0][0], (dim3){7, 1, 1}, ONE, NULL, 0, NULL) == 201 && fake_ready == 1 ? 0 : 1);
    CHECK(cudaLaunchKernel(&hosts[0][0], (dim3){7, 1, 1}, ONE, NULL, 0, NULL));
    EXPECT(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream) == MISSING_CONFIGURATION);
    int depth = 0;
    while (__cudaPushCallConfiguration((dim3){(unsigned)depth + 1, 1, 1}, ONE, 0, NULL) == 0)
        depth++;
    EXPECT(depth >= 16);
    while (depth > 0) {
        CHECK(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream));
        EXPECT(grid.x == (unsigned)depth--);
    }
    EXPECT(__cudaInitModule(handles[0]) == 1 && __cudaInitModule(NULL) == 1);
    __cudaUnregisterFatBinary(NULL);
    puts("done");
    return 0;
}
