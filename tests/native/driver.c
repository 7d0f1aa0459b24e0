/* A fake of the driver's functions that the native worker calls: it records the calls, and streams progress as the test
 * demands.
 *
 * Handles of streams start at FIRST_STREAM, those of events at FIRST_EVENT.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 64, EVENTS = 512, KINDS = 5, NOT_READY = 600 };
enum { FIRST_STREAM = 0x5000, FIRST_EVENT = 0x7000 };
enum { SET_CURRENT, LAUNCH, WRITE_VALUE, RECORD_EVENT, QUERY_EVENT };

struct call {
    uint32_t kind, flags;
    uint64_t stream, what; /* a context, function, address or event */
    uint32_t grid[3], block[3], shared_bytes, value;
    uint64_t parameter_bytes;
    uint8_t *parameters;
};

struct operation {
    uint32_t *address; /* of a marker; NULL: a kernel */
    uint32_t value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct call *calls;
static uint64_t call_count, call_room;
static struct {
    struct operation *operations;
    uint64_t issued, room, done;
    int at_once;
} streams[STREAMS];
static struct {
    uint64_t stream, position;
} events[EVENTS];
static int codes[KINDS];       /* the refusals, by kind */
static int held[KINDS], inside[KINDS];
static uint64_t to_complete;   /* the stream that event queries complete */

static void *grown(void *start, uint64_t *room, uint64_t needed, size_t size)
{
    if (needed > *room)
        start = realloc(start, (*room = 2 * needed + 64) * size);
    return start;
}

/* With the lock held: record the call, wait while its kind is held, return its result. */
static int record_call(struct call call)
{
    calls = grown(calls, &call_room, call_count + 1, sizeof *calls);
    calls[call_count++] = call;
    inside[call.kind]++;
    pthread_cond_broadcast(&changed);
    while (held[call.kind])
        pthread_cond_wait(&changed, &lock);
    inside[call.kind]--;
    pthread_cond_broadcast(&changed);
    return codes[call.kind];
}

static void advance(uint64_t stream, uint64_t count)
{
    while (count-- && streams[stream].done < streams[stream].issued) {
        struct operation *operation = &streams[stream].operations[streams[stream].done++];
        if (operation->address)
            __atomic_store_n(operation->address, operation->value, __ATOMIC_RELEASE);
    }
}

static void issue(uint64_t handle, struct operation operation)
{
    uint64_t stream = handle - FIRST_STREAM, position = streams[stream].issued++;

    streams[stream].operations =
        grown(streams[stream].operations, &streams[stream].room, streams[stream].issued, sizeof operation);
    streams[stream].operations[position] = operation;
    if (streams[stream].at_once)
        advance(stream, UINT64_MAX);
}

/* --- called by the worker */

int fake_set_current(void *context)
{
    pthread_mutex_lock(&lock);
    int code = record_call((struct call){.kind = SET_CURRENT, .what = (uint64_t)context});
    pthread_mutex_unlock(&lock);
    return code;
}

int fake_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                    unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                    void **extra)
{
    struct call call = {.kind = LAUNCH,
                        .stream = (uint64_t)stream,
                        .what = (uint64_t)function,
                        .grid = {grid_x, grid_y, grid_z},
                        .block = {block_x, block_y, block_z},
                        .shared_bytes = shared_bytes,
                        .flags = parameters != NULL};
    /* CU_LAUNCH_PARAM_BUFFER_POINTER, its pointer, CU_LAUNCH_PARAM_BUFFER_SIZE, its pointer, CU_LAUNCH_PARAM_END. */
    if (extra && extra[0] == (void *)1 && extra[2] == (void *)2 && extra[4] == NULL) {
        call.parameter_bytes = *(size_t *)extra[3];
        call.parameters = malloc(call.parameter_bytes);
        memcpy(call.parameters, extra[1], call.parameter_bytes);
    }
    pthread_mutex_lock(&lock);
    int code = record_call(call);
    if (!code)
        issue((uint64_t)stream, (struct operation){0});
    pthread_mutex_unlock(&lock);
    return code;
}

