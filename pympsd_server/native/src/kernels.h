// The batches of compiled kernels as C, generated code and Python see them. Theory of operation: the module
// compiled_tier/batch.py; native_runtime.py declares the same structures.
#pragma once
#include <stdatomic.h>
#include <stdint.h>

// What two threads write lies so many bytes apart: processors fetch cache lines in pairs.
enum { BARRIERS = 16, CLUSTER_BARRIER = BARRIERS, WARP = 32, CACHE_LINE = 128 };
// What a kernel returns, and the states of a warp.
enum { DONE, BARRIER, SLICE, SPIN, ESCAPE, BAIL, FAULT, TRAP, POLL, TURN, SLEEP, POLLING_ESCAPE };
enum { READY, WAITING, ENDED, ESCAPING, BAILING, SLEEPING };
// What `kernels_run` returns; those from FAULTED on end the batch.
enum { FINISHED, TIME, SERVICE, FAULTED, TRAPPED, DEADLOCKED };
enum { GLOBAL, SHARED, LOCAL, PARAM, GENERIC };
enum { OUTSIDE = 1, MISALIGNED, NO_BARRIER, NO_BLOCK };

typedef struct {
    uint32_t stop, alive, mask, spinning, trues, total, turns, spinning_at; // spinning: the mask and the stop of the last SPIN
} Frame;

typedef struct {
    uint32_t expected, announced, arrived, trues, total;
} Barrier;

typedef struct Slot Slot;
struct Slot {
    _Alignas(CACHE_LINE) int64_t number; // of the block in its batch, -1: free
    uint32_t left;
    uint16_t bailing, uses_barriers;
    Barrier barriers[BARRIERS + 1];
    uint32_t remaining; // of the first slot of a cluster: its blocks that have not ended
    Slot *following; // in the ring of a worker's blocks, or in the list of its free slots
};

typedef struct {
    uint8_t state, barrier;
    uint16_t spins;      // for the same lanes, since any warp of the batch made progress
    uint32_t long_spins; // since this one did, or all its lanes were together
    uint32_t seen;       // the batch's progress then
    uint32_t escapes;    // and sleeps, since its fuel was used up
    uint64_t wake;       // the time until which it sleeps
} Warp;

// The memory of a peer, between two offsets, and how far from there it is in the own mapping.
typedef struct {
    int64_t begin, end, shift;
} PeerWindow;

typedef struct {
    const int64_t *starts, *ends; // of allocations in the mapping, less base
    int64_t count;
    uint64_t generation;
    const PeerWindow *peers;
    int64_t peer_count, own_size; // own_size: the own memory is in front of that
} ReachableMemory;

// Where the bytes of a fragment's registers are in memory, in the order of the registers: pieces of `chunk` bytes, each
// at a line, which are `stride` elements apart, and a place in it.
typedef struct {
    uint32_t space, size, register_bytes, chunk, count, lines, places; // size: of an element
    struct {
        uint32_t line, place;
    } at[];
} Pieces;

typedef struct Worker Worker;
typedef struct Batch Batch;
typedef int32_t (*Kernel)(Worker *, uint8_t *frame);

// What a thread that runs blocks works with. A pool thread and another one may have it after each other.
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
    uint64_t sleep; // of a warp that stops to SLEEP, in nanoseconds
    uint32_t ctaid[3], nctaid[3], ntid[3];
    uint32_t clusterid[3], nclusterid[3], cluster_ctaid[3], cluster_nctaid[3];
    uint32_t cluster_ctarank, cluster_nctarank, is_explicit_cluster;
    uint32_t shared_bytes, warps, warp, smid;
    uint32_t constants[8];
    uint32_t barrier_number, barrier_threads, barrier_trues, barrier_total;
    // The fault.
    uint64_t fault_address;
    uint32_t fault_lane, fault_kind, fault_bytes, fault_space;
    int64_t block; // that runs, or ran last
    // The rest is of these files and of Python.
    Batch *batch;
    // The block that runs: its slot, its warps, their frames and their local memory.
    Slot *current;
    Warp *states;
    uint8_t *frames, *locals;
    uint8_t *cluster_shared; // of the first block of its cluster
    Slot *before; // in the ring of blocks in progress, the one before the next to run
    Slot *free;
    int64_t active;    // blocks in the ring
    int64_t preferred; // of them, unless none makes any progress
    int64_t idle;      // turns of blocks in a row without progress
    uint64_t generation; // of the allocations that `sites` has been filled from
    _Atomic uint32_t progress;
    uint32_t outcome, calls, stops; // stops: whether it has to, since its last look
};

struct Batch {
    Kernel kernel;
    void (*refresh)(Batch *); // look again for allocations
    _Atomic(const ReachableMemory *) allocations;
    int64_t base;
    const uint32_t *threads[3];
    const int64_t *sm_of_block;
    int64_t first_block, blocks;
    int64_t waves, next_wave; // how many more times as many blocks follow in the same places, and their first block
    uint8_t *shared_slab, *local_slab, *frame_slab;
    uint64_t shared_frame, frame_bytes, threads_per_block, width, sites_bytes;
    int64_t fuel_per_turn;
    Slot *slot;
    uint8_t *warp_states; // those of two slots are `states_bytes` apart
    uint64_t states_bytes;
    uint64_t cluster_blocks; // which are in slots that follow each other, and of one worker
    uint8_t *workers; // `worker_bytes` apart
    uint32_t worker_count, worker_bytes;
    int64_t slots_at_once; // that a worker takes when it has no free one
    int64_t preferred;     // that a worker begins with (Worker.preferred)
    // The order of things (kernels.c).
    uint64_t deadline, help_at;
    _Atomic int64_t next_block, next_slot;
    _Atomic int64_t fault_block; // the lowest that has faulted
    _Atomic uint32_t stopping, alone;
    uint32_t progress_before, fault_worker;
    // Threads of the pool (kernel_threads.c).
    _Atomic uint32_t is_open;
    uint32_t joined, running, was_helped;
    uint32_t is_prepared; // every block has a slot of its own, in which Python has begun it
    uint32_t is_straight; // no clusters, and the kernel has no stops: each warp ends in its first turn
    _Atomic uint32_t needs_python; // for warps at escapes, or blocks that bail
    Batch *next_open;
};

static inline Worker *worker_of(const Batch *b, uint32_t index) {
    return (Worker *)(b->workers + (uint64_t)index * b->worker_bytes);
}

// kernel_memory.c: forget what is known of allocations if there are others.
void kernels_look(Worker *c);
int kernels_fail(Worker *c, uint64_t address, uint32_t lane, uint32_t kind, uint32_t nbytes, uint32_t space);
// Check an access of a lane to own memory, and note its allocation at a place in the code. Returns 1 with the fault in the worker.
int kernels_check_global(Worker *c, uint64_t site, uint64_t address, uint32_t lane, uint32_t nbytes);
// kernels.c: run a worker's blocks until the batch's deadline, or there is nothing to run.
void kernels_work(Worker *c);
// kernel_threads.c: let threads of the pool join a batch; end that, and wait for those that have.
void kernels_open(Batch *b);
void kernels_close(Batch *b);
