#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { RECEIVE_BYTES = 1 << 18, BELLS = 256 };

static _Atomic uint64_t *word(struct inlet *inlet, uint32_t offset)
{
    return (_Atomic uint64_t *)(inlet->area + offset);
}

static int uses_ring(struct inlet *inlet)
{
    return inlet->area && atomic_load_explicit(word(inlet, RING_IN_USE), memory_order_relaxed) == 1;
}

int inlet_open(struct inlet *inlet, int socket, uint8_t *area)
{
    memset(inlet, 0, sizeof *inlet);
    inlet->area = area;
    inlet->socket = socket;
    inlet->record = malloc(RECORD_LIMIT);
    inlet->received = malloc(RECORD_LIMIT + RECEIVE_BYTES);
    return inlet->record && inlet->received ? 0 : -1;
}

void inlet_close(struct inlet *inlet)
{
    free(inlet->record);
    free(inlet->received);
    inlet->record = inlet->received = NULL;
}

static void copy_out(struct inlet *inlet, uint64_t position, uint8_t *target, uint32_t count)
{
    uint32_t at = position % RING_BYTES, first = RING_BYTES - at < count ? RING_BYTES - at : count;
    memcpy(target, inlet->area + RING_DATA + at, first);
    memcpy(target + first, inlet->area + RING_DATA, count - first);
}

static int take_from_ring(struct inlet *inlet)
{
    uint64_t there = atomic_load_explicit(word(inlet, RING_TAIL), memory_order_acquire) - inlet->head;
    struct record_header header;

    if (!there)
        return INLET_NOTHING;
    if (there > RING_BYTES || there < sizeof header)
        return INLET_END;
    copy_out(inlet, inlet->head, (uint8_t *)&header, sizeof header);
    if (header.length < sizeof header || header.length > RING_RECORD_BYTES || header.length % 8 || header.length > there)
        return INLET_END;
    /* The header that was checked is the one that counts, whatever the client writes meanwhile. */
    memcpy(inlet->record, &header, sizeof header);
    copy_out(inlet, inlet->head + sizeof header, inlet->record + sizeof header, header.length - sizeof header);
    inlet->length = header.length;
    inlet->head += header.length;
    atomic_store_explicit(word(inlet, RING_HEAD), inlet->head, memory_order_release);
    return INLET_RECORD;
}

static int receive(struct inlet *inlet)
{
    ssize_t count;

    memmove(inlet->received, inlet->received + inlet->consumed, inlet->count - inlet->consumed);
    inlet->count -= inlet->consumed;
    inlet->consumed = 0;
    count = recv(inlet->socket, inlet->received + inlet->count, RECEIVE_BYTES, MSG_DONTWAIT);
    if (count > 0) {
        inlet->count += (uint32_t)count;
        return 1;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR))
        inlet->ended = 1;
    return 0;
}

static int take_from_socket(struct inlet *inlet)
{
    struct record_header header;

    for (;;) {
        uint32_t there = inlet->count - inlet->consumed;
        if (there >= sizeof header) {
            memcpy(&header, inlet->received + inlet->consumed, sizeof header);
            if (header.length < sizeof header || header.length > RECORD_LIMIT)
                return INLET_END;
            if (header.length <= there) {
                memcpy(inlet->record, inlet->received + inlet->consumed, header.length);
                inlet->length = header.length;
                inlet->consumed += header.length;
                return INLET_RECORD;
            }
        }
        if (inlet->ended || !receive(inlet))
            return inlet->ended ? INLET_END : INLET_NOTHING;
    }
}

int inlet_take(struct inlet *inlet)
{
    int taken;

    if (!uses_ring(inlet))
        return take_from_socket(inlet);
    taken = take_from_ring(inlet);
    return taken == INLET_NOTHING && inlet->ended ? INLET_END : taken;
}

static void hear_bells(struct inlet *inlet)
{
    char bells[BELLS];
    ssize_t count = recv(inlet->socket, bells, sizeof bells, MSG_DONTWAIT);

    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
        inlet->ended = 1;
}

void inlet_sleep(struct inlet *inlet, int64_t nanoseconds)
{
    struct pollfd poll_for = {inlet->socket, POLLIN, 0};
    struct timespec limit = {nanoseconds / 1000000000, nanoseconds % 1000000000};

    if (inlet->area) {
        atomic_store(word(inlet, RING_ASLEEP), 1); /* sequentially consistent: before the look at the tail */
        if (uses_ring(inlet) && atomic_load(word(inlet, RING_TAIL)) != inlet->head) {
            atomic_store_explicit(word(inlet, RING_ASLEEP), 0, memory_order_relaxed);
            return;
        }
    }
    if (ppoll(&poll_for, 1, &limit, NULL) > 0 && uses_ring(inlet))
        hear_bells(inlet);
    if (inlet->area)
        atomic_store_explicit(word(inlet, RING_ASLEEP), 0, memory_order_relaxed);
}

void inlet_tell_answer(struct inlet *inlet)
{
    if (inlet->area)
        atomic_fetch_add_explicit(word(inlet, RING_ANSWERS), 1, memory_order_release);
}
