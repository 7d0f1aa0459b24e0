// Runs the warps of compiled kernels: blocks begin, wait at barriers and end here. The theory of operation is in
// compiled_tier/batches/batch.py.
#define _GNU_SOURCE
#include "kernels.h"
#include <sched.h>
#include <string.h>
#include <time.h>

enum { MAX_ROUNDS = 16, CALLS_PER_LOOK = 64 };
enum { MAX_SPINS = 256, MAX_LONG_SPINS = 1 << 16, FUEL_PER_SPIN = 64, FUEL_PER_ESCAPE = 1024 };
enum { ALONE_FOR_NOW = 1, ALONE_TO_THE_END };
enum { NAP_NANOSECONDS = 50000, MAX_SLEEP = 1000000, MAX_SLEEP_APART = 20000, YIELDS_BEFORE_NAP = 64, ALONE_NANOSECONDS = 50000 };

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t kernels_clock(void) { return now(); }

static Warp *warps_of(const Worker *c, const Slot *slot) {
    return (Warp *)(c->batch->warp_states + (uint64_t)(slot - c->batch->slot) * c->batch->states_bytes);
}

static uint8_t *frames_of(const Worker *c, const Slot *slot) {
    return c->batch->frame_slab + (uint64_t)(slot - c->batch->slot) * c->warps * c->batch->frame_bytes;
}

static Slot *first_of_cluster(const Batch *b, Slot *slot) {
    return b->cluster_blocks == 1 ? slot : slot - (uint64_t)(slot - b->slot) % b->cluster_blocks;
}

static void open_barrier(const Worker *c, Slot *slot, uint32_t number) {
    Barrier *barrier = &slot->barriers[number];
    Warp *warps = warps_of(c, slot);
    for (uint32_t w = 0; w < c->warps; w++)
        if (warps[w].state == WAITING && warps[w].barrier == number) {
            warps[w].state = READY;
            if (!barrier->total) // only bar.red has a result
                continue;
            Frame *frame = (Frame *)(frames_of(c, slot) + w * c->batch->frame_bytes);
            frame->trues = barrier->trues, frame->total = barrier->total;
        }
    *barrier = (Barrier){0};
}

// Open the barrier of the running block's cluster if all warps of its blocks that have not ended are there.
static void try_to_open_cluster(Worker *c) {
    Slot *first = first_of_cluster(c->batch, c->current);
    uint32_t arrived = 0;
    for (uint64_t i = 0; i < c->batch->cluster_blocks; i++) {
        if (first[i].barriers[CLUSTER_BARRIER].arrived < first[i].left)
            return;
        arrived += first[i].barriers[CLUSTER_BARRIER].arrived;
    }
    for (uint64_t i = 0; arrived && i < c->batch->cluster_blocks; i++)
        open_barrier(c, &first[i], CLUSTER_BARRIER);
}

// Open a barrier of the running block if enough threads are there. A warp counts as 32 threads.
static inline void try_to_open(const Worker *c, uint32_t number) {
    const Barrier *barrier = &c->current->barriers[number];
    uint32_t needed = barrier->expected ? barrier->expected : c->current->left * WARP;
    if (barrier->arrived && barrier->arrived * WARP + barrier->announced >= needed)
        open_barrier(c, c->current, number);
}

// bar.arrive. Returns 1 with the fault in the worker.
int kernels_arrive(Worker *c, uint32_t number, uint32_t threads) {
    if (number >= BARRIERS)
        return kernels_fail(c, number, 0, NO_BARRIER, 0, SHARED);
    c->current->uses_barriers = 1;
    c->current->barriers[number].announced += WARP;
    c->current->barriers[number].expected = threads;
    try_to_open(c, number);
    return 0;
}

static void wait_at_barrier(Worker *c, Warp *warp) {
    Barrier *barrier = &c->current->barriers[c->barrier_number];
    c->current->uses_barriers = 1;
    barrier->expected = c->barrier_threads;
    barrier->arrived++, barrier->trues += c->barrier_trues, barrier->total += c->barrier_total;
    warp->state = WAITING, warp->barrier = (uint8_t)c->barrier_number;
    if (c->barrier_number == CLUSTER_BARRIER)
        try_to_open_cluster(c);
    else
        try_to_open(c, c->barrier_number);
}

