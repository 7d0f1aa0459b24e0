/* Forks while another thread makes the first call. Python's start waits there: a sitecustomize writes to the pipe that the
 * variable STARTED names, and reads from the one of GO. Prints the results of the child and of the thread. */

#include "driver.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60 };

static void *initialize(void *result) {
    *(CUresult *)result = cuInit(0);
    return NULL;
}

static void name_descriptor(const char *variable, int descriptor) {
    char text[16];
    snprintf(text, sizeof text, "%d", descriptor);
    setenv(variable, text, 1);
}

int main(void) {
    int started[2], go[2], status = -1;
    char byte = 0;
    CUresult result = -1;
    pthread_t thread;
    if (pipe(started) || pipe(go))
        return 1;
    name_descriptor("STARTED", started[1]);
    name_descriptor("GO", go[0]);
    pthread_create(&thread, NULL, initialize, &result);
    if (read(started[0], &byte, 1) != 1)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS); /* if it hangs */
        _exit(cuInit(0) == 304 && cuInit(0) == 304 ? 42 : 1); /* OPERATING_SYSTEM */
    }
    waitpid(child, &status, 0);
    if (write(go[1], &byte, 1) != 1)
        return 1;
    pthread_join(thread, NULL);
    printf("child %d, parent %d\n", status == 42 << 8 ? 42 : status, result);
    return 0;
}
