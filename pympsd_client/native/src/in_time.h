/* Does a first call's work in Python within MAX_SECONDS, in a helper thread.
 *
 * A program may wait for one of its threads without releasing the GIL. If that thread calls CUDA, which needs the GIL, both
 * would wait forever, because Python cannot wait for the GIL with a limit. Nearly all imports happen in a thread's first
 * call. So in a Python program a helper thread makes the first call ready for a thread that Python did not start. After
 * MAX_SECONDS the call fails, and so do further first calls until the helper has finished.
 *
 * Included with _GNU_SOURCE defined. */

#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SECONDS = 10 };

/* The work of a helper thread. The thread that uses it last frees it. */
typedef struct {
    int (*work)(const void *);
    char argument[64];
    int result, is_done, is_left;
    pthread_mutex_t lock;
    pthread_cond_t done;
} Work;

static atomic_int left_helpers;

static void *do_work(void *given) {
    Work *work = given;
    int result = work->work(work->argument);
    pthread_mutex_lock(&work->lock);
    work->result = result;
    work->is_done = 1;
    int is_left = work->is_left;
    pthread_cond_signal(&work->done);
    pthread_mutex_unlock(&work->lock);
    if (is_left) {
        atomic_fetch_sub(&left_helpers, 1);
        free(work);
    }
    return NULL;
}

/* Return what `work` returns for a copy of `argument`. If it takes too long, write a sentence about `name` to standard
 * error and return `refusal`. */
static inline int work_in_time(int (*work)(const void *), const void *argument, size_t size, const char *name, int refusal) {
    Work *job = atomic_load(&left_helpers) ? NULL : malloc(sizeof *job);
    pthread_t helper;
    struct timespec end;
    if (job == NULL)
        return refusal;
    *job = (Work){.work = work, .lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
    memcpy(job->argument, argument, size);
    if (pthread_create(&helper, NULL, do_work, job) != 0)
        return free(job), refusal;
    pthread_detach(helper);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += MAX_SECONDS;
    pthread_mutex_lock(&job->lock);
    while (!job->is_done && pthread_cond_timedwait(&job->done, &job->lock, &end) == 0)
        continue;
    int is_left = job->is_left = !job->is_done, result = job->result;
    if (is_left && atomic_fetch_add(&left_helpers, 1) == 0)
        fprintf(stderr,
                "pympsd: this program cannot use CUDA (%s): a thread called it while another one kept Python's lock (the GIL) for "
                "%d s; release the GIL while you wait for a thread that uses CUDA\n",
                name, MAX_SECONDS);
    pthread_mutex_unlock(&job->lock);
    if (is_left)
        return refusal;
    free(job);
    return result;
}