static inline void begin_frame(const Batch *b, uint8_t *frames, uint32_t w) {
    uint64_t lanes = b->threads_per_block - w * b->width;
    uint32_t alive = lanes >= WARP ? ~0u : (1u << lanes) - 1;
    uint32_t whole = b->width == WARP ? ~0u : (1u << b->width) - 1;
    *(Frame *)(frames + w * b->frame_bytes) = (Frame){.alive = alive & whole, .mask = alive & whole};
}

static void begin_block(const Worker *c, Slot *slot, int64_t number) {
    const Batch *b = c->batch;
    uint64_t index = (uint64_t)(slot - b->slot);
    if (slot->uses_barriers)
        memset(slot->barriers, 0, sizeof slot->barriers);
    slot->bailing = slot->uses_barriers = 0;
    slot->number = number, slot->left = c->warps;
    memset(b->shared_slab + index * b->shared_frame, 0, b->shared_frame);
    if (c->local_frame) {
        uint64_t bytes = b->threads_per_block * c->local_frame;
        memset(b->local_slab + index * bytes, 0, bytes);
    }
    if (b->is_straight)
        return;
    memset(warps_of(c, slot), 0, c->warps * sizeof(Warp));
    uint8_t *frames = frames_of(c, slot);
    for (uint32_t w = 0; w < c->warps; w++)
        begin_frame(b, frames, w);
}

// Convert a number to a place in a box, x fastest.
static void place_in(uint64_t number, const uint32_t *extents, uint32_t *place) {
    if (number < extents[0]) { // without the divisions, which take as long as a short warp
        place[0] = (uint32_t)number, place[1] = place[2] = 0;
        return;
    }
    place[0] = (uint32_t)(number % extents[0]);
    place[1] = (uint32_t)(number / extents[0] % extents[1]);
    place[2] = (uint32_t)(number / extents[0] / extents[1]);
}

static void enter_slot(Worker *c, Slot *slot) {
    const Batch *b = c->batch;
    uint64_t index = (uint64_t)(slot - b->slot), block = (uint64_t)(b->first_block + slot->number);
    c->current = slot, c->states = warps_of(c, slot), c->frames = frames_of(c, slot);
    c->shared = b->shared_slab + index * b->shared_frame;
    c->locals = b->local_slab + index * b->threads_per_block * c->local_frame;
    if (b->cluster_blocks > 1)
        c->cluster_ctarank = (uint32_t)(block % b->cluster_blocks), block /= b->cluster_blocks;
    c->cluster_shared = c->shared - c->cluster_ctarank * b->shared_frame;
    place_in(block, c->nclusterid, c->clusterid);
    place_in(c->cluster_ctarank, c->cluster_nctaid, c->cluster_ctaid);
    for (int axis = 0; axis < 3; axis++)
        c->ctaid[axis] = c->clusterid[axis] * c->cluster_nctaid[axis] + c->cluster_ctaid[axis];
    c->smid = (uint32_t)b->sm_of_block[slot->number];
    c->block = slot->number;
}

static inline void enter_warp(Worker *c, uint32_t w) {
    const Batch *b = c->batch;
    uint64_t first = w * b->width;
    c->warp = w;
    for (int axis = 0; axis < 3; axis++)
        c->tid[axis] = b->threads[axis] + first;
    c->local = c->locals + first * c->local_frame;
}

static int32_t run_warp(Worker *c, uint32_t w) {
    const Batch *b = c->batch;
    enter_warp(c, w);
    // If all turns had one length, they could always end at the same point of a loop in which lanes make progress.
    const Warp *warp = &c->states[w];
    c->fuel = b->fuel_per_turn + FUEL_PER_SPIN * warp->spins - (int64_t)FUEL_PER_ESCAPE * warp->escapes;
    if (c->current->bailing)
        c->fuel = 0;
    c->barrier_trues = c->barrier_total = 0;
    return b->kernel(c, c->frames + w * b->frame_bytes);
}

static void need_python(Worker *c) { atomic_store_explicit(&c->batch->needs_python, 1, memory_order_relaxed); }

static void let_bail(Worker *c, Slot *slot) {
    Slot *first = first_of_cluster(c->batch, slot);
    for (uint64_t i = 0; i < c->batch->cluster_blocks; i++)
        first[i].bailing = 1;
    need_python(c);
}

static void note_progress(Worker *c) {
    uint32_t progress = atomic_load_explicit(&c->progress, memory_order_relaxed);
    atomic_store_explicit(&c->progress, progress + 1, memory_order_relaxed);
}

