#include "fast_path.h"

#include <stdlib.h>
#include <string.h>

#include "records.h"

/* When launches fill the driver's queue, all threads drop to a third of their rate. Therefore the unfinished launches
 * of each stream are bounded (docs/decisions/004-what-the-gpu-decided.md). */
enum { LAUNCHES_AN_EVENT = 128, PARAMETER_BYTES = 1 << 15, SUCCESS = 0, NOT_READY = 600 };

/* The maximum number of forced launches since the last event. The driver queues 1,024 and then blocks the worker in the
 * call. */
enum { MAX_FORCED_LAUNCHES = 384 };

/* CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE of cuda.h. */
#define EXTRA_END ((void *)0)
#define EXTRA_BUFFER ((void *)1)
#define EXTRA_SIZE ((void *)2)

int fast_path_open(struct fast_path *path, const struct driver_calls *calls)
{
    memset(path, 0, sizeof *path);
    path->calls = calls;
    return pthread_mutex_init(&path->lock, NULL) ? -1 : 0;
}

void fast_path_close(struct fast_path *path)
{
    uint32_t position = 0;
    struct fast_path_context *context;

    while ((context = table_next(&path->contexts, &position)))
        fast_path_free_context(context);
    table_free(&path->contexts);
    pthread_mutex_destroy(&path->lock);
}

/* --- stream markers */

static int reached(uint64_t word, uint32_t mark)
{
    return (int32_t)(*(volatile uint32_t *)word - mark) >= 0;
}

static int is_completed(struct stream_state *stream)
{
    if (stream->completed < stream->marked_issued && reached(stream->word, stream->marked))
        stream->completed = stream->marked_issued;
    return stream->completed == stream->issued;
}

/* A marker between launches costs the stream 40 us, because the device drains, so one is written only for a wait. */
static int mark(struct fast_path *path, struct stream_state *stream)
{
    int code = path->calls->write_value((void *)stream->handle, stream->word, stream->marked + 1, 0);

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
        is_completed(wait->stream);
    return 1;
}

/* --- order between streams, as far as it needs no driver call */

static int is_ordered(struct context_state *context, struct stream_state *stream)
{
    struct stream_state *first = context->default_stream;

    if (stream->is_default)
        return !context->unseen;
    if (!stream->is_blocking || stream->seen_of_default == first->issued)
        return 1;
    if (!is_completed(first))
        return 0;
    stream->seen_of_default = first->issued;
    return 1;
}

static void note_unseen(struct context_state *context, struct stream_state *stream)
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
        if (!grid[axis] || grid[axis] > calls->grid_limit[axis] || !block[axis] ||
            block[axis] > calls->block_limit[axis])
            return 0;
        threads *= block[axis];
    }
    return threads <= calls->threads_limit && threads <= kernel->max_threads &&
           launch->parameter_bytes == kernel->parameter_bytes && launch->parameter_bytes <= PARAMETER_BYTES &&
           launch->shared_bytes <= kernel->dynamic_bytes &&
           launch->shared_bytes + kernel->shared_bytes <= calls->shared_limit;
}

static int has_room(struct fast_path *path, struct stream_state *stream, int *code)
{
    int passed;

    if (stream->recorded - stream->passed < STREAM_EVENTS)
        return 1;
    passed = path->calls->query_event((void *)stream->events[stream->passed % STREAM_EVENTS]);
    if (passed == SUCCESS)
        stream->passed++;
    else if (passed != NOT_READY)
        *code = passed;
    return passed == SUCCESS;
}

static int record_event(struct fast_path *path, struct stream_state *stream)
{
    int code;

    if (stream->since_event < LAUNCHES_AN_EVENT || stream->recorded - stream->passed == STREAM_EVENTS)
        return SUCCESS; /* no event is free, because launches were forced */
    code = path->calls->record_event((void *)stream->events[stream->recorded % STREAM_EVENTS], (void *)stream->handle);
    if (code == SUCCESS) {
        stream->recorded++;
        stream->since_event = 0;
    }
    return code;
}

