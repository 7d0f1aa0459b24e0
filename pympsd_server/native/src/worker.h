/* One client's worker: takes its records, executes those of the fast path, and returns the rest to Python.
 *
 * The problem: a launch in Python holds the interpreter's lock, so the launches of all clients of a GPU share one core
 * (docs/decisions/009-native-worker.md).
 *
 * The idea: almost all records of a running program are launches and waits for a stream, which need no Python objects.
 * They are executed here, without the lock, by one thread for each client:
 *
 *     ring or socket -> record_source_take -> fast_path_execute -> done, or answered, or pending, or passed to Python
 *
 * - Done: a launch, which has no answer.
 * - Answered: success was written to the client's socket, without waiting.
 * - Pending: a wait whose marker the stream has not reached. It is kept (at most MAX_PENDING of them) and answered when
 *   the completion word in host memory reaches the mark, without a driver call and without a lock of the driver.
 * - Full: the stream has too many unfinished launches. The record is tried again, after FULL_TIMEOUT by force.
 * - Passed: everything else. Python executes it with all rules, then calls worker_take again.
 *
 * Order: records are executed in the order in which the client sent them, so no record is taken while Python executes
 * one. Before a record that may be slow in Python, all pending waits are passed to Python too, which answers them in a
 * thread of its own. Answers of both sides go through `sending`. After a partial write only Python answers, until it
 * has written the rest.
 *
 * What must never happen: a driver call with a destroyed object. A context is marked active while one of its records is
 * executed, and worker_drop_context waits for that; if the driver does not return, the objects are never freed. A
 * pending wait keeps only the address of its completion word, which stays valid for the life of the device.
 *
 * Call `worker_take`, and the functions that add objects and drop streams and modules, from one thread only. Contexts
 * may be dropped, answers sent and the worker closed from any thread.
 */
#ifndef PYMPSD_WORKER_H
#define PYMPSD_WORKER_H

#include "fast_path.h"
#include "record_source.h"

struct worker;

/* `area`: the ring's start in the shared memory; NULL if there is no ring. `calls`: NULL for no fast path. `spin_ns`:
 * how long to poll for records before sleeping. Returns NULL if there is no memory. */
struct worker *worker_open(int socket, uint8_t *area, const struct driver_calls *calls, int64_t spin_ns);
void worker_free(struct worker *worker);

/* Work until Python must execute a record. Then return 1, the record, which is valid until the next call, and the
 * CUresult with which the driver refused it, or 0 if it was not tried. Return 0 at the end. */
int worker_take(struct worker *worker, const uint8_t **record, uint32_t *length, int *code);

/* Write answers without waiting: return the bytes written, or a negative errno. After a partial write only Python
 * answers, until it has written the rest. */
int64_t worker_send(struct worker *worker, const uint8_t *data, uint64_t count);
/* Call these around the caller's own write to the socket. `unsent`: whether the write was partial. */
void worker_lock_sending(struct worker *worker);
void worker_unlock_sending(struct worker *worker, int unsent);
void worker_close(struct worker *worker); /* make worker_take return 0 soon */

int worker_add_context(struct worker *worker, uint64_t context_id, struct context_state *state);
/* Return 0 when the context is no longer used here; -1 if a driver call still uses it after `nanoseconds`. Then its
 * objects must never be freed. */
int worker_drop_context(struct worker *worker, uint64_t context_id, int64_t nanoseconds);
int worker_add_stream(struct worker *worker, uint64_t context_id, uint64_t handle, struct stream_state *state);
void worker_drop_stream(struct worker *worker, uint64_t context_id, uint64_t handle);
int worker_add_module(struct worker *worker, uint64_t context_id, uint64_t handle, struct kernel_row *rows, uint32_t count);
void worker_drop_module(struct worker *worker, uint64_t context_id, uint64_t handle);

/* Store the sizes of stream_state, context_state, kernel_row, driver_calls and the ring's area. */
void native_sizes(uint64_t sizes[5]);

#endif
