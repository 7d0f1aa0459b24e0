/* What the functions of NVML share: results, handles, and the machine (session.c). */

#pragma once

#include "machine.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    NO_MEMORY = 20,
    VERSION_MISMATCH = 25,
};

typedef void *nvmlDevice_t;

/* The version that a structure begins with: its size, and a number. */
#define STRUCT_VERSION(type, number) ((unsigned)sizeof(type) | (number) << 24)

/* Lock the machine, and return the device of a handle as it was when NVML was initialized. If there is none, return NULL
 * without the lock, and the result of the call in `*result`. */
const struct device *lock_device(nvmlDevice_t handle, int *result);

/* The same, with the device's processes as they are now. */
const struct device *lock_current_device(nvmlDevice_t handle, int *result);

/* Lock the machine, and return it as it was when NVML was initialized, or NULL as above. */
const struct machine *lock_machine(int *result);

/* Begin a function: declare `result`, and `name` as the result of `lock`, a struct of that name. Return from the function
 * if that is NULL, or if an argument is invalid. */
#define LOCK_OR_RETURN(name, lock, is_invalid)                                                                          \
    int result;                                                                                                         \
    const struct name *name = lock;                                                                                     \
    if (!name)                                                                                                          \
        return result;                                                                                                  \
    (void)name;                                                                                                         \
    if (is_invalid)                                                                                                     \
        return unlock(INVALID_ARGUMENT)

/* Return the machine; one of its devices must be locked. */
const struct machine *locked_machine(void);

/* Unlock the machine, and return `result`. */
int unlock(int result);

/* Return the handle of a device of the locked machine. */
nvmlDevice_t handle_of(size_t number);

/* Return the number of a device of the locked machine. */
size_t number_of(const struct device *device);

/* Give an older name of a function the code of the newer one. */
#define SAME_CODE(name, newer) extern __typeof__(own_##newer) own_##name __attribute__((alias("own_" #newer)));
