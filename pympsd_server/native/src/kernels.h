// The batches of compiled kernels, for C, generated code and Python. The theory of operation is in
// compiled_tier/batches/batch.py; native_runtime.py declares the same structures.
#pragma once
#include <stdatomic.h>
#include <stdint.h>

// Data that two threads write is CACHE_LINE bytes apart, because processors fetch cache lines in pairs.
enum { BARRIERS = 16, CLUSTER_BARRIER = BARRIERS, WARP = 32, CACHE_LINE = 128 };
// What a kernel returns, and the states of a warp.
enum { DONE, BARRIER, SLICE, SPIN, ESCAPE, BAIL, FAULT, TRAP, POLL, TURN, SLEEP, POLLING_ESCAPE };
enum { READY, WAITING, ENDED, ESCAPING, BAILING, SLEEPING };
// What `kernels_run` returns; those from FAULTED on end the batch.
enum { FINISHED, TIME, SERVICE, FAULTED, TRAPPED, DEADLOCKED };
enum { GLOBAL, SHARED, LOCAL, PARAM, GENERIC, WRITTEN }; // WRITTEN: generic addresses of accesses that write
enum { OUTSIDE = 1, MISALIGNED, NO_BARRIER, NO_BLOCK, READ_ONLY = 9 };

typedef struct {
    uint32_t stop, alive, mask, spinning, trues, total, turns, spinning_at; // spinning, spinning_at: mask and stop of the last SPIN
} Frame;

typedef struct {
    uint32_t expected, announced, arrived, trues, total;
} Barrier;

typedef struct Slot Slot;
struct Slot {
    _Alignas(CACHE_LINE) int64_t number; // the block's number in its batch; -1 if the slot is free
    uint32_t left;
    uint16_t bailing, uses_barriers;
    Barrier barriers[BARRIERS + 1];
    uint32_t remaining; // in the first slot of a cluster: the cluster's blocks that have not ended
    Slot *following; // the next slot in the ring of a worker's blocks, or in the list of its free slots
};

typedef struct {
    uint8_t state, barrier;
    uint16_t spins;      // SPINs of the same lanes since any warp of the batch made progress
    uint32_t long_spins; // SPINs since this warp made progress, or all its lanes were together
    uint32_t seen;       // the batch's progress at the last SPIN
    uint32_t escapes;    // escapes and sleeps since the warp's fuel was used up
    uint64_t wake;       // when the warp wakes, if it sleeps
} Warp;

// A peer's memory: the offsets between which it is, and the shift from there to its place in the own mapping.
typedef struct {
    int64_t begin, end, shift;
} PeerWindow;

typedef struct {
    const int64_t *starts, *ends; // of the allocations in the mapping, relative to base
    int64_t count;
    uint64_t generation;
    const PeerWindow *peers;
    int64_t peer_count, own_size; // own_size: of the own memory, which comes first
} ReachableMemory;

// Where the bytes of a fragment's registers are in memory, in the order of the registers: pieces of `chunk` bytes, each
// at a place in a line. Lines are `stride` elements apart.
typedef struct {
    uint32_t space, size, register_bytes, chunk, count, lines, places; // size: bytes of an element
    struct {
        uint32_t line, place;
    } at[];
} Pieces;

typedef struct Worker Worker;
typedef struct Batch Batch;
typedef int32_t (*Kernel)(Worker *, uint8_t *frame);

