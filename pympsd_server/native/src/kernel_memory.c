// What generated code calls to reach memory: checks that its quick ones could not decide, and lanes one by one.
#include "kernels.h"
#include <string.h>

enum { RANK_SHIFT = 24, WINDOW_BITS = 40 };

int kernels_fail(Worker *c, uint64_t address, uint32_t lane, uint32_t kind, uint32_t nbytes, uint32_t space) {
    c->fault_address = address, c->fault_lane = lane, c->fault_kind = kind, c->fault_bytes = nbytes;
    c->fault_space = space;
    return 1;
}

// Return the index of the allocation that has all of an access, -1 if none has.
static int64_t find(const ReachableMemory *a, int64_t offset, uint64_t nbytes) {
    int64_t low = 0, high = a->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (a->starts[middle] <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || offset >= a->ends[low - 1] || (uint64_t)(a->ends[low - 1] - offset) < nbytes)
        return -1;
    return low - 1;
}

// Remember nothing of allocations that may be gone.
static void use(Worker *c, const ReachableMemory *a) {
    if (c->generation != a->generation)
        memset(c->sites, 0, c->batch->sites_bytes);
    c->generation = a->generation;
}

// Let all threads of a batch use other allocations from now on.
void kernels_publish(Batch *b, const ReachableMemory *a) { atomic_store(&b->allocations, a); }

void kernels_look(Worker *c) { use(c, atomic_load(&c->batch->allocations)); }

int kernels_check_global(Worker *c, uint64_t site, uint64_t address, uint32_t lane, uint32_t nbytes) {
    const ReachableMemory *a = atomic_load(&c->batch->allocations), *earlier = a;
    int64_t offset = (int64_t)(address - (uint64_t)c->batch->base), at = find(a, offset, nbytes);
    if (at < 0) {
        c->batch->refresh(c->batch);
        a = atomic_load(&c->batch->allocations); // another thread may have looked, too
        if (a != earlier)
            at = find(a, offset, nbytes);
    }
    if (at < 0)
        return kernels_fail(c, address, lane, OUTSIDE, nbytes, GLOBAL);
    if (address & (nbytes - 1))
        return kernels_fail(c, address, lane, MISALIGNED, nbytes, GLOBAL);
    use(c, a);
    c->sites[2 * site] = (uint64_t)(a->starts[at] + c->batch->base);
    c->sites[2 * site + 1] = (uint64_t)(a->ends[at] - a->starts[at]);
    return 0;
}

// Replace device addresses by host addresses after checking all accesses (offset, bytes) off each of them. Returns 1
// with the fault in the worker.
int kernels_resolve(
    Worker *c, uint64_t site, uint64_t *addresses, uint32_t mask, uint32_t space, const int64_t *accesses, uint32_t count
) {
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest), kind = space;
        uint64_t address = addresses[lane], window = address + (uint64_t)accesses[0];
        if (kind == GENERIC) {
            uint64_t number = window >> WINDOW_BITS;
            kind = number == 1 ? SHARED : number == 2 ? LOCAL : number == 3 ? PARAM : GLOBAL;
            if (kind != GLOBAL)
                address -= number << WINDOW_BITS;
        }
        uint64_t own = kind == SHARED ? (uint64_t)c->shared : kind == PARAM ? (uint64_t)c->parameters
            : (uint64_t)c->local + lane * c->local_frame;
        uint64_t size = kind == SHARED ? c->shared_bytes : kind == LOCAL ? c->local_bytes : c->parameter_bytes;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t at = address + (uint64_t)accesses[2 * i];
            uint32_t nbytes = (uint32_t)accesses[2 * i + 1];
            if (kind == GLOBAL) {
                if (kernels_check_global(c, site, at, lane, nbytes))
                    return 1;
                continue;
            }
            uint32_t place = (uint32_t)at;
            if (kind == SHARED && place >> RANK_SHIFT == 1) // the first block of a cluster, which is the only one
                place -= 1u << RANK_SHIFT;
            if (place > size || size - place < nbytes)
                return kernels_fail(c, (uint32_t)at, lane, OUTSIDE, nbytes, kind);
            if (place & (nbytes - 1))
                return kernels_fail(c, (uint32_t)at, lane, MISALIGNED, nbytes, kind);
            if (i == 0)
                addresses[lane] = own + place - (uint64_t)accesses[0];
        }
        if (kind == GLOBAL)
            addresses[lane] = address + (uint64_t)c->delta;
    }
    return 0;
}

// Copy elements of a power of two bytes, of which the compiler makes single instructions.
static inline void copy_element(void *to, const void *from, uint32_t size) {
    switch (size) {
    case 1: memcpy(to, from, 1); break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 8); break;
    }
}

void kernels_gather(const uint64_t *addresses, uint32_t mask, uint32_t size, uint8_t *out) {
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        copy_element(out + lane * size, (void *)addresses[lane], size);
    }
}

void kernels_scatter(const uint64_t *addresses, uint32_t mask, uint32_t size, const uint8_t *in) {
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        copy_element((void *)addresses[lane], in + lane * size, size);
    }
}
