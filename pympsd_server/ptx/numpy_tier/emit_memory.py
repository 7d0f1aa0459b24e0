"""Write loads, stores, atomics, and the instructions about memory that have no effect here.

A memory operand is a base and a constant offset. Every access is a call of `load`, `store` or `atomic` in
ptx/runtime, which checks it. Addresses of 32 bits are extended by zeros, or in .const memory count from the module's
constants. Fences, prefetches and cache hints write nothing, because the threads of a batch see each other's writes in
order.
"""

from pympsd_server.ptx.isa.datatypes import DTYPES, U32, U64, DType, dtype_name
from pympsd_server.ptx.lowering.ir import SPACES, Argument, Memory, Operation, Register, Sink, Symbol, space_of
from pympsd_server.ptx.numpy_tier.instruction_table import BITS, FLOATS, INTEGERS, dtype_of, emits
from pympsd_server.ptx.numpy_tier.writer import CONSTANTS, Writer
from pympsd_server.ptx.runtime.atomics import name_step

_HINT = "L2::cache_hint"
_ORDER = "weak relaxed acquire release acq_rel volatile sc mmio cta cluster gpu sys"
_CACHE = (
    "ca cg cs lu cv wb wt nc L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last "
    "L1::no_allocate L2::evict_first L2::evict_last L2::evict_normal L2::64B L2::128B L2::256B unified "
    "L2::cache_hint"
)
_TYPES = ("b8", "u8", "s8", *BITS, *INTEGERS, *FLOATS)
_MODIFIERS = " ".join([*SPACES, _ORDER, _CACHE, "v2 v4 v8"])
_LENGTHS = {"v2": 2, "v4": 4, "v8": 8}


def _space(operation: Operation) -> str:
    space = space_of(operation)
    return "global" if space == "const" else space


def _vector(writer: Writer, operation: Operation, value: Argument) -> tuple[Argument, ...]:
    """Return the elements of an access. Raises InvalidPtx for a vector of more bytes than the access may have."""
    length = _LENGTHS.get(operation.one_of(*_LENGTHS), 1)
    items = writer.items(value, length)
    size = DTYPES[operation.type].itemsize if operation.types else 0
    if length * size > 16 or length == 8:
        nbytes = length * size
        writer.refuse_if(
            nbytes != 32
            or operation.name == "ldu"
            or not (operation.has("global") or _space(operation) == "generic"),
            "vectors have at most 16 bytes, or 32 (.v8 of 32 bits, .v4 of 64) in global memory",
        )
        writer.refuse_if(
            not writer.code.wide_accesses,
            "vectors of 32 bytes need .target sm_100 or higher and .version 8.8 or higher",
        )
    return items


def _split_address(writer: Writer, operation: Operation, memory: Argument, space: str) -> tuple[str, int]:
    """Return (base, constant offset) of a memory operand. In global and generic addresses, the base has 64 bits.

    A register of 32 bits is extended by zeros (PTX ISA). With .const it has the lower half of a constant's address.
    """
    base, offset = writer.split_address(memory)
    register = memory.base if isinstance(memory, Memory) else None
    if space not in ("global", "generic") or not isinstance(register, Register):
        return base, offset
    if writer.register_dtype(register.number).itemsize == 8:
        return base, offset
    if not operation.has("const"):
        return writer.keep(f"{base}.astype(d_u8)"), offset
    return writer.keep(
        f"constant_address({writer.displace(base, offset)}, {writer.constants.address(CONSTANTS, 0)})"
    ), 0


def without_hint(writer: Writer, operation: Operation, count: int) -> tuple[Argument, ...]:
    """Return the operation's `count` operands, without a cache policy after them, because no cache is emulated."""
    writer.refuse_count_if(len(operation.operands) != count + operation.has(_HINT))
    return operation.operands[:count]


@emits("ld ldu", (2, 3), _MODIFIERS, _TYPES)
def _load(writer: Writer, operation: Operation) -> None:
    """Write a load: of a kernel parameter, or a checked load of each element."""
    without_hint(writer, operation, 2)
    dtype = dtype_of(writer, operation)
    targets = _vector(writer, operation, operation.operands[0])
    memory = operation.operands[1]
    space = _space(operation)
    if isinstance(memory, Memory) and isinstance(memory.base, Symbol) and memory.base.space == "param":
        return _load_parameter(writer, targets, memory, memory.base, dtype)
    base, offset = _split_address(writer, operation, memory, space)
    size, names = dtype.itemsize, []
    for index in range(len(targets)):
        # The first access checks the alignment of the whole vector.
        align = size if index else size * len(targets)
        names.append(writer.load(space, writer.displace(base, offset + index * size), dtype, align))
    for target, name in zip(targets, names, strict=True):
        writer.assign(target, name, dtype)
    return None


def _load_parameter(
    writer: Writer, targets: tuple[Argument, ...], memory: Memory, base: Symbol, dtype: DType
) -> None:
    start = base.offset + memory.offset
    writer.refuse_if(start % dtype.itemsize, "misaligned parameter")
    writer.refuse_if(
        not 0 <= start <= writer.code.parameter_bytes - dtype.itemsize * len(targets),
        f"outside of the {writer.code.parameter_bytes} bytes of parameters",
    )
    for index, target in enumerate(targets):
        at = start // dtype.itemsize + index
        writer.assign(target, f"B.view('param', {dtype_name(dtype)}_t)[{at}]", dtype)


