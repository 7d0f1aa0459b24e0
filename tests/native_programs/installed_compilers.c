/* Libraries in the place of NVIDIA's libnvrtc.so.13 and libnvJitLink.so.13: their code is always PTX of one kernel.
 *
 * Like those they ask libcuda for a table that is not documented. Machine code there is none. */

#include "driver.h"

#include <dlfcn.h>

enum { INVALID_PROGRAM = 4, NO_MACHINE_CODE = 7 };
static int is_virtual;

static int give(const char *text, size_t *size, char *place) {
    if (size != NULL)
        *size = strlen(text) + 1;
    if (place != NULL)
        strcpy(place, text);
    return 0;
}

int nvrtcVersion(int *major, int *minor) {
    *major = 13, *minor = 5;
    return 0;
}

const char *nvrtcGetErrorString(int result) {
    return result == 0 ? "SUCCESS" : "FAILURE";
}

int nvrtcCreateProgram(void **program, const char *text, const char *name, int count, const char *const *headers,
                       const char *const *names) {
    *program = text != NULL && name == NULL && count == 0 && headers == NULL && names == NULL ? &is_virtual : NULL;
    return *program == NULL ? INVALID_PROGRAM : 0;
}

int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    const void *table;
    CUresult (*ask)(const void **, const void *) =
        (CUresult(*)(const void **, const void *))dlsym(RTLD_DEFAULT, "cuGetExportTable");
    is_virtual = count == 1 && strcmp(options[0], "--gpu-architecture=compute_90") == 0;
    return program == &is_virtual && ask(&table, "0123456789abcdef") != 0 ? 0 : INVALID_PROGRAM;
}

int nvrtcGetPTXSize(void *program, size_t *size) {
    return program == &is_virtual && is_virtual ? give(TWICE, size, NULL) : INVALID_PROGRAM;
}

int nvrtcGetPTX(void *program, char *code) {
    return program == &is_virtual && is_virtual ? give(TWICE, NULL, code) : INVALID_PROGRAM;
}

int nvrtcGetCUBINSize(void *program, size_t *size) {
    (void)program, (void)size;
    return NO_MACHINE_CODE;
}

int nvrtcGetCUBIN(void *program, char *code) {
    (void)program, (void)code;
    return NO_MACHINE_CODE;
}

int nvrtcDestroyProgram(void **program) {
    *program = NULL;
    return 0;
}

int nvJitLinkCreate(void **link, uint32_t count, const char **options) {
    *link = count == 1 && strcmp(options[0], "-arch=sm_90") == 0 ? &is_virtual : NULL;
    return *link == NULL ? INVALID_PROGRAM : 0;
}

int nvJitLinkAddData(void *link, int kind, const void *data, size_t size, const char *name) {
    return link == &is_virtual && kind == 2 && data != NULL && size != 0 && name != NULL ? 0 : INVALID_PROGRAM;
}

int nvJitLinkComplete(void *link) {
    return link == &is_virtual ? 0 : INVALID_PROGRAM;
}

int nvJitLinkGetLinkedCubinSize(void *link, size_t *size) {
    (void)link, (void)size;
    return NO_MACHINE_CODE;
}

int nvJitLinkGetLinkedCubin(void *link, void *code) {
    (void)link, (void)code;
    return NO_MACHINE_CODE;
}

int nvJitLinkDestroy(void **link) {
    *link = NULL;
    return 0;
}
