/* A libcuda with one device and nothing else: enough for the daemon to find a GPU and its driver. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = 500, MAJOR = 75, MULTIPROCESSORS = 16, UNIFIED_ADDRESSING = 41 };

static int cuInit(unsigned flags) { (void)flags; return SUCCESS; }
static int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
static int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
static int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }

static int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == MAJOR ? 9 : attribute == MULTIPROCESSORS ? 132 : attribute == UNIFIED_ADDRESSING;
    return SUCCESS;
}

static int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, (size_t)size, "Made-up GPU");
    return SUCCESS;
}

static int cuDeviceGetUuid(unsigned char *uuid, int device) {
    memset(uuid, 0x11 + device, 16);
    return SUCCESS;
}

static int cuDeviceGetPCIBusId(char *text, int size, int device) {
    (void)device;
    snprintf(text, (size_t)size, "0000:00:06.0");
    return SUCCESS;
}

static int cuDeviceTotalMem(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)1 << 34;
    return SUCCESS;
}

static const struct {
    const char *name;
    void *function;
} FUNCTIONS[] = {
    {"cuInit", (void *)cuInit},
    {"cuDriverGetVersion", (void *)cuDriverGetVersion},
    {"cuDeviceGetCount", (void *)cuDeviceGetCount},
    {"cuDeviceGet", (void *)cuDeviceGet},
    {"cuDeviceGetAttribute", (void *)cuDeviceGetAttribute},
    {"cuDeviceGetName", (void *)cuDeviceGetName},
    {"cuDeviceGetUuid", (void *)cuDeviceGetUuid},
    {"cuDeviceGetPCIBusId", (void *)cuDeviceGetPCIBusId},
    {"cuDeviceTotalMem", (void *)cuDeviceTotalMem},
};

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    (void)version, (void)flags;
    *function = NULL;
    for (unsigned i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!strcmp(FUNCTIONS[i].name, name)) *function = FUNCTIONS[i].function;
    if (found) *found = *function == NULL;
    return *function ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    if (!strcmp(name, "cuGetProcAddress")) {
        *function = (void *)cuGetProcAddress_v2;
        return SUCCESS;
    }
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
