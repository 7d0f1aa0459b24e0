/* NVML's functions about a device's properties and memory, and about the machine's software. */

#define _GNU_SOURCE
#include "session.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- results */

static int write_text(char *place, unsigned length, const char *text) {
    size_t size = strlen(text) + 1;
    if (length < size)
        return INSUFFICIENT_SIZE;
    memcpy(place, text, size);
    return SUCCESS;
}

/* --- the machine */

int own_nvmlSystemGetDriverVersion(char *version, unsigned length) {
    LOCK_OR_RETURN(machine, lock_machine(&result), !version);
    return unlock(write_text(version, length, machine->driver));
}

int own_nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    char text[64];
    LOCK_OR_RETURN(machine, lock_machine(&result), !version);
    snprintf(text, sizeof text, "%d.%s", machine->cuda / 1000, machine->driver);
    return unlock(write_text(version, length, text));
}

int own_nvmlSystemGetCudaDriverVersion(int *version) {
    LOCK_OR_RETURN(machine, lock_machine(&result), !version);
    *version = machine->api;
    return unlock(SUCCESS);
}

SAME_CODE(nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion)

int own_nvmlSystemGetDriverBranch(void *place, unsigned length) {
    struct {
        unsigned version;
        char branch[80];
    } *info = place;
    (void)length;
    LOCK_OR_RETURN(machine, lock_machine(&result), !info);
    if (info->version != STRUCT_VERSION(*info, 1))
        return unlock(VERSION_MISMATCH);
    memset(info->branch, 0, sizeof info->branch);
    snprintf(info->branch, sizeof info->branch, "r%u_00", machine->branch);
    return unlock(SUCCESS);
}

int own_nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    char path[64], text[4096];
    LOCK_OR_RETURN(machine, lock_machine(&result), !name);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int command = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = command < 0 ? -1 : read(command, text, sizeof text - 1);
    if (command >= 0)
        close(command);
    if (count < 0)
        return unlock(NOT_FOUND);
    text[count] = '\0'; /* the first word's own NUL usually comes earlier */
    return unlock(write_text(name, length, text));
}

/* --- handles */

int own_nvmlDeviceGetCount_v2(unsigned *count) {
    LOCK_OR_RETURN(machine, lock_machine(&result), !count);
    *count = (unsigned)machine->device_count;
    return unlock(SUCCESS);
}

SAME_CODE(nvmlDeviceGetCount, nvmlDeviceGetCount_v2)

int own_nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle) {
    LOCK_OR_RETURN(machine, lock_machine(&result), !handle || index >= machine->device_count);
    *handle = handle_of(index);
    return unlock(SUCCESS);
}

SAME_CODE(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2)

static void bus_ids(const struct device *device, char long_id[32], char short_id[32]) {
    snprintf(long_id, 32, "%08X:%02X:%02X.%X", device->domain, device->bus, device->slot, device->function);
    snprintf(short_id, 32, "%04X:%02X:%02X.%X", device->domain, device->bus, device->slot, device->function);
}

static int has_uuid(const struct device *device, const char *text) {
    const char *bare = strncmp(device->uuid, "GPU-", 4) ? device->uuid : device->uuid + 4;
    return !strcasecmp(text, device->uuid) || !strcasecmp(text, bare);
}

static int has_bus_id(const struct device *device, const char *text) {
    char long_id[32], short_id[32];
    bus_ids(device, long_id, short_id);
    return !strcasecmp(text, long_id) || !strcasecmp(text, short_id);
}

static int find(const char *text, nvmlDevice_t *handle, int (*has)(const struct device *, const char *)) {
    LOCK_OR_RETURN(machine, lock_machine(&result), !text || !handle);
    for (size_t number = 0; number < machine->device_count; ++number)
        if (has(&machine->devices[number], text)) {
            *handle = handle_of(number);
            return unlock(SUCCESS);
        }
    return unlock(NOT_FOUND);
}

int own_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle) {
    return find(uuid, handle, has_uuid);
}

