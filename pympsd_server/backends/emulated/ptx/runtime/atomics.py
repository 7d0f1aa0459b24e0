"""Atomic read-modify-write operations of many threads, some of them to the same address.

Threads act one after another, in thread order, and each sees the result of the one before: that is what the old
values have to show. For 32 and 64 bits a loop in C does that (native/src/atomics.c), with the processor's atomic
operations: a program may change managed and mapped memory while a kernel runs. Other types, and all where the C part
was not built, are read, computed and written by NumPy, and atomic for kernels only. A loop in Python over 32,768
threads would take milliseconds, so each function has the fastest way that gives the same result:

- without old values (`red`): NumPy's ``ufunc.at``, or for the same address one reduction;
- with old values, different addresses: one gather and one scatter;
- with old values, equal addresses: operations sorted by address; running sums for integer addition, the previous
  element for an exchange, rounds that resolve everything up to the next successful swap for compare-and-swap, and for
  the rest the n-th operation of every address together, for n = 0, 1, ... (`_by_rank`).
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from pympsd_server.backends.emulated.ptx.isa.datatypes import BITS_OF_TYPES, U64, Array, DType, Value
from pympsd_server.backends.emulated.ptx.isa.faults import DeviceFault
from pympsd_server.backends.emulated.ptx.math.conversion import bfloat_from_float, float_from_bfloat
from pympsd_server.backends.emulated.ptx.math.floats import flush
from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState
from pympsd_server.backends.emulated.ptx.runtime.mbarrier import advance
from pympsd_server.backends.emulated.ptx.runtime.spaces import among, elements
from pympsd_server.backends.emulated.ptx.runtime.threads import Threads, spread
from pympsd_server.native.library import NoLibrary, load

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_OF_WORDS = ("add", "and", "or", "xor", "min", "max", "exch", "cas")
_OF_TYPES = {"u4": (*_OF_WORDS, "inc", "dec"), "u8": _OF_WORDS, "f4": ("add",), "f8": ("add",)}
_OF_TYPES |= {"i4": ("min", "max"), "i8": ("min", "max")}
_NATIVE = {(name, np.dtype(kind)): f"atomic_{name}_{kind}" for kind, names in _OF_TYPES.items() for name in names}
"""The functions of native/src/atomics.c. A sum of signed integers has the bits of the unsigned sum."""
_CAS_ROUNDS = 48
_PAIR = BITS_OF_TYPES["b128"]


def atomic(
    state: BatchState,
    threads: Threads,
    space: str,
    function: str,
    address: Value,
    dtype: DType,
    align: int,
    operands: tuple[Value, ...],
    used: bool,
    guard: Value | None,
) -> Value:
    """Run one atom or red. Returns the old values (0 where `guard` is false), or an undefined value if not `used`.

    `operands` is (value,), for cas (compare, value). Threads act one after another in thread order.
    """
    count = threads.count
    if guard is not None and not guard.any():
        return dtype.type(0)
    chosen = np.flatnonzero(guard) if guard is not None and guard.ndim else None
    inner = threads if chosen is None else Threads(threads.indices().take(chosen), len(chosen))
    arguments = [spread(v, count) if chosen is None else spread(v, count).take(chosen) for v in operands]
    address = spread(address, count)
    if chosen is not None:
        address = address.take(chosen)
    old = np.zeros(inner.count, dtype)
    width = dtype.itemsize
    try:
        resolved = elements(state, inner, space, address, width, align)
    except DeviceFault as fault:
        raise fault if chosen is None else among(chosen, fault) from None
    for kind, index, part in resolved:
        values = arguments if part is None else [v.take(part) for v in arguments]
        result = _apply(_memory(state, kind, dtype), spread(index, len(values[0])), function, values, used)
        if used:
            old[part if part is not None else slice(None)] = result
    if chosen is None or not used:
        return old
    full = np.zeros(count, dtype)
    full[chosen] = old
    return full


def atomic_pairs(
    state: BatchState,
    threads: Threads,
    space: str,
    function: str,
    address: Value,
    operands: tuple[tuple[Value, Value], ...],
    guard: Value | None,
) -> Array:
    """Run atom.exch.b128 or atom.cas.b128, whose operands are lower and upper halves. Returns the old values."""
    values = []
    for low, high in operands:
        values.append(np.empty(threads.count, _PAIR))
        values[-1]["low"], values[-1]["high"] = low, high
    if guard is not None and not guard.any():
        return np.zeros(threads.count, _PAIR)
    return atomic(state, threads, space, function, address, _PAIR, 16, tuple(values), True, guard)  # type: ignore[no-any-return]


def _memory(state: BatchState, space: str, dtype: DType) -> Array:
    return state.view(space, U64).view(_PAIR) if dtype == _PAIR else state.view(space, dtype)


def _apply(memory: Array, index: Array, function: str, values: list[Array], used: bool) -> Array:
    run = _native_functions().get((function, memory.dtype))
    if run is not None:
        return _run_native(run, memory, index, values)
    ufunc = _UFUNCS.get(function)
    if ufunc is not None and not used and _is_plain(memory.dtype, function):
        ufunc.at(memory, index, values[0])
        return values[0]
    order = np.argsort(index, kind="stable")
    sorted_index = index[order]
    ordered = [v[order] for v in values]
    first = np.r_[True, sorted_index[1:] != sorted_index[:-1]]
    old = np.empty(len(index), memory.dtype)
    old[order] = _step_in_order(memory, sorted_index, first, function, ordered)
    return old


@cache
def _native_functions() -> dict[tuple[str, DType], Any]:
    """Return the functions in C by name and type; none without the C part."""
    signature = (None, (c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p))
    try:
        library = load("_kernels", dict.fromkeys(_NATIVE.values(), signature))
    except NoLibrary:
        return {}
    functions = {key: getattr(library, name) for key, name in _NATIVE.items()}
    for bits in ("4", "8"):
        functions["add", np.dtype(f"i{bits}")] = functions["add", np.dtype(f"u{bits}")]
    return functions


def _run_native(run: Any, memory: Array, index: Array, values: list[Array]) -> Array:
    old = np.empty(len(index), memory.dtype)
    places = np.ascontiguousarray(index, np.int64)
    operands = [np.ascontiguousarray(v, memory.dtype).ctypes for v in values]
    run(memory.ctypes.data, places.ctypes.data, len(index), operands[0].data, operands[-1].data, old.ctypes.data)
    return old


def _is_plain(dtype: DType, function: str) -> bool:
    # NumPy's minimum and maximum let NaN win; for floats the other operand should.
    return dtype.kind != "f" or function == "add"


def _step_in_order(memory: Array, index: Array, first: Array, function: str, values: list[Array]) -> Array:
    """Return the old values for operations sorted by address; `first` marks the first of each address."""
    if function == "cas":
        return _compare_and_swap(memory, index, first, values[0], values[1])
    step = _STEPS[function]
    if first.all():
        old = memory[index]
        memory[index] = step(old, values[0])
        return old
    if function == "add" and memory.dtype.kind in "iu":
        return _running_sum(memory, index, first, values[0])
    if function == "exch":
        return _exchange(memory, index, first, values[0])
    return _by_rank(memory, index, first, step, values[0])


def _running_sum(memory: Array, index: Array, first: Array, values: Array) -> Array:
    total = np.cumsum(values, dtype=memory.dtype)
    before = total - values
    start = np.maximum.accumulate(np.where(first, np.arange(len(index)), 0))
    old: Array = memory[index] + (before - before[start])
    np.add.at(memory, index, values)
    return old


def _exchange(memory: Array, index: Array, first: Array, values: Array) -> Array:
    old: Array = np.r_[values[:1], values[:-1]]
    old[first] = memory[index[first]]
    memory[index] = values
    last = np.r_[first[1:], True]
    memory[index[last]] = values[last]
    return old


def _by_rank(
    memory: Array, index: Array, first: Array, step: Callable[[Value, Value], Value], values: Array
) -> Array:
    """Run the n-th operation of every address together, for n = 0, 1, ...; return the old values."""
    positions = np.arange(len(index))
    rank = positions - np.maximum.accumulate(np.where(first, positions, 0))
    old = np.empty(len(index), memory.dtype)
    by_rank = np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank))
    begin = 0
    for end in ends.tolist():
        now = by_rank[begin:end]
        old[now] = memory[index[now]]
        memory[index[now]] = step(old[now], values[now])
        begin = end
    return old


def _compare_and_swap(memory: Array, index: Array, first: Array, compare: Array, values: Array) -> Array:
    """Resolve in each round, for each address, everything up to its next successful swap."""
    group = np.cumsum(first) - 1
    heads = index[first]
    current = memory[heads]
    old = np.empty(len(index), memory.dtype)
    pending = np.arange(len(index))
    for _ in range(_CAS_ROUNDS):
        hits = pending[compare[pending] == current[group[pending]]]
        winners = hits[np.unique(group[hits], return_index=True)[1]]
        # The position of each address's winner; past the end without one.
        until = np.full(len(heads), len(index))
        until[group[winners]] = winners
        resolved = pending <= until[group[pending]]
        done = pending[resolved]
        old[done] = current[group[done]]
        current[group[winners]] = values[winners]
        pending = pending[~resolved]
        if not len(pending):
            break
    for position in pending.tolist():
        where = group[position]
        old[position] = current[where]
        if compare[position] == current[where]:
            current[where] = values[position]
    memory[heads] = current
    return old


def _increment(old: Value, limit: Value) -> Value:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Value, limit: Value) -> Value:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _minimum(old: Value, value: Value) -> Value:
    return np.fmin(old, value) if old.dtype.kind == "f" else np.minimum(old, value)


def _maximum(old: Value, value: Value) -> Value:
    return np.fmax(old, value) if old.dtype.kind == "f" else np.maximum(old, value)


def _of_bfloats(step: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    return lambda old, value: bfloat_from_float(step(float_from_bfloat(old), float_from_bfloat(value)))


def _add_flushing(old: Value, value: Value) -> Value:
    """Add with .ftz. An H100 was recorded to flush subnormal operands; no subnormal result was recorded."""
    return flush(flush(old) + flush(value))


def _of_one_nan(step: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a step of float16 or float32 that makes one NaN of all, with every bit but the sign.

    Reductions by tensor maps make it, as recorded of sums on an H100; for a minimum or maximum of two NaN the PTX ISA
    asks for it. Reductions of bfloat16 make it anyway.
    """

    def one(old: Value, value: Value) -> Value:
        result = step(old, value)
        bits = np.dtype(f"i{old.dtype.itemsize}")
        nan = bits.type(np.iinfo(bits).max).view(old.dtype)
        return np.where(np.isnan(result), nan, result)

    return one


def _of_pairs(step: Callable[[Value, Value], Value], dtype: type) -> Callable[[Value, Value], Value]:
    """Return a step for both halves of packed 32-bit values."""

    def both(old: Value, value: Value) -> Value:
        return np.ascontiguousarray(step(old.view(dtype), value.view(dtype))).view(np.uint32)

    return both


_STEPS: dict[str, Callable[[Value, Value], Value]] = {
    "mbarrier": advance,
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": _minimum,
    "max": _maximum,
    "exch": lambda old, value: value,
    "inc": _increment,
    "dec": _decrement,
}
for _name, _step in (("add", np.add), ("min", _minimum), ("max", _maximum)):
    _STEPS[f"{_name}_f16x2"] = _of_pairs(_step, np.float16)
    _STEPS[f"{_name}_bf16"] = _of_bfloats(_step)
    _STEPS[f"{_name}_bf16x2"] = _of_pairs(_of_bfloats(_step), np.uint16)
    _STEPS[f"{_name}_one_nan"] = _of_one_nan(_step)
_STEPS["add_ftz_one_nan"] = _of_one_nan(_add_flushing)
