// Functions by which generated code accesses memory: checks that its own quick ones cannot decide, and accesses lane by
// lane.
#include "kernels.h"
#include <string.h>

enum { RANK_SHIFT = 24, WINDOW_BITS = 40 };

int kernels_fail(Worker *c, uint64_t address, uint32_t lane, uint32_t kind, uint32_t nbytes, uint32_t space) {
    c->fault_address = address, c->fault_lane = lane, c->fault_kind = kind, c->fault_bytes = nbytes;
    c->fault_space = space;
    return 1;
}

// Return the index of the allocation that contains a whole access, or -1.
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

// Forget allocations that may have been freed.
static void use(Worker *c, const ReachableMemory *a) {
    if (c->generation != a->generation)
        memset(c->sites, 0, c->batch->sites_bytes);
    c->generation = a->generation;
}

// Let all threads of a batch use other allocations from now on.
void kernels_publish(Batch *b, const ReachableMemory *a) { atomic_store(&b->allocations, a); }

void kernels_look(Worker *c) { use(c, atomic_load(&c->batch->allocations)); }

enum { NOWHERE = -1 }; // not a shift, which is a multiple of the page size

// Return the shift from an address's offset to its place in the mapping: 0, or the shift of the peer's window it is in.
static int64_t find_shift(const Worker *c, uint64_t address) {
    const ReachableMemory *a = atomic_load(&c->batch->allocations);
    int64_t offset = (int64_t)(address - (uint64_t)c->batch->base);
    if (!a->peer_count || (offset >= 0 && offset < a->own_size))
        return 0;
    for (int64_t i = 0; i < a->peer_count; i++)
        if (a->peers[i].begin <= offset && offset < a->peers[i].end)
            return a->peers[i].shift;
    return NOWHERE;
}

// Check an access. The place in the code notes only the process's own allocations, so none in a peer's window.
static int check_shifted(Worker *c, uint64_t site, uint64_t address, int64_t shift, uint32_t lane, uint32_t nbytes) {
    const ReachableMemory *a = atomic_load(&c->batch->allocations), *earlier = a;
    if (shift == NOWHERE)
        return kernels_fail(c, address, lane, OUTSIDE, nbytes, GLOBAL);
    int64_t offset = (int64_t)(address - (uint64_t)c->batch->base + (uint64_t)shift), at = find(a, offset, nbytes);
    if (at < 0) {
        c->batch->refresh(c->batch);
        a = atomic_load(&c->batch->allocations); // another thread may have refreshed them, too
        if (a != earlier)
            at = find(a, offset, nbytes);
    }
    if (at < 0)
        return kernels_fail(c, address, lane, OUTSIDE, nbytes, GLOBAL);
    if (address & (nbytes - 1))
        return kernels_fail(c, address, lane, MISALIGNED, nbytes, GLOBAL);
    if (shift)
        return 0;
    use(c, a);
    c->sites[2 * site] = (uint64_t)(a->starts[at] + c->batch->base);
    c->sites[2 * site + 1] = (uint64_t)(a->ends[at] - a->starts[at]);
    return 0;
}

int kernels_check_global(Worker *c, uint64_t site, uint64_t address, uint32_t lane, uint32_t nbytes) {
    int64_t shift = find_shift(c, address);
    return check_shifted(c, site, address, shift ? NOWHERE : 0, lane, nbytes);
}

// Replace device addresses by host addresses, after checking all accesses (offset, bytes) relative to each of them.
// Returns 1 with the fault in the worker.
int kernels_resolve(
    Worker *c, uint64_t site, uint64_t *addresses, uint32_t mask, uint32_t space, const int64_t *accesses, uint32_t count
) {
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest), kind = space;
        uint64_t address = addresses[lane], window = address + (uint64_t)accesses[0];
        if (kind == GENERIC || kind == WRITTEN) {
            uint64_t number = window >> WINDOW_BITS;
            kind = number == 1 ? SHARED : number == 2 ? LOCAL : number == 3 ? PARAM : GLOBAL;
            if (kind != GLOBAL)
                address -= number << WINDOW_BITS;
            if (kind == PARAM && space == WRITTEN)
                return kernels_fail(c, (uint32_t)window, lane, READ_ONLY, (uint32_t)accesses[1], PARAM);
        }
        int64_t shift = kind == GLOBAL ? find_shift(c, window) : 0;
        uint64_t own = kind == SHARED ? (uint64_t)c->shared : kind == PARAM ? (uint64_t)c->parameters
            : (uint64_t)c->local + lane * c->local_frame;
        uint64_t size = kind == SHARED ? c->shared_bytes : kind == LOCAL ? c->local_bytes : c->parameter_bytes;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t at = address + (uint64_t)accesses[2 * i];
            uint32_t nbytes = (uint32_t)accesses[2 * i + 1];
            if (kind == GLOBAL) {
                if (check_shifted(c, site, at, shift, lane, nbytes))
                    return 1;
                continue;
            }
            uint32_t place = (uint32_t)at, rank = kind == SHARED && (int32_t)place > 0 ? place >> RANK_SHIFT : 0;
            if (rank > c->cluster_nctarank)
                return kernels_fail(c, place, lane, NO_BLOCK, nbytes, kind);
            uint64_t memory = rank ? (uint64_t)c->cluster_shared + (rank - 1) * c->batch->shared_frame : own;
            place -= rank << RANK_SHIFT;
            if (place > size || size - place < nbytes)
                return kernels_fail(c, place, lane, OUTSIDE, nbytes, kind);
            if (place & (nbytes - 1))
                return kernels_fail(c, place, lane, MISALIGNED, nbytes, kind);
            if (i == 0)
                addresses[lane] = memory + place - (uint64_t)accesses[0];
        }
        if (kind == GLOBAL)
            addresses[lane] = address + (uint64_t)(c->delta + shift);
    }
    return 0;
}

