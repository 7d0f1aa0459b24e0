/* Refuses to enter Python in a thread whose stack is too small for it.
 *
 * A program may start threads with stacks of 16 KB (PTHREAD_STACK_MIN). cuInit, with all that it imports, needs 38 KB
 * with Python 3.11 and 52 KB with 3.13. With a full stack the program would get a signal that does not name the cause.
 *
 * Included with _GNU_SOURCE defined. */

#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { MIN_STACK_BYTES = 64 << 10 };

/* Return the size in KB of the calling thread's stack if less than MIN_STACK_BYTES of it are left, otherwise 0. Also
 * return 0 for a coroutine's stack, which only the program knows, and for the main thread's, which grows. */
static inline size_t small_stack(void) {
    pthread_attr_t attributes;
    void *start = NULL;
    size_t size = 0;
    if (gettid() == getpid() || pthread_getattr_np(pthread_self(), &attributes) != 0)
        return 0;
    pthread_attr_getstack(&attributes, &start, &size);
    pthread_attr_destroy(&attributes);
    size_t remaining = (size_t)((char *)__builtin_frame_address(0) - (char *)start);
    return remaining < size && remaining < MIN_STACK_BYTES ? size >> 10 : 0;
}

#define SMALL_STACK "its stack of %zu KB is too small; start it with 128 KB or more (pthread_attr_setstacksize)"

/* Return whether the calling thread's stack is too small for Python; the first time, write a sentence to standard error. */
static inline int refuse_small_stack(void) {
    static atomic_int has_reported;
    size_t size = small_stack();
    if (size && !atomic_exchange(&has_reported, 1))
        fprintf(stderr, "pympsd: a thread cannot use CUDA: " SMALL_STACK "\n", size);
    return size != 0;
}
