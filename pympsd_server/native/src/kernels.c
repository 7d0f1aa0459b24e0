// Runs the warps of compiled kernels: blocks begin, wait at barriers and end here. Theory of operation: the module
// compiled_tier/batch.py, which declares the same structure.
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { BARRIERS = 16, WARP = 32, MAX_ROUNDS = 16, CALLS_PER_LOOK = 16 };
enum { MAX_SPINS = 256, MAX_LONG_SPINS = 1 << 16, FUEL_PER_SPIN = 64 };
enum { RANK_SHIFT = 24, WINDOW_BITS = 40 };
// What a kernel returns, and the states of a warp.
enum { DONE, BARRIER, SLICE, SPIN, ESCAPE, BAIL, FAULT, TRAP, POLL, TURN };
enum { READY, WAITING, ENDED, ESCAPING, BAILING };
// What `kernels_run` returns.
enum { FINISHED, TIME, SERVICE, FAULTED, TRAPPED, DEADLOCKED };
enum { GLOBAL, SHARED, LOCAL, PARAM, GENERIC };
enum { OUTSIDE = 1, MISALIGNED, NO_BARRIER };

typedef struct {
    uint32_t stop, alive, mask, spinning, trues, total, turns, spinning_at; // spinning: the mask and the stop of the last SPIN
} Frame;

typedef struct {
    uint32_t expected, announced, arrived, trues, total;
} Barrier;

typedef struct {
    int64_t number; // of the block in its batch, -1: free
    uint32_t left;
    uint16_t bailing, uses_barriers;
    Barrier barriers[BARRIERS];
} Slot;

typedef struct {
    uint8_t state, barrier;
    uint16_t spins;      // for the same lanes, since any warp of the batch made progress
    uint32_t long_spins; // since this one did, or all its lanes were together
    uint32_t seen;       // the batch's progress then
} Warp;

typedef struct Worker Worker;
typedef int32_t (*Kernel)(Worker *, uint8_t *frame);
struct Worker {
    // Generated code reads these.
    uint8_t *shared, *local;
    const uint8_t *parameters;
    int64_t delta; // host address = device address + delta
    uint64_t *sites; // of each place of accesses: the lowest address, and how many bytes follow
    const uint32_t *tid[3];
    const uint64_t *addresses;
    uint64_t dynamic_offset, local_frame, local_bytes, parameter_bytes;
    int64_t fuel;
    uint32_t ctaid[3], nctaid[3], ntid[3];
    uint32_t shared_bytes, warps, warp, smid;
    uint32_t constants[8];
    uint32_t barrier_number, barrier_threads, barrier_trues, barrier_total;
    // The fault.
    uint64_t fault_address;
    uint32_t fault_lane, fault_kind, fault_bytes, fault_space;
    int64_t fault_block;
    // The rest is of this file and of Python.
    Kernel kernel;
    int (*refresh)(Worker *); // look again for allocations; returns whether there are others
    const int64_t *starts, *ends; // of allocations, less base
    int64_t allocations, base;
    const uint32_t *threads[3];
    const int64_t *sm_of_block;
    int64_t first_block, blocks, next, slots, active, at_slot;
    int64_t preferred; // blocks in progress, unless none of them makes any
    int64_t idle;      // turns of blocks in a row without progress
    uint32_t progress, unused;
    uint8_t *shared_slab, *local_slab, *frame_slab;
    uint64_t shared_frame, frame_bytes, threads_per_block, width;
    int64_t fuel_per_turn;
    Slot *slot;
    Warp *warp_states;
    Slot *current;
};

static int fail(Worker *c, uint64_t address, uint32_t lane, uint32_t kind, uint32_t nbytes, uint32_t space) {
    c->fault_address = address, c->fault_lane = lane, c->fault_kind = kind, c->fault_bytes = nbytes;
    c->fault_space = space;
    return 1;
}

