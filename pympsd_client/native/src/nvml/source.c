/* Finds the devices: the daemon's, the driver's, or those of a description without a daemon.
 *
 * A daemon with servers of pympsd keeps the file pympsd.nvml in its pipe directory up to date, by replacing it after
 * changes (pympsd/service/nvml_file.py). A reader sees the old file or the new one, never a part of each, and notices a new
 * one by its inode and time. So a query costs one stat, and needs no mapping that another process could truncate.
 *
 * The file counts if it belongs to root or this user and nobody else can write to it, because another user's could describe
 * devices that do not exist. In a user namespace the kernel shows one number, the overflow uid, for every user that is not
 * mapped. Such an owner is trusted only with PYMPSD_UNMAPPED_DAEMON=trust, because a file cannot prove whose it is, as a
 * daemon can (pympsd/channel/daemon_owner.py). A namespace of protocol 3 has a directory below the daemon's.
 *
 * A daemon that was killed leaves the file behind. connect(2) with a socket of another type shows whether a process
 * listens: it fails with EPROTOTYPE, which the daemon does not notice, or with ECONNREFUSED. */

#define _GNU_SOURCE
#include "../installation.h"
#include "source.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char default_directory[] = "/tmp/nvidia-mps";
static const char file_name[] = "pympsd.nvml";
extern char **environ;

/* --- whom to trust */

/* Return whether a uid stands for one user, and not for all users that are not mapped in this user namespace. */
static int is_one_user(uid_t uid) {
    unsigned long overflow = 65534, count, all = 0;
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");
    if (file) {
        if (fscanf(file, "%lu", &overflow) != 1)
            overflow = 65534;
        fclose(file);
    }
    if (uid != overflow)
        return 1;
    if (!(file = fopen("/proc/self/uid_map", "re")))
        return 0;
    while (fscanf(file, "%*u %*u %lu", &count) == 1)
        all += count;
    fclose(file);
    return all >= UINT32_MAX;
}

static int is_trusted(const struct stat *status, const char *path, char reason[REASON_BYTES]) {
    if (status->st_mode & (S_IWGRP | S_IWOTH)) {
        snprintf(reason, REASON_BYTES, "%s may be written by others, so it is not a daemon's", path);
        return 0;
    }
    if (!is_one_user(status->st_uid)) {
        const char *trust = secure_getenv("PYMPSD_UNMAPPED_DAEMON");
        if (trust && !strcmp(trust, "trust"))
            return 1;
        snprintf(reason, REASON_BYTES,
                 "the user of %s is not mapped in this user namespace; if it is root's or yours, set "
                 "PYMPSD_UNMAPPED_DAEMON=trust",
                 path);
        return 0;
    }
    if (status->st_uid == 0 || status->st_uid == getuid())
        return 1;
    snprintf(reason, REASON_BYTES, "the daemon of %s is user %u's, neither root's nor yours", path, status->st_uid);
    return 0;
}

/* --- the daemon's file */

/* Return whether a daemon, or its keeper, listens at `directory`/control. */
static int listens(const char *directory) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", directory);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return 0;
    int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0)
        return 1; /* this process has no free descriptor, so rely on the file */
    int error = connect(probe, (struct sockaddr *)&address, sizeof address) ? errno : 0;
    close(probe);
    return error != ECONNREFUSED && error != ENOENT && error != ENOTDIR;
}

/* Write the path of the daemon's file to `path`; from a namespace's directory it is up to two folders up. */
static int find_file(const char *directory, char path[4096]) {
    static const char *const above[] = {"", "../", "../../"};
    for (size_t at = 0; at < sizeof above / sizeof *above; ++at) {
        if (snprintf(path, 4096, "%s/%s%s", directory, above[at], file_name) >= 4096)
            return 0;
        struct stat status;
        if (!lstat(path, &status))
            return 1;
        char lock[4096 + 16];
        snprintf(lock, sizeof lock, "%s/control_lock", directory);
        if (!access(lock, F_OK))
            return 0; /* this is a daemon's own directory */
    }
    return 0;
}

struct machine *read_daemons_machine(char path[4096], struct stat *status, int *absent, char reason[REASON_BYTES]) {
    const char *directory = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!directory || !*directory)
        directory = default_directory;
    *absent = NO_DAEMON;
    if (!listens(directory)) {
        snprintf(reason, REASON_BYTES,
                 "no daemon of pympsd at %.400s: start one (pympsd -d), or name its directory in CUDA_MPS_PIPE_DIRECTORY",
                 directory);
        return NULL;
    }
    *absent = NO_FILE;
    if (!find_file(directory, path)) {
        snprintf(reason, REASON_BYTES,
                 "the daemon at %.400s has no file %s there: it manages the driver's server, is of an earlier version, or this "
                 "is the directory of a namespace alone",
                 directory, file_name);
        return NULL;
    }
    *absent = 0;
    size_t length;
    char *text = read_file(path, &length, status, reason);
    struct machine *machine = NULL;
    if (text && is_trusted(status, path, reason)) {
        char why[REASON_BYTES];
        if (!(machine = parse_machine(text, length, why)))
            snprintf(reason, REASON_BYTES, "%.400s: %.400s", path, why);
    }
    free(text);
    return machine;
}

