/* Ways in which a program ends: `ends fork`, `ends exit`, `ends signal`, `ends locale`, `ends`. */

#include "driver.h"

#include <locale.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;
static CUdeviceptr memory;

static void start(void) {
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuMemAlloc_v2(&memory, 64));
}

static int with_child(void) {
    int status, value = 7, back = 0;
    start();
    pid_t child = fork();
    if (child == 0) {
        int init = cuInit(0), copy = cuMemcpyHtoD_v2(memory, &value, sizeof value);
        exit(init == 3 && copy == 3 ? 42 : 1); /* NOT_INITIALIZED */
    }
    waitpid(child, &status, 0);
    CHECK(cuMemcpyHtoD_v2(memory, &value, sizeof value));
    CHECK(cuMemcpyDtoH_v2(&back, memory, sizeof back));
    printf("child %d, parent %d\n", WEXITSTATUS(status), back);
    return 0;
}

static void at_exit_before(void) {
    int devices;
    printf("registered before cuInit: %d %d\n", cuDeviceGetCount(&devices), cuMemFree_v2(memory));
}

static void at_exit_after(void) {
    int value = 7;
    printf("registered after cuInit: %d\n", cuMemcpyHtoD_v2(memory, &value, sizeof value));
}

__attribute__((destructor)) static void destruct(void) {
    if (context != NULL)
        printf("destructor: %d\n", cuCtxDestroy_v2(context));
}

static const char *const HELLO = ".version 7.0\n.target sm_60\n.address_size 64\n"
                                 ".extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 values);\n"
                                 ".global .align 1 .b8 text[7] = {104, 101, 108, 108, 111, 10, 0};\n"
                                 ".visible .entry hello()\n"
                                 "{ .reg .b64 %d<3>; .reg .b32 %r<2>;\n"
                                 "mov.u64 %d1, text; cvta.global.u64 %d2, %d1;\n"
                                 "{ .param .b64 p0; st.param.b64 [p0], %d2; .param .b64 p1; st.param.b64 [p1], 0;\n"
                                 ".param .b32 s; call.uni (s), vprintf, (p0, p1); ld.param.b32 %r1, [s]; }\n"
                                 "ret; }\n";

static int with_handlers(void) {
    CUmodule module;
    CUfunction hello;
    atexit(at_exit_before);
    start();
    atexit(at_exit_after);
    CHECK(cuModuleLoadData(&module, HELLO));
    CHECK(cuModuleGetFunction(&hello, module, "hello"));
    CHECK(cuLaunchKernel(hello, 1, 1, 1, 3, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cuCtxSynchronize());
    return 0;
}

static void wait_for_a_signal(void) {
    start();
    printf("waiting\n");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    if (strcmp(way, "fork") == 0)
        return with_child();
    if (strcmp(way, "exit") == 0)
        return with_handlers();
    if (strcmp(way, "signal") == 0)
        wait_for_a_signal();
    CUresult result = cuInit(0);
    printf("%d\n", result);
    if (strcmp(way, "locale") == 0)
        printf("locale %s\n", setlocale(LC_CTYPE, NULL));
    return 0;
}