static uint32_t progress_of(const Batch *b) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < b->worker_count; i++)
        sum += atomic_load_explicit(&worker_of(b, i)->progress, memory_order_relaxed);
    return sum;
}

// Handle a warp that spins until lanes of its own, or another block, have done something.
static void after_spin(Worker *c, Warp *warp) {
    Batch *b = c->batch;
    Frame *frame = (Frame *)(c->frames + c->warp * b->frame_bytes);
    uint32_t progress = progress_of(b);
    if (warp->seen != progress || frame->spinning != frame->mask || frame->spinning_at != frame->stop)
        warp->spins = 0, warp->seen = progress, frame->spinning = frame->mask, frame->spinning_at = frame->stop;
    int is_long = ++warp->long_spins >= MAX_LONG_SPINS;
    if (++warp->spins < MAX_SPINS && !is_long)
        return;
    if (!atomic_load(&b->is_open)) {
        let_bail(c, c->current);
        return;
    }
    // The warp may wait for a block of another worker, whose thread the system does not run. Try again without threads.
    warp->spins = 0, warp->long_spins = 0;
    atomic_fetch_or(&b->alone, is_long ? ALONE_TO_THE_END : ALONE_FOR_NOW);
    atomic_store(&b->stopping, 1);
}

// Return whether the warp that has run has lanes elsewhere in its code.
static int is_apart(const Worker *c) {
    const Frame *frame = (Frame *)(c->frames + c->warp * c->batch->frame_bytes);
    return frame->mask != frame->alive;
}

// Let a warp sleep, but not long if its other lanes may wait for that. PTX allows any time up to twice the given one.
static void begin_sleep(Worker *c, Warp *warp) {
    uint64_t most = is_apart(c) ? MAX_SLEEP_APART : MAX_SLEEP;
    warp->state = SLEEPING, warp->wake = now() + (c->sleep < most ? c->sleep : most);
}

static int is_awake(const Slot *slot, const Warp *warp) {
    return warp->state == READY || (warp->state == SLEEPING && (slot->bailing || warp->wake <= now()));
}

// Handle what a warp's kernel returned; return whether it has made progress.
static int after_warp(Worker *c, Slot *slot, Warp *warp, int32_t status) {
    warp->escapes = status == POLLING_ESCAPE || status == SLEEP ? warp->escapes + 1 : 0;
    switch (status) {
    case DONE:
        warp->state = ENDED;
        slot->left--;
        for (uint32_t n = 0; slot->uses_barriers && n < BARRIERS; n++)
            if (slot->barriers[n].arrived)
                try_to_open(c, n);
        if (c->batch->cluster_blocks > 1 || slot->barriers[CLUSTER_BARRIER].arrived)
            try_to_open_cluster(c);
        break;
    case BARRIER:
        wait_at_barrier(c, warp);
        break;
    case ESCAPE:
        warp->state = ESCAPING;
        need_python(c);
        break;
    case POLLING_ESCAPE: // an escape in a loop that may wait for other threads
        warp->state = ESCAPING;
        need_python(c);
        return 0;
    case SLEEP:
        begin_sleep(c, warp);
        return 0;
    case BAIL:
        warp->state = BAILING;
        let_bail(c, slot);
        break;
    case SPIN:
        after_spin(c, warp);
        if (slot->bailing)
            warp->state = BAILING;
        return 0;
    case SLICE: // a slice of a loop that computes
    case POLL:  // a poll by all lanes together
        if (status == SLICE)
            note_progress(c);
        warp->spins = 0, warp->long_spins = 0;
        if (slot->bailing)
            warp->state = BAILING;
        return 0;
    default: // TURN
        break;
    }
    warp->spins = 0, warp->long_spins = 0;
    note_progress(c);
    return 1;
}

static int has_begun_all(const Batch *b) { return atomic_load(&b->next_block) >= b->blocks; }

// Return whether a batch has work for threads that have not joined it.
static int can_use_help(const Batch *b) {
    if (!has_begun_all(b))
        return 1;
    for (uint32_t i = b->joined; i < b->worker_count; i++)
        if (worker_of(b, i)->active)
            return 1;
    return 0;
}

