/* NVML's functions about MIG: the profiles of the parts into which a GPU can be divided. MIG is disabled, so no part exists.
 *
 * As on a GPU, profiles and their placements can be listed although MIG is disabled. The H200's figures were recorded
 * with driver 580.159.04. The memory of the H100's profiles is what nvidia-smi's `mig -lgip` prints (public transcripts). */

#include "session.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PLACES = 7, PROFILE_COUNT = 0x12 }; /* NVML_GPU_INSTANCE_PROFILE_COUNT */

/* The fields that follow the ids in all versions of NVML's structure. */
struct figures {
    unsigned slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg_engines, flow_engines;
};

/* A profile of the GPUs of one architecture: NVML's number for it, and the id by which instances are made. */
struct profile {
    unsigned number, id;
    struct figures figures;
    const char *suffix;           /* of the profile's name */
    unsigned size;                /* slices of memory */
    unsigned count;               /* the number of places */
    unsigned places[MAX_PLACES]; /* the first slice of memory of each place */
};

enum { HOPPERS_PROFILES = 7 };

static const struct profile hoppers_profiles[HOPPERS_PROFILES] = {
    {0x0, 19, {1, 7, 16, 1, 1, 0, 1, 0}, "", 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {0x7, 20, {1, 1, 16, 1, 1, 0, 1, 1}, "+me", 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {0x9, 15, {1, 4, 26, 1, 1, 0, 1, 0}, "", 2, 4, {0, 2, 4, 6}},
    {0x1, 14, {2, 3, 32, 2, 2, 0, 2, 0}, "", 2, 3, {0, 2, 4}},
    {0x2, 9, {3, 2, 60, 3, 3, 0, 3, 0}, "", 4, 2, {0, 4}},
    {0x3, 5, {4, 1, 64, 4, 4, 0, 4, 0}, "", 4, 1, {0}},
    {0x4, 0, {7, 1, 132, 8, 7, 0, 7, 1}, "", 8, 1, {0}},
};

/* The memory of each of these profiles, as in its name and in MiB. */
static const struct board {
    const char *name;
    struct {
        unsigned gigabytes, mebibytes;
    } memory[HOPPERS_PROFILES];
} boards[] = {
    {"NVIDIA H200", {{18, 16384}, {18, 16384}, {35, 33280}, {35, 33280}, {71, 71424}, {71, 71424}, {141, 143360}}},
    {"NVIDIA H100 80GB HBM3", {{10, 9984}, {10, 9984}, {20, 20096}, {20, 20096}, {40, 40448}, {40, 40448}, {80, 81152}}},
};

/* Return the board of a device. Return NULL if its profiles are not known, or if a machine file gives it less memory than
 * the largest profile has. */
static const struct board *board_of(const struct device *device) {
    for (size_t number = 0; number < sizeof boards / sizeof *boards; ++number)
        if (!strcmp(device->name, boards[number].name) &&
            (device->memory + device->reserved) >> 20 >= boards[number].memory[HOPPERS_PROFILES - 1].mebibytes)
            return &boards[number];
    return NULL;
}

enum key { BY_NUMBER, BY_ID };

/* Return the index of a device's profile; -1 if the device does not have it. */
static int find_profile(const struct device *device, unsigned value, enum key key) {
    for (int index = 0; board_of(device) && index < HOPPERS_PROFILES; ++index)
        if (value == (key == BY_ID ? hoppers_profiles[index].id : hoppers_profiles[index].number))
            return index;
    return -1;
}

int own_nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned number, void *place) {
    struct {
        unsigned id, has_peers;
        struct figures figures;
        unsigned long long mebibytes;
    } *info = place;
    LOCK_OR_RETURN(device, lock_device(handle, &result), !info || number >= PROFILE_COUNT);
    int index = find_profile(device, number, BY_NUMBER);
    if (index < 0)
        return unlock(NOT_SUPPORTED);
    info->id = hoppers_profiles[index].id;
    info->has_peers = 0;
    info->figures = hoppers_profiles[index].figures;
    info->mebibytes = board_of(device)->memory[index].mebibytes;
    return unlock(SUCCESS);
}

static int write_profile(nvmlDevice_t handle, unsigned value, enum key key, void *place) {
    struct {
        unsigned version, id, has_peers;
        struct figures figures;
        unsigned long long mebibytes;
        char name[96];
    } *second = place;
    struct {
        unsigned version, id;
        struct figures figures;
        unsigned long long mebibytes;
        char name[96];
        unsigned capabilities;
    } *third = place;
    LOCK_OR_RETURN(device, lock_device(handle, &result), !place || (key == BY_NUMBER && value >= PROFILE_COUNT));
    int index = find_profile(device, value, key), is_third = second->version == STRUCT_VERSION(*third, 3);
    if (!is_third && second->version != STRUCT_VERSION(*second, 2))
        return unlock(INVALID_ARGUMENT); /* as documented, not VERSION_MISMATCH */
    if (index < 0)
        return unlock(key == BY_ID && board_of(device) ? INVALID_ARGUMENT : NOT_SUPPORTED); /* as the driver of an H200 */
    const struct profile *profile = &hoppers_profiles[index];
    unsigned gigabytes = board_of(device)->memory[index].gigabytes, mebibytes = board_of(device)->memory[index].mebibytes;
    second->id = profile->id;
    *(is_third ? &third->capabilities : &second->has_peers) = 0;
    *(is_third ? &third->figures : &second->figures) = profile->figures;
    *(is_third ? &third->mebibytes : &second->mebibytes) = mebibytes;
    snprintf(is_third ? third->name : second->name, sizeof second->name, "MIG %ug.%ugb%s", profile->figures.slices, gigabytes,
             profile->suffix);
    return unlock(SUCCESS);
}

int own_nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned number, void *place) {
    return write_profile(handle, number, BY_NUMBER, place);
}

int own_nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t handle, unsigned id, void *place) {
    return write_profile(handle, id, BY_ID, place);
}

int own_nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned id, void *array, unsigned *count) {
    struct {
        unsigned start, size;
    } *places = array;
    LOCK_OR_RETURN(device, lock_device(handle, &result), !count);
    int index = find_profile(device, id, BY_ID);
    if (index < 0)
        return unlock(NOT_SUPPORTED);
    const struct profile *profile = &hoppers_profiles[index];
    *count = profile->count;
    for (unsigned place = 0; places && place < profile->count; ++place) {
        places[place].start = profile->places[place];
        places[place].size = profile->size;
    }
    return unlock(SUCCESS);
}

SAME_CODE(nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstancePossiblePlacements_v2)

/* Return how many instances could be made if MIG were enabled: the maximum, because none exists. */
int own_nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned id, unsigned *count) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !count);
    int index = find_profile(device, id, BY_ID);
    if (index < 0)
        return unlock(NOT_SUPPORTED);
    *count = hoppers_profiles[index].figures.instances;
    return unlock(SUCCESS);
}

/* Large devices of compute capability 8.0 and later can be divided. MIG is disabled on all of them. */
int own_nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *mode, unsigned *pending) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !mode || !pending);
    if (device->major < 8 || (device->major == 8 && device->minor))
        return unlock(NOT_SUPPORTED);
    *mode = *pending = 0;
    return unlock(SUCCESS);
}

int own_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *mig) {
    int result;
    (void)index;
    return lock_device(handle, &result) ? unlock(mig ? NOT_FOUND : INVALID_ARGUMENT) : result;
}
