/* The error log: `logs FOLDER`. Prints the result of each call and what it returns, and "heard" with each message that a
 * callback gets. Writes the log to FOLDER/first, and to FOLDER/last when it has lost messages. */

#include "driver.h"

#include <stdint.h>
#include <string.h>

typedef void (*CUlogsCallback)(void *data, int level, char *message, size_t length);
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void *data, void **handle);
CUresult cuLogsUnregisterCallback(void *handle);
CUresult cuLogsCurrent(unsigned *iterator, unsigned flags);
CUresult cuLogsDumpToFile(unsigned *iterator, const char *path, unsigned flags);
CUresult cuLogsDumpToMemory(unsigned *iterator, char *buffer, size_t *size, unsigned flags);

enum { BYTES = 25600, MANY = 150, PATH_BYTES = 4096 };

#define SHOW(call) printf("%s: %d\n", #call, call)

static char text[BYTES + 1];

static void hear(void *data, int level, char *message, size_t length) {
    printf("heard %s %d %d %s\n", (char *)data, level, strlen(message) == length, message);
    cuMemFree_v2(6); /* a call that fails in a callback is not reported */
}

static void show_current(void) {
    unsigned iterator = 77;
    int result = cuLogsCurrent(&iterator, 0);
    printf("current: %d %u\n", result, iterator);
}

static void dump(const char *label, unsigned *iterator, size_t capacity) {
    size_t size = capacity;
    memset(text, 'x', sizeof text);
    int result = cuLogsDumpToMemory(iterator, text, &size, 0);
    printf("%s: %d size %zu length %zu iterator %d\n", label, result, size, size ? strlen(text) : 0,
           iterator ? (int)*iterator : -1);
}

static const char *in_folder(const char *folder, const char *name) {
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

int main(int count, char **arguments) {
    void *first, *second, *other;
    unsigned iterator = 0, start = 0, beyond = 999999;
    size_t size = sizeof text;
    CUcontext context;
    CUdeviceptr address;
    CUmodule module;
    if (count != 2)
        return 1;
    show_current();
    SHOW(cuMemAlloc_v2(&address, 0));
    show_current();
    SHOW(cuLogsCurrent(NULL, 0));
    SHOW(cuLogsCurrent(&iterator, 1));
    SHOW(cuLogsRegisterCallback(hear, "one", &first));
    SHOW(cuLogsRegisterCallback(NULL, NULL, &other));
    dump("early", NULL, BYTES);
    fputs(text, stdout);
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    SHOW(cuMemAlloc_v2(&address, (size_t)1 << 50));
    SHOW(cuLogsRegisterCallback(hear, "two", &second));
    SHOW(cuLogsRegisterCallback(hear, "three", NULL));
    SHOW(cuMemAlloc_v2(&address, 0));
    SHOW(cuLogsUnregisterCallback(second));
    SHOW(cuModuleLoadData(&module, NULL));
    show_current();
    iterator = 0;
    dump("from 0", &iterator, BYTES);
    dump("again", &iterator, BYTES);
    dump("all", NULL, BYTES);
    SHOW(cuLogsUnregisterCallback(first));
    start = 0;
    dump("small", &start, 100);
    start = 0;
    dump("medium", &start, 200);
    fputs(text, stdout);
    start = 0;
    dump("tiny", &start, 40);
    dump("beyond", &beyond, BYTES);
    SHOW(cuLogsDumpToMemory(NULL, NULL, &size, 0));
    SHOW(cuLogsDumpToMemory(NULL, text, NULL, 0));
    SHOW(cuLogsDumpToMemory(NULL, text, &size, 1));
    SHOW(cuLogsDumpToFile(NULL, NULL, 0));
    SHOW(cuLogsDumpToFile(NULL, "/nowhere/at/all", 0));
    SHOW(cuLogsUnregisterCallback(first));
    for (int again = 0; again < 2; again++)
        CHECK(cuLogsDumpToFile(NULL, in_folder(arguments[1], "first"), 0));
    for (int call = 0; call < MANY; call++)
        cuMemFree_v2(5);
    CHECK(cuLogsDumpToFile(NULL, in_folder(arguments[1], "last"), 0));
    return 0;
}