// Return the index of the allocation that has all of an access, -1 if none has.
static int64_t find(const Worker *c, int64_t offset, uint64_t nbytes) {
    int64_t low = 0, high = c->allocations;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (c->starts[middle] <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || offset >= c->ends[low - 1] || (uint64_t)(c->ends[low - 1] - offset) < nbytes)
        return -1;
    return low - 1;
}

static int check_global(Worker *c, uint64_t site, uint64_t address, uint32_t lane, uint32_t nbytes) {
    int64_t offset = (int64_t)(address - (uint64_t)c->base), at = find(c, offset, nbytes);
    if (at < 0 && c->refresh(c))
        at = find(c, offset, nbytes);
    if (at < 0)
        return fail(c, address, lane, OUTSIDE, nbytes, GLOBAL);
    if (address & (nbytes - 1))
        return fail(c, address, lane, MISALIGNED, nbytes, GLOBAL);
    c->sites[2 * site] = (uint64_t)(c->starts[at] + c->base);
    c->sites[2 * site + 1] = (uint64_t)(c->ends[at] - c->starts[at]);
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
                if (check_global(c, site, at, lane, nbytes))
                    return 1;
                continue;
            }
            uint32_t place = (uint32_t)at;
            if (kind == SHARED && place >> RANK_SHIFT == 1) // the first block of a cluster, which is the only one
                place -= 1u << RANK_SHIFT;
            if (place > size || size - place < nbytes)
                return fail(c, (uint32_t)at, lane, OUTSIDE, nbytes, kind);
            if (place & (nbytes - 1))
                return fail(c, (uint32_t)at, lane, MISALIGNED, nbytes, kind);
            if (i == 0)
                addresses[lane] = own + place - (uint64_t)accesses[0];
        }
        if (kind == GLOBAL)
            addresses[lane] = address + (uint64_t)c->delta;
    }
    return 0;
}

void kernels_gather(const uint64_t *addresses, uint32_t mask, uint32_t size, uint8_t *out) {
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        memcpy(out + lane * size, (void *)addresses[lane], size);
    }
}

void kernels_scatter(const uint64_t *addresses, uint32_t mask, uint32_t size, const uint8_t *in) {
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        memcpy((void *)addresses[lane], in + lane * size, size);
    }
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t kernels_clock(void) { return now(); }

static Warp *warps_of(const Worker *c, const Slot *slot) { return c->warp_states + (slot - c->slot) * c->warps; }

static uint8_t *frame_of(const Worker *c, const Slot *slot, uint32_t warp) {
    return c->frame_slab + ((uint64_t)(slot - c->slot) * c->warps + warp) * c->frame_bytes;
}

// Open a barrier if enough threads are there. A warp counts as 32 threads.
static void try_to_open(Worker *c, Slot *slot, uint32_t number) {
    Barrier *barrier = &slot->barriers[number];
    uint32_t needed = barrier->expected ? barrier->expected : slot->left * WARP;
    if (!barrier->arrived || barrier->arrived * WARP + barrier->announced < needed)
        return;
    Warp *warps = warps_of(c, slot);
    for (uint32_t w = 0; w < c->warps; w++)
        if (warps[w].state == WAITING && warps[w].barrier == number) {
            Frame *frame = (Frame *)frame_of(c, slot, w);
            frame->trues = barrier->trues, frame->total = barrier->total;
            warps[w].state = READY;
        }
    *barrier = (Barrier){0};
}

// bar.arrive. Returns 1 with the fault in the worker.
int kernels_arrive(Worker *c, uint32_t number, uint32_t threads) {
    if (number >= BARRIERS)
        return fail(c, number, 0, NO_BARRIER, 0, SHARED);
    c->current->uses_barriers = 1;
    c->current->barriers[number].announced += WARP;
    c->current->barriers[number].expected = threads;
    try_to_open(c, c->current, number);
    return 0;
}

