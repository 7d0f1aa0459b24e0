/* NVML's functions about the processes on a device, and about events.
 *
 * A server is a compute process. Its clients are compute processes with an MPS context, so they are in both lists, as
 * nvidia-smi shows them (C and M+C). No process uses graphics. No event comes, because an emulated device does not fail. */

#define _GNU_SOURCE
#include "session.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { COMPUTE = 1, MPS = 2 };

struct process_info_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct process_detail {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected;
};

static int is_listed(const struct process *process, int kinds) {
    return kinds & (process->is_client ? COMPUTE | MPS : COMPUTE);
}

static unsigned count_listed(const struct device *device, int kinds) {
    unsigned count = 0;
    for (size_t at = 0; at < device->process_count; ++at)
        count += is_listed(&device->processes[at], kinds) != 0;
    return count;
}

/* Write the processes into `*count` structures of `size` bytes, each of which begins as a `process_detail`. */
static int write_processes(const struct device *device, int kinds, unsigned *count, char *place, size_t size) {
    unsigned room = *count;
    *count = count_listed(device, kinds);
    if (*count > room || (*count && !place))
        return INSUFFICIENT_SIZE;
    for (size_t at = 0; at < device->process_count; ++at) {
        const struct process *process = &device->processes[at];
        if (!is_listed(process, kinds))
            continue;
        struct process_detail detail = {process->pid, process->used, 0xffffffff, 0xffffffff, 0};
        memcpy(place, &detail, size);
        place += size;
    }
    return SUCCESS;
}

static int list_processes(nvmlDevice_t handle, int kinds, unsigned *count, void *place, size_t size) {
    LOCK_OR_RETURN(device, lock_current_device(handle, &result), !count);
    return unlock(write_processes(device, kinds, count, place, size));
}

#define LIST_FUNCTION(name, kinds, type)                                                                                \
    int own_##name(nvmlDevice_t handle, unsigned *count, void *infos) {                                                 \
        return list_processes(handle, kinds, count, infos, sizeof(type));                                               \
    }

LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses, COMPUTE, struct process_info_v1)
LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, struct process_info)
LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, struct process_info)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses, MPS, struct process_info_v1)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, struct process_info)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, struct process_info)
LIST_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses, 0, struct process_info_v1)
LIST_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v2, 0, struct process_info)
LIST_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v3, 0, struct process_info)

int own_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, void *place) {
    static const int kinds[] = {COMPUTE, 0, MPS, COMPUTE}; /* nvmlProcessMode_t */
    struct {
        unsigned version, mode, count;
        struct process_detail *processes;
    } *list = place;
    LOCK_OR_RETURN(device, lock_current_device(handle, &result), !list);
    if (list->version != STRUCT_VERSION(*list, 1))
        return unlock(VERSION_MISMATCH);
    if (list->mode >= sizeof kinds / sizeof *kinds)
        return unlock(INVALID_ARGUMENT);
    return unlock(write_processes(device, kinds[list->mode], &list->count, (char *)list->processes, sizeof *list->processes));
}

/* --- utilization */

enum { MAX_SAMPLES = 72 }; /* as recorded: H200, driver 580.159 */

struct process_sample {
    unsigned pid;
    unsigned long long microseconds; /* since 1970 */
    unsigned multiprocessors, memory, encoder, decoder;
};

/* As recorded under MPS, a server has one row for all its clients, or none if no kernels ran. The row's time is now. */
int own_nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, struct process_sample *samples, unsigned *count,
                                               unsigned long long last_seen) {
    LOCK_OR_RETURN(device, lock_current_device(handle, &result), !count);
    if (!device->has_utilization)
        return unlock(NOT_SUPPORTED);
    unsigned room = samples ? *count : 0;
    *count = 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long microseconds = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    for (size_t at = 0; room && microseconds > last_seen && at < device->process_count; ++at) {
        const struct process *process = &device->processes[at];
        if (!process->utilization)
            continue;
        if (*count == room)
            room = 0;
        else
            samples[(*count)++] = (struct process_sample){process->pid, microseconds, process->utilization, 0, 0, 0};
    }
    if (!room)
        *count = MAX_SAMPLES;
    return unlock(!room ? INSUFFICIENT_SIZE : *count ? SUCCESS : NOT_FOUND);
}

/* --- events */

enum { SINGLE_BIT_ECC = 1, DOUBLE_BIT_ECC = 2, XID_CRITICAL = 8, EVENTS = SINGLE_BIT_ECC | DOUBLE_BIT_ECC | XID_CRITICAL };

struct event_set {
    struct event_set *next;
};

static struct event_set *event_sets;
static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;

/* Return the link to a set, or to NULL if the set is not in the list. The caller holds `sets_lock`. */
static struct event_set **link_to(const struct event_set *set) {
    struct event_set **link = &event_sets;
    while (*link && *link != set)
        link = &(*link)->next;
    return link;
}

static int is_set(const struct event_set *set) {
    pthread_mutex_lock(&sets_lock);
    int found = set && *link_to(set);
    pthread_mutex_unlock(&sets_lock);
    return found;
}

int own_nvmlEventSetCreate(struct event_set **place) {
    LOCK_OR_RETURN(machine, lock_machine(&result), 0);
    unlock(0);
    struct event_set *set = place ? calloc(1, sizeof *set) : NULL;
    if (!set)
        return place ? NO_MEMORY : INVALID_ARGUMENT;
    pthread_mutex_lock(&sets_lock);
    set->next = event_sets;
    event_sets = set;
    pthread_mutex_unlock(&sets_lock);
    *place = set;
    return SUCCESS;
}

int own_nvmlEventSetFree(struct event_set *set) {
    LOCK_OR_RETURN(machine, lock_machine(&result), 0);
    unlock(0);
    pthread_mutex_lock(&sets_lock);
    struct event_set **link = link_to(set);
    int found = set && *link;
    if (found)
        *link = set->next;
    pthread_mutex_unlock(&sets_lock);
    if (found)
        free(set);
    return found ? SUCCESS : INVALID_ARGUMENT;
}

int own_nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, struct event_set *set) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !is_set(set));
    return unlock(types & ~(unsigned long long)EVENTS ? NOT_SUPPORTED : SUCCESS);
}

int own_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !types);
    *types = EVENTS;
    return unlock(SUCCESS);
}

int own_nvmlEventSetWait_v2(struct event_set *set, void *data, unsigned milliseconds) {
    LOCK_OR_RETURN(machine, lock_machine(&result), 0);
    unlock(0);
    if (!data || !is_set(set))
        return INVALID_ARGUMENT;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += milliseconds / 1000;
    end.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_nsec -= 1000000000;
        ++end.tv_sec;
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
        ;
    return TIMEOUT;
}

SAME_CODE(nvmlEventSetWait, nvmlEventSetWait_v2)
