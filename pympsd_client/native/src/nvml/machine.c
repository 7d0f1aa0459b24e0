/* Reads, checks and parses the description of a machine.
 *
 * pympsd/devices/nvml_text.py writes it and documents the format: each line has a name and its values. Unknown names are
 * ignored, because a later daemon may write more. One unreadable value makes the description invalid. The last line is
 * "end"; without it the description was truncated. */

#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char first_line[] = "pympsd-nvml 1";
static const char first_word[] = "pympsd-nvml ";

static void *fail(char reason[REASON_BYTES], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, REASON_BYTES, format, arguments);
    va_end(arguments);
    return NULL;
}

char *read_file(const char *path, size_t *length, struct stat *status, char reason[REASON_BYTES]) {
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (file < 0 || fstat(file, status)) {
        fail(reason, "%s: %s", path, strerror(errno));
        if (file >= 0)
            close(file);
        return NULL;
    }
    char *text = NULL;
    size_t size = (size_t)status->st_size, taken = 0;
    if (!S_ISREG(status->st_mode) || status->st_size > MAX_FILE_BYTES)
        fail(reason, "%s is not a file of a daemon", path);
    else if (!(text = malloc(size + 1)))
        fail(reason, "%s: %s", path, strerror(errno));
    while (text && taken < size) {
        ssize_t count = read(file, text + taken, size - taken);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            fail(reason, "%s: %s", path, strerror(errno));
            free(text);
            text = NULL;
        }
        if (count <= 0) /* the file was truncated meanwhile */
            break;
        taken += (size_t)count;
    }
    close(file);
    if (text)
        text[*length = taken] = '\0';
    return text;
}

/* --- values */

/* Read a number up to `most`, and the separator before the next value. Return whether there is a number. */
static int take_number(char **text, uint64_t most, uint64_t *number) {
    char *end = *text;
    if (**text < '0' || **text > '9') /* strtoull would accept signs and spaces */
        return 0;
    errno = 0;
    *number = strtoull(*text, &end, 10);
    if (errno || *number > most || (*end != ' ' && *end != '\0'))
        return 0;
    *text = *end ? end + 1 : end;
    return 1;
}

static int take_unsigned(char **text, unsigned *number) {
    uint64_t value;
    return take_number(text, UINT32_MAX, &value) && (*number = (unsigned)value, 1);
}

static int take_int(char **text, int *number) {
    uint64_t value;
    int sign = **text == '-' ? (++*text, -1) : 1;
    return take_number(text, INT32_MAX, &value) && (*number = sign * (int)value, 1);
}

static int take_text(const char *text, char *place, size_t size) {
    size_t length = strlen(text);
    return length < size && (memcpy(place, text, length + 1), 1);
}

static int take_process(char *value, struct device *device) {
    struct process process = {0};
    char *kind = value;
    if (!take_unsigned(&kind, &process.pid) || (*kind != 'C' && *kind != 'M') || kind[1] != ' ')
        return 0;
    process.is_client = *kind == 'M';
    kind += 2;
    if (device->process_count == MAX_PROCESSES || !take_number(&kind, UINT64_MAX, &process.used) ||
        (*kind && !take_unsigned(&kind, &process.utilization)))
        return 0;
    if (!(device->process_count & (device->process_count - 1))) { /* 0 or a power of 2: the array is full */
        size_t count = device->process_count ? 2 * device->process_count : 1;
        struct process *larger = realloc(device->processes, count * sizeof *larger);
        if (!larger)
            return 0;
        device->processes = larger;
    }
    device->processes[device->process_count++] = process;
    return 1;
}

/* --- lines */

static int take_fact_of_device(struct device *device, const char *name, char *value) {
    if (!strcmp(name, "name"))
        return take_text(value, device->name, sizeof device->name);
    if (!strcmp(name, "uuid"))
        return take_text(value, device->uuid, sizeof device->uuid);
    if (!strcmp(name, "pci"))
        return take_unsigned(&value, &device->domain) && take_unsigned(&value, &device->bus) &&
               take_unsigned(&value, &device->slot) && take_unsigned(&value, &device->function);
    if (!strcmp(name, "board"))
        return take_unsigned(&value, &device->board) && take_unsigned(&value, &device->subsystem);
    if (!strcmp(name, "capability"))
        return take_int(&value, &device->major) && take_int(&value, &device->minor);
    if (!strcmp(name, "compute_mode"))
        return take_int(&value, &device->compute_mode);
    if (!strcmp(name, "numa_node"))
        return take_int(&value, &device->numa_node);
    if (!strcmp(name, "ordinal"))
        return take_unsigned(&value, &device->ordinal);
    if (!strcmp(name, "memory"))
        return take_number(&value, UINT64_MAX, &device->memory) && take_number(&value, device->memory, &device->used);
    if (!strcmp(name, "reserved"))
        return take_number(&value, UINT64_MAX - device->memory, &device->reserved);
    if (!strcmp(name, "utilization"))
        return device->has_utilization = take_unsigned(&value, &device->utilization.gpu) &&
                                         take_unsigned(&value, &device->utilization.memory);
    if (!strcmp(name, "process"))
        return take_process(value, device);
    return 1;
}