static void wait_at_barrier(Worker *c, Slot *slot, Warp *warp) {
    Barrier *barrier = &slot->barriers[c->barrier_number];
    slot->uses_barriers = 1;
    barrier->expected = c->barrier_threads;
    barrier->arrived++, barrier->trues += c->barrier_trues, barrier->total += c->barrier_total;
    warp->state = WAITING, warp->barrier = (uint8_t)c->barrier_number;
    try_to_open(c, slot, c->barrier_number);
}

static void begin_block(Worker *c, Slot *slot) {
    uint64_t index = (uint64_t)(slot - c->slot);
    if (slot->uses_barriers)
        memset(slot->barriers, 0, sizeof slot->barriers);
    slot->bailing = slot->uses_barriers = 0;
    slot->number = c->next++, slot->left = c->warps;
    c->active++;
    memset(c->shared_slab + index * c->shared_frame, 0, c->shared_frame);
    if (c->local_frame) {
        uint64_t bytes = c->threads_per_block * c->local_frame;
        memset(c->local_slab + index * bytes, 0, bytes);
    }
    Warp *warps = warps_of(c, slot);
    memset(warps, 0, c->warps * sizeof *warps);
    uint32_t whole = c->width == WARP ? ~0u : (1u << c->width) - 1;
    for (uint32_t w = 0; w < c->warps; w++) {
        uint64_t lanes = c->threads_per_block - w * c->width;
        Frame *frame = (Frame *)frame_of(c, slot, w);
        *frame = (Frame){.alive = lanes >= c->width ? whole : (1u << lanes) - 1};
        frame->mask = frame->alive;
    }
}

static void enter_slot(Worker *c, Slot *slot) {
    uint64_t index = (uint64_t)(slot - c->slot), block = (uint64_t)(c->first_block + slot->number);
    c->current = slot;
    c->shared = c->shared_slab + index * c->shared_frame;
    c->ctaid[0] = (uint32_t)(block % c->nctaid[0]);
    c->ctaid[1] = (uint32_t)(block / c->nctaid[0] % c->nctaid[1]);
    c->ctaid[2] = (uint32_t)(block / c->nctaid[0] / c->nctaid[1]);
    c->smid = (uint32_t)c->sm_of_block[slot->number];
    c->fault_block = slot->number;
}

static int32_t run_warp(Worker *c, Slot *slot, uint32_t w) {
    uint64_t first = w * c->width;
    c->warp = w;
    for (int axis = 0; axis < 3; axis++)
        c->tid[axis] = c->threads[axis] + first;
    c->local = c->local_slab + ((uint64_t)(slot - c->slot) * c->threads_per_block + first) * c->local_frame;
    // Turns of one length could meet lanes that make progress at one point of their loop again and again.
    c->fuel = c->fuel_per_turn + FUEL_PER_SPIN * warps_of(c, slot)[w].spins;
    c->barrier_trues = c->barrier_total = 0;
    return c->kernel(c, frame_of(c, slot, w));
}

// Act on what a warp's kernel returned; return whether that was progress.
static int after_warp(Worker *c, Slot *slot, Warp *warp, int32_t status) {
    Frame *frame = (Frame *)frame_of(c, slot, c->warp);
    switch (status) {
    case DONE:
        warp->state = ENDED;
        slot->left--;
        for (uint32_t n = 0; slot->uses_barriers && n < BARRIERS; n++)
            if (slot->barriers[n].arrived)
                try_to_open(c, slot, n);
        break;
    case BARRIER:
        wait_at_barrier(c, slot, warp);
        break;
    case ESCAPE:
        warp->state = ESCAPING;
        break;
    case BAIL:
        warp->state = BAILING, slot->bailing = 1;
        break;
    case SPIN: // for lanes of its own, or for another block that has work to do
        if (warp->seen != c->progress || frame->spinning != frame->mask || frame->spinning_at != frame->stop)
            warp->spins = 0, warp->seen = c->progress, frame->spinning = frame->mask, frame->spinning_at = frame->stop;
        if (++warp->spins >= MAX_SPINS || ++warp->long_spins >= MAX_LONG_SPINS)
            slot->bailing = 1;
        if (slot->bailing)
            warp->state = BAILING;
        return 0;
    case SLICE: // of a loop that computes
    case POLL:  // all lanes together
        c->progress += status == SLICE;
        warp->spins = 0, warp->long_spins = 0;
        if (slot->bailing)
            warp->state = BAILING;
        return 0;
    default: // TURN
        break;
    }
    warp->spins = 0, warp->long_spins = 0;
    c->progress++;
    return 1;
}