int fake_write_value(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    pthread_mutex_lock(&lock);
    int code = record_call((struct call){
        .kind = WRITE_VALUE, .stream = (uint64_t)stream, .what = address, .value = value, .flags = flags});
    if (!code)
        issue((uint64_t)stream, (struct operation){(uint32_t *)address, value});
    pthread_mutex_unlock(&lock);
    return code;
}

int fake_record_event(void *event, void *stream)
{
    uint64_t number = (uint64_t)event - FIRST_EVENT, position = (uint64_t)stream - FIRST_STREAM;

    pthread_mutex_lock(&lock);
    int code = record_call((struct call){.kind = RECORD_EVENT, .stream = (uint64_t)stream, .what = (uint64_t)event});
    if (!code) {
        events[number].stream = position;
        events[number].position = streams[position].issued;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int fake_query_event(void *event)
{
    uint64_t number = (uint64_t)event - FIRST_EVENT;

    pthread_mutex_lock(&lock);
    int code = record_call((struct call){.kind = QUERY_EVENT, .what = (uint64_t)event});
    if (!code && streams[events[number].stream].done < events[number].position)
        code = NOT_READY;
    if (to_complete)
        advance(to_complete - FIRST_STREAM, UINT64_MAX);
    pthread_mutex_unlock(&lock);
    return code;
}

/* --- called by the test */

void fake_reset(void)
{
    uint64_t each;

    pthread_mutex_lock(&lock);
    for (each = 0; each < call_count; each++)
        free(calls[each].parameters);
    call_count = to_complete = 0;
    for (each = 0; each < STREAMS; each++)
        streams[each].issued = streams[each].done = streams[each].at_once = 0;
    memset(events, 0, sizeof events);
    memset(codes, 0, sizeof codes);
    memset(held, 0, sizeof held);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

uint64_t fake_call_count(void)
{
    pthread_mutex_lock(&lock);
    uint64_t count = call_count;
    pthread_mutex_unlock(&lock);
    return count;
}

void fake_call(uint64_t number, struct call *into)
{
    pthread_mutex_lock(&lock);
    *into = calls[number];
    pthread_mutex_unlock(&lock);
}

/* Complete the next `count` operations of a stream. */
void fake_advance(uint64_t stream, uint64_t count)
{
    pthread_mutex_lock(&lock);
    advance(stream - FIRST_STREAM, count);
    pthread_mutex_unlock(&lock);
}

/* Complete all operations of a stream as soon as they are issued. */
void fake_complete_immediately(uint64_t stream)
{
    pthread_mutex_lock(&lock);
    streams[stream - FIRST_STREAM].at_once = 1;
    advance(stream - FIRST_STREAM, UINT64_MAX);
    pthread_mutex_unlock(&lock);
}

void fake_refuse(uint32_t kind, int code)
{
    pthread_mutex_lock(&lock);
    codes[kind] = code;
    pthread_mutex_unlock(&lock);
}

/* While a kind is held, its calls do not return. */
void fake_hold(uint32_t kind, int hold)
{
    pthread_mutex_lock(&lock);
    held[kind] = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Wait until a call is held; return 0 if none is in time. */
int fake_wait_inside(uint32_t kind, uint64_t seconds)
{
    struct timespec end;
    int late = 0, is_inside;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += seconds;
    pthread_mutex_lock(&lock);
    while (!inside[kind] && !late)
        late = pthread_cond_timedwait(&changed, &lock, &end);
    is_inside = inside[kind];
    pthread_mutex_unlock(&lock);
    return is_inside;
}

/* Make every event query complete this stream. */
void fake_complete_at_query(uint64_t stream)
{
    pthread_mutex_lock(&lock);
    to_complete = stream;
    pthread_mutex_unlock(&lock);
}

/* --- a client that changes records while they are read: it alternates 32-bit words at equal distances */

void fake_flip(uint32_t *first, uint64_t stride, uint64_t count, uint32_t one, uint32_t other, const uint64_t *head,
                   uint64_t end)
{
    uint32_t value = one;

    while (__atomic_load_n(head, __ATOMIC_ACQUIRE) < end) {
        uint64_t each;
        value = value == one ? other : one;
        for (each = 0; each < count; each++)
            __atomic_store_n((uint32_t *)((uint8_t *)first + each * stride), value, __ATOMIC_RELAXED);
    }
}