// Return whether a worker must stop between two turns, because the time is up, Python is needed, or an earlier block
// has faulted. If the batch takes long, get help for its own thread.
static int must_stop(Worker *c) {
    Batch *b = c->batch;
    uint64_t time = now();
    if (time >= b->help_at && c == worker_of(b, 0) && !atomic_load(&b->is_open) && can_use_help(b)) {
        b->was_helped = 1;
        kernels_open(b);
    }
    c->stops = time >= b->deadline || atomic_load(&b->stopping) || c->block > atomic_load(&b->fault_block);
    return (int)c->stops;
}

// Return the number of the next block that no worker has begun, or of the first of the next `count` ones. Return -1 if
// all have begun.
static int64_t take_number(Batch *b, int64_t count) {
    int64_t number = atomic_load(&b->next_block);
    if (number >= b->blocks)
        return -1;
    if (!atomic_load(&b->is_open)) // no other threads: an atomic addition would drain the store buffer
        atomic_store_explicit(&b->next_block, number + count, memory_order_relaxed);
    else
        number = atomic_fetch_add(&b->next_block, count);
    return number < b->blocks ? number : -1;
}

// Run the warps of a block, and then of the next blocks in its slot, each to its end. This saves the states that other
// kernels need, which take longer than a short warp. Returns FINISHED, FAULTED or TRAPPED.
static int run_straight(Worker *c, Slot *slot) {
    Batch *b = c->batch;
    for (int64_t number = slot->number; number >= 0; number = c->stops ? -1 : take_number(b, 1)) {
        if (number != slot->number)
            begin_block(c, slot, number);
        enter_slot(c, slot);
        for (uint32_t w = 0; w < c->warps; w++) {
            begin_frame(b, c->frames, w);
            enter_warp(c, w);
            int32_t status = b->kernel(c, c->frames + w * b->frame_bytes);
            if (status != DONE)
                return status == FAULT ? FAULTED : TRAPPED;
        }
        slot->left = 0;
        note_progress(c);
        c->calls += c->warps;
        if (c->calls % CALLS_PER_LOOK < c->warps)
            must_stop(c);
    }
    return FINISHED;
}

// Run the warps of a block in turn. Returns FINISHED if the block has ended, SERVICE if no warp can continue here, or
// TIME, FAULTED, TRAPPED or DEADLOCKED.
static int run_block(Worker *c, Slot *slot) {
    if (c->batch->is_straight)
        return run_straight(c, slot);
    enter_slot(c, slot);
    Warp *warps = c->states;
    for (int rounds = 0; rounds < MAX_ROUNDS; rounds++) {
        uint32_t ran = 0, waiting = 0;
        for (uint32_t w = 0; w < c->warps; w++) {
            if (!is_awake(slot, &warps[w])) {
                waiting += warps[w].state == WAITING;
                continue;
            }
            ran++;
            warps[w].state = READY;
            int32_t status = run_warp(c, w);
            if (status == FAULT || status == TRAP)
                return status == FAULT ? FAULTED : TRAPPED;
            if (after_warp(c, slot, &warps[w], status))
                rounds = -1;
            int is_slice = status == SLICE || status == SPIN || status == POLL;
            if ((is_slice || ++c->calls % CALLS_PER_LOOK == 0) && must_stop(c))
                return slot->left ? TIME : FINISHED;
        }
        if (!slot->left)
            return FINISHED;
        if (!ran)
            return waiting == slot->left && c->batch->cluster_blocks == 1 ? DEADLOCKED : SERVICE;
    }
    return TIME;
}

static int can_run(const Worker *c, const Slot *slot) {
    if (!slot->left) // it has ended in another tier
        return 1;
    const Warp *warps = warps_of(c, slot);
    for (uint32_t w = 0; w < c->warps; w++)
        if (is_awake(slot, &warps[w]))
            return 1;
    return 0;
}

// If warps of a worker sleep, wait until one wakes; return whether any sleep.
static int rest(const Worker *c) {
    uint64_t wake = UINT64_MAX, time = now();
    const Slot *slot = c->before;
    for (int64_t i = c->active; i > 0; i--, slot = slot->following)
        for (uint32_t w = 0; w < c->warps; w++) {
            const Warp *warp = &warps_of(c, slot)[w];
            if (warp->state == SLEEPING && warp->wake < wake)
                wake = warp->wake;
        }
    int sleeps = wake != UINT64_MAX;
    wake = wake < c->batch->deadline ? wake : c->batch->deadline;
    if (sleeps && wake > time + NAP_NANOSECONDS && !atomic_load(&c->batch->needs_python)) {
        struct timespec nap = {0, (long)(wake - time < MAX_SLEEP ? wake - time : MAX_SLEEP) - NAP_NANOSECONDS};
        nanosleep(&nap, NULL);
    } else if (sleeps)
        sched_yield();
    return sleeps;
}