static enum fast_path_result launch(struct fast_path *path, struct context_state *context, struct stream_state *stream,
                                    const struct kernel_row *kernel, const struct launch_record *record, int force,
                                    int *code)
{
    size_t parameter_bytes = kernel->parameter_bytes;
    void *extra[] = {EXTRA_BUFFER, (void *)(record + 1), EXTRA_SIZE, &parameter_bytes, EXTRA_END};

    if (!is_ordered(context, stream))
        return FAST_PATH_PASS;
    if (!has_room(path, stream, code) && (*code || !force || stream->since_event >= MAX_FORCED_LAUNCHES))
        return *code ? FAST_PATH_FAILED : FAST_PATH_FULL;
    *code = path->calls->launch((void *)kernel->function, record->grid_x, record->grid_y, record->grid_z,
                                record->block_x, record->block_y, record->block_z, record->shared_bytes,
                                (void *)stream->handle, NULL, parameter_bytes ? extra : NULL);
    if (*code)
        return FAST_PATH_FAILED;
    stream->issued++;
    stream->launched++;
    stream->last_function = kernel->function;
    note_unseen(context, stream);
    stream->since_event++;
    *code = record_event(path, stream);
    return *code ? FAST_PATH_FAILED : FAST_PATH_DONE;
}

/* --- waiting */

static enum fast_path_result wait_for(struct fast_path *path, struct fast_path_context *context,
                                      struct stream_state *stream, struct wait *wait, int *code)
{
    if (is_completed(stream))
        return FAST_PATH_ANSWER;
    if (stream->marked_issued != stream->issued && (*code = mark(path, stream)))
        return FAST_PATH_FAILED;
    wait->context = context;
    wait->stream = stream;
    wait->word = (volatile uint32_t *)stream->word;
    wait->mark = stream->marked;
    return FAST_PATH_PENDING;
}

static enum fast_path_result synchronize_context(struct fast_path *path, struct fast_path_context *context,
                                                 struct wait *wait, int *code)
{
    uint32_t position = 0;
    struct stream_state *stream, *busy = NULL;

    if (context->state->leaving)
        return FAST_PATH_PASS;
    while ((stream = table_next(&context->streams, &position)))
        if (!is_completed(stream)) {
            if (busy)
                return FAST_PATH_PASS;
            busy = stream;
        }
    return busy ? wait_for(path, context, busy, wait, code) : FAST_PATH_ANSWER;
}

/* --- records */

static enum fast_path_result execute(struct fast_path *path, struct fast_path_context *context, const uint8_t *record,
                                     uint32_t length, int force, struct wait *wait, int *code)
{
    const struct record_header *header = (const struct record_header *)record;
    const struct launch_record *launched = (const struct launch_record *)record;
    const struct kernel_row *kernel;
    struct fast_path_module *module;
    struct stream_state *stream;
    uint64_t handle;

    if (header->opcode == OP_SYNCHRONIZE_CONTEXT)
        return length == sizeof *header ? synchronize_context(path, context, wait, code) : FAST_PATH_PASS;
    if (length < sizeof *header + sizeof handle)
        return FAST_PATH_PASS;
    memcpy(&handle, record + sizeof *header, sizeof handle); /* each record's first operand */
    stream = table_get(&context->streams, handle);
    if (!stream)
        return FAST_PATH_PASS;
    if (header->opcode == OP_LAUNCH) {
        if (length < sizeof *launched || length != sizeof *launched + ((launched->parameter_bytes + 7) & ~7ull))
            return FAST_PATH_PASS;
        module = table_get(&context->modules, launched->module);
        if (!module || launched->function >= module->count)
            return FAST_PATH_PASS;
        kernel = &module->rows[launched->function];
        if (!fits(path->calls, launched, kernel))
            return FAST_PATH_PASS;
        return launch(path, context->state, stream, kernel, launched, force, code);
    }
    if (length != sizeof *header + sizeof handle || !is_ordered(context->state, stream))
        return FAST_PATH_PASS;
    if (header->opcode == OP_SYNCHRONIZE_STREAM)
        return wait_for(path, context, stream, wait, code);
    return header->opcode == OP_QUERY_STREAM && is_completed(stream) ? FAST_PATH_ANSWER : FAST_PATH_PASS;
}

static int set_current(struct fast_path *path)
{
    if (!path->is_current)
        path->is_current = !path->calls->set_current(path->calls->context);
    return path->is_current;
}

