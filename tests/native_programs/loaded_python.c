/* A program with a Python of its own, loaded with RTLD_LOCAL: `loaded_python LIBPYTHON runs|waits`. Prints what cuInit and
 * cuDeviceGetCount return. */

#include "driver.h"

#include <dlfcn.h>
#include <string.h>

int main(int count, char **arguments) {
    void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int devices = 0;
    if (library == NULL)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    if (strcmp(arguments[2], "runs") == 0) {
        ((void (*)(int))dlsym(library, "Py_InitializeEx"))(0);
        ((void *(*)(void))dlsym(library, "PyEval_SaveThread"))();
    }
    CUresult init = cuInit(0), get = cuDeviceGetCount(&devices);
    printf("%d %d %d\n", init, get, devices);
    return 0;
}
