/* A program that opens libraries itself: `opens LIBRARY FUNCTION ...`. Prints what each function returns for 0. */

#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    for (int index = 1; index + 1 < count; index += 2) {
        void *library = dlopen(arguments[index], RTLD_NOW);
        if (library == NULL)
            return fprintf(stderr, "%s\n", dlerror()), 1;
        printf("%d\n", ((int (*)(unsigned long))dlsym(library, arguments[index + 1]))(0));
    }
    return 0;
}
