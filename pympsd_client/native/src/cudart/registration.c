/* What a compiled program registers with its runtime: its fat binaries, and the host addresses of kernels and variables.
 *
 * nvcc compiles constructors into a program that call the functions here (crt/host_runtime.h), once for each source file:
 *
 *     handle = __cudaRegisterFatBinary(&wrapper);
 *     __cudaRegisterFunction(handle, host function, ..., "_Z3addPf", ...);
 *     __cudaRegisterVar(handle, host variable, ..., "table", ...);
 *     __cudaRegisterFatBinaryEnd(handle);
 *     atexit(__cudaUnregisterFatBinary(handle));
 *
 * They only record: a program may have thousands of kernels and use none. The records are a hash table by host address,
 * which launches read without a lock. It is replaced by a copy when it is half full; replaced tables and removed records
 * are never freed, because a launch in another thread may still read them. Dynamic libraries register while other threads
 * launch, so writers hold a lock.
 *
 * Managed variables: the program accesses them through a pointer, and calls __cudaInitModule before that. */

#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIRST_BITS = 8 };

typedef struct {
    int bits, used;
    _Atomic(Registration *) entries[];
} Table;

typedef struct FatBinary {
    void *wrapper;
    int has_managed;
    struct FatBinary *next;
} FatBinary;

static _Atomic(Table *) table;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static Registration removed; /* takes the place of removed entries: its host is NULL, and look-ups continue after it */
static FatBinary *fat_binaries;

static size_t place_of(const Table *of, const void *host) {
    return (size_t)((uint64_t)(uintptr_t)host * UINT64_C(0x9E3779B97F4A7C15) >> (64 - of->bits));
}

static size_t next(const Table *of, size_t place) {
    return (place + 1) & (((size_t)1 << of->bits) - 1);
}

static Registration *look_up(Table *of, const void *host) {
    for (size_t place = place_of(of, host);; place = next(of, place)) {
        Registration *entry = atomic_load_explicit(&of->entries[place], memory_order_acquire);
        if (entry == NULL || entry->host == host)
            return entry;
    }
}

Registration *registration(const void *host) {
    Table *of = atomic_load_explicit(&table, memory_order_acquire);
    return of == NULL || host == NULL ? NULL : look_up(of, host);
}

/* Put an entry into the first place that is free, or that has the same address, from a library that was unloaded. */
static void put(Table *of, Registration *entry) {
    size_t place = place_of(of, entry->host);
    Registration *before;
    while ((before = atomic_load(&of->entries[place])) != NULL && before->host != entry->host)
        place = next(of, place);
    of->used += before == NULL;
    atomic_store_explicit(&of->entries[place], entry, memory_order_release);
}

/* Return a copy without the removed entries, of twice the size if more than a quarter is in use. */
static Table *copy(const Table *of) {
    size_t size = of == NULL ? 0 : (size_t)1 << of->bits, count = 0;
    for (size_t place = 0; place < size; place++) {
        Registration *entry = atomic_load(&of->entries[place]);
        count += entry != NULL && entry != &removed;
    }
    int bits = of == NULL ? FIRST_BITS : of->bits + (count * 4 > size);
    Table *result = calloc(1, sizeof(Table) + ((size_t)1 << bits) * sizeof result->entries[0]);
    if (result == NULL)
        return NULL;
    result->bits = bits;
    for (size_t place = 0; place < size; place++) {
        Registration *entry = atomic_load(&of->entries[place]);
        if (entry != NULL && entry != &removed)
            put(result, entry);
    }
    return result;
}