// Put a slot into a worker's ring, as the next one to run.
static void link_slot(Worker *c, Slot *slot) {
    if (c->before)
        slot->following = c->before->following, c->before->following = slot;
    else
        c->before = slot->following = slot;
    c->active++;
}

// Take the slot after `before` out of the ring.
static Slot *unlink_slot(Worker *c, Slot *before) {
    Slot *slot = before->following;
    before->following = slot->following;
    if (c->before == slot)
        c->before = before == slot ? NULL : before;
    c->active--;
    return slot;
}

// Take the slot after `before` out of the ring. Free the slots of its cluster when all the cluster's blocks have ended,
// because until then they may access its memory.
static void free_slot(Worker *c, Slot *before) {
    Slot *first = first_of_cluster(c->batch, unlink_slot(c, before));
    if (--first->remaining)
        return;
    for (uint64_t i = 0; i < c->batch->cluster_blocks; i++)
        first[i].number = -1;
    first->following = c->free, c->free = first;
}

// Turn the ring until the slot after `c->before` can run; return whether any can.
static int find_ready(Worker *c) {
    for (int64_t i = c->active; i > 0; i--) {
        Slot *slot = c->before->following;
        if (slot->number < 0) // Python has taken the block away
            free_slot(c, c->before);
        else if (can_run(c, slot))
            return 1;
        else
            c->before = slot;
    }
    return 0;
}

// Return a free slot, or the first free slot of those for a cluster. A worker takes several at a time, so that slots of
// two workers are seldom neighbours, because processors fetch ahead what another one is writing.
static Slot *take_slots(Worker *c, int64_t count) {
    Batch *b = c->batch;
    if (!c->free) {
        Slot *taken = b->slot + atomic_fetch_add(&b->next_slot, b->slots_at_once);
        for (int64_t i = b->slots_at_once - 1; i >= 0; i--) {
            taken[i].number = -1;
            if (i % count == 0)
                taken[i].following = c->free, c->free = taken + i;
        }
    }
    Slot *slot = c->free;
    c->free = slot->following;
    return slot;
}

// Begin the next block or cluster, to run next; return whether there was one.
static int begin_next(Worker *c) {
    Batch *b = c->batch;
    int64_t count = (int64_t)b->cluster_blocks, number = take_number(b, count);
    if (number < 0)
        return 0;
    Slot *slot = b->is_prepared ? b->slot + number : take_slots(c, count);
    for (int64_t i = 0; i < count && !b->is_prepared; i++)
        begin_block(c, slot + i, number + i);
    slot->remaining = (uint32_t)count;
    for (int64_t i = count - 1; i >= 0; i--)
        link_slot(c, slot + i);
    return 1;
}

