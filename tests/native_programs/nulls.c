/* Calls each function whose name is on standard input with zeros for all arguments, in the library that the first argument
 * names, and prints how many failed. None may crash. Structures by value of more than two words are on the stack. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    uint64_t words[10];
} Zeros;
typedef int (*Function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, Zeros);

int main(int count, char **arguments) {
    char name[100];
    int calls = 0, failures = 0, unknown = 0;
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    while (fgets(name, sizeof name, stdin) != NULL) {
        Function function;
        name[strcspn(name, "\n")] = '\0';
        void *address = dlsym(library, name);
        if (address == NULL) {
            fprintf(stderr, "%s is not exported\n", name);
            return 1;
        }
        memcpy(&function, &address, sizeof function);
        fprintf(stderr, "%s\n", name); /* the last one is the one that crashed */
        int result = function(0, 0, 0, 0, 0, 0, (Zeros){{0}});
        calls++;
        failures += result != 0;
        unknown += result == 999;
        if (result == 999)
            printf("%s fails with an unknown error\n", name);
    }
    printf("%d %d\n", calls, unknown);
    return failures > calls / 2 ? 0 : 2;
}
