// Atomic operations of the NumPy tier (ptx/runtime/atomics.py): one for each lane, in the order of the lanes. Each is
// an atomic operation of the processor, because a program may change managed and mapped memory while a kernel runs.
#include <float.h>
#include <math.h>
#include <stdint.h>

// The same as canonicalize and flush in ptx/math/floats.py.
static float canonical(float value) {
    union { uint32_t bits; float value; } nan = {0x7fffffff};
    return value == value ? value : nan.value;
}

static float flush(float value) { return fabsf(value) < FLT_MIN ? copysignf(0, value) : value; }

// Defines atomic_FUNCTION_TYPE(memory, index, lanes, values, others, old). `after` computes the new value of
// memory[index[i]] from its value `before`, from values[i] as `a` and, for a compare-and-swap, from others[i] as `b`.
#define ATOMIC(function, type, ctype, after)                                                                          \
    void atomic_##function##_##type(ctype *memory, const int64_t *index, int64_t lanes, const ctype *values,          \
                                    const ctype *others, ctype *old) {                                                \
        for (int64_t i = 0; i < lanes; i++) {                                                                         \
            ctype *at = memory + index[i], a = values[i], b = others[i], before, next;                                \
            (void)a, (void)b;                                                                                         \
            __atomic_load(at, &before, __ATOMIC_RELAXED);                                                             \
            do                                                                                                        \
                next = (after);                                                                                       \
            while (!__atomic_compare_exchange(at, &before, &next, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));            \
            old[i] = before;                                                                                          \
        }                                                                                                             \
    }

#define EXTREMES(type, ctype)                                                                                         \
    ATOMIC(min, type, ctype, before < a ? before : a)                                                                 \
    ATOMIC(max, type, ctype, before > a ? before : a)

#define WORDS(type, ctype)                                                                                            \
    EXTREMES(type, ctype)                                                                                             \
    ATOMIC(add, type, ctype, before + a)                                                                              \
    ATOMIC(and, type, ctype, before & a)                                                                              \
    ATOMIC(or, type, ctype, before | a)                                                                               \
    ATOMIC(xor, type, ctype, before ^ a)                                                                              \
    ATOMIC(exch, type, ctype, a)                                                                                      \
    ATOMIC(cas, type, ctype, before == a ? b : before)

WORDS(u4, uint32_t)
WORDS(u8, uint64_t)
EXTREMES(i4, int32_t)
EXTREMES(i8, int64_t)
ATOMIC(inc, u4, uint32_t, before >= a ? 0 : before + 1)
ATOMIC(dec, u4, uint32_t, before == 0 || before > a ? a : before - 1)
ATOMIC(add_ftz, f4, float, canonical(flush(flush(before) + flush(a))))
ATOMIC(add_noftz, f4, float, canonical(before + a))
ATOMIC(add, f8, double, before + a)
