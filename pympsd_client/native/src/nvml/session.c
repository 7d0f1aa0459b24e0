/* libnvidia-ml.so.1: NVML for native programs and Python packages, over the file that a daemon keeps (source.c).
 *
 * Theory of operation. There is no Python inside, because Go programs load this library. `nvmlInit` finds the devices.
 * They and their handles stay the same until the last `nvmlShutdown`. Each query that depends on running processes checks
 * whether the daemon has replaced its file (one lstat), and finds the device by its UUID in the new file.
 *
 *     devices by               functions
 *     a daemon, emulated       this library's; the others return NVML_ERROR_NOT_SUPPORTED
 *     a daemon, on a GPU       this library's for processes and identity, because the daemon decides which devices there
 *                              are; the driver's library's for the rest, with its handles
 *     no daemon, a driver      the driver's library's, all of them: the program runs natively
 *     no daemon, no driver     this library's; `python -m pympsd.devices` describes the machine that clients see
 *
 * Each name is a stub (../stubs.h) that jumps through a table, so nothing is between a program and the driver's library.
 * `nvmlInit` fills the table, and the last `nvmlShutdown` resets it.
 *
 * Invariants. The lock is held while the machine is read, and in fork(2). Nothing here calls the program. Messages are
 * written only if PYMPSD_EXPLAIN is set, because monitors draw on the terminal. */

#define _GNU_SOURCE
#include "../stack.h"
#include "session.h"
#include "source.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STUBS "nvml/functions.h"
#define OWN_IN(name, ways) FUNCTION(name, 0, "")
#include "../stubs.h"
#undef OWN_IN

