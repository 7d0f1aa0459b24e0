/* Numbers to pointers: a table with open addressing that grows. */
#ifndef PYMPSD_TABLE_H
#define PYMPSD_TABLE_H

#include <stdint.h>

struct table {
    struct slot {
        uint64_t key;
        void *value; /* NULL: free, TABLE_GONE: was taken out */
    } *slots;
    uint32_t size; /* a power of two, or 0 */
    uint32_t used; /* slots that are not free, those taken out among them */
};

void *table_get(const struct table *table, uint64_t key);
int table_put(struct table *table, uint64_t key, void *value); /* -1: no memory */
void *table_take(struct table *table, uint64_t key);

/* The next value at or after *position, which is moved behind it; NULL at the end. */
void *table_next(const struct table *table, uint32_t *position);
void table_free(struct table *table);

#endif