static inline void move(uint8_t *memory, uint8_t *registers, size_t size, uint32_t stores) {
    memcpy(stores ? memory : registers, stores ? registers : memory, size);
}

// Move an element of each lane of a mask, the lowest first. `size` is a constant, so that a move is one instruction.
// Eight lanes that are all in the mask need no loop.
static inline __attribute__((always_inline)) void move_lanes(
    const uint64_t *addresses, uint32_t mask, size_t size, uint8_t *registers, uint32_t stores
) {
    enum { TOGETHER = 8, ALL_OF_THEM = (1 << TOGETHER) - 1 };
    for (; mask; mask >>= TOGETHER, addresses += TOGETHER, registers += TOGETHER * size) {
        if ((mask & ALL_OF_THEM) == ALL_OF_THEM) {
#pragma GCC unroll 8
            for (uint32_t lane = 0; lane < TOGETHER; lane++)
                move((uint8_t *)addresses[lane], registers + lane * size, size, stores);
            continue;
        }
        for (uint32_t rest = mask & ALL_OF_THEM; rest; rest &= rest - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(rest);
            move((uint8_t *)addresses[lane], registers + lane * size, size, stores);
        }
    }
}

static inline __attribute__((always_inline)) void move_elements(
    const uint64_t *addresses, uint32_t mask, uint32_t size, uint8_t *registers, uint32_t stores
) {
    switch (size) {
    case 1: move_lanes(addresses, mask, 1, registers, stores); break;
    case 2: move_lanes(addresses, mask, 2, registers, stores); break;
    case 4: move_lanes(addresses, mask, 4, registers, stores); break;
    default: move_lanes(addresses, mask, 8, registers, stores); break;
    }
}

void kernels_gather(const uint64_t *addresses, uint32_t mask, uint32_t size, uint8_t *out) {
    move_elements(addresses, mask, size, out, 0);
}

void kernels_scatter(const uint64_t *addresses, uint32_t mask, uint32_t size, uint8_t *in) {
    move_elements(addresses, mask, size, in, 1);
}

// Return the host address of consecutive bytes that are all valid at a device address; NULL if another check must
// decide.
static uint8_t *find_quickly(const Worker *c, uint64_t site, uint64_t address, uint32_t space, uint64_t nbytes) {
    uint64_t number = address >> WINDOW_BITS, low = c->sites[2 * site], size = c->sites[2 * site + 1];
    if (space == GENERIC && number == SHARED)
        space = SHARED, address -= number << WINDOW_BITS;
    if (space == SHARED)
        return address < c->shared_bytes && c->shared_bytes - address >= nbytes ? c->shared + address : NULL;
    return address - low < size && size - (address - low) >= nbytes ? (uint8_t *)(address + (uint64_t)c->delta) : NULL;
}

static void move_pieces(uint8_t *memory, uint64_t stride, const Pieces *p, uint8_t *registers, uint32_t stores) {
    for (uint32_t i = 0; i < p->count; i++) {
        uint8_t *at = memory + (p->at[i].line * stride + p->at[i].place) * p->size, *own = registers + i * p->chunk;
        switch (p->chunk) { // constant sizes, so that each move is one instruction
        case 16: move(at, own, 16, stores); break;
        case 8: move(at, own, 8, stores); break;
        case 4: move(at, own, 4, stores); break;
        case 2: move(at, own, 2, stores); break;
        default: move(at, own, 1, stores);
        }
    }
}