static int take_fact(struct machine *machine, const char *name, char *value) {
    if (!strcmp(name, "device")) {
        if (machine->device_count == MAX_DEVICES)
            return 0;
        machine->devices[machine->device_count++].numa_node = -1;
        return 1;
    }
    if (machine->device_count)
        return take_fact_of_device(&machine->devices[machine->device_count - 1], name, value);
    if (!strcmp(name, "backend"))
        return take_text(value, machine->backend, sizeof machine->backend);
    if (!strcmp(name, "driver")) {
        char *rest = strchr(value, ' ');
        if (!rest)
            return 0;
        *rest++ = '\0';
        return take_text(value, machine->driver, sizeof machine->driver) && take_unsigned(&rest, &machine->branch) &&
               take_int(&rest, &machine->cuda) && take_int(&rest, &machine->api);
    }
    if (!strcmp(name, "modes"))
        return take_unsigned(&value, &machine->trusted[0]) && take_unsigned(&value, &machine->trusted[1]) &&
               take_text(value, machine->modes, sizeof machine->modes);
    return 1;
}

void free_machine(struct machine *machine) {
    if (!machine)
        return;
    for (size_t number = 0; machine->devices && number < machine->device_count; ++number)
        free(machine->devices[number].processes);
    free(machine->devices);
    free(machine);
}

static int is_complete(const struct machine *machine) {
    for (size_t number = 0; number < machine->device_count; ++number)
        if (!*machine->devices[number].uuid || !*machine->devices[number].name)
            return 0;
    return *machine->backend && *machine->driver;
}

struct machine *parse_machine(char *text, size_t length, char reason[REASON_BYTES]) {
    if (strlen(text) != length || strncmp(text, first_word, sizeof first_word - 1))
        return fail(reason, "it is not a description of devices");
    struct machine *machine = calloc(1, sizeof *machine);
    if (!machine || !(machine->devices = calloc(MAX_DEVICES, sizeof *machine->devices))) {
        free(machine);
        return fail(reason, "%s", strerror(ENOMEM));
    }
    int number = 0, ended = 0;
    for (char *line = text, *next; line && *line && !ended; line = next) {
        if (!(next = strchr(line, '\n')))
            break; /* the description was truncated */
        *next++ = '\0';
        if (!number++) {
            if (!strcmp(line, first_line))
                continue;
            free_machine(machine);
            return fail(reason, "the daemon is of another version: its file begins with \"%.40s\", not \"%s\"", line, first_line);
        }
        if ((ended = !strcmp(line, "end")))
            break;
        char *value = strchr(line, ' ');
        if (value)
            *value++ = '\0';
        if (!take_fact(machine, line, value ? value : line + strlen(line))) {
            free_machine(machine);
            return fail(reason, "line %d of it cannot be read", number);
        }
    }
    if (ended && is_complete(machine))
        return machine;
    free_machine(machine);
    return fail(reason, "it is incomplete");
}

int current_compute_mode(const struct machine *machine, const struct device *device) {
    static const struct {
        const char *name;
        int number;
    } modes[] = {{"DEFAULT", 0}, {"PROHIBITED", 2}, {"EXCLUSIVE_PROCESS", 3}};
    int mode = device->compute_mode;
    char unused[REASON_BYTES];
    size_t length = 0, of_uuid = strlen(device->uuid);
    struct stat status;
    char *text = *machine->modes ? read_file(machine->modes, &length, &status, unused) : NULL;
    if (text && (status.st_uid == machine->trusted[0] || status.st_uid == machine->trusted[1]))
        for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
            if (!strncmp(line, device->uuid, of_uuid) && line[of_uuid] == ' ')
                for (size_t at = 0; at < sizeof modes / sizeof *modes; ++at)
                    if (!strcmp(line + of_uuid + 1, modes[at].name))
                        mode = modes[at].number;
    free(text);
    return mode;
}
