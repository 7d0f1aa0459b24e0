/* The error log: `logs FILE`, which the log is written to. Prints "done". */

#include "driver.h"

#include <stdint.h>
#include <string.h>

typedef void (*CUlogsCallback)(void *data, int level, char *message, size_t length);
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void *data, void **handle);
CUresult cuLogsUnregisterCallback(void *handle);
CUresult cuLogsCurrent(unsigned *iterator, unsigned flags);
CUresult cuLogsDumpToFile(unsigned *iterator, const char *path, unsigned flags);
CUresult cuLogsDumpToMemory(unsigned *iterator, char *buffer, size_t *size, unsigned flags);

enum { BYTES = 25600, INVALID_VALUE = 1, MANY = 150, KEPT = 100, MESSAGE_BYTES = 256 };

#define EXPECT(condition)                                                                                              \
    if (!(condition))                                                                                                  \
        return fprintf(stderr, "line %d: not %s\n", __LINE__, #condition), 1;

typedef struct {
    int calls;
    char last[MESSAGE_BYTES];
} Heard;

static void hear(void *data, int level, char *message, size_t length) {
    Heard *heard = data;
    heard->calls += level == 0 && strlen(message) == length && length < MESSAGE_BYTES;
    strcpy(heard->last, message);
    cuMemFree_v2(6); /* a call that fails in a callback is not reported */
}

static int lines_of(const char *text) {
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

int main(int count, char **arguments) {
    static Heard heard;
    static char text[BYTES + 1];
    void *handle, *other;
    unsigned iterator = 77, begin;
    size_t size = sizeof text;
    EXPECT(count == 2);
    CHECK(cuInit(0));
    CHECK(cuLogsCurrent(&iterator, 0));
    begin = iterator;
    CHECK(cuLogsDumpToMemory(&iterator, text, &size, 0));
    EXPECT(size == 0 && iterator == begin && *text == '\0');
    CHECK(cuLogsRegisterCallback(hear, &heard, &handle));
    CHECK(cuLogsRegisterCallback(hear, &heard, NULL));
    EXPECT(cuMemFree_v2(5) != 0 && heard.calls == 2);
    EXPECT(strstr(heard.last, "][CUDA][E][cuMemFree] CUDA_ERROR_INVALID_CONTEXT: ") != NULL);
    CHECK(cuLogsUnregisterCallback(handle));
    EXPECT(cuLogsUnregisterCallback(handle) == INVALID_VALUE && heard.calls == 3);
    EXPECT(strstr(heard.last, "[cuLogsUnregisterCallback] CUDA_ERROR_INVALID_VALUE: ") != NULL);
    EXPECT(cuLogsRegisterCallback(NULL, NULL, &other) == INVALID_VALUE);
    size = sizeof text;
    CHECK(cuLogsDumpToMemory(&iterator, text, &size, 0));
    EXPECT(size == strlen(text) && lines_of(text) == 3 && iterator == begin + 3);
    EXPECT(strstr(text, "[cuMemFree]") < strstr(text, "[cuLogsUnregisterCallback]"));
    size = 10;
    EXPECT(cuLogsDumpToMemory(NULL, text, &size, 0) == INVALID_VALUE && size == 0);
    size = 2 * MESSAGE_BYTES;
    CHECK(cuLogsDumpToMemory(&begin, text, &size, 0));
    EXPECT(strstr(text, "messages are left out") != NULL && strstr(text, "fits into 10 bytes") != NULL && size < 512);
    EXPECT(cuLogsDumpToMemory(NULL, NULL, &size, 0) == INVALID_VALUE);
    EXPECT(cuLogsDumpToMemory(NULL, text, NULL, 0) == INVALID_VALUE);
    EXPECT(cuLogsDumpToMemory(NULL, text, &size, 1) == INVALID_VALUE);
    EXPECT(cuLogsCurrent(NULL, 0) == INVALID_VALUE && cuLogsDumpToFile(NULL, NULL, 0) == INVALID_VALUE);
    EXPECT(cuLogsDumpToFile(NULL, "/nowhere/log", 0) == INVALID_VALUE);
    for (int call = 0; call < MANY; call++)
        cuMemFree_v2(5);
    size = sizeof text;
    CHECK(cuLogsDumpToMemory(&iterator, text, &size, 0));
    EXPECT(strstr(text, "earlier messages were overwritten") != NULL && lines_of(text) == KEPT + 1);
    CHECK(cuLogsDumpToFile(NULL, arguments[1], 0));
    puts("done");
    return 0;
}
