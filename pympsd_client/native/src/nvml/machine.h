/* The devices of a machine and the processes on them, as the file of a daemon describes them (machine.c). */

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { MAX_DEVICES = 256, MAX_PROCESSES = 1 << 16, MAX_FILE_BYTES = 8 << 20, REASON_BYTES = 1024 };

struct process {
    unsigned pid;
    int is_client; /* whether it is a client of a server; otherwise it is a server */
    uint64_t used; /* bytes of device memory */
    unsigned utilization; /* percent of the last second: a server's part of the device's utilization */
};

struct device {
    char name[96], uuid[80];
    unsigned domain, bus, slot, function; /* the PCI address */
    unsigned board, subsystem;            /* PCI ids, 0 if they are unknown */
    int major, minor;                     /* the compute capability */
    int compute_mode, numa_node;          /* an nvmlComputeMode_t; the NUMA node, -1 if the device has none */
    unsigned ordinal;                     /* the device's number on the machine */
    uint64_t memory;                      /* bytes for processes */
    uint64_t used;                        /* how many of these bytes processes hold */
    uint64_t reserved;                    /* bytes that the driver keeps for itself */
    int has_utilization;                  /* whether the daemon reports it */
    struct {
        unsigned gpu, memory; /* percent of the last second in which kernels ran, and in which they used memory */
    } utilization;
    struct process *processes;
    size_t process_count;
};

struct machine {
    char backend[16]; /* "emulated" or "cuda" */
    char driver[32];  /* "590.0" */
    unsigned branch;  /* 590 */
    int cuda, api;    /* versions of CUDA, such as 13010: the driver's, and the one that programs get */
    char modes[4096]; /* the path of the file of compute modes; empty if there is none */
    uid_t trusted[2]; /* the users whose file of modes counts */
    struct device *devices;
    size_t device_count;
};

/* Parse a description. Return the machine, to be freed with `free_machine`, or NULL with the reason in `reason`. */
struct machine *parse_machine(char *text, size_t length, char reason[REASON_BYTES]);
void free_machine(struct machine *machine);

/* Read the regular file `path`, and its status. Return its text with a NUL after `*length` bytes, which the caller frees,
 * or NULL with the reason. */
char *read_file(const char *path, size_t *length, struct stat *status, char reason[REASON_BYTES]);

/* Return the device's current compute mode, from the file of modes or else from the device's description. */
int current_compute_mode(const struct machine *machine, const struct device *device);