enum fast_path_result fast_path_execute(struct fast_path *path, const uint8_t *record, uint32_t length, int force,
                                        struct wait *wait, int *code)
{
    const struct record_header *header = (const struct record_header *)record;
    int waits = header->opcode != OP_LAUNCH;
    struct fast_path_context *context;
    enum fast_path_result result = FAST_PATH_PASS;

    if (!path->calls || header->flags || !is_native(header->opcode))
        return FAST_PATH_PASS;
    pthread_mutex_lock(&path->lock);
    context = table_get(&path->contexts, header->context);
    if (context)
        atomic_store(&context->state->active, 1); /* sequentially consistent: before reading `closed` */
    pthread_mutex_unlock(&path->lock);
    if (!context)
        return FAST_PATH_PASS;
    if (!atomic_load(&context->state->closed) && !context->state->held &&
        !(waits && atomic_load(&context->state->deferred)) && set_current(path))
        result = execute(path, context, record, length, force, wait, code);
    if (result != FAST_PATH_PENDING) /* else the wait could outlive the context before it is stored */
        fast_path_leave(context);
    return result;
}

void fast_path_leave(struct fast_path_context *context)
{
    atomic_store(&context->state->active, 0);
}

/* --- contexts, streams and modules */

int fast_path_add_context(struct fast_path *path, uint64_t context_id, struct context_state *state)
{
    struct fast_path_context *context = calloc(1, sizeof *context);
    int result = -1;

    if (!context)
        return -1;
    context->state = state;
    pthread_mutex_lock(&path->lock);
    if (!table_put(&context->streams, 0, state->default_stream))
        result = table_put(&path->contexts, context_id, context);
    pthread_mutex_unlock(&path->lock);
    if (result)
        fast_path_free_context(context);
    return result;
}

struct fast_path_context *fast_path_take_context(struct fast_path *path, uint64_t context_id)
{
    struct fast_path_context *context;

    pthread_mutex_lock(&path->lock);
    context = table_take(&path->contexts, context_id);
    pthread_mutex_unlock(&path->lock);
    return context;
}

void fast_path_free_context(struct fast_path_context *context)
{
    uint32_t position = 0;
    struct fast_path_module *module;

    while ((module = table_next(&context->modules, &position)))
        free(module);
    table_free(&context->modules);
    table_free(&context->streams);
    free(context);
}

int fast_path_add_stream(struct fast_path *path, uint64_t context_id, uint64_t handle, struct stream_state *state)
{
    struct fast_path_context *context;
    int result = -1;

    pthread_mutex_lock(&path->lock);
    context = table_get(&path->contexts, context_id);
    if (context)
        result = table_put(&context->streams, handle, state);
    pthread_mutex_unlock(&path->lock);
    return result;
}

struct stream_state *fast_path_take_stream(struct fast_path *path, uint64_t context_id, uint64_t handle)
{
    struct fast_path_context *context;
    struct stream_state *stream = NULL;

    pthread_mutex_lock(&path->lock);
    context = table_get(&path->contexts, context_id);
    if (context)
        stream = table_take(&context->streams, handle);
    pthread_mutex_unlock(&path->lock);
    return stream;
}

int fast_path_add_module(struct fast_path *path, uint64_t context_id, uint64_t handle, struct kernel_row *rows,
                         uint32_t count)
{
    struct fast_path_module *module = malloc(sizeof *module);
    struct fast_path_context *context;
    int result = -1;

    if (!module)
        return -1;
    module->rows = rows;
    module->count = count;
    pthread_mutex_lock(&path->lock);
    context = table_get(&path->contexts, context_id);
    if (context)
        result = table_put(&context->modules, handle, module);
    pthread_mutex_unlock(&path->lock);
    if (result)
        free(module);
    return result;
}

void fast_path_drop_module(struct fast_path *path, uint64_t context_id, uint64_t handle)
{
    struct fast_path_context *context;

    pthread_mutex_lock(&path->lock);
    context = table_get(&path->contexts, context_id);
    if (context)
        free(table_take(&context->modules, handle));
    pthread_mutex_unlock(&path->lock);
}