enum way { CLOSED, OURS, WITH_DRIVER, NATIVE }; /* of getting devices: CLOSED before nvmlInit, then a row of the table above */
enum { EMULATED = 1 << CLOSED | 1 << OURS, LISTED = EMULATED | 1 << WITH_DRIVER, ALWAYS = LISTED | 1 << NATIVE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static enum way way;
static struct machine *machine; /* as it was when NVML was initialized */
static struct machine *current; /* as it is now; NULL if it is as `machine` */
static int has_ended;           /* 1 if the daemon has removed its file */
static char file[4096];         /* the daemon's file; empty if there is none */
static struct stat file_status;
static nvmlDevice_t handles[MAX_DEVICES];
static void *drivers; /* the driver's library */
static char not_loaded[REASON_BYTES] = "Driver Not Loaded";
static char reported[stub_count]; /* 1 for a function that was reported on stderr */

/* --- the lock */

static void take_lock(void) {
    pthread_mutex_lock(&lock);
}

static void release_lock(void) {
    pthread_mutex_unlock(&lock);
}

int unlock(int result) {
    release_lock();
    return result;
}

const struct machine *lock_machine(int *result) {
    take_lock();
    if (users)
        return machine;
    *result = unlock(UNINITIALIZED);
    return NULL;
}

const struct machine *locked_machine(void) {
    return machine;
}

nvmlDevice_t handle_of(size_t number) {
    return handles[number];
}

size_t number_of(const struct device *device) {
    return (size_t)(device - machine->devices);
}

const struct device *lock_device(nvmlDevice_t handle, int *result) {
    if (!lock_machine(result))
        return NULL;
    for (size_t number = 0; handle && number < machine->device_count; ++number)
        if (handles[number] == handle)
            return &machine->devices[number];
    *result = unlock(INVALID_ARGUMENT);
    return NULL;
}

static void refresh(void) {
    struct machine *again = *file ? read_machine_again(file, &file_status, &has_ended) : NULL;
    if (again) {
        free_machine(current);
        current = again;
    }
}

const struct device *lock_current_device(nvmlDevice_t handle, int *result) {
    static struct device idle;
    const struct device *device = lock_device(handle, result);
    if (!device)
        return NULL;
    refresh();
    if (has_ended) { /* in order, so its servers have ended, too */
        idle = *device;
        idle.used = idle.process_count = 0;
        idle.utilization.gpu = idle.utilization.memory = 0;
        return &idle;
    }
    if (!current)
        return device;
    for (size_t number = 0; number < current->device_count; ++number)
        if (!strcmp(current->devices[number].uuid, device->uuid))
            return &current->devices[number];
    *result = unlock(GPU_IS_LOST);
    return NULL;
}

/* --- stubs */

#define FUNCTION(name, version, parameters)
#define OWN_IN(name, ways) extern HIDDEN const char code_of_##name[] __asm__("own_" #name);
#include "functions.h"
#undef FUNCTION
#undef OWN_IN

#define FUNCTION(name, version, parameters) {#name, NULL, 0},
#define OWN_IN(name, ways) {#name, code_of_##name, ways},
static const struct {
    const char *name;
    const void *code; /* this library's code */
    unsigned ways;    /* a bit for each way in which the name gets this code */
} functions[] = {
#include "functions.h"
};

static void *drivers_function(const char *name) {
    return drivers ? dlsym(drivers, name) : NULL;
}

static int refuse(void) {
    take_lock();
    return unlock(users ? NOT_SUPPORTED : UNINITIALIZED);
}

static void name_refused(uint64_t number) {
    const char *explains = secure_getenv("PYMPSD_EXPLAIN");
    if (way == CLOSED || reported[number] || !explains || !*explains || !strcmp(explains, "0"))
        return;
    reported[number] = 1;
    fprintf(stderr, "pympsd: %s: NVML_ERROR_NOT_SUPPORTED: pympsd does not have it\n", functions[number].name);
}

void *resolve_stub(uint64_t number) {
    take_lock();
    const void *own = functions[number].ways & 1u << way ? functions[number].code : NULL;
    void *code = own ? (void *)own : drivers_function(functions[number].name);
    if (!code) {
        name_refused(number);
        code = (void *)refuse;
    }
    if (way != CLOSED)
        stub_table[number] = code;
    release_lock();
    return code;
}

/* --- sessions */

static int init_driver(void) {
    int (*init)(void) = drivers || (drivers = open_drivers_library()) ? (int (*)(void))drivers_function("nvmlInit_v2") : NULL;
    return init && !init();
}

static void leave_driver(void) {
    int (*shut_down)(void) = (int (*)(void))drivers_function("nvmlShutdown");
    if (shut_down)
        shut_down();
}

/* Get the driver's library's handles of the daemon's devices. Return whether it has all of them. */
static int take_drivers_handles(void) {
    int (*find)(const char *, nvmlDevice_t *) = (int (*)(const char *, nvmlDevice_t *))drivers_function("nvmlDeviceGetHandleByUUID");
    for (size_t number = 0; number < machine->device_count; ++number)
        if (!find || find(machine->devices[number].uuid, &handles[number]))
            return 0;
    return 1;
}

static void number_handles(void) {
    for (size_t number = 0; number < machine->device_count; ++number)
        handles[number] = (nvmlDevice_t)(0x4e560000 + number);
}

static int requires_mps(void) {
    const char *required = secure_getenv("PYMPSD_REQUIRE_MPS");
    return required && !strcmp(required, "1");
}

static enum way open_session(char reason[REASON_BYTES]) {
    int absent;
    has_ended = 0;
    if ((machine = read_daemons_machine(file, &file_status, &absent, reason))) {
        number_handles();
        if (strcmp(machine->backend, "cuda") || !init_driver())
            return OURS;
        if (take_drivers_handles())
            return WITH_DRIVER;
        leave_driver();
        number_handles();
        return OURS;
    }
    *file = '\0';
    if (!absent || requires_mps())
        return CLOSED;
    if (small_stack()) {
        snprintf(reason, REASON_BYTES, "a thread: " SMALL_STACK, small_stack());
        return CLOSED;
    }
    if (init_driver())
        return NATIVE;
    if (absent == NO_FILE || !(machine = describe_machine(reason)))
        return CLOSED;
    number_handles();
    return OURS;
}

static void reset_table(void) {
    for (uint64_t number = 0; number < stub_count; ++number)
        stub_table[number] = resolve_body;
}

int own_nvmlInitWithFlags(unsigned flags) {
    enum { NO_GPUS = 1, NO_ATTACH = 2, FORCE_INIT = 4 };
    if (flags & ~(unsigned)(NO_GPUS | NO_ATTACH | FORCE_INIT))
        return INVALID_ARGUMENT;
    take_lock();
    if (!users) {
        char reason[REASON_BYTES] = "";
        if ((way = open_session(reason)) == CLOSED) {
            snprintf(not_loaded, sizeof not_loaded, "Driver Not Loaded%s%.900s", *reason ? ": " : "", reason);
            return unlock(DRIVER_NOT_LOADED);
        }
        reset_table();
    }
    ++users;
    return unlock(SUCCESS);
}

int own_nvmlInit_v2(void) {
    return own_nvmlInitWithFlags(0);
}

SAME_CODE(nvmlInit, nvmlInit_v2)

int own_nvmlShutdown(void) {
    take_lock();
    if (!users)
        return unlock(UNINITIALIZED);
    if (--users)
        return unlock(SUCCESS);
    if (way != OURS)
        leave_driver();
    way = CLOSED;
    reset_table();
    free_machine(machine);
    free_machine(current);
    machine = current = NULL;
    *file = '\0';
    return unlock(SUCCESS);
}

const char *own_nvmlErrorString(int result) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", not_loaded, "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch", "In use by another client",
        "Insufficient Memory", "No data", "vGPU ECC not supported", "Insufficient Resources", "Frequency not supported",
        "API call structure version mismatch", "Deprecated", "Not Ready", "GPU Not Found", "Invalid State",
        "Reset type not supported",
    };
    return result >= 0 && (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "Unknown Error";
}

__attribute__((constructor)) static void at_load(void) {
    pthread_atfork(take_lock, release_lock, release_lock);
}
