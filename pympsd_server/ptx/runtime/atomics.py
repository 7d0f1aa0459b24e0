"""Execute atomic read-modify-write operations of many threads, some of them to the same address.

Threads act one after another, in thread order. A thread's old value is the result of the thread before it at the same
address.

- For types of 32 and 64 bits, a loop in C (native/src/atomics.c) uses the processor's atomic operations, because a
  program may change managed and mapped memory while a kernel runs.
- NumPy reads, computes and writes all other types, and every type if the C part is not built. These operations are
  atomic only among kernels. If the old values are not used, ``ufunc.at`` does them. Otherwise NumPy does the first
  operation at every address together, then the second at the addresses that have one, and so on.
"""

from collections.abc import Callable
from ctypes import c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from pympsd_server.native.library import NoLibrary, load
from pympsd_server.ptx.isa.datatypes import BITS_OF_TYPES, U64, Array, DType, Value
from pympsd_server.ptx.isa.faults import DeviceFault
from pympsd_server.ptx.math.conversion import bfloat_from_float, float_from_bfloat
from pympsd_server.ptx.math.floats import canonicalize, float_max, float_min, flush
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.mbarrier import advance
from pympsd_server.ptx.runtime.spaces import elements, translate_fault
from pympsd_server.ptx.runtime.threads import Threads, spread

_OF_WORDS = ("add", "and", "or", "xor", "min", "max", "exch", "cas")
_OF_TYPES = {"u4": (*_OF_WORDS, "inc", "dec"), "u8": _OF_WORDS, "f4": ("add_ftz", "add_noftz"), "f8": ("add",)}
_OF_TYPES |= {"i4": ("min", "max"), "i8": ("min", "max")}
_NATIVE = {(name, np.dtype(kind)): f"atomic_{name}_{kind}" for kind, names in _OF_TYPES.items() for name in names}
"""The functions of native/src/atomics.c. Signed addition uses the unsigned function, whose sum has the same bits."""
_PAIR = BITS_OF_TYPES["b128"]


def name_step(function: str, type_name: str, flushes: bool | None = None) -> str:
    """Return the name of an atomic step, for `atomic`: the function, with the type if its arithmetic is of floats.

    `flushes` is for f32: whether the step flushes subnormal numbers; None if only in global memory.

    >>> name_step("add", "u32"), name_step("min", "bf16x2"), name_step("add", "f32"), name_step("add", "f32", False)
    ('add', 'min_bf16x2', 'add_f32', 'add_noftz')
    """
    if type_name == "f32" and flushes is not None:
        return f"{function}_{'ftz' if flushes else 'noftz'}"
    return f"{function}_{type_name}" if type_name in ("f16", "f16x2", "bf16", "bf16x2", "f32") else function


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
    """Run one atom or red, in thread order. Returns the old values, with 0 where `guard` is false.

    `function` is a name from `name_step`. ``add_f32`` flushes subnormal numbers in global memory, as the PTX ISA says
    and an H200 does, but not in shared memory. `operands` is (value,), or
    (compare, value) for cas. If the old values are not `used`, the result is undefined. Raises DeviceFault for an
    invalid address.
    """
    count = threads.count
    if guard is not None and not guard.any():
        return dtype.type(0)
    selected = np.flatnonzero(guard) if guard is not None and guard.ndim else None
    inner = threads if selected is None else Threads(threads.indices().take(selected), len(selected))
    arguments = [spread(v, count) if selected is None else spread(v, count).take(selected) for v in operands]
    address = spread(address, count)
    if selected is not None:
        address = address.take(selected)
    old = np.zeros(inner.count, dtype)
    width = dtype.itemsize
    try:
        resolved = elements(state, inner, space, address, width, align, writes=True)
    except DeviceFault as fault:
        raise fault if selected is None else translate_fault(selected, fault) from None
    for kind, index, part in resolved:
        values = arguments if part is None else [v.take(part) for v in arguments]
        step = ("add_ftz" if kind == "global" else "add_noftz") if function == "add_f32" else function
        result = _apply(_memory(state, kind, dtype), spread(index, len(values[0])), step, values, used)
        if used:
            old[part if part is not None else slice(None)] = result
    if selected is None or not used:
        return old
    full = np.zeros(count, dtype)
    full[selected] = old
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
    """Run atom.exch.b128 or atom.cas.b128. Each operand is a lower and an upper half. Returns the old values."""
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
    """Do an operation on the elements at `index`, in thread order; return the old values, undefined unless `used`."""
    run = _native_functions().get((function, memory.dtype))
    if run is not None:
        return _run_native(run, memory, index, values)
    step, old = _STEPS[function], np.empty(len(index), memory.dtype)
    if isinstance(step, np.ufunc) and not used:
        step.at(memory, index, values[0])
        return old
    by_address, positions = np.argsort(index, kind="stable"), np.arange(len(index))
    is_first = np.diff(index[by_address], prepend=-1) != 0
    rank = positions - np.maximum.accumulate(np.where(is_first, positions, 0))  # 0 for an address's first operation
    by_rank = by_address[np.argsort(rank, kind="stable")]
    begin = 0
    for end in np.cumsum(np.bincount(rank)).tolist():
        now, begin = by_rank[begin:end], end
        old[now] = memory[index[now]]
        memory[index[now]] = step(old[now], *(v[now] for v in values))
    return old


@cache
def _native_functions() -> dict[tuple[str, DType], Any]:
    """Return the C functions by name and type, or {} if the C part is not built."""
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


def _make_bfloat_step(step: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    return lambda old, value: bfloat_from_float(step(float_from_bfloat(old), float_from_bfloat(value)))


def _make_pair_step(step: Callable[[Value, Value], Value], dtype: type) -> Callable[[Value, Value], Value]:
    """Return a step for both halves of packed 32-bit values."""

    def both(old: Value, value: Value) -> Value:
        return np.ascontiguousarray(step(old.view(dtype), value.view(dtype))).view(np.uint32)

    return both


_STEPS: dict[str, Callable[..., Value]] = {
    "mbarrier": advance,
    "add": np.add,
    "add_ftz": lambda old, value: canonicalize(flush(flush(old) + flush(value))),
    "add_noftz": lambda old, value: canonicalize(old + value),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
    "exch": lambda old, value: value,
    "inc": lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
    "cas": lambda old, compare, value: np.where(old == compare, value, old),
}
_FLOAT_STEPS: dict[str, Callable[[Value, Value], Value]] = {
    "add": _STEPS["add_noftz"],
    "min": lambda old, value: canonicalize(float_min(old, value)),
    "max": lambda old, value: canonicalize(float_max(old, value)),
}
for _name, _step in _FLOAT_STEPS.items():
    _STEPS[f"{_name}_f16"] = _step
    _STEPS[f"{_name}_f16x2"] = _make_pair_step(_step, np.float16)
    _STEPS[f"{_name}_bf16"] = _make_bfloat_step(_step)
    _STEPS[f"{_name}_bf16x2"] = _make_pair_step(_make_bfloat_step(_step), np.uint16)