struct machine *read_machine_again(const char *path, struct stat *status, int *gone) {
    struct stat now;
    if ((*gone = lstat(path, &now) != 0) || (now.st_ino == status->st_ino && now.st_dev == status->st_dev &&
                             now.st_mtim.tv_sec == status->st_mtim.tv_sec && now.st_mtim.tv_nsec == status->st_mtim.tv_nsec))
        return NULL;
    char unused[REASON_BYTES];
    size_t length;
    char *text = read_file(path, &length, &now, unused);
    struct machine *machine = text && is_trusted(&now, path, unused) ? parse_machine(text, length, unused) : NULL;
    free(text);
    *status = now; /* so that an invalid file is not read again, either */
    return machine;
}

/* --- without a daemon */

/* Write the path of this library's folder. */
static int own_folder(char folder[PATH_MAX]) {
    Dl_info own;
    if (!dladdr((void *)default_directory, &own) || !own.dli_fname || !realpath(own.dli_fname, folder))
        return 0;
    *strrchr(folder, '/') = '\0';
    return 1;
}

/* Read what a child writes, until it ends or 30 s are over; return the length, or -1. */
static ssize_t read_all(int end, char *text, size_t size) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t give_up = now.tv_sec + 30;
    size_t length = 0;
    for (;;) {
        struct pollfd poll_end = {.fd = end, .events = POLLIN};
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec >= give_up || length == size)
            return -1;
        if (poll(&poll_end, 1, 1000) <= 0)
            continue;
        ssize_t count = read(end, text + length, size - length);
        if (count > 0)
            length += (size_t)count;
        else if (count == 0)
            return (ssize_t)length;
        else if (errno != EINTR)
            return -1;
    }
}

/* Start the child; return an error number. With -P Python does not search the program's working directory for modules. */
static int start(const char *interpreter, int output, pid_t *child) {
    char *const words[] = {(char *)interpreter, "-P", "-m", "pympsd.devices", "--nvml", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    int error = posix_spawnp(child, interpreter, &actions, &attributes, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

struct machine *describe_machine(char reason[REASON_BYTES]) {
    enum { SIZE = 1 << 20 };
    char folder[PATH_BYTES], interpreter[PATH_BYTES], why[REASON_BYTES], *text = malloc(SIZE + 1);
    int ends[2];
    pid_t child = 0;
    struct machine *machine = NULL;
    size_t heard = strlen(reason);
    if (getauxval(AT_SECURE)) { /* the environment would decide what runs with these rights */
        snprintf(reason + heard, REASON_BYTES - heard, "; and the program runs with the rights of its file");
        free(text);
        return NULL;
    }
    find_packages(default_directory, folder);
    if (!find_interpreter(folder, interpreter)) {
        snprintf(reason + heard, REASON_BYTES - heard, "; and no interpreter of Python is found for the packages in %.400s",
                 folder);
        free(text);
        return NULL;
    }
    if (!text || pipe2(ends, O_CLOEXEC)) {
        free(text);
        return NULL;
    }
    int error = start(interpreter, ends[1], &child);
    close(ends[1]);
    ssize_t length = error ? -1 : read_all(ends[0], text, SIZE);
    close(ends[0]);
    if (!error) {
        if (length < 0)
            kill(child, SIGKILL);
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (length < 0)
        snprintf(reason + heard, REASON_BYTES - heard, "; and %.300s -m pympsd.devices did not describe one%s%s", interpreter,
                 error ? ": " : "", error ? strerror(error) : "");
    else {
        text[length] = '\0';
        if (!(machine = parse_machine(text, (size_t)length, why))) /* the child printed one line with the reason */
            snprintf(reason + heard, REASON_BYTES - heard, "; and %.500s", *text ? text : "pympsd.devices printed nothing");
    }
    free(text);
    return machine;
}

/* --- the driver's own library */

/* Open the library in a folder that is neither this one's nor that of another installation of pympsd. */
static void *open_other(const char *folder, size_t length, const char *own) {
    char path[PATH_MAX], real[PATH_MAX];
    if (!length || snprintf(path, sizeof path, "%.*s/libnvidia-ml.so.1", (int)length, folder) >= PATH_MAX ||
        !realpath(path, real) || !strncmp(real, own, strlen(own)) || strstr(real, "/pympsd_client/native/libraries/"))
        return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Try the paths in the dynamic loader's cache. */
static void *open_cached(const char *own) {
    static const char end[] = "/libnvidia-ml.so.1";
    char unused[REASON_BYTES];
    size_t length;
    struct stat status;
    char *cache = read_file("/etc/ld.so.cache", &length, &status, unused), *found = cache;
    void *library = NULL;
    while (found && !library && (found = memmem(found, length - (size_t)(found - cache), end, sizeof end))) {
        char *begin = found;
        while (begin > cache && begin[-1])
            --begin;
        library = open_other(begin, (size_t)(found - begin), own);
        ++found;
    }
    free(cache);
    return library;
}

void *open_drivers_library(void) {
    static const char *const folders[] = {
#if defined(__x86_64__)
        "/usr/lib/x86_64-linux-gnu",
#else
        "/usr/lib/aarch64-linux-gnu",
#endif
        "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib",
    };
    char own[PATH_MAX];
    if (!own_folder(own))
        return NULL;
    void *library = NULL;
    const char *rest = secure_getenv("LD_LIBRARY_PATH");
    while (!library && rest && *rest) {
        size_t length = strcspn(rest, ":;");
        library = open_other(rest, length, own);
        rest += length + (rest[length] != '\0');
    }
    if (!library)
        library = open_cached(own);
    for (size_t at = 0; !library && at < sizeof folders / sizeof *folders; ++at)
        library = open_other(folders[at], strlen(folders[at]), own);
    return library;
}
