#include "table.h"

#include <stdlib.h>

static char removed;
#define TABLE_REMOVED ((void *)&removed)
enum { FIRST_SIZE = 16 };

static uint32_t first_slot(uint64_t key, uint32_t size)
{
    return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (size - 1);
}

static struct slot *find(const struct table *table, uint64_t key)
{
    uint32_t at;

    if (!table->size)
        return NULL;
    for (at = first_slot(key, table->size); table->slots[at].value; at = (at + 1) & (table->size - 1))
        if (table->slots[at].key == key && table->slots[at].value != TABLE_REMOVED)
            return &table->slots[at];
    return NULL;
}

void *table_get(const struct table *table, uint64_t key)
{
    struct slot *slot = find(table, key);
    return slot ? slot->value : NULL;
}

static void enter(struct table *table, uint64_t key, void *value)
{
    uint32_t at = first_slot(key, table->size);

    while (table->slots[at].value)
        at = (at + 1) & (table->size - 1);
    table->slots[at].key = key;
    table->slots[at].value = value;
    table->used++;
}

static int rebuild(struct table *table)
{
    struct table larger = {0};
    uint32_t position = 0, living = 0, at;

    while (table_next(table, &position))
        living++;
    larger.size = FIRST_SIZE;
    while (larger.size < 4 * (living + 1))
        larger.size *= 2;
    larger.slots = calloc(larger.size, sizeof *larger.slots);
    if (!larger.slots)
        return -1;
    for (at = 0; at < table->size; at++)
        if (table->slots[at].value && table->slots[at].value != TABLE_REMOVED)
            enter(&larger, table->slots[at].key, table->slots[at].value);
    free(table->slots);
    *table = larger;
    return 0;
}

int table_put(struct table *table, uint64_t key, void *value)
{
    struct slot *slot = find(table, key);

    if (slot) {
        slot->value = value;
        return 0;
    }
    if (2 * (table->used + 1) > table->size && rebuild(table) < 0)
        return -1;
    enter(table, key, value);
    return 0;
}

void *table_take(struct table *table, uint64_t key)
{
    struct slot *slot = find(table, key);
    void *value = slot ? slot->value : NULL;

    if (slot)
        slot->value = TABLE_REMOVED;
    return value;
}

void *table_next(const struct table *table, uint32_t *position)
{
    while (*position < table->size) {
        void *value = table->slots[(*position)++].value;
        if (value && value != TABLE_REMOVED)
            return value;
    }
    return NULL;
}

void table_free(struct table *table)
{
    free(table->slots);
    table->slots = NULL;
    table->size = table->used = 0;
}