int own_nvmlDeviceGetHandleByUUIDV(const void *place, nvmlDevice_t *handle) {
    enum { ASCII = 1, BINARY = 2 };
    const struct {
        unsigned version, type;
        union {
            char text[41];
            unsigned char bytes[16];
        } value;
    } *uuid = place;
    char text[41] = "";
    if (!uuid)
        return find(NULL, handle, has_uuid);
    if (uuid->version != STRUCT_VERSION(*uuid, 1))
        return VERSION_MISMATCH;
    if (uuid->type == ASCII)
        snprintf(text, sizeof text, "%.40s", uuid->value.text);
    else if (uuid->type == BINARY)
        for (size_t at = 0, end = 0; at < 16; ++at)
            end += (size_t)sprintf(text + end, "%s%02x", at >= 4 && at <= 10 && !(at & 1) ? "-" : "", uuid->value.bytes[at]);
    else
        return INVALID_ARGUMENT;
    return find(text, handle, has_uuid);
}

int own_nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle) {
    return find(bus_id, handle, has_bus_id);
}

SAME_CODE(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2)

/* --- a device */

#define TEXT_FUNCTION(name, member)                                                                                     \
    int own_##name(nvmlDevice_t handle, char *text, unsigned length) {                                                  \
        LOCK_OR_RETURN(device, lock_device(handle, &result), !text);                                                    \
        return unlock(write_text(text, length, device->member));                                                        \
    }

#define NUMBER_FUNCTION(name, value)                                                                                    \
    int own_##name(nvmlDevice_t handle, unsigned *place) {                                                              \
        LOCK_OR_RETURN(device, lock_device(handle, &result), !place);                                                   \
        *place = (unsigned)(value);                                                                                     \
        return unlock(SUCCESS);                                                                                         \
    }

static unsigned architecture(const struct device *device) {
    static const int since[][3] = {{100, 10}, {90, 9}, {89, 8}, {80, 7}, {75, 6}, {70, 5}, {60, 4}};
    for (size_t at = 0; at < sizeof since / sizeof *since; ++at)
        if (device->major * 10 + device->minor >= since[at][0])
            return (unsigned)since[at][1];
    return 0xffffffff; /* NVML_DEVICE_ARCH_UNKNOWN */
}

/* Return an nvmlBrandType_t, by the first word of the device's name. */
static unsigned brand(const struct device *device) {
    return !strncmp(device->name, "NVIDIA ", 7) ? 14 : !strncmp(device->name, "Tesla ", 6) ? 2 : 0;
}

TEXT_FUNCTION(nvmlDeviceGetName, name)
TEXT_FUNCTION(nvmlDeviceGetUUID, uuid)
NUMBER_FUNCTION(nvmlDeviceGetIndex, number_of(device))
NUMBER_FUNCTION(nvmlDeviceGetArchitecture, architecture(device))
NUMBER_FUNCTION(nvmlDeviceGetBrand, brand(device))
NUMBER_FUNCTION(nvmlDeviceIsMigDeviceHandle, !strncmp(device->uuid, "MIG-", 4))
NUMBER_FUNCTION(nvmlDeviceGetMinorNumber, device->ordinal)
NUMBER_FUNCTION(nvmlDeviceGetDisplayActive, 0)
NUMBER_FUNCTION(nvmlDeviceGetDisplayMode, 0)
NUMBER_FUNCTION(nvmlDeviceGetNumFans, 0)
NUMBER_FUNCTION(nvmlDeviceGetPersistenceMode, 0)
NUMBER_FUNCTION(nvmlDeviceGetMaxMigDeviceCount, 0)
NUMBER_FUNCTION(nvmlDeviceGetVirtualizationMode, 0)

/* NVML_DEVICE_ADDRESSING_MODE_NONE, because kernels have no access to pageable memory of the host. */
int own_nvmlDeviceGetAddressingMode(nvmlDevice_t handle, void *place) {
    struct {
        unsigned version, mode;
    } *info = place;
    LOCK_OR_RETURN(device, lock_device(handle, &result), !info);
    if (info->version != STRUCT_VERSION(*info, 1))
        return unlock(VERSION_MISMATCH);
    info->mode = 0;
    return unlock(SUCCESS);
}

int own_nvmlDeviceSetPersistenceMode(nvmlDevice_t handle, int mode) {
    int result;
    return lock_device(handle, &result) ? unlock(mode ? NOT_SUPPORTED : SUCCESS) : result;
}

int own_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !major || !minor);
    *major = device->major;
    *minor = device->minor;
    return unlock(SUCCESS);
}

int own_nvmlDeviceGetComputeMode(nvmlDevice_t handle, unsigned *mode) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !mode);
    *mode = (unsigned)current_compute_mode(locked_machine(), device);
    return unlock(SUCCESS);
}

/* --- the fabric of NVLink switches, and GPM: neither exists */

