/* One client's worker: takes its records, executes those of the fast path, and returns the rest to Python.
 *
 * Call `worker_take` from one thread only, and from the same thread the functions that add objects and drop streams
 * and modules; contexts may be dropped, answers sent and the worker closed from any thread.
 */
#ifndef PYMPSD_WORKER_H
#define PYMPSD_WORKER_H

#include "fast_path.h"
#include "record_source.h"

struct worker;

/* `area`: the ring's start in the shared memory, NULL: no ring. `calls`: NULL: no fast path. `spin_ns`: how long to
 * poll for records before sleeping. Returns NULL if there is no memory. */
struct worker *worker_open(int socket, uint8_t *area, const struct driver_calls *calls, int64_t spin_ns);
void worker_free(struct worker *worker);

/* Work until Python has to execute a record: return 1, the record, which is valid until the next call, and the
 * CUresult with which the driver refused it, 0 if it was not tried. Return 0 at the end. */
int worker_take(struct worker *worker, const uint8_t **record, uint32_t *length, int *code);

/* Write answers without waiting: return the bytes written, or a negative errno. After a partial write only Python
 * answers, until it has written the rest. */
int64_t worker_send(struct worker *worker, const uint8_t *data, uint64_t count);
/* The same around the caller's own write to the socket; `unsent`: whether the write was partial. */
void worker_lock_sending(struct worker *worker);
void worker_unlock_sending(struct worker *worker, int unsent);
void worker_close(struct worker *worker); /* make worker_take return 0 soon */

int worker_add_context(struct worker *worker, uint64_t context_id, struct context_state *state);
/* Return 0 when the context is no longer used here, -1 if a driver call still uses it after `nanoseconds`: then its
 * objects must never be freed. */
int worker_drop_context(struct worker *worker, uint64_t context_id, int64_t nanoseconds);
int worker_add_stream(struct worker *worker, uint64_t context_id, uint64_t handle, struct stream_state *state);
void worker_drop_stream(struct worker *worker, uint64_t context_id, uint64_t handle);
int worker_add_module(struct worker *worker, uint64_t context_id, uint64_t handle, struct kernel_row *rows, uint32_t count);
void worker_drop_module(struct worker *worker, uint64_t context_id, uint64_t handle);

/* Store the sizes of stream_state, context_state, kernel_row, driver_calls and the ring's area. */
void native_sizes(uint64_t sizes[5]);

#endif
