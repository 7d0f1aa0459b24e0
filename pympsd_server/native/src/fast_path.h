/* The records that are executed without the interpreter: launches, and waits for streams that need no ordering.
 *
 * A record is on the fast path if executing it needs only the structures in states.h:
 *
 * - the context has not faulted, has no error to report, and none of its work is held for the host;
 * - the stream waits for no other stream, or only for work that is known to be done;
 * - the module is loaded, and the launch is within the limits of the device and the kernel.
 *
 * Everything else, in particular a mistake of the client, is passed to Python, which implements all rules and words the
 * error. A check that fails here never refuses a record by itself.
 *
 * A stream's state counts the operations that were issued and those that are known to be done. A marker writes the
 * next number to the stream's completion word when the work before it is done. It is written only if somebody waits,
 * because a marker between launches costs the stream 40 us.
 */
#ifndef PYMPSD_FAST_PATH_H
#define PYMPSD_FAST_PATH_H

#include <pthread.h>
#include <stdint.h>

#include "states.h"
#include "table.h"

enum fast_path_result {
    FAST_PATH_PASS,    /* Python must execute it */
    FAST_PATH_DONE,    /* done; it has no answer */
    FAST_PATH_ANSWER,  /* done: answer success */
    FAST_PATH_PENDING, /* to be answered when *wait is over */
    FAST_PATH_FULL,    /* the stream has too much unfinished work: retry later, or with `force` */
    FAST_PATH_FAILED   /* the driver refused it with *code */
};

struct fast_path_module {
    struct kernel_row *rows;
    uint32_t count;
};

struct fast_path_context {
    struct context_state *state;
    struct table streams; /* stream_state by handle; 0: the default stream */
    struct table modules; /* fast_path_module by handle */
};

struct fast_path {
    const struct driver_calls *calls; /* if NULL, Python executes everything */
    int is_current;                   /* whether the driver's context is current in the worker's thread */
    pthread_mutex_t lock;             /* protects the tables; not held during driver calls */
    struct table contexts;            /* fast_path_context by context_id */
};

/* A marker in a stream that an answer waits for. */
struct wait {
    struct fast_path_context *context; /* NULL: dropped meanwhile */
    struct stream_state *stream;       /* NULL: dropped meanwhile */
    volatile uint32_t *word;           /* the stream's completion word */
    uint32_t mark;                     /* the value that the word must reach */
};

int fast_path_open(struct fast_path *path, const struct driver_calls *calls);
void fast_path_close(struct fast_path *path);
enum fast_path_result fast_path_execute(struct fast_path *path, const uint8_t *record, uint32_t length, int force,
                                        struct wait *wait, int *code);

/* Mark the context inactive. After FAST_PATH_PENDING it stays active until this call, so that it cannot be dropped
 * before the wait is stored. */
void fast_path_leave(struct fast_path_context *context);

/* Return whether a wait is over; if so, count the stream's work up to the marker as done. */
int wait_is_over(struct wait *wait);

int fast_path_add_context(struct fast_path *path, uint64_t context_id, struct context_state *state);
struct fast_path_context *fast_path_take_context(struct fast_path *path, uint64_t context_id); /* the caller frees it */
void fast_path_free_context(struct fast_path_context *context);
int fast_path_add_stream(struct fast_path *path, uint64_t context_id, uint64_t handle, struct stream_state *state);
struct stream_state *fast_path_take_stream(struct fast_path *path, uint64_t context_id, uint64_t handle);
int fast_path_add_module(struct fast_path *path, uint64_t context_id, uint64_t handle, struct kernel_row *rows,
                         uint32_t count);
void fast_path_drop_module(struct fast_path *path, uint64_t context_id, uint64_t handle);

#endif
