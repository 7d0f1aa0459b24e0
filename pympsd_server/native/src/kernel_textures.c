// Textures and surfaces of compiled kernels: what most programs use, with the same bits as the NumPy tier (textures/).
// kernels_sample and kernels_surface return 0 if they have acted for all lanes. For everything else (faults, mipmaps,
// cubes, sRGB) they change nothing and return 1, and the instruction escapes.
#include "kernels.h"
#include <math.h>
#include <string.h>

enum { ARRAY = 1, LINEAR, PITCHED, SURFACE };
enum { WRAP, CLAMP, MIRROR, BORDER_COLOUR };
enum { READ_AS_INTEGER = 1, NORMALIZED_COORDINATES = 2, IS_SRGB = 0x10 };
enum { LAYERED = 4, INTEGERS = 8 };                 // in `how`, with the number of dimensions
enum { STORES = 8, CLAMPS = 16, IGNORES = 32 };     // in `how` of surfaces; the last two: for accesses beyond
enum { HALF = 0x10, FLOAT = 0x20, NORMALIZED = 0xc0 }; // formats
enum { STEPS = 256, HEAD_BYTES = 84, OBJECT_BYTES = 84 + 18 * 48 };

// An object in device memory (pympsd/wire/texture_object.py): the head, and its first level.
typedef struct {
    char magic[16];
    uint32_t kind, format, channels, levels, modes[3], filter, flags, level_filter;
    float level_limits[3];
    uint32_t border[4];
} Head;
typedef struct {
    uint64_t address, pitch, slice_pitch, width, height, depth;
} Level;

// What generated code shares with these functions. Places are the bits of the lanes' coordinates, the layer first.
// Values of a row are as wide as the access.
typedef struct {
    uint64_t handles[WARP];
    int32_t place[3][WARP];
    uint64_t values[4][WARP];
} Access;

typedef struct {
    uint64_t handle;
    Head head;
    Level level;
    uint32_t format, channel_bytes, element_bytes, mode[3];
    int is_float, is_signed, fetches; // only fetches elements: outside of the texture they are 0
    double greatest, least; // the range of integers that are read as -1 or 0 to 1
    uint8_t *memory;
} Object;

// The channels of an element.
typedef union {
    double f[4];
    int64_t i[4];
} Texel;

// Return whether a kernel can access `nbytes` bytes, all in one allocation.
static int has_all(Worker *c, uint64_t site, uint64_t address, unsigned __int128 nbytes) {
    const uint64_t *known = c->sites + 2 * site;
    if (address - known[0] >= known[1] && kernels_check_global(c, site, address, 0, 1))
        return 0;
    return nbytes <= known[1] - (address - known[0]);
}

static int read_format(Object *o) {
    static const uint8_t plain[] = {0x01, 0x02, 0x08, 0x09}, bytes[] = {[1] = 1, 2, 4, [8] = 1, 2, 4, [HALF] = 2, [FLOAT] = 4};
    const Head *h = &o->head;
    int is_normalized = h->format >= NORMALIZED && h->format < NORMALIZED + 12;
    o->format = is_normalized ? plain[(h->format - NORMALIZED) / 3] : h->format;
    if (o->format >= sizeof bytes || !bytes[o->format])
        return 1;
    o->channel_bytes = bytes[o->format], o->element_bytes = o->channel_bytes * h->channels;
    o->is_signed = (o->format & 8) != 0;
    int is_small = o->channel_bytes < 4 && !(h->flags & READ_AS_INTEGER);
    o->is_float = o->format == HALF || o->format == FLOAT || is_normalized || is_small;
    o->greatest = (double)((1ull << (8 * o->channel_bytes - (uint32_t)o->is_signed)) - 1);
    o->least = o->is_signed ? -1 : 0;
    return 0;
}

