/* What Python and this code both read and write of a device's things; the same structures stand in ../states.py.
 *
 * A client's things are changed by its worker's thread alone, be it in Python or here; other threads only read, but
 * for `closed` and `deferred`, which any thread sets.
 */
#ifndef PYMPSD_STATES_H
#define PYMPSD_STATES_H

#include <stdatomic.h>
#include <stdint.h>

enum { STREAM_EVENTS = 4 };

struct stream_state {
    uint64_t handle;          /* CUstream */
    uint64_t word;            /* address, for host and device, of the 32-bit word that marks are written to */
    uint64_t issued;          /* operations given to the driver */
    uint64_t settled;         /* how many of them are known to be done */
    uint64_t launched;        /* kernels among them */
    uint64_t last_function;   /* CUfunction launched last */
    uint64_t marked_issued;   /* what was issued when the last mark was */
    uint64_t seen_of_default; /* operations of the default stream that this one was made to wait for */
    uint64_t events[STREAM_EVENTS]; /* CUevents, recorded in turn after every so many launches */
    uint32_t recorded;        /* how many times one was */
    uint32_t passed;          /* and how many of those are known to be passed */
    uint32_t since_event;     /* launches since the last one */
    uint32_t marked;          /* the last mark, a count; the word is that far when what came before it is done */
    uint32_t is_blocking;     /* waits for the default stream, and is waited for */
    uint32_t is_default;
    uint32_t unseen; /* has work that the default stream was not made to wait for */
    uint32_t reserved;
};

struct context_state {
    struct stream_state *default_stream;
    _Atomic uint32_t closed;   /* ruined or ended: nothing more is launched here */
    _Atomic uint32_t active;   /* a record of it is being executed here */
    _Atomic uint32_t deferred; /* an error waits for the next call that waits */
    uint32_t held;             /* work is held for a call to the host: order is Python's affair */
    uint32_t unseen;           /* streams that are */
    uint32_t leaving;          /* streams that were destroyed and are not known to be done */
};

struct kernel_row {
    uint64_t function; /* CUfunction */
    uint32_t parameter_bytes;
    uint32_t max_threads;   /* a block of it has at most */
    uint32_t shared_bytes;  /* static */
    uint32_t dynamic_bytes; /* that it may be launched with so far */
};

/* The driver's functions by address, so that this code is built without its headers and tested without a device. */
struct driver_calls {
    void *context; /* CUcontext, made current in the worker's thread */
    int (*set_current)(void *context);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);
    int (*write_value)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    int (*record_event)(void *event, void *stream);
    int (*query_event)(void *event);
    uint32_t grid_limit[3];
    uint32_t block_limit[3];
    uint32_t threads_limit;
    uint32_t shared_limit; /* static and dynamic bytes of a block */
};

#endif
