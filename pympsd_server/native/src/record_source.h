/* Reads records from the ring in the memory shared with the client, or from the socket of a client without a ring.
 *
 * The client writes records at RING_TAIL and advances it; this side takes them at RING_HEAD. Once a client uses its
 * ring (RING_IN_USE), its socket carries only bells (a byte, if this side sleeps: RING_ASLEEP) and the end.
 *
 * The client is not trusted, and may write to the shared memory at any time. Therefore `head` is a private copy, every
 * position is checked against it, a record is copied before it is read, and the first violation ends the stream.
 */
#ifndef PYMPSD_RECORD_SOURCE_H
#define PYMPSD_RECORD_SOURCE_H

#include <stdatomic.h>
#include <stdint.h>

#include "records.h"

enum { SOURCE_EMPTY = 0, SOURCE_RECORD = 1, SOURCE_END = -1 };

struct record_source {
    uint8_t *area; /* the ring's start in the shared memory, or NULL */
    int socket;
    int ended;           /* the socket has ended, or the client broke the rules */
    uint64_t head;       /* private; the shared word is only a copy of this one */
    uint8_t *record;     /* the last record taken, in MAX_RECORD bytes */
    uint32_t length;     /* of `record`, in bytes */
    uint8_t *received;   /* bytes from the socket */
    uint32_t count;      /* how many there are */
    uint32_t consumed;   /* how many of them were taken */
};

int record_source_open(struct record_source *source, int socket, uint8_t *area);
void record_source_close(struct record_source *source);

/* Take the next record into `record` without waiting: SOURCE_RECORD, SOURCE_EMPTY or SOURCE_END. */
int record_source_take(struct record_source *source);

/* Wait until the client sends something, for `nanoseconds` at most. */
void record_source_sleep(struct record_source *source, int64_t nanoseconds);

/* Increment the counter that a client polls while it waits for an answer. */
void record_source_count_answer(struct record_source *source);

#endif
