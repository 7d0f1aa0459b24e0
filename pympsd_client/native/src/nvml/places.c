/* NVML's functions about a device's place in the machine.
 *
 * An emulated device is near the CPUs and the memory of the NUMA node that it names, because the CPUs do its work. */

#define _GNU_SOURCE
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORD_BITS = 64, MAX_CPUS = 1 << 16, SAME_NODE = 40, INTERNAL = 0, SCOPES = 2 /* NVML_AFFINITY_SCOPE_NODE, _SOCKET */ };

/* Set the bit of a number in a set of `words` words. Return whether it fits. */
static int add(uint64_t *set, unsigned words, unsigned long number) {
    if (number / WORD_BITS >= words)
        return 0;
    set[number / WORD_BITS] |= (uint64_t)1 << number % WORD_BITS;
    return 1;
}

/* Set the bits of a node's CPUs (Linux, sysfs-devices-node); a machine without nodes counts as one node. Return whether
 * they fit. */
static int add_cpus(uint64_t *set, unsigned words, int node) {
    char path[64], list[4096];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = fopen(path, "re");
    if (!file || !fgets(list, sizeof list, file))
        snprintf(list, sizeof list, "0-%ld", sysconf(_SC_NPROCESSORS_ONLN) - 1);
    if (file)
        fclose(file);
    for (char *rest = list, *range; (range = strsep(&rest, ",\n"));) {
        char *end;
        unsigned long first = strtoul(range, &end, 10), last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        if (end == range)
            continue;
        for (unsigned long cpu = first; cpu <= last && cpu < MAX_CPUS; ++cpu)
            if (!add(set, words, cpu))
                return 0;
    }
    return 1;
}

int own_nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t handle, unsigned words, uint64_t *place, unsigned scope) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !place || scope >= SCOPES);
    if (device->numa_node < 0)
        return unlock(NOT_SUPPORTED);
    memset(place, 0, words * sizeof *place);
    return unlock(add_cpus(place, words, device->numa_node) ? SUCCESS : INSUFFICIENT_SIZE);
}

int own_nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned words, uint64_t *place) {
    return own_nvmlDeviceGetCpuAffinityWithinScope(handle, words, place, 0);
}

int own_nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned words, uint64_t *place, unsigned scope) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !place || scope >= SCOPES);
    if (device->numa_node < 0)
        return unlock(NOT_SUPPORTED);
    memset(place, 0, words * sizeof *place);
    return unlock(add(place, words, (unsigned long)device->numa_node) ? SUCCESS : INSUFFICIENT_SIZE);
}

int own_nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned *node) {
    LOCK_OR_RETURN(device, lock_device(handle, &result), !node);
    if (device->numa_node < 0)
        return unlock(NOT_SUPPORTED);
    *node = (unsigned)device->numa_node;
    return unlock(SUCCESS);
}

/* Write the handles of those devices of a machine for which `is_wanted` is true, as many as fit. */
static void write_handles(const struct machine *machine, unsigned *count, nvmlDevice_t *places,
                          int (*is_wanted)(const struct machine *, size_t, unsigned long), unsigned long argument) {
    unsigned room = *count, found = 0;
    for (size_t number = 0; number < machine->device_count; ++number) {
        if (!is_wanted(machine, number, argument))
            continue;
        if (places && found < room)
            places[found] = handle_of(number);
        ++found;
    }
    *count = found;
}

static int has_cpu(const struct machine *machine, size_t number, unsigned long cpu) {
    uint64_t set[MAX_CPUS / WORD_BITS] = {0};
    int node = machine->devices[number].numa_node;
    if (node < 0 || cpu >= MAX_CPUS)
        return 0;
    add_cpus(set, MAX_CPUS / WORD_BITS, node);
    return set[cpu / WORD_BITS] >> cpu % WORD_BITS & 1;
}

int own_nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *places) {
    LOCK_OR_RETURN(machine, lock_machine(&result), !count);
    write_handles(machine, count, places, has_cpu, cpu);
    return unlock(SUCCESS);
}

static int is_other(const struct machine *machine, size_t number, unsigned long own) {
    return number != own && machine->devices[number].numa_node == machine->devices[own].numa_node;
}

static int is_none(const struct machine *machine, size_t number, unsigned long own) {
    (void)machine, (void)number, (void)own;
    return 0;
}

int own_nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level, unsigned *count, nvmlDevice_t *places) {
    enum { LEVELS = 50, STEP = 10 }; /* nvmlGpuTopologyLevel_t: 0, 10, ... 50 */
    LOCK_OR_RETURN(device, lock_device(handle, &result), level > LEVELS || level % STEP || !count);
    write_handles(locked_machine(), count, places, level == SAME_NODE ? is_other : is_none, number_of(device));
    return unlock(SUCCESS);
}

int own_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned *level) {
    int other_result;
    if (!lock_device(second, &other_result))
        return other_result;
    unlock(0);
    LOCK_OR_RETURN(device, lock_device(first, &result), !level);
    *level = first == second ? INTERNAL : SAME_NODE;
    return unlock(SUCCESS);
}

/* Each field has its own result. */
int own_nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, void *place) {
    struct {
        unsigned field, scope;
        long long time, latency;
        unsigned type;
        int result;
        unsigned long long value;
    } *fields = place;
    LOCK_OR_RETURN(device, lock_device(handle, &result), count <= 0 || !fields);
    for (int at = 0; at < count; ++at)
        fields[at].result = NOT_SUPPORTED;
    return unlock(SUCCESS);
}
