"""Write instructions that access memory, and the results of calls.

memory_text.py writes loads and stores. Atomics act lane by lane, the lowest first, in one loop. Compiler fences
enclose accesses that LLVM must not move (volatile, relaxed, atomic).

Textures and surfaces are attempts, whose common cases are in C (native/src/kernel_textures.c). The handles,
coordinates and values of all lanes are in `%fragments`:

    64-bit handles | 3 rows of 32-bit coordinates | 4 rows of values, each as wide as the access; a row has 32 lanes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pympsd_server.ptx.compiled_tier.ir_text import LIKELY, SCALAR
from pympsd_server.ptx.compiled_tier.native_runtime import offset_of
from pympsd_server.ptx.compiled_tier.planning.analysis import differs_by_lane
from pympsd_server.ptx.compiled_tier.text.expressions import Expression
from pympsd_server.ptx.compiled_tier.text.instruction_table import attempts, writes
from pympsd_server.ptx.compiled_tier.text.lanes import BITS, FLOATS, is_signed
from pympsd_server.ptx.compiled_tier.text.memory_text import MemoryText, Pointers
from pympsd_server.ptx.isa.datatypes import BOOL, F16, F32, U32, Value
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.lowering.ir import Argument, Group, Memory, Operation, Sink, Symbol, items_of, space_of
from pympsd_server.ptx.math.conversion import bfloat_from_float, float_from_bfloat, high_half, low_half, pack_halves
from pympsd_server.ptx.math.floats import canonicalize, flush
from pympsd_server.ptx.syntax.tree import Immediate
from pympsd_server.ptx.textures.surfaces import SURFACE_GEOMETRIES


@writes("ld ldu")
def _load(text: MemoryText, operation: Operation) -> None:
    """Write a load. A parameter comes from the launch's parameters; any other load is checked, and takes the fastest
    way that its addresses allow.
    """
    target, memory = operation.operands[:2]
    items, bits = items_of(target), BITS[operation.type]
    if bits == 1 or not isinstance(memory, Memory) or len(items) * bits > 128:
        raise text.refuse()
    if isinstance(memory.base, Symbol) and memory.base.space == "param":
        for index, item in enumerate(items):
            place = text.field("%params", memory.base.offset + memory.offset + index * bits // 8)
            text.assign(item, text.load(f"i{bits}", place, 1), operation.type, SCALAR)
        return
    group = text.groups[text.index]
    if all(isinstance(item, Sink) for item in items):
        text.check(group, text.active() if group.guarded else text.current())
        return
    values, shape = text.load_items(group, memory.offset, bits, len(items))
    text.refuse_if(shape.lanes and not text.shape_of(target).lanes, "a vector where a scalar is needed")
    assert shape.lanes or not differs_by_lane(operation)
    for item, value in zip(items, values, strict=True):
        text.assign(item, value, operation.type, shape)


@writes("st")
def _store(text: MemoryText, operation: Operation) -> None:
    memory, items = operation.operands[0], items_of(operation.operands[1])
    bits, space = BITS[operation.type], space_of(operation)
    is_wide = len(items) * bits > 128
    if bits == 1 or not isinstance(memory, Memory) or space in ("param", "const") or is_wide:
        raise text.refuse()
    text.store_items(text.groups[text.index], memory.offset, operation.type, list(items), bits)


_SAME_NAMES: Final = ("add", "and", "or", "xor", "min", "max")
_ATOMIC: Final = {f: f for f in _SAME_NAMES} | {"exch": "xchg", "inc": "uinc_wrap", "dec": "udec_wrap"}
"""LLVM's name of each atomic function."""
_MIN_SLEEP: Final = 1000
"""The shortest sleep for which a warp stops, in nanoseconds."""
_PLAIN: Final = frozenset({"add", "and", "or", "xor", "exch"})
"""The atomic functions that, on a block's own shared memory, are written as a load, an operation and a store."""
_ATOMIC_TYPES: Final = ("u32", "s32", "u64", "s64", "b16", "b32", "b64", "f32", "f64")
_SMALL_FLOATS: Final = ("f16", "f16x2", "bf16", "bf16x2")


