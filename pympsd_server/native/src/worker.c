#define _GNU_SOURCE
#include "worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum { PENDING_LIMIT = 1024, PENDING_BYTES = 32 };

#define MICROSECOND 1000ll
#define MILLISECOND 1000000ll
#define SLACK_NS 1000            /* a pause of 20 us must not become one of 70 */
#define FULL_PATIENCE (20 * MILLISECOND) /* then a launch goes to the driver all the same, which has room for some */
#define FULL_PAUSE (20 * MICROSECOND)
#define BRISK (500 * MICROSECOND) /* after so long without an end of work, look at longer intervals */
#define LONG (50 * MILLISECOND)
#define BRISK_PAUSE (20 * MICROSECOND)
#define PAUSE (50 * MICROSECOND)
#define LONG_PAUSE (500 * MICROSECOND)
#define IDLE (1000 * MILLISECOND) /* sleeps are bounded, should a wake-up ever be missed */

struct pending {
    uint8_t record[PENDING_BYTES];
    uint32_t length;
    struct wait wait;
};

struct worker {
    struct inlet inlet;
    struct lane lane;
    int64_t spin_ns;
    int64_t latest; /* when something happened last, if no record was taken since */
    int is_busy;    /* one was: the clock is not read for each */
    atomic_int closed;
    int has_slack;
    int is_full;  /* inlet.record waits for room in its stream since then */
    int64_t full_since;
    int flushing; /* inlet.record is handed over after all that is pending */
    struct pending *pending;
    uint32_t pending_count;
    pthread_mutex_t waits; /* of the pending, against contexts and streams that go */
    pthread_mutex_t sending;
    int unsent; /* Python has a part of an answer to write */
    struct pending handed; /* the record that was handed over from the pending */
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
    worker->pending = calloc(PENDING_LIMIT, sizeof *worker->pending);
    pthread_mutex_init(&worker->waits, NULL);
    pthread_mutex_init(&worker->sending, NULL);
    if (inlet_open(&worker->inlet, socket, area) || lane_open(&worker->lane, calls) || !worker->pending) {
        worker_free(worker);
        return NULL;
    }
    return worker;
}

void worker_free(struct worker *worker)
{
    lane_close(&worker->lane);
    inlet_close(&worker->inlet);
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

    inlet_tell_answer(&worker->inlet); /* before: who watches begins to read while this is written */
    sent = send(worker->inlet.socket, data, count, MSG_DONTWAIT | MSG_NOSIGNAL);
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
    inlet_tell_answer(&worker->inlet);
}

void worker_unlock_sending(struct worker *worker, int unsent)
{
    worker->unsent = unsent;
    pthread_mutex_unlock(&worker->sending);
}

/* Whether a record was answered with success; if not, Python has to. */
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
    return sent != -EAGAIN; /* so short a message goes whole or not at all; a socket that has ended takes all */
}

/* --- what waits for the end of work */

static int hand_over(struct worker *worker, uint32_t index)
{
    worker->handed = worker->pending[index];
    worker->pending[index] = worker->pending[--worker->pending_count];
    return 1;
}

/* Answer what is over; 1 when `handed` is Python's: its context has gone or ends, or `all` are to be handed over. */
static int settle_pending(struct worker *worker, int all)
{
    uint32_t index = 0;
    int handed = 0;

    pthread_mutex_lock(&worker->waits);
    while (index < worker->pending_count && !handed) {
        struct pending *pending = &worker->pending[index];
        if (all || !pending->wait.context || atomic_load(&pending->wait.context->state->closed))
            handed = hand_over(worker, index);
        else if (!wait_is_over(&pending->wait))
            index++;
        else if (answer(worker, pending->record)) {
            worker->pending[index] = worker->pending[--worker->pending_count];
            worker->latest = now();
        } else
            handed = hand_over(worker, index);
    }
    pthread_mutex_unlock(&worker->waits);
    return handed;
}