// The state of a thread that runs blocks. Several threads may use it, one after another.
struct Worker {
    // Generated code reads these.
    uint8_t *shared, *local;
    const uint8_t *parameters;
    int64_t delta; // host address = device address + delta
    uint64_t *sites; // for each access in the code: an allocation's first address, and its size
    const uint32_t *tid[3];
    const uint64_t *addresses;
    uint64_t dynamic_offset, local_frame, local_bytes, parameter_bytes;
    int64_t fuel;
    uint64_t sleep; // nanoseconds, if a warp stops to SLEEP
    uint32_t ctaid[3], nctaid[3], ntid[3];
    uint32_t clusterid[3], nclusterid[3], cluster_ctaid[3], cluster_nctaid[3];
    uint32_t cluster_ctarank, cluster_nctarank, is_explicit_cluster;
    uint32_t shared_bytes, warps, warp, smid;
    uint32_t constants[8];
    uint32_t barrier_number, barrier_threads, barrier_trues, barrier_total;
    // The fault.
    uint64_t fault_address;
    uint32_t fault_lane, fault_kind, fault_bytes, fault_space;
    int64_t block; // the block that runs, or ran last
    // The rest is for these files and for Python.
    Batch *batch;
    // The running block: its slot, its warps, their frames and their local memory.
    Slot *current;
    Warp *states;
    uint8_t *frames, *locals;
    uint8_t *cluster_shared; // the shared memory of its cluster's first block
    Slot *before; // the slot before the next one to run, in the ring of blocks in progress
    Slot *free;
    int64_t active;    // blocks in the ring
    int64_t preferred; // the most of them, as long as any makes progress
    int64_t idle;      // turns of blocks in a row without progress
    uint64_t generation; // the generation of the allocations in `sites`
    _Atomic uint32_t progress;
    uint32_t outcome, calls, stops; // stops: the last result of must_stop
};

struct Batch {
    Kernel kernel;
    void (*refresh)(Batch *); // publishes the present allocations
    _Atomic(const ReachableMemory *) allocations;
    int64_t base;
    const uint32_t *threads[3];
    const int64_t *sm_of_block;
    int64_t first_block, blocks;
    int64_t waves, next_wave; // how many more waves of as many blocks follow in the same places, and the first block
    uint8_t *shared_slab, *local_slab, *frame_slab;
    uint64_t shared_frame, frame_bytes, threads_per_block, width, sites_bytes;
    int64_t fuel_per_turn;
    Slot *slot;
    uint8_t *warp_states; // the states of each slot are `states_bytes` long
    uint64_t states_bytes;
    uint64_t cluster_blocks; // the blocks of a cluster are in consecutive slots of one worker
    uint8_t *workers; // `worker_bytes` apart
    uint32_t worker_count, worker_bytes;
    int64_t slots_at_once; // how many slots a worker takes if it has no free one
    int64_t preferred;     // the initial Worker.preferred
    // Progress of the batch (kernels.c).
    uint64_t deadline, help_at;
    _Atomic int64_t next_block, next_slot;
    _Atomic int64_t fault_block; // the lowest block that has faulted
    _Atomic uint32_t stopping, alone;
    uint32_t progress_before, fault_worker;
    // Threads of the pool (kernel_threads.c).
    _Atomic uint32_t is_open;
    uint32_t joined, running, was_helped;
    uint32_t is_prepared; // every block has a slot of its own, in which Python has begun it
    uint32_t is_straight; // no clusters, and the kernel has no stops: each warp ends in its first turn
    _Atomic uint32_t needs_python; // there are warps at escapes, or blocks that bail
    Batch *next_open;
};

static inline Worker *worker_of(const Batch *b, uint32_t index) {
    return (Worker *)(b->workers + (uint64_t)index * b->worker_bytes);
}

// kernel_memory.c: forget the known allocations if they have changed.
void kernels_look(Worker *c);
int kernels_fail(Worker *c, uint64_t address, uint32_t lane, uint32_t kind, uint32_t nbytes, uint32_t space);
// Check a lane's access to the process's own memory, and note its allocation for this access in the code. Returns 1 with
// the fault in the worker.
int kernels_check_global(Worker *c, uint64_t site, uint64_t address, uint32_t lane, uint32_t nbytes);
// kernels.c: run a worker's blocks until the batch's deadline, or until there is nothing to run.
void kernels_work(Worker *c);
// kernel_threads.c: let threads of the pool join a batch; close it, and wait for those that have joined.
void kernels_open(Batch *b);
void kernels_close(Batch *b);
