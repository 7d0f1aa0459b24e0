#include "fast_path.h"

#include <stdlib.h>
#include <string.h>

#include "records.h"

/* Where launches run into the driver's full queue all threads fall to a third of their rate, so each stream's
 * unfinished launches are bounded: docs/decisions/004-what-the-gpu-decided.md. */
enum { LAUNCHES_AN_EVENT = 128, PARAMETER_BYTES = 1 << 15, SUCCESS = 0, NOT_READY = 600 };

/* By force so many more go to the driver: it holds 1,024 and would then block the worker in the call. */
enum { LAUNCHES_BY_FORCE = 384 };

/* CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE of cuda.h. */
#define EXTRA_END ((void *)0)
#define EXTRA_BUFFER ((void *)1)
#define EXTRA_SIZE ((void *)2)

int lane_open(struct lane *lane, const struct driver_calls *calls)
{
    memset(lane, 0, sizeof *lane);
    lane->calls = calls;
    return pthread_mutex_init(&lane->lock, NULL) ? -1 : 0;
}

void lane_close(struct lane *lane)
{
    uint32_t position = 0;
    struct lane_context *context;

    while ((context = table_next(&lane->contexts, &position)))
        lane_free_context(context);
    table_free(&lane->contexts);
    pthread_mutex_destroy(&lane->lock);
}

/* --- marks */

static int reached(uint64_t word, uint32_t mark)
{
    return (int32_t)(*(volatile uint32_t *)word - mark) >= 0;
}

static int is_settled(struct stream_state *stream)
{
    if (stream->settled < stream->marked_issued && reached(stream->word, stream->marked))
        stream->settled = stream->marked_issued;
    return stream->settled == stream->issued;
}

/* A mark among many launches costs their stream 40 us, for the device drains: only who waits has one written. */
static int mark(struct lane *lane, struct stream_state *stream)
{
    int code = lane->calls->write_value((void *)stream->handle, stream->word, stream->marked + 1, 0);

    if (!code) {
        stream->marked++;
        stream->marked_issued = stream->issued;
    }
    return code;
}

int wait_is_over(struct wait *wait)
{
    if ((int32_t)(*wait->word - wait->mark) < 0)
        return 0;
    if (wait->stream)
        is_settled(wait->stream);
    return 1;
}

/* --- order between streams, where it is plain */

static int is_joined(struct context_state *context, struct stream_state *stream)
{
    struct stream_state *first = context->default_stream;

    if (stream->is_default)
        return !context->unseen;
    if (!stream->is_blocking || stream->seen_of_default == first->issued)
        return 1;
    if (!is_settled(first))
        return 0;
    stream->seen_of_default = first->issued;
    return 1;
}

static void note(struct context_state *context, struct stream_state *stream)
{
    if (stream->is_blocking && !stream->is_default && !stream->unseen) {
        stream->unseen = 1;
        context->unseen++;
    }
}

/* --- launches */

static int fits(const struct driver_calls *calls, const struct launch_record *launch, const struct kernel_row *kernel)
{
    const uint64_t *grid = &launch->grid_x, *block = &launch->block_x;
    uint64_t threads = 1;
    int axis;

    for (axis = 0; axis < 3; axis++) {
        if (!grid[axis] || grid[axis] > calls->grid_limit[axis] || !block[axis] || block[axis] > calls->block_limit[axis])
            return 0;
        threads *= block[axis];
    }
    return threads <= calls->threads_limit && threads <= kernel->max_threads &&
           launch->parameter_bytes == kernel->parameter_bytes && launch->parameter_bytes <= PARAMETER_BYTES &&
           launch->shared_bytes <= kernel->dynamic_bytes &&
           launch->shared_bytes + kernel->shared_bytes <= calls->shared_limit;
}

static int has_room(struct lane *lane, struct stream_state *stream, int *code)
{
    int passed;

    if (stream->recorded - stream->passed < STREAM_EVENTS)
        return 1;
    passed = lane->calls->query_event((void *)stream->events[stream->passed % STREAM_EVENTS]);
    if (passed == SUCCESS)
        stream->passed++;
    else if (passed != NOT_READY)
        *code = passed;
    return passed == SUCCESS;
}