@emits("st", (2, 3), _MODIFIERS, _TYPES)
def _store(writer: Writer, operation: Operation) -> None:
    without_hint(writer, operation, 2)
    dtype = dtype_of(writer, operation)
    items = _vector(writer, operation, operation.operands[1])
    values = [_value_to_store(writer, item, dtype, is_wide=len(items) * dtype.itemsize > 16) for item in items]
    space = _space(operation)
    writer.refuse_if(space == "param" or operation.has("const"))
    base, offset = _split_address(writer, operation, operation.operands[0], space)
    writer.store(space, writer.displace(base, offset), dtype, dtype.itemsize * len(values), values)


def _value_to_store(writer: Writer, item: Argument, dtype: DType, *, is_wide: bool) -> str:
    """Return an element's value, or "None" for `_`, which only vectors of 32 bytes (`is_wide`) may contain."""
    return "None" if is_wide and isinstance(item, Sink) else writer.keep(writer.value(item, dtype))


_FUNCTIONS = "add min max and or xor exch cas inc dec"
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_ALLOWED = {
    "add": ("u32", "s32", "u64", "s64", "f32", "f64", *_HALVES),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    "exch": ("b32", "b64", "b128"),
    "cas": ("b16", "b32", "b64", "b128"),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
}
_VECTORS_ALLOWED = {"add": ("f32", *_HALVES), "min": _HALVES, "max": _HALVES}
_ATOMIC_MODIFIERS = (
    f"{_FUNCTIONS} global shared shared::cta shared::cluster relaxed acquire release acq_rel cta cluster gpu sys "
    f"noftz v2 v4 v8 {_HINT}"
)
_ATOMIC_TYPES = tuple({t for types in _ALLOWED.values() for t in types})


@emits("atom red", (2, 5), _ATOMIC_MODIFIERS, _ATOMIC_TYPES)
def _atomic(writer: Writer, operation: Operation) -> None:
    """Write an atomic operation, for a vector one operation for each element."""
    function, length = operation.one_of(*_FUNCTIONS.split()), operation.one_of("v2", "v4", "v8")
    allowed = _VECTORS_ALLOWED if length else _ALLOWED
    writer.refuse_if(operation.type not in allowed.get(function, ()) or len(operation.types) != 1)
    operands = without_hint(writer, operation, (3 if function == "cas" else 2) + (operation.name == "atom"))
    target, sources = (operands[0], operands[1:]) if operation.name == "atom" else (Sink(), operands)
    if operation.type == "b128":
        _atomic_pairs(writer, operation, function, target, sources)
        return
    dtype, count = DTYPES[operation.type], int(length[1:]) if length else 1
    writer.refuse_if(count * dtype.itemsize > 16, "vector of the wrong length")
    base, offset = _split_address(writer, operation, sources[0], _space(operation))
    columns = [writer.items(value, count) for value in sources[1:]]
    targets = (Sink(),) * count if isinstance(target, Sink) else writer.items(target, count)
    step, results = name_step(function, operation.type), []
    for index in range(count):
        address = writer.displace(base, offset + index * dtype.itemsize)
        values = [writer.value(column[index], dtype) for column in columns]
        # The first operation checks the alignment of the whole vector.
        align = dtype.itemsize if index else count * dtype.itemsize
        used = not isinstance(targets[index], Sink)
        results.append(writer.atomic(_space(operation), step, address, dtype, align, values, used))
    for item, result in zip(targets, results, strict=True):
        if not isinstance(item, Sink):
            writer.assign(item, result, dtype)


def _atomic_pairs(
    writer: Writer, operation: Operation, function: str, target: Argument, sources: tuple[Argument, ...]
) -> None:
    """Write atom.exch or atom.cas of 128 bits; the operands are pairs of 64 bits."""
    writer.refuse_if(operation.name != "atom", "red has no .exch")
    base, offset = _split_address(writer, operation, sources[0], _space(operation))
    pairs = ", ".join(writer.tuple_of(writer.items(value, 2), U64) for value in sources[1:])
    where = f"{_space(operation)!r}, {function!r}, {writer.displace(base, offset)}"
    name = writer.keep(f"atomic_pairs(B, T, {where}, ({pairs},), {writer.guard})")
    if not isinstance(target, Sink):
        for half, field in zip(writer.items(target, 2), ("low", "high"), strict=True):
            writer.assign(half, writer.keep(f"{name}[{field!r}]"), U64)


_FENCES = (
    "cta gl sys gpu cluster acq_rel sc acquire release proxy alias async async::generic global shared::cta "
    "shared::cluster mbarrier_init sync_restrict::shared::cta sync_restrict::shared::cluster"
)


@emits("membar fence", 0, _FENCES, ())
@emits("fence.proxy.tensormap::generic", (0, 2), "acquire release cta cluster gpu sys", ())
@emits("griddepcontrol", 0, "wait launch_dependents", ())
@emits("setmaxnreg", 1, "inc dec sync aligned", ("u32",))
@emits("prefetch prefetchu", 1, "global local L1 L2 L2::evict_last L2::evict_normal tensormap param const", ())
@emits("pmevent", 1, "mask", ())
@emits("discard applypriority", 2, "global L2 L2::evict_normal", ())
def _nothing(writer: Writer, operation: Operation) -> None:
    """Write nothing, because the threads of a batch see each other's writes in order."""


@emits("nanosleep", 1, "", ("u32",))
def _sleep(writer: Writer, operation: Operation) -> None:
    time = writer.input(0, U32)
    duration = time if writer.guard is None else f"select({writer.guard}, {time}, {writer.scalar(0, U32)})"
    writer.run(f"B.sleep(T, {duration})")


@emits("createpolicy", (2, 4), "fractional range cvt global L2 " + _CACHE, ("b64", "f32"))
def _policy(writer: Writer, operation: Operation) -> None:
    """Write a policy of 0, because no instruction uses policies."""
    writer.set_result(writer.scalar(0, DTYPES["b64"]), DTYPES["b64"])