static void add(void **handle, Registration record) {
    FatBinary *fat_binary = (FatBinary *)handle;
    if (fat_binary == NULL || record.host == NULL)
        return;
    Registration *entry = malloc(sizeof *entry);
    if (entry != NULL) {
        *entry = record;
        entry->wrapper = fat_binary->wrapper;
        fat_binary->has_managed |= record.kind == MANAGED;
    }
    pthread_mutex_lock(&writing);
    Table *of = atomic_load(&table);
    if (of == NULL || of->used * 2 >= 1 << of->bits) {
        Table *replacement = copy(of);
        if (replacement != NULL)
            atomic_store_explicit(&table, of = replacement, memory_order_release);
    }
    if (entry != NULL && of != NULL && of->used + 1 < 1 << of->bits)
        put(of, entry);
    else
        fprintf(stderr, "pympsd: no memory to register the kernel or variable %s; its use will fail\n", record.name);
    pthread_mutex_unlock(&writing);
}

void **__cudaRegisterFatBinary(void *wrapper) {
    FatBinary *fat_binary = calloc(1, sizeof *fat_binary);
    if (fat_binary == NULL)
        return NULL;
    pthread_mutex_lock(&writing);
    *fat_binary = (FatBinary){.wrapper = wrapper, .next = fat_binaries};
    fat_binaries = fat_binary;
    pthread_mutex_unlock(&writing);
    return (void **)fat_binary;
}

void *registered_wrapper(size_t index) {
    pthread_mutex_lock(&writing);
    const FatBinary *fat_binary = fat_binaries;
    while (fat_binary != NULL && index-- > 0)
        fat_binary = fat_binary->next;
    void *wrapper = fat_binary == NULL ? NULL : fat_binary->wrapper;
    pthread_mutex_unlock(&writing);
    return wrapper;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
                            void *thread, void *block, void *block_size, void *grid_size, int *warp_size) {
    (void)device, (void)thread_limit, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp_size;
    add(handle, (Registration){.host = host, .name = name, .kind = KERNEL});
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int is_external, size_t size,
                       int is_constant, int is_global) {
    (void)address, (void)is_external, (void)is_constant, (void)is_global;
    add(handle, (Registration){.host = host, .name = name, .size = size, .kind = VARIABLE});
}

void __cudaRegisterManagedVar(void **handle, void **place, char *address, const char *name, int is_external, size_t size,
                              int is_constant, int is_global) {
    (void)address, (void)is_external, (void)is_constant, (void)is_global;
    add(handle, (Registration){.host = place, .name = name, .size = size, .kind = MANAGED, .managed_place = place});
}

/* Report a host variable that device code accesses by its host address, because devices here cannot access it. */
void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t size) {
    (void)handle, (void)host, (void)size;
    fprintf(stderr, "pympsd: the host variable %s cannot be used by device code here\n", name == NULL ? "?" : name);
}

char __cudaInitModule(void **handle) {
    const FatBinary *fat_binary = (const FatBinary *)handle;
    if (fat_binary == NULL || !fat_binary->has_managed)
        return 1;
    Table *of = atomic_load(&table);
    for (size_t place = 0; of != NULL && place < (size_t)1 << of->bits; place++) {
        Registration *entry = atomic_load(&of->entries[place]);
        void *address;
        size_t size;
        if (entry == NULL || entry->kind != MANAGED || entry->wrapper != fat_binary->wrapper || entry->host == NULL)
            continue;
        if (pympsd_variable(&address, &size, entry->host) != SUCCESS)
            return 0;
        *entry->managed_place = address;
    }
    return 1;
}

void __cudaUnregisterFatBinary(void **handle) {
    FatBinary *fat_binary = (FatBinary *)handle;
    if (fat_binary == NULL)
        return;
    pthread_mutex_lock(&writing);
    Table *of = atomic_load(&table);
    for (size_t place = 0; of != NULL && place < (size_t)1 << of->bits; place++) {
        Registration *entry = atomic_load(&of->entries[place]);
        if (entry != NULL && entry->wrapper == fat_binary->wrapper)
            atomic_store(&of->entries[place], &removed);
    }
    FatBinary **place = &fat_binaries;
    while (*place != NULL && *place != fat_binary)
        place = &(*place)->next;
    if (*place != NULL)
        *place = fat_binary->next;
    pthread_mutex_unlock(&writing);
    if (is_attached())
        pympsd_unload(fat_binary->wrapper);
    free(fat_binary);
}