static int count(struct lane *lane, struct stream_state *stream)
{
    int code;

    if (stream->since_event < LAUNCHES_AN_EVENT || stream->recorded - stream->passed == STREAM_EVENTS)
        return SUCCESS; /* with all of them on their way, launches were forced */
    code = lane->calls->record_event((void *)stream->events[stream->recorded % STREAM_EVENTS], (void *)stream->handle);
    if (code == SUCCESS) {
        stream->recorded++;
        stream->since_event = 0;
    }
    return code;
}

static enum lane_result launch(struct lane *lane, struct context_state *context, struct stream_state *stream,
                               const struct kernel_row *kernel, const struct launch_record *record, int force, int *code)
{
    size_t parameter_bytes = kernel->parameter_bytes;
    void *extra[] = {EXTRA_BUFFER, (void *)(record + 1), EXTRA_SIZE, &parameter_bytes, EXTRA_END};

    if (!is_joined(context, stream))
        return LANE_PASS;
    if (!has_room(lane, stream, code) && (*code || !force || stream->since_event >= LAUNCHES_BY_FORCE))
        return *code ? LANE_FAILED : LANE_FULL;
    *code = lane->calls->launch((void *)kernel->function, record->grid_x, record->grid_y, record->grid_z, record->block_x,
                                record->block_y, record->block_z, record->shared_bytes, (void *)stream->handle, NULL,
                                parameter_bytes ? extra : NULL);
    if (*code)
        return LANE_FAILED;
    stream->issued++;
    stream->launched++;
    stream->last_function = kernel->function;
    note(context, stream);
    stream->since_event++;
    *code = count(lane, stream);
    return *code ? LANE_FAILED : LANE_DONE;
}

/* --- waiting */

static enum lane_result wait_for(struct lane *lane, struct lane_context *context, struct stream_state *stream,
                                 struct wait *wait, int *code)
{
    if (is_settled(stream))
        return LANE_ANSWER;
    if (stream->marked_issued != stream->issued && (*code = mark(lane, stream)))
        return LANE_FAILED;
    wait->context = context;
    wait->stream = stream;
    wait->word = (volatile uint32_t *)stream->word;
    wait->mark = stream->marked;
    return LANE_PENDING;
}

static enum lane_result synchronize_context(struct lane *lane, struct lane_context *context, struct wait *wait, int *code)
{
    uint32_t position = 0;
    struct stream_state *stream, *busy = NULL;

    if (context->state->leaving)
        return LANE_PASS;
    while ((stream = table_next(&context->streams, &position)))
        if (!is_settled(stream)) {
            if (busy)
                return LANE_PASS;
            busy = stream;
        }
    return busy ? wait_for(lane, context, busy, wait, code) : LANE_ANSWER;
}

/* --- records */

static enum lane_result execute(struct lane *lane, struct lane_context *context, const uint8_t *record, uint32_t length,
                                int force, struct wait *wait, int *code)
{
    const struct record_header *header = (const struct record_header *)record;
    const struct launch_record *launched = (const struct launch_record *)record;
    struct lane_module *module;
    struct stream_state *stream;
    uint64_t handle;

    if (header->opcode == OP_SYNCHRONIZE_CONTEXT)
        return length == sizeof *header ? synchronize_context(lane, context, wait, code) : LANE_PASS;
    if (length < sizeof *header + sizeof handle)
        return LANE_PASS;
    memcpy(&handle, record + sizeof *header, sizeof handle); /* the stream is the first operand of all of these */
    stream = table_get(&context->streams, handle);
    if (!stream)
        return LANE_PASS;
    if (header->opcode == OP_LAUNCH) {
        if (length < sizeof *launched || length != sizeof *launched + ((launched->parameter_bytes + 7) & ~7ull))
            return LANE_PASS;
        module = table_get(&context->modules, launched->module);
        if (!module || launched->function >= module->count || !fits(lane->calls, launched, &module->rows[launched->function]))
            return LANE_PASS;
        return launch(lane, context->state, stream, &module->rows[launched->function], launched, force, code);
    }
    if (length != sizeof *header + sizeof handle || !is_joined(context->state, stream))
        return LANE_PASS;
    if (header->opcode == OP_SYNCHRONIZE_STREAM)
        return wait_for(lane, context, stream, wait, code);
    return is_settled(stream) ? LANE_ANSWER : LANE_PASS; /* QUERY_STREAM */
}