// Read an object if all its memory can be accessed. It has two sites: one for the object, one for its elements.
static int read_object(Worker *c, uint64_t site, uint64_t handle, uint32_t how, Object *o) {
    if (!has_all(c, site, handle, OBJECT_BYTES))
        return 1;
    const uint8_t *data = (const uint8_t *)(handle + (uint64_t)c->delta);
    memcpy(&o->head, data, HEAD_BYTES);
    memcpy(&o->level, data + HEAD_BYTES, sizeof o->level);
    const Head *h = &o->head;
    const Level *l = &o->level;
    if (memcmp(h->magic, "pympsd texture 1", 16) || (h->channels != 1 && h->channels != 2 && h->channels != 4))
        return 1;
    if (h->levels != 1 || h->kind - 1 >= SURFACE || h->modes[0] > 3 || h->modes[1] > 3 || h->modes[2] > 3)
        return 1;
    if (h->flags & IS_SRGB || l->width - 1 >= INT32_MAX || l->height - 1 >= INT32_MAX || l->depth - 1 >= INT32_MAX)
        return 1;
    if (read_format(o) || ((l->address | l->pitch | l->slice_pitch) & (o->channel_bytes - 1)))
        return 1;
    unsigned __int128 end = (unsigned __int128)(l->depth - 1) * l->slice_pitch;
    end += (unsigned __int128)(l->height - 1) * l->pitch + l->width * o->element_bytes;
    if (!has_all(c, site + 1, l->address, end))
        return 1;
    int repeats = (h->flags & NORMALIZED_COORDINATES) != 0;
    o->fetches = h->kind == LINEAR || how & INTEGERS;
    for (int i = 0; i < 3; i++)
        o->mode[i] = o->fetches ? BORDER_COLOUR : repeats || h->modes[i] == BORDER_COLOUR ? h->modes[i] : CLAMP;
    o->memory = (uint8_t *)(l->address + (uint64_t)c->delta);
    o->handle = handle;
    return 0;
}

static int decode(const Object *o, const uint8_t *element, Texel *t) {
    *t = (Texel){0};
    for (uint32_t k = 0; k < o->head.channels; k++, element += o->channel_bytes) {
        uint32_t raw = 0, away = 32 - 8 * o->channel_bytes;
        if (o->format == FLOAT) {
            float value;
            memcpy(&value, element, 4);
            t->f[k] = value;
            continue;
        }
        memcpy(&raw, element, o->channel_bytes);
        if (o->format == HALF) {
            int exponent = raw >> 10 & 31, mantissa = raw & 1023;
            if (exponent == 31)
                return 1;
            double size = exponent ? ldexp(mantissa + 1024, exponent - 25) : ldexp(mantissa, -24);
            t->f[k] = raw >> 15 ? -size : size;
        } else {
            int64_t value = o->is_signed ? (int32_t)(raw << away) >> away : (int64_t)raw;
            if (!o->is_float)
                t->i[k] = value;
            else
                t->f[k] = fmax((double)value / o->greatest, -1);
        }
    }
    return 0;
}

// Round a value to a half, at most the greatest finite one.
static double round_to_half(double value) {
    int exponent;
    double near = value < -65504 ? -65504 : value > 65504 ? 65504 : value;
    (void)frexp(near, &exponent);
    double step = ldexp(1, (exponent < -13 ? -13 : exponent) - 11);
    return rint(near / step) * step;
}

// Read the colour of the border, in the format of the elements.
static void read_border(const Object *o, Texel *t) {
    *t = (Texel){0};
    if (o->fetches)
        return;
    for (uint32_t k = 0; k < o->head.channels; k++) {
        uint32_t bits = o->head.border[k], away = 32 - 8 * o->channel_bytes;
        float value;
        memcpy(&value, &bits, 4);
        if (!o->is_float)
            t->i[k] = o->is_signed ? (int32_t)(bits << away) >> away : (int64_t)(bits << away >> away);
        else if (o->format == FLOAT)
            t->f[k] = value;
        else if (o->format == HALF)
            t->f[k] = round_to_half(value);
        else {
            double near = value < o->least ? o->least : value > 1 ? 1 : value;
            t->f[k] = floor(near * o->greatest + 0.5) / o->greatest;
        }
    }
}

