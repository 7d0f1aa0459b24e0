#define _GNU_SOURCE
#include "record_source.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { RECEIVE_BYTES = 1 << 18, BELLS = 256 };

static _Atomic uint64_t *word(struct record_source *source, uint32_t offset)
{
    return (_Atomic uint64_t *)(source->area + offset);
}

static int uses_ring(struct record_source *source)
{
    return source->area && atomic_load_explicit(word(source, RING_IN_USE), memory_order_relaxed) == 1;
}

int record_source_open(struct record_source *source, int socket, uint8_t *area)
{
    memset(source, 0, sizeof *source);
    source->area = area;
    source->socket = socket;
    source->record = malloc(MAX_RECORD);
    source->received = malloc(MAX_RECORD + RECEIVE_BYTES);
    return source->record && source->received ? 0 : -1;
}

void record_source_close(struct record_source *source)
{
    free(source->record);
    free(source->received);
    source->record = source->received = NULL;
}

static void copy_out(struct record_source *source, uint64_t position, uint8_t *target, uint32_t count)
{
    uint32_t at = position % RING_BYTES, first = RING_BYTES - at < count ? RING_BYTES - at : count;
    memcpy(target, source->area + RING_DATA + at, first);
    memcpy(target + first, source->area + RING_DATA, count - first);
}

static int take_from_ring(struct record_source *source)
{
    uint64_t there = atomic_load_explicit(word(source, RING_TAIL), memory_order_acquire) - source->head;
    struct record_header header;

    if (!there)
        return SOURCE_EMPTY;
    if (there > RING_BYTES || there < sizeof header)
        return SOURCE_END;
    copy_out(source, source->head, (uint8_t *)&header, sizeof header);
    if (header.length < sizeof header || header.length > RING_RECORD_BYTES || header.length % 8 ||
        header.length > there)
        return SOURCE_END;
    /* Use the checked copy of the header, because the client may have changed the one in the ring meanwhile. */
    memcpy(source->record, &header, sizeof header);
    copy_out(source, source->head + sizeof header, source->record + sizeof header, header.length - sizeof header);
    source->length = header.length;
    source->head += header.length;
    atomic_store_explicit(word(source, RING_HEAD), source->head, memory_order_release);
    return SOURCE_RECORD;
}

static int receive(struct record_source *source)
{
    ssize_t count;

    memmove(source->received, source->received + source->consumed, source->count - source->consumed);
    source->count -= source->consumed;
    source->consumed = 0;
    count = recv(source->socket, source->received + source->count, RECEIVE_BYTES, MSG_DONTWAIT);
    if (count > 0) {
        source->count += (uint32_t)count;
        return 1;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR))
        source->ended = 1;
    return 0;
}

static int take_from_socket(struct record_source *source)
{
    struct record_header header;

    for (;;) {
        uint32_t there = source->count - source->consumed;
        if (there >= sizeof header) {
            memcpy(&header, source->received + source->consumed, sizeof header);
            if (header.length < sizeof header || header.length > MAX_RECORD)
                return SOURCE_END;
            if (header.length <= there) {
                memcpy(source->record, source->received + source->consumed, header.length);
                source->length = header.length;
                source->consumed += header.length;
                return SOURCE_RECORD;
            }
        }
        if (source->ended || !receive(source))
            return source->ended ? SOURCE_END : SOURCE_EMPTY;
    }
}

int record_source_take(struct record_source *source)
{
    int taken;

    if (!uses_ring(source))
        return take_from_socket(source);
    taken = take_from_ring(source);
    return taken == SOURCE_EMPTY && source->ended ? SOURCE_END : taken;
}

static void read_bells(struct record_source *source)
{
    char bells[BELLS];
    ssize_t count = recv(source->socket, bells, sizeof bells, MSG_DONTWAIT);

    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
        source->ended = 1;
}

void record_source_sleep(struct record_source *source, int64_t nanoseconds)
{
    struct pollfd poll_for = {source->socket, POLLIN, 0};
    struct timespec limit = {nanoseconds / 1000000000, nanoseconds % 1000000000};

    if (source->area) {
        atomic_store(word(source, RING_ASLEEP), 1); /* sequentially consistent: before reading the tail */
        if (uses_ring(source) && atomic_load(word(source, RING_TAIL)) != source->head) {
            atomic_store_explicit(word(source, RING_ASLEEP), 0, memory_order_relaxed);
            return;
        }
    }
    if (ppoll(&poll_for, 1, &limit, NULL) > 0 && uses_ring(source))
        read_bells(source);
    if (source->area)
        atomic_store_explicit(word(source, RING_ASLEEP), 0, memory_order_relaxed);
}

void record_source_count_answer(struct record_source *source)
{
    if (source->area)
        atomic_fetch_add_explicit(word(source, RING_ANSWERS), 1, memory_order_release);
}