static int enter(struct lane *lane)
{
    if (!lane->entered)
        lane->entered = !lane->calls->set_current(lane->calls->context);
    return lane->entered;
}

enum lane_result lane_execute(struct lane *lane, const uint8_t *record, uint32_t length, int force, struct wait *wait,
                              int *code)
{
    const struct record_header *header = (const struct record_header *)record;
    int waits = header->opcode != OP_LAUNCH;
    struct lane_context *context;
    enum lane_result result = LANE_PASS;

    if (!lane->calls || header->flags || !is_native(header->opcode))
        return LANE_PASS;
    pthread_mutex_lock(&lane->lock);
    context = table_get(&lane->contexts, header->context);
    if (context)
        atomic_store(&context->state->active, 1); /* sequentially consistent: before the look at `closed` */
    pthread_mutex_unlock(&lane->lock);
    if (!context)
        return LANE_PASS;
    if (!atomic_load(&context->state->closed) && !context->state->held &&
        !(waits && atomic_load(&context->state->deferred)) && enter(lane))
        result = execute(lane, context, record, length, force, wait, code);
    if (result != LANE_PENDING) /* a wait that nobody has noted yet would outlive its context */
        lane_leave(context);
    return result;
}

void lane_leave(struct lane_context *context)
{
    atomic_store(&context->state->active, 0);
}

/* --- what there is */

int lane_add_context(struct lane *lane, uint64_t serial, struct context_state *state)
{
    struct lane_context *context = calloc(1, sizeof *context);
    int result = -1;

    if (!context)
        return -1;
    context->state = state;
    pthread_mutex_lock(&lane->lock);
    if (!table_put(&context->streams, 0, state->default_stream))
        result = table_put(&lane->contexts, serial, context);
    pthread_mutex_unlock(&lane->lock);
    if (result)
        lane_free_context(context);
    return result;
}

struct lane_context *lane_take_context(struct lane *lane, uint64_t serial)
{
    struct lane_context *context;

    pthread_mutex_lock(&lane->lock);
    context = table_take(&lane->contexts, serial);
    pthread_mutex_unlock(&lane->lock);
    return context;
}

void lane_free_context(struct lane_context *context)
{
    uint32_t position = 0;
    struct lane_module *module;

    while ((module = table_next(&context->modules, &position)))
        free(module);
    table_free(&context->modules);
    table_free(&context->streams);
    free(context);
}

int lane_add_stream(struct lane *lane, uint64_t serial, uint64_t handle, struct stream_state *state)
{
    struct lane_context *context;
    int result = -1;

    pthread_mutex_lock(&lane->lock);
    context = table_get(&lane->contexts, serial);
    if (context)
        result = table_put(&context->streams, handle, state);
    pthread_mutex_unlock(&lane->lock);
    return result;
}

struct stream_state *lane_take_stream(struct lane *lane, uint64_t serial, uint64_t handle)
{
    struct lane_context *context;
    struct stream_state *stream = NULL;

    pthread_mutex_lock(&lane->lock);
    context = table_get(&lane->contexts, serial);
    if (context)
        stream = table_take(&context->streams, handle);
    pthread_mutex_unlock(&lane->lock);
    return stream;
}

int lane_add_module(struct lane *lane, uint64_t serial, uint64_t handle, struct kernel_row *rows, uint32_t count)
{
    struct lane_module *module = malloc(sizeof *module);
    struct lane_context *context;
    int result = -1;

    if (!module)
        return -1;
    module->rows = rows;
    module->count = count;
    pthread_mutex_lock(&lane->lock);
    context = table_get(&lane->contexts, serial);
    if (context)
        result = table_put(&context->modules, handle, module);
    pthread_mutex_unlock(&lane->lock);
    if (result)
        free(module);
    return result;
}

void lane_drop_module(struct lane *lane, uint64_t serial, uint64_t handle)
{
    struct lane_context *context;

    pthread_mutex_lock(&lane->lock);
    context = table_get(&lane->contexts, serial);
    if (context)
        free(table_take(&context->modules, handle));
    pthread_mutex_unlock(&lane->lock);
}
