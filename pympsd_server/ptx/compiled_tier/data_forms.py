"""Comparison and selection, moves, conversions, and the instructions that access memory.

memory_text.py writes loads and stores. Atomics act lane by lane, the lowest first, in one loop. Compiler fences
enclose accesses that LLVM must not move (volatile, relaxed, atomic).

Textures and surfaces are attempts, whose common cases are in C (native/src/kernel_textures.c). The handles,
coordinates and values of all lanes are in `%fragments`:

    64-bit handles | 3 rows of 32-bit coordinates | 4 rows of values, each as wide as the access; a row has 32 lanes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pympsd_server.ptx.compiled_tier.analysis import differs_by_lane
from pympsd_server.ptx.compiled_tier.float_forms import add_small, widen_bfloat, write_small_conversion
from pympsd_server.ptx.compiled_tier.instruction_table import attempts, call_integer, writes
from pympsd_server.ptx.compiled_tier.ir_text import LIKELY, SCALAR, Shape
from pympsd_server.ptx.compiled_tier.lanes import BITS, FLOATS, is_signed
from pympsd_server.ptx.compiled_tier.memory_text import MemoryText, Pointers
from pympsd_server.ptx.compiled_tier.native_runtime import offset_of
from pympsd_server.ptx.isa.machine import WARP, WINDOW_BITS, WINDOWS
from pympsd_server.ptx.lowering.ir import Argument, Both, Group, Memory, Operation, Sink, Symbol, items_of, space_of
from pympsd_server.ptx.textures.surfaces import SURFACE_GEOMETRIES

_ORDERS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_RELATIONS: Final = {r: r for r in _ORDERS} | {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_FLOAT_RELATIONS: Final = {r: f"o{r}" for r in _ORDERS}
_FLOAT_RELATIONS.update({"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge"})
_FLOAT_RELATIONS.update({"num": "ord", "nan": "uno"})
_COMBINES: Final = ("and", "or", "xor")


def _compare_values(text: MemoryText, operation: Operation, type_name: str, shape: Shape) -> str:
    which = operation.modifiers[0]
    if type_name in FLOATS:
        a, b = (text.use_float(v, type_name, shape) for v in operation.operands[1:3])
        return text.op(f"fcmp {_FLOAT_RELATIONS[which]}", shape.of(FLOATS[type_name]), a, b)
    text.refuse_if(type_name.endswith("x2"))
    a, b = (text.use(v, type_name, shape) for v in operation.operands[1:3])
    if type_name == "bf16":
        text.refuse_if(operation.has("ftz"))
        a, b = (widen_bfloat(text, shape, v) for v in (a, b))
        return text.op(f"fcmp {_FLOAT_RELATIONS[which]}", shape.of("float"), a, b)
    relation = _RELATIONS[which]
    if relation not in ("eq", "ne"):
        relation = ("s" if is_signed(type_name) else "u") + relation
    return text.op(f"icmp {relation}", shape.of(f"i{BITS[type_name]}"), a, b)


@writes("setp set")
def _compare(text: MemoryText, operation: Operation) -> None:
    target = operation.operands[0]
    shape, combine = text.shape_of(target), operation.one_of(*_COMBINES)
    truth = _compare_values(text, operation, operation.type, shape)
    both = [truth]
    if isinstance(target, Both):
        both.append(text.op("xor", shape.of("i1"), truth, shape.constant("i1", -1)))
    if combine:
        both = [text.op(combine, shape.of("i1"), v, text.predicate(operation.operands[3], shape)) for v in both]
    if operation.name == "setp":
        targets = (target.first, target.second) if isinstance(target, Both) else (target,)
        guard = operation.guard and operation.guard.register
        # Assign the guard's register last, because every other assignment reads it.
        for register, value in sorted(zip(targets, both, strict=True), key=lambda pair: pair[0] == guard):
            text.assign_predicate(register, value, shape)
        return
    type_name = operation.types[0]
    text.refuse_if(type_name not in ("u32", "s32", "b32", "f32", "f16"))
    element, true = f"i{BITS[type_name]}", {"f32": 0x3F800000, "f16": 0x3C00}.get(type_name, -1)
    result = text.choose(shape, both[0], shape.of(element), *(shape.constant(element, v) for v in (true, 0)))
    text.assign(target, result, type_name, shape)


@writes("selp")
def _select(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    a, b = (text.use(v, type_name, shape) for v in operation.operands[1:3])
    result = text.choose(shape, text.predicate(operation.operands[3], shape), shape.of(f"i{BITS[type_name]}"), a, b)
    text.assign(operation.operands[0], result, type_name, shape)


@writes("slct")
def _select_by_sign(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.types[0], text.shape_of(operation.operands[0])
    a, b = (text.use(v, type_name, shape) for v in operation.operands[1:3])
    if operation.types[1] == "f32":
        by = text.use_float(operation.operands[3], "f32", shape)
        truth = text.op("fcmp oge", shape.of("float"), by, shape.zero())
    else:
        by = text.use(operation.operands[3], "s32", shape)
        truth = text.op("icmp sge", shape.of("i32"), by, shape.constant("i32", 0))
    result = text.choose(shape, truth, shape.of(f"i{BITS[type_name]}"), a, b)
    text.assign(operation.operands[0], result, type_name, shape)


@writes("mov")
def _move(text: MemoryText, operation: Operation) -> None:
    target, source = operation.operands
    type_name, shape = operation.type, text.shape_of(target)
    text.refuse_if(operation.modifiers)
    if type_name == "pred":
        return text.assign_predicate(target, text.predicate(source, shape), shape)
    bits = BITS[type_name]
    element, kind = f"i{bits}", shape.of(f"i{bits}")
    if isinstance(source, Group):
        part, result = bits // len(source.items), shape.constant(element, 0)
        for index, item in enumerate(source.items):
            value = text.cast("zext", text.use(item, f"u{part}", shape), shape.of(f"i{part}"), kind)
            moved = text.op("shl", kind, value, shape.constant(element, part * index))
            result = text.op("or", kind, result, moved)
        return text.assign(target, result, f"u{bits}", shape)
    if isinstance(target, Group):
        part, whole = bits // len(target.items), text.use(source, type_name, shape)
        pieces = []
        for index in range(len(target.items)):
            moved = text.op("lshr", kind, whole, shape.constant(element, part * index))
            pieces.append(text.cast("trunc", moved, kind, shape.of(f"i{part}")))
        for item, piece in zip(target.items, pieces, strict=True):
            text.assign(item, piece, f"u{part}", shape)
        return None
    return text.assign(target, text.use(source, type_name, shape), type_name, shape)


@writes("cvta")
def _convert_address(text: MemoryText, operation: Operation) -> None:
    space = space_of(operation)
    text.refuse_if(operation.type != "u64" or space == "generic")
    shape = text.shape_of(operation.operands[0])
    value = text.use(operation.operands[1], "u64", shape)
    if space in WINDOWS:
        name = "sub" if operation.has("to") else "add"
        value = text.op(name, shape.of("i64"), value, shape.constant("i64", WINDOWS[space]))
    text.assign(operation.operands[0], value, "u64", shape)


@writes("isspacep")
def _is_space(text: MemoryText, operation: Operation) -> None:
    space = space_of(operation)
    shape = text.shape_of(operation.operands[0])
    wide = shape.of("i64")
    value = text.op("lshr", wide, text.use(operation.operands[1], "u64", shape), shape.constant("i64", WINDOW_BITS))
    if space == "global":
        truth = text.op("icmp uge", wide, value, shape.constant("i64", 4))
    elif space in WINDOWS:
        truth = text.op("icmp eq", wide, value, shape.constant("i64", WINDOWS[space] >> WINDOW_BITS))
    else:
        raise text.refuse()
    text.assign_predicate(operation.operands[0], truth, shape)


_INTEGRAL: Final = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_HALF_BITS: Final = 16
_CONVERTED: Final = frozenset(f"{letter}{bits}" for letter in "usb" for bits in (8, 16, 32, 64)) | set(FLOATS)
_SMALL_FLOATS: Final = frozenset({"bf16", "bf16x2", "f16x2", "tf32"})


@writes("cvt")
def _convert(text: MemoryText, operation: Operation) -> None:
    if len(operation.types) == 2 and not _SMALL_FLOATS.isdisjoint(operation.types):
        return write_small_conversion(text, operation)
    is_plain = len(operation.types) == 2 and len(operation.operands) == 2 and _CONVERTED.issuperset(operation.types)
    text.refuse_if(not is_plain or operation.has("relu") or operation.has("pack"))
    (to, source), target = operation.types, operation.operands[0]
    shape, bits, source_bits = text.shape_of(target), BITS[operation.types[0]], BITS[operation.types[1]]
    if source in FLOATS:
        return _convert_float(text, operation, shape)
    value = text.use(operation.operands[1], source, shape)
    kind = shape.of(f"i{source_bits}")
    if to in FLOATS:
        text.refuse_if(operation.one_of("rz", "rm", "rp"))
        if to == "f16" and source_bits > _HALF_BITS:
            value = _clamp_to_half(text, shape, source, value)
        name, by_way = "sitofp" if is_signed(source) else "uitofp", shape.of("float" if to == "f16" else FLOATS[to])
        result = text.cast(name, value, kind, by_way)
        if to == "f16":  # exact until here, because a float can represent all integers up to 2 ** 24
            result = text.cast("fptrunc", result, by_way, shape.of("half"))
        return text.assign_float(target, result, to, shape)
    text.refuse_if(operation.has("sat"))
    if bits != source_bits:
        name = "trunc" if bits < source_bits else "sext" if is_signed(source) else "zext"
        value = text.cast(name, value, kind, shape.of(f"i{bits}"))
    return text.assign(target, value, to, shape)


def _clamp_to_half(text: MemoryText, shape: Shape, type_name: str, value: str) -> str:
    """Clamp an integer to 2 ** 17 on both sides. The bounds become infinity, so the resulting half is the same."""
    sign, bits = "s" if is_signed(type_name) else "u", BITS[type_name]
    value = call_integer(text, f"{sign}min", shape, bits, value, shape.constant(f"i{bits}", 1 << 17))
    if sign == "u":
        return value
    return call_integer(text, "smax", shape, bits, value, shape.constant(f"i{bits}", -(1 << 17)))


def _convert_float(text: MemoryText, operation: Operation, shape: Shape) -> None:
    (to, source), target = operation.types, operation.operands[0]
    element, kind, bits = FLOATS[source], shape.of(FLOATS[source]), BITS[to]
    text.refuse_if(source == "f16" and operation.has("ftz"))
    whole, value = operation.one_of(*_INTEGRAL), text.use_float(operation.operands[1], source, shape)
    if to in FLOATS:
        if whole:
            value = text.intrinsic(_INTEGRAL[whole], element, shape, value)
        if bits < BITS[source]:
            if operation.one_of("rz", "rm", "rp") or (to, source) == ("f16", "f64"):
                raise text.refuse()  # the processor has no conversion from double to half that rounds once
            value = text.cast("fptrunc", value, kind, shape.of(FLOATS[to]))
        elif bits > BITS[source]:
            value = text.cast("fpext", value, kind, shape.of(FLOATS[to]))
        if operation.has("ftz") and (to, source) == ("f32", "f64"):
            value = text.flush(value, shape)
        return text.assign_float(target, value, to, shape)
    text.refuse_if(not whole)
    if source == "f16":  # LLVM 22 converts a NaN in a vector of halves to -32768 instead of 0
        value, element = text.cast("fpext", value, kind, shape.of("float")), "float"
        kind = shape.of(element)
    if whole != "rzi":
        value = text.intrinsic(_INTEGRAL[whole], element, shape, value)
    result = shape.of(f"i{bits}")
    name = f"llvm.{'fptosi' if is_signed(to) else 'fptoui'}.sat.{shape.mangled(f'i{bits}')}.{shape.mangled(element)}"
    converted = text.call(name, result, (kind, value))
    if 64 in (bits, BITS[source]):  # NaN becomes the highest bit here, and 0 for other types
        missing = text.op("fcmp uno", kind, value, value)
        converted = text.choose(shape, missing, result, shape.constant(f"i{bits}", 1 << (bits - 1)), converted)
    return text.assign(target, converted, to, shape)


# --- memory


@writes("ld ldu")
def _load(text: MemoryText, operation: Operation) -> None:
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
"""Functions that on a block's own shared memory are a plain load, operation and store."""
_ATOMIC_TYPES: Final = ("u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64")
_SWAPPED: Final = ("f16", "f16x2", "bf16", "bf16x2")
"""The types for which the processor has no atomic instruction. Only sums are supported for them."""


