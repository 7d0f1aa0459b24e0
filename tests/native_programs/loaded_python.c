/* A program with a Python of its own, loaded with RTLD_LOCAL: `loaded_python LIBPYTHON runs|waits|holds`. Prints what cuInit
 * and cuDeviceGetCount return. With `holds` they are called by a thread for which the main thread waits with the GIL. */

#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static int init, get, devices;

static void *use(void *unused) {
    init = cuInit(0);
    get = cuDeviceGetCount(&devices);
    return unused;
}

int main(int count, char **arguments) {
    void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    if (strcmp(arguments[2], "waits") != 0)
        ((void (*)(int))dlsym(library, "Py_InitializeEx"))(0);
    if (strcmp(arguments[2], "runs") == 0)
        ((void *(*)(void))dlsym(library, "PyEval_SaveThread"))();
    pthread_t thread;
    if (strcmp(arguments[2], "holds") == 0)
        pthread_create(&thread, NULL, use, NULL), pthread_join(thread, NULL);
    else
        use(NULL);
    printf("%d %d %d\n", init, get, devices);
    return 0;
}