static int keep_pending(struct worker *worker, const struct wait *wait)
{
    struct pending *pending;

    if (worker->pending_count == PENDING_LIMIT || worker->inlet.length > PENDING_BYTES)
        return 0;
    pthread_mutex_lock(&worker->waits);
    pending = &worker->pending[worker->pending_count++];
    memcpy(pending->record, worker->inlet.record, worker->inlet.length);
    pending->length = worker->inlet.length;
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

/* Execute inlet.record: 1 when it is Python's. */
static int execute(struct worker *worker, int *code)
{
    struct wait wait;
    int force = worker->is_full && now() - worker->full_since > FULL_PATIENCE;

    switch (lane_execute(&worker->lane, worker->inlet.record, worker->inlet.length, force, &wait, code)) {
    case LANE_DONE:
        worker->is_full = 0;
        return 0;
    case LANE_ANSWER:
        return !answer(worker, worker->inlet.record);
    case LANE_PENDING: {
        int is_kept = keep_pending(worker, &wait);
        lane_leave(wait.context);
        return !is_kept;
    }
    case LANE_FULL:
        if (!worker->is_full)
            worker->full_since = now();
        worker->is_full = 1;
        return 0;
    default: /* LANE_PASS, LANE_FAILED */
        worker->is_full = 0;
        worker->flushing = worker->pending_count && may_be_slow(((const struct record_header *)worker->inlet.record)->opcode);
        return 1;
    }
}

static void rest(struct worker *worker)
{
    int64_t moment = now(), fruitless;

    if (worker->is_busy)
        worker->latest = moment;
    worker->is_busy = 0;
    fruitless = moment - worker->latest;
    if (fruitless < worker->spin_ns) {
        relax();
        return;
    }
    if (!worker->pending_count)
        inlet_sleep(&worker->inlet, IDLE);
    else if (fruitless < LONG)
        inlet_sleep(&worker->inlet, fruitless < BRISK ? BRISK_PAUSE : PAUSE);
    else
        inlet_sleep(&worker->inlet, LONG_PAUSE);
}

int worker_take(struct worker *worker, const uint8_t **record, uint32_t *length, int *code)
{
    if (!worker->has_slack)
        worker->has_slack = !prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
    worker->is_busy = 1;
    while (!atomic_load_explicit(&worker->closed, memory_order_relaxed)) {
        int taken;

        *code = 0;
        if (worker->pending_count && settle_pending(worker, worker->flushing))
            return give(worker->handed.record, worker->handed.length, record, length);
        if (worker->flushing) {
            worker->flushing = 0;
            return give(worker->inlet.record, worker->inlet.length, record, length);
        }
        taken = worker->is_full ? INLET_RECORD : inlet_take(&worker->inlet);
        if (taken == INLET_RECORD) {
            int was_full = worker->is_full;
            if (execute(worker, code) && !worker->flushing)
                return give(worker->inlet.record, worker->inlet.length, record, length);
            if (worker->is_full && was_full)
                pause_for(now() - worker->full_since < LONG ? FULL_PAUSE : LONG_PAUSE);
            else
                worker->is_busy = 1;
        } else if (taken == INLET_NOTHING)
            rest(worker);
        else
            break;
    }
    return 0;
}

/* --- what there is */

int worker_add_context(struct worker *worker, uint64_t serial, struct context_state *state)
{
    return lane_add_context(&worker->lane, serial, state);
}

int worker_drop_context(struct worker *worker, uint64_t serial, int64_t nanoseconds)
{
    struct lane_context *context = lane_take_context(&worker->lane, serial);
    int64_t end = now() + nanoseconds;
    uint32_t index;

    if (!context)
        return 0;
    while (atomic_load(&context->state->active)) {
        if (now() > end)
            return -1; /* not freed: the driver's call returns into it */
        pause_for(FULL_PAUSE);
    }
    pthread_mutex_lock(&worker->waits);
    for (index = 0; index < worker->pending_count; index++)
        if (worker->pending[index].wait.context == context) {
            worker->pending[index].wait.context = NULL;
            worker->pending[index].wait.stream = NULL;
        }
    pthread_mutex_unlock(&worker->waits);
    lane_free_context(context);
    return 0;
}

int worker_add_stream(struct worker *worker, uint64_t serial, uint64_t handle, struct stream_state *state)
{
    return lane_add_stream(&worker->lane, serial, handle, state);
}

void worker_drop_stream(struct worker *worker, uint64_t serial, uint64_t handle)
{
    struct stream_state *stream = lane_take_stream(&worker->lane, serial, handle);
    uint32_t index;

    pthread_mutex_lock(&worker->waits);
    for (index = 0; stream && index < worker->pending_count; index++)
        if (worker->pending[index].wait.stream == stream)
            worker->pending[index].wait.stream = NULL; /* its word stays, and comes to the mark */
    pthread_mutex_unlock(&worker->waits);
}

int worker_add_module(struct worker *worker, uint64_t serial, uint64_t handle, struct kernel_row *rows, uint32_t count)
{
    return lane_add_module(&worker->lane, serial, handle, rows, count);
}

void worker_drop_module(struct worker *worker, uint64_t serial, uint64_t handle)
{
    lane_drop_module(&worker->lane, serial, handle);
}

void native_sizes(uint64_t sizes[5])
{
    sizes[0] = sizeof(struct stream_state);
    sizes[1] = sizeof(struct context_state);
    sizes[2] = sizeof(struct kernel_row);
    sizes[3] = sizeof(struct driver_calls);
    sizes[4] = RING_DATA + RING_BYTES;
}