// Put the slot to run next after `c->before`, with a new block if few are in progress; return whether there is one.
static int choose_slot(Worker *c, int begins) {
    int is_ready = !begins && find_ready(c), is_stuck = c->idle > c->active;
    if (is_stuck && c->preferred < c->batch->blocks) // they may wait for blocks that have not begun
        c->preferred *= 2, c->idle = 0;
    if (!is_ready && c->active < c->preferred && begin_next(c))
        return 1;
    if (is_stuck && atomic_load(&c->batch->is_open)) { // they may wait for blocks of other workers
        struct timespec nap = {0, NAP_NANOSECONDS};
        if (c->idle < c->active + YIELDS_BEFORE_NAP)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    return is_ready || find_ready(c);
}

void kernels_work(Worker *c) {
    Batch *b = c->batch;
    kernels_look(c);
    c->stops = 0;
    for (int begins = 0;;) {
        if (!choose_slot(c, begins)) {
            if (!rest(c))
                break;
            begins = 0;
            if (!must_stop(c) && !atomic_load(&b->needs_python))
                continue;
            atomic_store(&b->stopping, 1);
            c->outcome = TIME;
            return;
        }
        Slot *before = c->before, *slot = before->following;
        uint32_t progress = c->progress;
        int result = run_block(c, slot);
        c->idle = c->progress == progress ? c->idle + 1 : 0;
        begins = result == TIME || result == SERVICE; // it may wait for a block that has not begun
        if (result >= FAULTED) {
            c->outcome = (uint32_t)result;
            int64_t lowest = atomic_load(&b->fault_block);
            while (c->block < lowest && !atomic_compare_exchange_weak(&b->fault_block, &lowest, c->block))
                ;
            return;
        }
        if (result == FINISHED)
            free_slot(c, before);
        else
            c->before = slot;
        if (c->stops || (result == TIME && must_stop(c))) {
            c->outcome = TIME;
            return;
        }
    }
    c->outcome = c->active ? SERVICE : FINISHED;
    if (c->active)
        atomic_store(&b->stopping, 1);
}

static void move_slots(Worker *from, Worker *to, int64_t count) {
    for (; count > 0; count--)
        link_slot(to, unlink_slot(from, from->before));
}

// Give the first worker the blocks in progress of the workers from `begin` on, which have no thread.
static void gather_slots(Batch *b, uint32_t begin) {
    for (uint32_t i = begin; i < b->worker_count; i++)
        move_slots(worker_of(b, i), worker_of(b, 0), worker_of(b, i)->active);
}

// Give each worker without a block half of the blocks of the worker that has most.
static void spread_slots(Batch *b) {
    for (uint32_t i = 0; i < b->worker_count; i++) {
        Worker *c = worker_of(b, i), *most = c;
        for (uint32_t k = 0; k < b->worker_count && !c->active; k++)
            most = worker_of(b, k)->active > most->active ? worker_of(b, k) : most;
        if (most != c && most->active > 1)
            move_slots(most, c, most->active / 2);
    }
}

static int outcome_of(Batch *b) {
    int outcome = has_begun_all(b) && !worker_of(b, 0)->active ? FINISHED : TIME;
    for (uint32_t i = 0; i < b->joined; i++) {
        const Worker *c = worker_of(b, i);
        if (c->outcome >= FAULTED && c->block == atomic_load(&b->fault_block)) {
            b->fault_worker = i;
            return (int)c->outcome;
        }
        if (outcome != SERVICE && c->active)
            outcome = TIME;
        if (c->outcome == SERVICE)
            outcome = SERVICE;
    }
    return outcome;
}

// Let a batch begin at `first_block`, again or for the first time; no block may be in progress.
void kernels_rewind(Batch *b, int64_t first_block) {
    b->first_block = first_block;
    b->next_block = b->next_slot = 0;
    b->alone = b->was_helped = b->needs_python = 0;
    for (uint32_t i = 0; i < b->worker_count; i++) {
        Worker *c = worker_of(b, i);
        c->free = NULL, c->idle = 0, c->preferred = b->preferred;
    }
}

static int run_wave(Batch *b, uint64_t deadline) {
    uint32_t progress = progress_of(b);
    if (b->alone == ALONE_FOR_NOW && progress != b->progress_before)
        b->alone = 0;
    b->progress_before = progress;
    int is_single = b->alone || b->worker_count == 1;
    if (is_single)
        gather_slots(b, 1);
    else if (has_begun_all(b) && b->cluster_blocks == 1)
        spread_slots(b);
    b->help_at = is_single ? UINT64_MAX : now() + ALONE_NANOSECONDS;
    b->deadline = deadline, b->joined = 1;
    atomic_store(&b->stopping, 0);
    atomic_store(&b->fault_block, INT64_MAX);
    if (!is_single && b->was_helped && can_use_help(b))
        kernels_open(b);
    kernels_work(worker_of(b, 0));
    kernels_close(b);
    gather_slots(b, b->joined);
    return outcome_of(b);
}

// Run the batch's blocks, and its further waves, until a time (CLOCK_MONOTONIC, nanoseconds).
int kernels_run(Batch *b, uint64_t deadline) {
    for (;;) {
        int outcome = run_wave(b, deadline);
        if (outcome != FINISHED || b->waves <= 0)
            return outcome;
        uint32_t was_helped = b->was_helped;
        b->waves--;
        kernels_rewind(b, b->next_wave);
        b->next_wave += b->blocks;
        b->was_helped = was_helped;
        if (now() >= deadline)
            return TIME;
    }
}

uint64_t kernels_worker_bytes(void) { return sizeof(Worker); }

uint64_t kernels_batch_bytes(void) { return sizeof(Batch); }

uint64_t kernels_slot_bytes(void) { return sizeof(Slot); }