@writes("atom red")
def _atomic(text: MemoryText, operation: Operation) -> None:
    """Write an atomic operation: on shared memory of all lanes together if possible, otherwise lane by lane."""
    function, type_name = operation.one_of(*_ATOMIC, "cas"), operation.type
    is_vector = operation.one_of("v2", "v4", "v8")
    is_float = type_name in (*FLOATS, *_SMALL_FLOATS)
    text.refuse_if(is_vector or (is_float and function != "add"))
    text.refuse_if(type_name not in (*_ATOMIC_TYPES, *_SMALL_FLOATS))
    target = operation.operands[0] if operation.name == "atom" else Sink()
    memory, *inputs = operation.inputs if operation.name == "atom" else operation.operands
    inputs = inputs[: 2 if function == "cas" else 1]
    if not isinstance(memory, Memory):
        raise text.refuse()
    bits, vector = BITS[type_name], text.vector
    group, mask = text.groups[text.index], text.active()
    text.order_before(operation)
    pointers = text.check(group, mask)
    values = [text.use(value, type_name, vector) for value in inputs]
    is_swapped = type_name in _SMALL_FLOATS or (type_name == "f32" and group.space != "shared")
    kind = f"i{bits}" if function == "cas" or is_swapped else FLOATS.get(type_name, f"i{bits}")
    # Only this CPU thread runs the block, so operations on its shared memory need not be atomic.
    is_plain = group.space == "shared" and function in _PLAIN and not is_swapped
    on = text.label("done")
    if is_plain and isinstance(target, Sink) and operation.guard is None:
        whole, part = text.label("whole"), text.label("part")
        text.branch(text.op("icmp eq", text.mask_type, mask, "-1"), whole, part, LIKELY)
        text.place(whole)
        _act_on_all_lanes(text, operation, inputs[0], pointers, memory.offset)
        text.jump(on)
        text.place(part)
    text.store(vector.of("i64"), text.host_addresses(pointers, memory.offset), "%scratch0")
    for index, value in enumerate(values):
        text.store(vector.of(f"i{bits}"), value, f"%scratch{index + 1}")

    def act(lane: str) -> None:
        """Write the operation of one lane, and store the old value if it is used."""
        place = text.load("ptr", text.value(f"getelementptr i64, ptr %scratch0, i64 {lane}"))
        x = [_element(text, kind, bits, index + 1, lane) for index in range(len(inputs))]
        if function == "cas":
            pair = text.value(f"cmpxchg ptr {place}, {kind} {x[0]}, {kind} {x[1]} seq_cst seq_cst")
            old = text.value(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
        elif is_swapped:
            old = _swap_sum(text, type_name, place, x[0], group.space)
        elif is_plain:
            old = _act_plainly(text, operation, place, x[0])
        else:
            name = "f" * (type_name in FLOATS) + _ATOMIC[function]
            name = f"u{name}" if function in ("min", "max") and not is_signed(type_name) else name
            old = text.value(f"atomicrmw {name} ptr {place}, {kind} {x[0]} monotonic")
        if not isinstance(target, Sink):
            at = text.value(f"getelementptr i{bits}, ptr %scratch3, i64 {lane}")
            text.store(kind, old, at)

    text.write_lane_loop(mask, act)
    text.continue_at(on)
    text.order_after(operation)
    if not isinstance(target, Sink):
        text.assign(target, text.load(vector.of(f"i{bits}"), "%scratch3"), type_name, vector)


def _swap_sum(text: MemoryText, type_name: str, place: str, value: str, space: str) -> str:
    """Write an atomic sum of floats as a compare-and-swap loop; return the old bits.

    Sums of f32 flush subnormal numbers, but not in shared memory.
    """
    kind, bytes_ = f"i{BITS[type_name]}", BITS[type_name] // 8
    start, again, done = text.label("start"), text.label("again"), text.label("swapped")
    text.continue_at(start)
    first = text.value(f"load atomic {kind}, ptr {place} monotonic, align {bytes_}")
    text.continue_at(again)
    at = len(text.lines)
    text.lines.append("")
    old = f"%{text.label('old')}"
    a, b = (Expression(text, SCALAR, np.dtype(f"u{bytes_}"), x) for x in (old, value))
    new = _add_floats(type_name, a, b)
    if type_name == "f32":
        total = canonicalize(flush(flush(a.view(F32)) + flush(b.view(F32)))).view(U32)
        new = total if space == "global" else _is_own_shared(text, place).choose(new, total)
    pair = text.value(f"cmpxchg ptr {place}, {kind} {old}, {kind} {new.name} monotonic monotonic")
    seen = text.value(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
    text.lines[at] = f"  {old} = phi {kind} [{first}, %{start}], [{seen}, %{again}]"
    text.branch(text.value(f"extractvalue {{ {kind}, i1 }} {pair}, 1"), done, again, LIKELY)
    text.place(done)
    return old


def _is_own_shared(text: MemoryText, place: str) -> Expression:
    """Return whether a host address is in the block's own shared memory."""
    distance = text.op("sub", "i64", text.cast("ptrtoint", place, "ptr", "i64"), "%shared")
    return Expression(text, SCALAR, BOOL, text.op("icmp ult", "i64", distance, "%shared_size"))


def _add_floats(type_name: str, a: Value, b: Value) -> Value:
    """Return the bits of a sum of floats, or of pairs of them, as in the NumPy tier's atomics."""
    if type_name.endswith("x2"):
        low, high = (_add_floats(type_name.removesuffix("x2"), part(a), part(b)) for part in (low_half, high_half))
        return pack_halves(high, low)
    if type_name == "bf16":
        return bfloat_from_float(float_from_bfloat(a) + float_from_bfloat(b))
    dtype = F32 if type_name == "f32" else F16
    return canonicalize(a.view(dtype) + b.view(dtype)).view(a.dtype)


def _act_on_all_lanes(
    text: MemoryText, operation: Operation, operand: Argument, pointers: Pointers, offset: int
) -> None:
    """Write an atomic operation of all lanes on shared memory, without a loop.

    The lanes' offsets and operands are stored in memory and loaded again, offsets two at a time, because processors
    extract elements from vectors slowly. The loads are volatile, because LLVM would replace them by extractions.
    Offsets are signed, because another block of the cluster may have its memory before this block's.
    """
    vector, type_name, is_varying = text.vector, operation.type, text.plan.is_varying(operand)
    bits, kind = BITS[type_name], FLOATS.get(type_name, f"i{BITS[type_name]}")
    value, pair = text.use(operand, type_name, vector if is_varying else SCALAR), ""
    if is_varying:
        text.store(vector.of(f"i{bits}"), value, "%scratch1")
    if pointers.lanes:
        places = text.op("add", vector.of("i32"), pointers.lanes, vector.constant("i32", offset))
        text.store(vector.of("i32"), places, "%scratch0")
    else:
        place = text.cast("inttoptr", text.op("add", "i64", pointers.single, str(offset)), "i64", "ptr")
    for lane in range(text.width):
        if pointers.lanes and lane % 2 == 0:
            pair = text.value(f"load volatile i64, ptr {text.field('%scratch0', 4 * lane)}")
            place = text.op("ashr", "i64", text.op("shl", "i64", pair, "32"), "32")
        elif pointers.lanes:
            place = text.op("ashr", "i64", pair, "32")
        if pointers.lanes:
            place = text.value(f"getelementptr i8, ptr %shared_p, i64 {place}")
        if is_varying:
            value = text.value(f"load volatile i{bits}, ptr {text.field('%scratch1', bits // 8 * lane)}")
        _act_plainly(text, operation, place, text.cast("bitcast", value, f"i{bits}", kind))


def _act_plainly(text: MemoryText, operation: Operation, place: str, value: str) -> str:
    """Write an atomic operation on memory that no other thread can access; return the old value."""
    function, type_name = operation.one_of(*_PLAIN), operation.type
    kind = FLOATS.get(type_name, f"i{BITS[type_name]}")
    old = text.load(kind, place)
    if type_name == "f32" and function == "add":
        a, b = (Expression(text, SCALAR, F32, x).view(U32) for x in (old, value))
        text.store("i32", _add_floats(type_name, a, b).name, place)
        return old
    new = value if function == "exch" else text.op("f" * (type_name in FLOATS) + function, kind, old, value)
    text.store(kind, new, place)
    return old


def _element(text: MemoryText, kind: str, bits: int, scratch: int, lane: str) -> str:
    return text.load(kind, text.value(f"getelementptr i{bits}, ptr %scratch{scratch}, i64 {lane}"))


@writes("membar fence fence.proxy.tensormap::generic")
def _fence(text: MemoryText, operation: Operation) -> None:
    text.fence_compiler()
    text.line("fence seq_cst")


@writes("prefetch prefetchu griddepcontrol discard applypriority pmevent setmaxnreg")
@writes("cp.async.bulk.commit_group cp.async.bulk.wait_group cp.async.bulk.prefetch cp.async.bulk.prefetch.tensor")
def _do_nothing(text: MemoryText, operation: Operation) -> None:
    """Do nothing, because no cache is emulated, and copies are made when they are issued."""


@writes("createpolicy")
def _create_policy(text: MemoryText, operation: Operation) -> None:
    text.assign(operation.operands[0], "0", "b64", SCALAR)


@attempts("nanosleep")
def _sleep(text: MemoryText, operation: Operation) -> None:
    """Let the warp sleep for the longest time of its lanes, unless that is below _MIN_SLEEP."""
    kind, lanes = text.vector.of("i32"), text.as_lanes(text.active())
    times = text.use(operation.operands[0], "u32", text.vector)
    times = text.choose(text.vector, lanes, kind, times, "zeroinitializer")
    longest = text.call(f"llvm.vector.reduce.umax.v{text.width}i32", "i32", (kind, times))
    text.store("i64", text.cast("zext", longest, "i32", "i64"), text.field("%ctx", offset_of("sleep")))
    text.escape_unless(text.op("icmp ult", "i32", longest, str(_MIN_SLEEP)))


# --- calls


@attempts("system:function_index")
def _find_function(text: MemoryText, operation: Operation) -> None:
    """Find the index of the function at each lane's address. Escape for other addresses, which are faults."""
    kind, word = text.vector.of("i64"), text.vector.of("i32")
    addresses = text.use(operation.operands[1], "u64", text.vector)
    index, missing = text.vector.constant("i32", 0), text.current()
    functions = (operand.value for operand in operation.operands[2:] if isinstance(operand, Immediate))
    for number, function in enumerate(functions):
        is_there = text.op("icmp eq", kind, addresses, text.vector.constant("i64", function))
        index = text.choose(text.vector, is_there, word, text.vector.constant("i32", number), index)
        remaining = text.op("xor", text.mask_type, text.as_mask(is_there), "-1")
        missing = text.op("and", text.mask_type, missing, remaining)
    text.escape_unless(text.op("icmp eq", text.mask_type, missing, "0"))
    text.assign(operation.operands[0], index, "u32", text.vector)


# --- textures and surfaces

_PLACES, _VALUES = 8 * WARP, 20 * WARP
"""The offsets of the coordinates and of the values in `%fragments`, in bytes."""
_LAYERED, _INTEGERS, _STORES = 4, 8, 8
_BEYOND: Final = {"trap": 0, "clamp": 16, "zero": 32}


def _set_access(text: MemoryText, operation: Operation, place: Argument) -> int:
    """Store the handle and coordinates of `[object, {...}]`; return the number of dimensions, with the layer flag."""
    geometry = operation.one_of(*SURFACE_GEOMETRIES)
    if not geometry or not isinstance(place, Group):
        raise text.refuse()
    handle, *items = items_of(place)
    if isinstance(handle, Memory):
        handle = handle.base
    text.needs_fragments = True
    how = SURFACE_GEOMETRIES[geometry] | (_LAYERED if geometry.startswith("a") else 0)
    text.store(text.vector.of("i64"), text.use(handle, "u64", text.vector), "%fragments")
    for index, item in enumerate(items[: SURFACE_GEOMETRIES[geometry] + geometry.startswith("a")]):
        at = text.field("%fragments", _PLACES + 4 * WARP * index)
        text.store(text.vector.of("i32"), text.use(item, "u32", text.vector), at)
    return how


def _new_sites(text: MemoryText) -> str:
    """Add two sites, for the accesses to the object and to its elements; return the number of the first."""
    text.site_count += 2
    return str(text.site_count - 2)


def _row(text: MemoryText, index: int) -> str:
    return text.field("%fragments", _VALUES + 8 * WARP * index)


def _call(text: MemoryText, name: str, *arguments: int) -> None:
    """Call a C function for the lanes that execute the operation; escape if the function reports a failure."""
    numbers = [("i32", str(number)) for number in arguments]
    where = ("ptr", "%ctx"), ("i64", _new_sites(text)), ("i32", text.as_word(text.active()))
    failed = text.call(name, "i32", *where, *numbers, ("ptr", "%fragments"))
    text.escape_unless(text.op("icmp eq", "i32", failed, "0"))


def _get_values(text: MemoryText, targets: Sequence[Argument], type_name: str, bits: int) -> None:
    for index, item in enumerate(targets):
        value = text.load(text.vector.of(f"i{bits}"), _row(text, index))
        text.assign(item, value, type_name, text.vector)


@attempts("tex")
def _sample(text: MemoryText, operation: Operation) -> None:
    text.refuse_if(operation.has("grad"))
    how = _set_access(text, operation, operation.operands[1]) | (_INTEGERS if operation.types[1] == "s32" else 0)
    _call(text, "kernels_sample", how)
    _get_values(text, items_of(operation.operands[0]), operation.types[0], 32)


@attempts("suld sust")
def _access_surface(text: MemoryText, operation: Operation) -> None:
    stores, bits = operation.name == "sust", BITS[operation.type]
    place, values = operation.operands if stores else reversed(operation.operands)
    how = _set_access(text, operation, place) | _BEYOND[operation.one_of(*_BEYOND)] | (_STORES if stores else 0)
    items = items_of(values)
    for index, item in enumerate(items if stores else ()):
        text.store(text.vector.of(f"i{bits}"), text.use(item, operation.type, text.vector), _row(text, index))
    _call(text, "kernels_surface", how, bits // 8, len(items))
    if not stores:
        _get_values(text, items, operation.type, bits)
