/* One client's worker: takes its records, executes what the lane can, answers, and hands the rest to Python.
 *
 * `worker_take` belongs to one thread, which also calls the functions that add and drop things of living contexts;
 * contexts are dropped, answers sent and the worker closed from any thread.
 */
#ifndef PYMPSD_WORKER_H
#define PYMPSD_WORKER_H

#include "fast_path.h"
#include "ring.h"

struct worker;

/* `area`: where the ring begins in the shared memory, NULL for none. `calls`: NULL for a device without a lane.
 * `spin_ns`: how long to look for records before sleeping. NULL when there is no memory. */
struct worker *worker_open(int socket, uint8_t *area, const struct driver_calls *calls, int64_t spin_ns);
void worker_free(struct worker *worker);

/* Work until a record is Python's to execute: 1, with the record, which stays until the next call, and the CUresult
 * that the driver refused it with, 0 where it was not tried. 0 at the end. */
int worker_take(struct worker *worker, const uint8_t **record, uint32_t *length, int *code);

/* Write answers without waiting: bytes written, or a negative errno. After less than all only Python answers, until
 * it has written the rest. */
int64_t worker_send(struct worker *worker, const uint8_t *data, uint64_t count);
/* The same for who writes to the socket himself: `unsent`, whether that was less than all. */
void worker_lock_sending(struct worker *worker);
void worker_unlock_sending(struct worker *worker, int unsent);
void worker_close(struct worker *worker); /* end worker_take soon */

int worker_add_context(struct worker *worker, uint64_t serial, struct context_state *state);
/* 0 once nothing here looks at it any more, -1 when a call of the driver's still does after `nanoseconds`: then what
 * it was made of must be kept. */
int worker_drop_context(struct worker *worker, uint64_t serial, int64_t nanoseconds);
int worker_add_stream(struct worker *worker, uint64_t serial, uint64_t handle, struct stream_state *state);
void worker_drop_stream(struct worker *worker, uint64_t serial, uint64_t handle);
int worker_add_module(struct worker *worker, uint64_t serial, uint64_t handle, struct kernel_row *rows, uint32_t count);
void worker_drop_module(struct worker *worker, uint64_t serial, uint64_t handle);

/* Sizes of stream_state, context_state, kernel_row, driver_calls and the ring's area, for Python to compare. */
void native_sizes(uint64_t sizes[5]);

#endif
