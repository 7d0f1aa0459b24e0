/* The records that are executed outside the interpreter: launches, and waiting for streams that are in plain order.
 *
 * Whatever is not plain (an error to tell, work that waits for the host, streams that wait for each other, handles
 * that are not known) is passed on to Python, which knows all the rules.
 */
#ifndef PYMPSD_LANE_H
#define PYMPSD_LANE_H

#include <pthread.h>
#include <stdint.h>

#include "states.h"
#include "table.h"

enum lane_result {
    LANE_PASS,    /* it is Python's to execute */
    LANE_DONE,    /* it is done and has no answer */
    LANE_ANSWER,  /* it is done: answer success */
    LANE_PENDING, /* answer once *wait is over */
    LANE_FULL,    /* the stream has enough unfinished work: try again later, or by force */
    LANE_FAILED   /* the driver refused it with *code */
};

struct lane_module {
    struct kernel_row *rows;
    uint32_t count;
};

struct lane_context {
    struct context_state *state;
    struct table streams; /* stream_state by handle, the default stream's is 0 */
    struct table modules; /* lane_module by handle */
};

struct lane {
    const struct driver_calls *calls; /* NULL: everything is Python's */
    int entered;
    pthread_mutex_t lock;  /* the tables'; not held while the driver works */
    struct table contexts; /* lane_context by serial */
};

/* A mark in a stream that an answer waits for. */
struct wait {
    struct lane_context *context; /* NULL: it has gone */
    struct stream_state *stream;  /* NULL: it has gone */
    volatile uint32_t *word;
    uint32_t mark;
};

int lane_open(struct lane *lane, const struct driver_calls *calls);
void lane_close(struct lane *lane);
enum lane_result lane_execute(struct lane *lane, const uint8_t *record, uint32_t length, int force, struct wait *wait,
                              int *code);

/* After LANE_PENDING the context is still active, until this: so that it cannot go before the wait is noted. */
void lane_leave(struct lane_context *context);

/* Whether a wait is over; then what its stream did until the mark counts as done. */
int wait_is_over(struct wait *wait);

int lane_add_context(struct lane *lane, uint64_t serial, struct context_state *state);
struct lane_context *lane_take_context(struct lane *lane, uint64_t serial); /* the caller frees it */
void lane_free_context(struct lane_context *context);
int lane_add_stream(struct lane *lane, uint64_t serial, uint64_t handle, struct stream_state *state);
struct stream_state *lane_take_stream(struct lane *lane, uint64_t serial, uint64_t handle);
int lane_add_module(struct lane *lane, uint64_t serial, uint64_t handle, struct kernel_row *rows, uint32_t count);
void lane_drop_module(struct lane *lane, uint64_t serial, uint64_t handle);

#endif
