#define _GNU_SOURCE
#include "worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum { MAX_PENDING = 1024, PENDING_BYTES = 32 };

#define MICROSECOND 1000ll
#define MILLISECOND 1000000ll
#define SLACK_NS 1000 /* timer slack; with the default a pause of 20 us takes 70 us */
#define FULL_TIMEOUT (20 * MILLISECOND) /* after this a launch is forced, because the driver has room for some more */
#define FULL_PAUSE (20 * MICROSECOND)
#define SHORT_WAIT (500 * MICROSECOND) /* pauses grow if no work has ended for this long, */
#define LONG_WAIT (50 * MILLISECOND)   /* and again after this long */
#define SHORT_WAIT_PAUSE (20 * MICROSECOND)
#define PAUSE (50 * MICROSECOND)
#define LONG_WAIT_PAUSE (500 * MICROSECOND)
#define IDLE_SLEEP (1000 * MILLISECOND) /* the longest sleep, in case a wake-up is missed */

struct pending {
    uint8_t record[PENDING_BYTES];
    uint32_t length;
    struct wait wait;
};

struct worker {
    struct record_source source;
    struct fast_path fast_path;
    int64_t spin_ns;
    int64_t last_active; /* time of the last progress, unless is_busy */
    int is_busy;         /* a record was taken since; reading the clock for each would cost too much */
    atomic_int closed;
    int has_slack;
    int is_full; /* source.record has waited for room in its stream since full_since */
    int64_t full_since;
    int flushing; /* source.record is passed to Python after all pending ones */
    struct pending *pending;
    uint32_t pending_count;
    pthread_mutex_t waits; /* protects `pending` against dropped contexts and streams */
    pthread_mutex_t sending;
    int unsent; /* Python must write the rest of an answer */
    struct pending returned; /* the pending record that was passed to Python last */
};

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void pause_for(int64_t nanoseconds)
{
    struct timespec time = {0, nanoseconds};
    nanosleep(&time, NULL);
}

struct worker *worker_open(int socket, uint8_t *area, const struct driver_calls *calls, int64_t spin_ns)
{
    struct worker *worker = calloc(1, sizeof *worker);

    if (!worker)
        return NULL;
    worker->spin_ns = spin_ns;
    worker->pending = calloc(MAX_PENDING, sizeof *worker->pending);
    pthread_mutex_init(&worker->waits, NULL);
    pthread_mutex_init(&worker->sending, NULL);
    if (record_source_open(&worker->source, socket, area) || fast_path_open(&worker->fast_path, calls) ||
        !worker->pending) {
        worker_free(worker);
        return NULL;
    }
    return worker;
}

void worker_free(struct worker *worker)
{
    fast_path_close(&worker->fast_path);
    record_source_close(&worker->source);
    pthread_mutex_destroy(&worker->waits);
    pthread_mutex_destroy(&worker->sending);
    free(worker->pending);
    free(worker);
}

void worker_close(struct worker *worker)
{
    atomic_store(&worker->closed, 1);
}

/* --- answers */

