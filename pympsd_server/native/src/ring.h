/* Where records come from: the ring in memory shared with the client, or, for a client without one, its socket.
 *
 * The client is believed in nothing: positions are checked, and a record is copied here before anybody looks at it.
 */
#ifndef PYMPSD_RING_H
#define PYMPSD_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "records.h"

enum { INLET_NOTHING = 0, INLET_RECORD = 1, INLET_END = -1 };

struct inlet {
    uint8_t *area; /* the ring's start in the shared memory, NULL: there is none */
    int socket;
    int ended;           /* the socket has ended, or the client broke the rules */
    uint64_t head;       /* ours: the shared word is only told */
    uint8_t *record;     /* the record taken last, RECORD_LIMIT bytes */
    uint32_t length;     /* of it */
    uint8_t *received;   /* bytes from the socket that are no whole record yet */
    uint32_t count;      /* how many */
    uint32_t consumed;   /* and how many of those were taken */
};

int inlet_open(struct inlet *inlet, int socket, uint8_t *area);
void inlet_close(struct inlet *inlet);

/* Take the next record if one is there, without waiting: INLET_RECORD, INLET_NOTHING or INLET_END. */
int inlet_take(struct inlet *inlet);

/* Wait until the client has something to say, for `nanoseconds` at most. */
void inlet_sleep(struct inlet *inlet, int64_t nanoseconds);

/* Count up what a client watches that waits for an answer. */
void inlet_tell_answer(struct inlet *inlet);

#endif