// Load or store a fragment whose lanes have addresses and strides. Returns 1 with the fault in the worker.
int kernels_move_fragment(
    Worker *c, uint64_t site, const uint64_t *addresses, const uint32_t *strides, uint32_t mask, const Pieces *p,
    uint8_t *registers, uint32_t stores
) {
    uint64_t odd = ~mask, stride = strides[0], span = ((p->lines - 1) * stride + p->places) * p->size;
    for (uint32_t lane = 1; lane < WARP; lane++)
        odd |= (addresses[lane] ^ addresses[0]) | (strides[lane] ^ stride);
    if (!odd && !(addresses[0] % p->size)) {
        uint8_t *memory = find_quickly(c, site, addresses[0], p->space, span);
        if (memory) {
            move_pieces(memory, stride, p, registers, stores);
            return 0;
        }
    }
    const uint32_t in_piece = p->chunk / p->size, in_register = p->register_bytes / p->size;
    const uint32_t space = stores && p->space == GENERIC ? WRITTEN : p->space;
    const int64_t access[] = {0, p->size};
    for (uint32_t first = 0; first < p->count * in_piece; first += WARP * in_register)
        for (uint32_t part = 0; part < in_register; part++) { // the order of the NumPy tier: each element of all lanes
            uint64_t places[WARP];
            uint32_t element = first + part;
            for (uint32_t lane = 0; lane < WARP; lane++, element += in_register) {
                uint64_t line = p->at[element / in_piece].line, place = p->at[element / in_piece].place;
                places[lane] = addresses[lane] + (line * strides[lane] + place + element % in_piece) * p->size;
            }
            if (kernels_resolve(c, site, places, mask, space, access, 1))
                return 1;
            element = first + part;
            for (uint32_t lane = 0; lane < WARP; lane++, element += in_register)
                if (mask >> lane & 1)
                    move((uint8_t *)places[lane], registers + element * p->size, p->size, stores);
        }
    return 0;
}

// Change mbarriers, the lowest lane's first (runtime/mbarrier.py). `values`: the changes, then the old states.
void kernels_advance(const uint64_t *addresses, uint32_t mask, uint64_t *values) {
    const uint64_t counts = (1u << 20) - 1, bytes = (1u << 21) - 1, drop = 1u << 20;
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        uint64_t *barrier = (uint64_t *)addresses[lane], before = *barrier, change = values[lane];
        uint64_t count = change & counts, pending = (before - count) & counts, expected = before >> 20 & counts;
        uint64_t missing = ((before >> 40) + (change >> 32)) & bytes, phase = before >> 63;
        if (change & drop)
            expected = (expected - count) & counts;
        if (!pending && !missing)
            phase ^= 1, pending = expected;
        *barrier = pending | expected << 20 | missing << 40 | phase << 63;
        values[lane] = before;
    }
}

enum { ROW_BYTES = 16 };

// ldmatrix and stmatrix: move rows, whose addresses are in the first lanes. Returns 1 with the fault in the worker.
int kernels_move_rows(
    Worker *c, uint64_t site, uint64_t *addresses, uint32_t mask, uint32_t space, uint32_t count, uint8_t *registers,
    uint32_t stores
) {
    const int64_t access[] = {0, ROW_BYTES};
    uint64_t odd = 0, limit = c->shared_bytes < ROW_BYTES ? 0 : c->shared_bytes - ROW_BYTES + 1;
    mask &= count == WARP ? ~0u : (1u << count) - 1;
    for (uint32_t lane = 0; lane < count; lane++)
        odd |= (uint64_t)(addresses[lane] >= limit) | (addresses[lane] % ROW_BYTES);
    if (space == SHARED && !odd)
        for (uint32_t lane = 0; lane < count; lane++)
            addresses[lane] += (uint64_t)c->shared;
    else if (kernels_resolve(c, site, addresses, mask, stores && space == GENERIC ? WRITTEN : space, access, 1))
        return 1;
    for (uint32_t lane = 0; lane < count; lane++)
        if (mask >> lane & 1)
            move((uint8_t *)addresses[lane], registers + lane * ROW_BYTES, ROW_BYTES, stores);
    return 0;
}

// cp.async: copy `size` bytes for each lane from global to shared memory; those that are not available become zeros.
// Returns 1 with the fault in the worker.
int kernels_copy(
    Worker *c, uint64_t site, uint64_t *targets, const uint64_t *sources, const uint32_t *available, uint32_t mask,
    uint32_t size
) {
    enum { MAX_BYTES = 16 };
    uint8_t data[WARP][MAX_BYTES] = {{0}};
    const int64_t access[] = {0, size};
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest), there = available[lane] < size ? available[lane] : size;
        if (!there)
            continue;
        // Words past the available bytes are not read.
        uint32_t is_aligned = !(sources[lane] & (size - 1)), nbytes = is_aligned ? (there + 3) & ~3u : size;
        int is_quick = is_aligned && find_quickly(c, site, sources[lane], GLOBAL, nbytes);
        int64_t shift = is_quick ? 0 : find_shift(c, sources[lane]);
        if (!is_quick && check_shifted(c, site, sources[lane], shift, lane, nbytes))
            return 1;
        memcpy(data[lane], (uint8_t *)(sources[lane] + (uint64_t)(c->delta + shift)), there);
    }
    if (kernels_resolve(c, site, targets, mask, SHARED, access, 1))
        return 1;
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        memcpy((uint8_t *)targets[lane], data[lane], size);
    }
    return 0;
}