// Return the greatest integer that is not above a value; it must fit in 64 bits.
static int64_t floor_of(double value) {
    int64_t whole = (int64_t)value;
    return whole - (whole > value);
}

static int64_t modulo(int64_t value, int64_t size) {
    int64_t rest = value % size;
    return rest < 0 ? rest + size : rest;
}

// Read the element at a place, after applying the address modes.
static int fetch(const Object *o, int dimensions, const int64_t place[3], Texel *t) {
    const Level *l = &o->level;
    const int64_t sizes[3] = {(int64_t)l->width, (int64_t)l->height, (int64_t)l->depth};
    uint64_t index[3] = {0, 0, (uint64_t)place[2]};
    for (int i = 0; i < dimensions; i++) {
        int64_t at = place[i], size = sizes[i];
        if (at < 0 || at >= size) {
            if (o->mode[i] == BORDER_COLOUR) {
                read_border(o, t);
                return 0;
            }
            int64_t twice = modulo(at, 2 * size);
            at = o->mode[i] == WRAP     ? modulo(at, size)
                : o->mode[i] == MIRROR ? (twice < size ? twice : 2 * size - 1 - twice)
                : at < 0               ? 0
                                       : size - 1;
        }
        index[i] = (uint64_t)at;
    }
    return decode(o, o->memory + index[2] * l->slice_pitch + index[1] * l->pitch + index[0] * o->element_bytes, t);
}

// Convert a coordinate to elements. Return 1, an escape, if it is too far away for exact steps.
static int locate(const Object *o, uint32_t how, int axis, int32_t bits, double *place) {
    const double far = (double)(1ll << 32); // as in texels.py
    const uint64_t sizes[3] = {o->level.width, o->level.height, o->level.depth};
    float value;
    memcpy(&value, &bits, 4);
    double at = how & INTEGERS ? (double)bits : value == value ? (double)value : 0;
    at = at < -far ? -far : at > far ? far : at;
    *place = o->head.flags & NORMALIZED_COORDINATES && !(how & INTEGERS) ? at * (double)sizes[axis] : at;
    return !(fabs(*place) <= 0x1p52);
}

// Mix the elements around a place. The weights are rounded one dimension after the other.
static int mix(const Object *o, int dimensions, const double place[3], int64_t layer, Texel *t) {
    int64_t first[3] = {0, 0, layer}, share[3] = {0, 0, 0};
    for (int i = 0; i < dimensions; i++) {
        int64_t steps = floor_of((place[i] - 0.5) * STEPS + 0.5);
        first[i] = steps >> 8, share[i] = steps & (STEPS - 1);
    }
    if (!(share[0] | share[1] | share[2])) { // the first one has all the weight, and the sum begins with +0
        int escapes = fetch(o, dimensions, first, t);
        for (int k = 0; k < 4; k++)
            t->f[k] += 0.0;
        return escapes;
    }
    *t = (Texel){0};
    for (int corner = 0; corner < 8; corner++) { // depth first, then x, then y
        int z = corner >> 2, x = corner >> 1 & 1, y = corner & 1;
        int64_t whole = z ? share[2] : STEPS - share[2], right = (whole * share[0] + STEPS / 2) >> 8, left = whole - right;
        int64_t below = (right * share[1] + STEPS / 2) >> 8, above = (left * (STEPS - share[1]) + STEPS / 2) >> 8;
        int64_t weight = x ? (y ? below : right - below) : y ? left - above : above;
        int64_t index[3] = {first[0] + x, first[1] + y, first[2] + z};
        Texel texel;
        if (weight <= 0)
            continue;
        if (fetch(o, dimensions, index, &texel))
            return 1;
        for (int k = 0; k < 4; k++)
            t->f[k] += texel.f[k] * ((double)weight / STEPS);
    }
    return 0;
}

