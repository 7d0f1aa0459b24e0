/* A growing hash table from numbers to pointers, with open addressing. */
#ifndef PYMPSD_TABLE_H
#define PYMPSD_TABLE_H

#include <stdint.h>

struct table {
    struct slot {
        uint64_t key;
        void *value; /* NULL: free, TABLE_REMOVED: removed */
    } *slots;
    uint32_t size; /* a power of two, or 0 */
    uint32_t used; /* slots that are not free, including removed ones */
};

void *table_get(const struct table *table, uint64_t key);
int table_put(struct table *table, uint64_t key, void *value); /* returns -1 if there is no memory */
void *table_take(struct table *table, uint64_t key);

/* Return the next value at or after *position, and advance *position past it; NULL at the end. */
void *table_next(const struct table *table, uint32_t *position);
void table_free(struct table *table);

#endif