@writes("atom red")
def _atomic(text: MemoryText, operation: Operation) -> None:
    function, type_name = operation.one_of(*_ATOMIC, "cas"), operation.type
    is_vector = operation.one_of("v2", "v4", "v8")
    is_small = type_name in _SWAPPED
    text.refuse_if(is_vector or ((is_small or type_name in FLOATS) and function != "add"))
    text.refuse_if(type_name not in (*_ATOMIC_TYPES, *_SWAPPED))
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
    kind = f"i{bits}" if function == "cas" or is_small else FLOATS.get(type_name, f"i{bits}")
    # Only this CPU thread runs the block, so operations on its shared memory need not be atomic.
    is_plain = group.space == "shared" and function in _PLAIN and not is_small
    on = text.label("done")
    if is_plain and isinstance(target, Sink) and operation.guard is None:
        whole, part = text.label("whole"), text.label("part")
        text.branch(text.op("icmp eq", text.mask_type, mask, "-1"), whole, part, LIKELY)
        text.place(whole)
        _act_on_all_lanes(text, operation, inputs[0], pointers, memory.offset)
        text.jump(on)
        text.place(part)
    text.store(vector.of("i64"), text.host_addresses(group, pointers, memory.offset), "%scratch0")
    for index, value in enumerate(values):
        text.store(vector.of(f"i{bits}"), value, f"%scratch{index + 1}")

    def act(lane: str) -> None:
        place = text.load("ptr", text.value(f"getelementptr i64, ptr %scratch0, i64 {lane}"))
        x = [_element(text, kind, bits, index + 1, lane) for index in range(len(inputs))]
        if function == "cas":
            pair = text.value(f"cmpxchg ptr {place}, {kind} {x[0]}, {kind} {x[1]} seq_cst seq_cst")
            old = text.value(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
        elif is_small:
            old = _swap_sum(text, type_name, place, x[0])
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
    text.jump(on)
    text.place(on)
    text.order_after(operation)
    if not isinstance(target, Sink):
        text.assign(target, text.load(vector.of(f"i{bits}"), "%scratch3"), type_name, vector)


def _swap_sum(text: MemoryText, type_name: str, place: str, value: str) -> str:
    """Write an atomic sum of small floats as a compare-and-swap loop; return the old bits."""
    kind, bytes_ = f"i{BITS[type_name]}", BITS[type_name] // 8
    start, again, done = text.label("start"), text.label("again"), text.label("swapped")
    text.jump(start)
    text.place(start)
    first = text.value(f"load atomic {kind}, ptr {place} monotonic, align {bytes_}")
    text.jump(again)
    text.place(again)
    at = len(text.lines)
    text.lines.append("")
    old = f"%{text.label('old')}"
    new = add_small(text, type_name, old, value)
    pair = text.value(f"cmpxchg ptr {place}, {kind} {old}, {kind} {new} monotonic monotonic")
    seen = text.value(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
    text.lines[at] = f"  {old} = phi {kind} [{first}, %{start}], [{seen}, %{again}]"
    text.branch(text.value(f"extractvalue {{ {kind}, i1 }} {pair}, 1"), done, again, LIKELY)
    text.place(done)
    return old


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
    """Call a C function for the lanes that execute the operation; escape if the function has not done it."""
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
