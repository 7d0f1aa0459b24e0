/* A program that leaves little to the libraries that it loads: 32 descriptors, 2 GB of addresses, a signal each
 * millisecond that interrupts system calls, and no standard input and error. It opens them late, with RTLD_DEEPBIND, and
 * calls them from threads with stacks of 16 KB, which are too small, and of 128 KB.
 *
 * Standard error goes to the file that the first argument names. */

#include "driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t ticks;
static int result;

static void tick(int number) {
    (void)number;
    ticks++;
}

#define FIND(name) name##_ = (__typeof__(&name))dlsym(library, #name)

static int compute(void *library) {
    CUcontext context;
    CUmodule module;
    CUfunction twice;
    CUdeviceptr address;
    int values[32] = {[31] = 21};
    void *parameters[] = {&address};
    __typeof__(&cuInit) FIND(cuInit);
    __typeof__(&cuCtxCreate_v2) FIND(cuCtxCreate_v2);
    __typeof__(&cuMemAlloc_v2) FIND(cuMemAlloc_v2);
    __typeof__(&cuMemcpyHtoD_v2) FIND(cuMemcpyHtoD_v2);
    __typeof__(&cuMemcpyDtoH_v2) FIND(cuMemcpyDtoH_v2);
    __typeof__(&cuModuleLoadData) FIND(cuModuleLoadData);
    __typeof__(&cuModuleGetFunction) FIND(cuModuleGetFunction);
    __typeof__(&cuLaunchKernel) FIND(cuLaunchKernel);
    int error = cuInit_(0);
    if (error == 0)
        error = cuCtxCreate_v2_(&context, 0, 0);
    if (error == 0)
        error = cuModuleLoadData_(&module, TWICE);
    if (error == 0)
        error = cuModuleGetFunction_(&twice, module, "twice");
    if (error == 0)
        error = cuMemAlloc_v2_(&address, sizeof values);
    if (error == 0)
        error = cuMemcpyHtoD_v2_(address, values, sizeof values);
    if (error == 0)
        error = cuLaunchKernel_(twice, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
    if (error == 0)
        error = cuMemcpyDtoH_v2_(values, address, sizeof values);
    return error == 0 && values[31] != 42 ? -1 : error;
}

static void *open_and_compute(void *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    result = library == NULL ? -2 : compute(library);
    return NULL;
}

static void *describe(void *name) {
    void *library = dlopen(name, RTLD_NOW);
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    const char *(*explain)(int) = (const char *(*)(int))dlsym(library, "nvmlErrorString");
    printf("%s\n", explain(result = init()));
    return NULL;
}

static void run_in_thread(void *(*function)(void *), const char *library, size_t stack) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack);
    result = -3;
    if (pthread_create(&thread, &attributes, function, (void *)library) == 0)
        pthread_join(thread, NULL);
    printf("%zu KB: %d\n", stack >> 10, result);
}

static void compute_in_thread(size_t stack) {
    run_in_thread(open_and_compute, "libcuda.so.1", stack);
}

int main(int count, char **arguments) {
    struct rlimit descriptors = {32, 32}, addresses = {2ul << 30, 2ul << 30};
    struct sigaction action = {.sa_handler = tick};
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    int started = open(arguments[count - 1], O_WRONLY | O_CREAT, 0600);
    close(0);
    dup2(started, 2); /* the library's sentences */
    setrlimit(RLIMIT_NOFILE, &descriptors);
    setrlimit(RLIMIT_AS, &addresses);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    compute_in_thread(16 << 10);
    compute_in_thread(16 << 10);
    close(started);
    close(2);
    compute_in_thread(128 << 10);
    compute_in_thread(16 << 10);
    printf("interrupted %d\n", ticks > 0);
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1); /* no daemon describes the devices */
    run_in_thread(describe, "libnvidia-ml.so.1", 16 << 10);
    return 0;
}
