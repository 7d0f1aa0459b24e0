/* A program that has the rights of its file (set-user-ID): prints what cuInit and nvmlInit return, and NVML's reason. */

#include <stdio.h>

int cuInit(unsigned flags);
int nvmlInit_v2(void);
const char *nvmlErrorString(int result);

int main(void) {
    printf("%d\n", cuInit(0));
    int result = nvmlInit_v2();
    printf("%d %s\n", result, nvmlErrorString(result));
    return 0;
}