static int sample_one(const Object *o, uint32_t how, const Access *access, uint32_t lane, Texel *t) {
    int dimensions = how & 3, is_layered = (how & LAYERED) != 0;
    int64_t layers = (int64_t)o->level.depth, index[3] = {0};
    double place[3] = {0};
    if (is_layered)
        index[2] = (uint32_t)access->place[0][lane] < layers ? (uint32_t)access->place[0][lane] : layers - 1;
    for (int i = 0; i < dimensions; i++)
        if (locate(o, how, i, access->place[i + is_layered][lane], &place[i]))
            return 1;
    if (o->head.filter && o->is_float && !o->fetches)
        return mix(o, dimensions, place, index[2], t);
    for (int i = 0; i < dimensions; i++)
        index[i] = floor_of(place[i]);
    return fetch(o, dimensions, index, t);
}

int kernels_sample(Worker *c, uint64_t site, uint32_t mask, uint32_t how, Access *access) {
    Object o = {.handle = 0};
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        uint64_t handle = access->handles[lane];
        Texel t;
        if (handle != o.handle && read_object(c, site, handle, how, &o))
            return 1;
        if (!o.handle || sample_one(&o, how, access, lane, &t))
            return 1;
        for (int k = 0; k < 4; k++) {
            uint32_t bits = (uint32_t)t.i[k];
            float value = (float)t.f[k];
            if (o.is_float)
                memcpy(&bits, &value, 4);
            memcpy((uint8_t *)access->values[k] + 4 * lane, &bits, 4);
        }
    }
    return 0;
}

// Find the memory of a lane's access; NULL if the access does nothing.
static int find_place(const Object *o, uint32_t how, uint32_t size, uint32_t total, const Access *access, uint32_t lane, uint8_t **at) {
    int is_layered = (how & LAYERED) != 0, is_all_inside = 1;
    const Level *l = &o->level;
    const int64_t most[3] = {(int64_t)(l->width * o->element_bytes) - total, (int64_t)l->height - 1, (int64_t)l->depth - 1};
    int64_t place[3] = {0};
    for (uint32_t i = 0; i < (how & 3); i++)
        place[i] = access->place[i + (uint32_t)is_layered][lane];
    if (is_layered)
        place[2] = (uint32_t)access->place[0][lane];
    for (int i = 0; i < 3; i++) {
        int64_t near = place[i] < 0 ? 0 : place[i] > most[i] ? most[i] : place[i];
        is_all_inside &= near == place[i];
        place[i] = near;
    }
    *at = NULL;
    if (!is_all_inside && how & IGNORES)
        return most[0] < 0;
    if (!is_all_inside && how & CLAMPS)
        place[0] -= place[0] % total;
    uint64_t offset = (uint64_t)place[0] + (uint64_t)place[1] * l->pitch + (uint64_t)place[2] * l->slice_pitch;
    *at = o->memory + offset;
    return most[0] < 0 || (!is_all_inside && !(how & CLAMPS)) || ((l->address + offset) & (total - 1));
}

// Read or write `count` values of `size` bytes in surfaces, at coordinates in bytes.
int kernels_surface(Worker *c, uint64_t site, uint32_t mask, uint32_t how, uint32_t size, uint32_t count, Access *access) {
    Object o = {.handle = 0};
    uint8_t *places[WARP];
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest);
        uint64_t handle = access->handles[lane];
        if (handle != o.handle && (read_object(c, site, handle, INTEGERS, &o) || o.head.kind != SURFACE))
            return 1;
        if (!o.handle || find_place(&o, how, size, size * count, access, lane, &places[lane]))
            return 1;
    }
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        for (uint32_t k = 0; k < count; k++) {
            uint8_t *value = (uint8_t *)access->values[k] + size * lane, *place = places[lane] ? places[lane] + k * size : NULL;
            if (how & STORES) {
                if (place)
                    memcpy(place, value, size);
            } else if (place)
                memcpy(value, place, size);
            else
                memset(value, 0, size);
        }
    }
    return 0;
}