// Run the warps of a block in turn. Returns FINISHED when it has ended, TIME, SERVICE when none can continue here,
// FAULTED, TRAPPED or DEADLOCKED.
static int run_block(Worker *c, Slot *slot, uint64_t deadline) {
    Warp *warps = warps_of(c, slot);
    uint32_t calls = 0;
    enter_slot(c, slot);
    for (int rounds = 0; rounds < MAX_ROUNDS; rounds++) {
        uint32_t ran = 0, waiting = 0;
        for (uint32_t w = 0; w < c->warps; w++) {
            if (warps[w].state != READY) {
                waiting += warps[w].state == WAITING;
                continue;
            }
            ran++;
            int32_t status = run_warp(c, slot, w);
            if (status == FAULT || status == TRAP)
                return status == FAULT ? FAULTED : TRAPPED;
            if (after_warp(c, slot, &warps[w], status))
                rounds = -1;
            int is_slice = status == SLICE || status == SPIN || status == POLL;
            if ((is_slice || ++calls % CALLS_PER_LOOK == 0) && now() >= deadline)
                return slot->left ? TIME : FINISHED;
        }
        if (!slot->left)
            return FINISHED;
        if (!ran)
            return waiting == slot->left ? DEADLOCKED : SERVICE;
    }
    return TIME;
}

static int can_run(const Worker *c, const Slot *slot) {
    if (slot->number < 0)
        return 0;
    const Warp *warps = warps_of(c, slot);
    for (uint32_t w = 0; w < c->warps; w++)
        if (warps[w].state == READY)
            return 1;
    return 0;
}

// Return the slot to run next, a new block in it if a slot is free; NULL if there is nothing to run.
static Slot *choose_slot(Worker *c, int begins) {
    Slot *ready = NULL, *free = NULL;
    int64_t active = c->active;
    for (int64_t i = 0; i < c->slots && !(ready && free) && (active || !free); i++) {
        Slot *slot = c->slot + (c->at_slot + i) % c->slots;
        active -= slot->number >= 0;
        if (slot->number < 0)
            free = free ? free : slot;
        else if (!ready && can_run(c, slot))
            ready = slot;
    }
    if (c->idle > c->active && c->preferred < c->slots) // they may wait for blocks that have not begun
        c->preferred *= 2, c->idle = 0;
    if (free && c->next < c->blocks && c->active < c->preferred && (begins || !ready)) {
        begin_block(c, free);
        return free;
    }
    return ready;
}

// Run the batch's blocks until a time (CLOCK_MONOTONIC, nanoseconds).
int kernels_run(Worker *c, uint64_t deadline) {
    int begins = 0;
    for (;;) {
        Slot *slot = choose_slot(c, begins);
        if (!slot)
            return c->active ? SERVICE : FINISHED;
        uint32_t before = c->progress;
        int result = run_block(c, slot, deadline);
        c->idle = c->progress == before ? c->idle + 1 : 0;
        begins = 0;
        if (result == FINISHED) {
            slot->number = -1, c->active--;
            c->at_slot = slot - c->slot;
        } else if (result == TIME || result == SERVICE) {
            c->at_slot = (slot - c->slot + 1) % c->slots;
            begins = 1; // it may wait for a block that has not begun
        } else {
            return result;
        }
        if (result != SERVICE && (result == TIME || c->active || c->next < c->blocks) && now() >= deadline)
            return c->active || c->next < c->blocks ? TIME : FINISHED;
    }
}

uint64_t kernels_worker_bytes(void) { return sizeof(Worker); }