static int64_t write_out(struct worker *worker, const uint8_t *data, uint64_t count)
{
    int64_t sent;

    record_source_count_answer(&worker->source); /* first, so that a polling client starts to read meanwhile */
    sent = send(worker->source.socket, data, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}

int64_t worker_send(struct worker *worker, const uint8_t *data, uint64_t count)
{
    int64_t sent;

    pthread_mutex_lock(&worker->sending);
    sent = write_out(worker, data, count);
    worker->unsent = sent == -EAGAIN || (sent >= 0 && (uint64_t)sent < count);
    pthread_mutex_unlock(&worker->sending);
    return sent;
}

void worker_lock_sending(struct worker *worker)
{
    pthread_mutex_lock(&worker->sending);
    record_source_count_answer(&worker->source);
}

void worker_unlock_sending(struct worker *worker, int unsent)
{
    worker->unsent = unsent;
    pthread_mutex_unlock(&worker->sending);
}

/* Answer a record with success; return whether that was possible. If it was not, Python must answer. */
static int answer(struct worker *worker, const uint8_t *record)
{
    struct record_header header = *(const struct record_header *)record;
    int64_t sent = -EAGAIN;

    header.opcode |= RECORD_ANSWER;
    header.flags = 0;
    header.length = sizeof header;
    header.context = 0; /* CUDA_SUCCESS */
    pthread_mutex_lock(&worker->sending);
    if (!worker->unsent)
        sent = write_out(worker, (uint8_t *)&header, sizeof header);
    pthread_mutex_unlock(&worker->sending);
    return sent != -EAGAIN; /* such a short write is never partial; any other error means that the client has gone */
}

/* --- pending waits */

static int return_pending(struct worker *worker, uint32_t index)
{
    worker->returned = worker->pending[index];
    worker->pending[index] = worker->pending[--worker->pending_count];
    return 1;
}

/* Answer the waits that are over. Return 1 if Python must execute `returned`: its context ends, or `all` is set. */
static int resolve_pending(struct worker *worker, int all)
{
    uint32_t index = 0;
    int returned = 0;

    pthread_mutex_lock(&worker->waits);
    while (index < worker->pending_count && !returned) {
        struct pending *pending = &worker->pending[index];
        if (all || !pending->wait.context || atomic_load(&pending->wait.context->state->closed))
            returned = return_pending(worker, index);
        else if (!wait_is_over(&pending->wait))
            index++;
        else if (answer(worker, pending->record)) {
            worker->pending[index] = worker->pending[--worker->pending_count];
            worker->last_active = now();
        } else
            returned = return_pending(worker, index);
    }
    pthread_mutex_unlock(&worker->waits);
    return returned;
}

static int keep_pending(struct worker *worker, const struct wait *wait)
{
    struct pending *pending;

    if (worker->pending_count == MAX_PENDING || worker->source.length > PENDING_BYTES)
        return 0;
    pthread_mutex_lock(&worker->waits);
    pending = &worker->pending[worker->pending_count++];
    memcpy(pending->record, worker->source.record, worker->source.length);
    pending->length = worker->source.length;
    pending->wait = *wait;
    pthread_mutex_unlock(&worker->waits);
    return 1;
}

/* --- the loop */

static int give(const uint8_t *from, uint32_t count, const uint8_t **record, uint32_t *length)
{
    *record = from;
    *length = count;
    return 1;
}

/* Execute source.record; return 1 if Python must execute it. */
static int execute(struct worker *worker, int *code)
{
    struct wait wait;
    int force = worker->is_full && now() - worker->full_since > FULL_TIMEOUT;

    switch (fast_path_execute(&worker->fast_path, worker->source.record, worker->source.length, force, &wait, code)) {
    case FAST_PATH_DONE:
        worker->is_full = 0;
        return 0;
    case FAST_PATH_ANSWER:
        return !answer(worker, worker->source.record);
    case FAST_PATH_PENDING: {
        int is_kept = keep_pending(worker, &wait);
        fast_path_leave(wait.context);
        return !is_kept;
    }
    case FAST_PATH_FULL:
        if (!worker->is_full)
            worker->full_since = now();
        worker->is_full = 1;
        return 0;
    default: /* FAST_PATH_PASS, FAST_PATH_FAILED */
        worker->is_full = 0;
        worker->flushing = worker->pending_count && may_be_slow(((const struct record_header *)worker->source.record)->opcode);
        return 1;
    }
}

static void wait_for_records(struct worker *worker)
{
    int64_t moment = now(), idle;

    if (worker->is_busy)
        worker->last_active = moment;
    worker->is_busy = 0;
    idle = moment - worker->last_active;
    if (idle < worker->spin_ns) {
        relax();
        return;
    }
    if (!worker->pending_count)
        record_source_sleep(&worker->source, IDLE_SLEEP);
    else if (idle < LONG_WAIT)
        record_source_sleep(&worker->source, idle < SHORT_WAIT ? SHORT_WAIT_PAUSE : PAUSE);
    else
        record_source_sleep(&worker->source, LONG_WAIT_PAUSE);
}

int worker_take(struct worker *worker, const uint8_t **record, uint32_t *length, int *code)
{
    if (!worker->has_slack)
        worker->has_slack = !prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
    worker->is_busy = 1;
    while (!atomic_load_explicit(&worker->closed, memory_order_relaxed)) {
        int taken;

        *code = 0;
        if (worker->pending_count && resolve_pending(worker, worker->flushing))
            return give(worker->returned.record, worker->returned.length, record, length);
        if (worker->flushing) {
            worker->flushing = 0;
            return give(worker->source.record, worker->source.length, record, length);
        }
        taken = worker->is_full ? SOURCE_RECORD : record_source_take(&worker->source);
        if (taken == SOURCE_RECORD) {
            int was_full = worker->is_full;
            if (execute(worker, code) && !worker->flushing)
                return give(worker->source.record, worker->source.length, record, length);
            if (worker->is_full && was_full)
                pause_for(now() - worker->full_since < LONG_WAIT ? FULL_PAUSE : LONG_WAIT_PAUSE);
            else
                worker->is_busy = 1;
        } else if (taken == SOURCE_EMPTY)
            wait_for_records(worker);
        else
            break;
    }
    return 0;
}

/* --- contexts, streams and modules */

int worker_add_context(struct worker *worker, uint64_t context_id, struct context_state *state)
{
    return fast_path_add_context(&worker->fast_path, context_id, state);
}

int worker_drop_context(struct worker *worker, uint64_t context_id, int64_t nanoseconds)
{
    struct fast_path_context *context = fast_path_take_context(&worker->fast_path, context_id);
    int64_t end = now() + nanoseconds;
    uint32_t index;

    if (!context)
        return 0;
    while (atomic_load(&context->state->active)) {
        if (now() > end)
            return -1; /* not freed, because the driver's call will use it */
        pause_for(FULL_PAUSE);
    }
    pthread_mutex_lock(&worker->waits);
    for (index = 0; index < worker->pending_count; index++)
        if (worker->pending[index].wait.context == context) {
            worker->pending[index].wait.context = NULL;
            worker->pending[index].wait.stream = NULL;
        }
    pthread_mutex_unlock(&worker->waits);
    fast_path_free_context(context);
    return 0;
}

int worker_add_stream(struct worker *worker, uint64_t context_id, uint64_t handle, struct stream_state *state)
{
    return fast_path_add_stream(&worker->fast_path, context_id, handle, state);
}

void worker_drop_stream(struct worker *worker, uint64_t context_id, uint64_t handle)
{
    struct stream_state *stream = fast_path_take_stream(&worker->fast_path, context_id, handle);
    uint32_t index;

    pthread_mutex_lock(&worker->waits);
    for (index = 0; stream && index < worker->pending_count; index++)
        if (worker->pending[index].wait.stream == stream)
            worker->pending[index].wait.stream = NULL; /* its completion word stays valid */
    pthread_mutex_unlock(&worker->waits);
}

int worker_add_module(struct worker *worker, uint64_t context_id, uint64_t handle, struct kernel_row *rows, uint32_t count)
{
    return fast_path_add_module(&worker->fast_path, context_id, handle, rows, count);
}

void worker_drop_module(struct worker *worker, uint64_t context_id, uint64_t handle)
{
    fast_path_drop_module(&worker->fast_path, context_id, handle);
}

void native_sizes(uint64_t sizes[5])
{
    sizes[0] = sizeof(struct stream_state);
    sizes[1] = sizeof(struct context_state);
    sizes[2] = sizeof(struct kernel_row);
    sizes[3] = sizeof(struct driver_calls);
    sizes[4] = RING_DATA + RING_BYTES;
}