struct fabric_info {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state; /* NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: 0 */
};

int own_nvmlDeviceGetGpuFabricInfo(nvmlDevice_t handle, void *place) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !place);
    memset(place, 0, sizeof(struct fabric_info));
    return unlock(SUCCESS);
}

int own_nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, void *place) {
    struct {
        unsigned version;
        struct fabric_info info;
        unsigned health;
    } *second = place;
    struct {
        unsigned version;
        struct fabric_info info;
        unsigned health;
        unsigned char summary;
    } *third = place;
    LOCK_OR_RETURN(device, lock_device(handle, &result), !place);
    unsigned version = second->version;
    int is_third = version == STRUCT_VERSION(*third, 3);
    if (!is_third && version != STRUCT_VERSION(*second, 2))
        return unlock(VERSION_MISMATCH);
    memset(place, 0, is_third ? sizeof *third : sizeof *second);
    second->version = version;
    return unlock(SUCCESS);
}

int own_nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, unsigned *place) {
    enum { GPM_VERSION = 1 };
    LOCK_OR_RETURN(device, lock_device(handle, &result), !place);
    if (place[0] != GPM_VERSION)
        return unlock(VERSION_MISMATCH);
    place[1] = 0;
    return unlock(SUCCESS);
}

/* --- PCI */

struct pci_info {
    char short_id[16];
    unsigned domain, bus, device, board, subsystem;
    char long_id[32];
};

/* Write the first `size` bytes. Earlier versions of the structure end before the long id, or before the subsystem. */
static int write_pci_info(nvmlDevice_t handle, struct pci_info *place, size_t size) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !place);
    char short_id[32];
    struct pci_info info = {
        .domain = device->domain, .bus = device->bus, .device = device->slot, .board = device->board, .subsystem = device->subsystem};
    bus_ids(device, info.long_id, short_id);
    memcpy(info.short_id, short_id, sizeof info.short_id);
    info.short_id[sizeof info.short_id - 1] = '\0';
    memcpy(place, &info, size);
    return unlock(SUCCESS);
}

int own_nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, void *place) {
    return write_pci_info(handle, place, sizeof(struct pci_info));
}

int own_nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, void *place) {
    return write_pci_info(handle, place, offsetof(struct pci_info, long_id));
}

int own_nvmlDeviceGetPciInfo(nvmlDevice_t handle, void *place) {
    return write_pci_info(handle, place, offsetof(struct pci_info, subsystem));
}

int own_nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, void *place) {
    enum { DISPLAY_CONTROLLER = 3, THREE_D = 2 }; /* these GPUs have no display */
    struct {
        unsigned version, domain, bus, device, board, subsystem, class, subclass;
        char long_id[32];
    } *info = place;
    char short_id[32];
    LOCK_OR_RETURN(device, lock_device(handle, &result), !info);
    if (info->version != STRUCT_VERSION(*info, 1))
        return unlock(VERSION_MISMATCH);
    info->domain = device->domain;
    info->bus = device->bus;
    info->device = device->slot;
    info->board = device->board;
    info->subsystem = device->subsystem;
    info->class = DISPLAY_CONTROLLER;
    info->subclass = THREE_D;
    bus_ids(device, info->long_id, short_id);
    return unlock(SUCCESS);
}

/* --- memory */

int own_nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, unsigned long long *place) {
    LOCK_OR_RETURN(device, lock_current_device(handle, &result), !place);
    place[0] = device->memory + device->reserved;
    place[1] = device->memory - device->used;
    place[2] = device->used + device->reserved;
    return unlock(SUCCESS);
}

int own_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, void *place) {
    struct {
        unsigned version;
        unsigned long long total, reserved, free, used;
    } *info = place;
    LOCK_OR_RETURN(device, lock_current_device(handle, &result), !info);
    if (info->version != STRUCT_VERSION(*info, 2))
        return unlock(VERSION_MISMATCH);
    info->total = device->memory + device->reserved;
    info->reserved = device->reserved;
    info->free = device->memory - device->used;
    info->used = device->used;
    return unlock(SUCCESS);
}

/* --- utilization */

int own_nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, unsigned *place) {
    LOCK_OR_RETURN(device, lock_current_device(handle, &result), !place);
    if (!device->has_utilization)
        return unlock(NOT_SUPPORTED);
    place[0] = device->utilization.gpu;
    place[1] = device->utilization.memory;
    return unlock(SUCCESS);
}
