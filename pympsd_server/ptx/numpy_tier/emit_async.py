"""Write mbarrier instructions, and asynchronous copies, stores and reductions (PTX ISA: cp.async, bulk copies).

A thread may read the destination of an asynchronous copy only after it has waited for the copy. So each copy is made
when it is issued, and commits and waits of groups write nothing. Mbarriers are real: threads wait at them, and a copy
completes its bytes at the mbarrier after it has written them.
"""

from pympsd_server.ptx.isa.datatypes import BOOL, DTYPES, U16, U32, U64, dtype_name
from pympsd_server.ptx.lowering.ir import Argument, Not, Operation, Register, Sink, items_of, space_of
from pympsd_server.ptx.numpy_tier.instruction_table import emits
from pympsd_server.ptx.numpy_tier.writer import Writer
from pympsd_server.ptx.runtime.atomics import name_step
from pympsd_server.ptx.syntax.tree import Immediate

_BULK_SHARED = ("shared::cta", "shared::cluster")
_SHARED = ("shared", *_BULK_SHARED)
_ORDER = "release acquire relaxed cta cluster"
_BARRIER = (
    "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait pending_count noComplete parity "
    f"{' '.join(_SHARED)} {_ORDER}"
)


@emits("mbarrier", (1, 4), _BARRIER, ("b64",))
def _barrier(writer: Writer, operation: Operation) -> None:
    """Write an mbarrier instruction; the first modifier is the action on the object."""
    action = operation.modifiers[0] if operation.modifiers else ""
    if action == "pending_count" and len(operation.operands) == 2:
        return writer.set_result(f"pending_count({writer.input(1, U64)})", U32)
    if action in ("test_wait", "try_wait"):
        return _test_wait(writer, operation)
    if action == "init" and len(operation.operands) == 2:
        value = writer.keep(f"initial_barrier({writer.input(1, U32)})")
        return writer.store(space_of(operation), writer.address_of(operation.operands[0]), U64, 8, [value])
    if action == "inval" and len(operation.operands) == 1:
        writer.load(space_of(operation), writer.address_of(operation.operands[0]), U64, 8)
        return None
    if action in ("expect_tx", "complete_tx") and len(operation.operands) == 2:
        count = writer.input(1, U32)
        sign = "-" if action == "complete_tx" else ""
        change = f"arrival({writer.scalar(0, U32)}, {sign}{count}.astype(d_i8))"
        return change_barrier(writer, Sink(), space_of(operation), writer.address_of(operation.operands[0]), change)
    if action in ("arrive", "arrive_drop") and 1 <= len(operation.operands) <= 3:
        return _arrive(writer, operation, drop=action == "arrive_drop")
    raise writer.refuse()


def _arrive(writer: Writer, operation: Operation, drop: bool) -> None:
    """Write an arrive. Operands: a state or `_`, the object, and optionally a count (with .expect_tx, the bytes)."""
    writer.refuse_count_if(len(operation.operands) < 2)
    target, where, *optional = operation.operands
    count = writer.value(optional[0], U32) if optional else writer.scalar(1, U32)
    if operation.has("expect_tx"):
        writer.refuse_if(not optional, "no number of bytes")
        change = f"arrival({writer.scalar(1, U32)}, {count}.astype(d_i8), {drop})"
    else:
        change = f"arrival({count}, {writer.scalar(0, U64)}, {drop})"
    change_barrier(writer, target, space_of(operation), writer.address_of(where), change)


def change_barrier(writer: Writer, target: Argument, space: str, address: str, change: str) -> None:
    """Write the change of an mbarrier object; `target` receives its state before the change."""
    used = not isinstance(target, Sink)
    name = writer.atomic(space, "mbarrier", address, U64, 8, [writer.keep(change)], used)
    if used:
        writer.assign(target, name, U64)


def _test_wait(writer: Writer, operation: Operation) -> None:
    """Write test_wait or try_wait: a predicate, the object, a state or parity, and perhaps an unused time limit."""
    writer.refuse_count_if(not 3 <= len(operation.operands) <= (4 if operation.has("try_wait") else 3))
    barrier = writer.load(space_of(operation), writer.address_of(operation.operands[1]), U64, 8)
    if operation.has("parity"):
        result = f"parity_has_ended({barrier}, {writer.input(2, U32)})"
    else:
        result = f"phase_has_ended({barrier}, {writer.input(2, U64)})"
    writer.set_result(result, BOOL)


_COPY = f"async ca cg commit_group wait_group wait_all mbarrier arrive noinc global {' '.join(_SHARED)}"
_COPY += " L2::cache_hint L2::64B L2::128B L2::256B"


@emits("cp", (0, 5), _COPY, ("b64",))
def _copy(writer: Writer, operation: Operation) -> None:
    """Write cp.async: a copy, or the arrival of earlier copies at an mbarrier; commits and waits write nothing."""
    writer.refuse_if(not operation.has("async"))
    if operation.one_of("commit_group", "wait_group", "wait_all"):
        # Earlier copies were made when they were issued.
        writer.refuse_count_if(len(operation.operands) != operation.has("wait_group"))
    elif operation.has("arrive"):
        # Without .noinc the arrival is first added to the phase's count, so in sum it changes nothing.
        writer.refuse_if(len(operation.operands) != 1 or operation.types != ("b64",))
        count = writer.scalar(1 if operation.has("noinc") else 0, U32)
        change_barrier(
            writer,
            Sink(),
            space_of(operation),
            writer.address_of(operation.operands[0]),
            f"arrival({count}, {writer.scalar(0, U64)})",
        )
    else:
        _copy_small(writer, operation)


def _copy_small(writer: Writer, operation: Operation) -> None:
    """Write a copy of 4, 8 or 16 bytes.

    A fourth operand is the number of bytes to read, or a predicate; if that is true, the source is ignored.
    """
    operands = operation.operands[: len(operation.operands) - operation.has("L2::cache_hint")]
    size = operands[2] if len(operands) in (3, 4) else None
    if not isinstance(size, Immediate) or size.value not in ((16,) if operation.has("cg") else (4, 8, 16)):
        raise writer.refuse("the size is not 4, 8 or 16 (.cg: 16)")
    available = "None"
    if len(operands) == 4:
        last = operands[3]
        if isinstance(last, Not) or (isinstance(last, Register) and writer.register_dtype(last.number) == BOOL):
            # The source is ignored if the predicate is true.
            ignored = writer.value(last, BOOL)
            available = writer.keep(f"select({ignored}, {writer.scalar(0, U32)}, {writer.scalar(size.value, U32)})")
        else:
            available = writer.value(last, U32)
    target, source = (writer.address_of(operand) for operand in operands[:2])
    writer.run(f"copy_small(B, T, {target}, {source}, {size.value}, {available}, {writer.guard})")


BYTES_COMPLETE = "mbarrier::complete_tx::bytes"
MULTICAST = "multicast::cluster"
HINT = "L2::cache_hint"
_SPACES = f"global {' '.join(_BULK_SHARED)}"


def _kinds(writer: Writer, operation: Operation) -> tuple[str, str]:
    """Return the state spaces of a copy's target and source: "global" or "shared"."""
    spaces = ["global" if m == "global" else "shared" for m in operation.modifiers if m in ("global", *_BULK_SHARED)]
    writer.refuse_if(
        len(spaces) != 2
        or operation.has(BYTES_COMPLETE) == operation.has("bulk_group")
        or spaces == ["global", "global"]
    )
    writer.refuse_if((spaces[0] == "global") != operation.has("bulk_group"))
    return spaces[0], spaces[1]


@emits("cp.async.bulk", (0, 6), f"{_SPACES} {BYTES_COMPLETE} bulk_group {MULTICAST} {HINT}", ())
def _copy_bulk(writer: Writer, operation: Operation) -> None:
    """Write a bulk copy: to shared memory with an mbarrier, or from shared to global memory in a bulk group."""
    kinds = _kinds(writer, operation)
    extra = operation.has(MULTICAST) + operation.has(HINT)
    writer.refuse_count_if(
        len(operation.operands) != 3 + operation.has(BYTES_COMPLETE) + extra
        or (operation.has(MULTICAST) and kinds != ("shared", "global"))
    )
    target, source = (writer.address_of(operand) for operand in operation.operands[:2])
    count = writer.input(2, U32)
    barrier = writer.address_of(operation.operands[3]) if operation.has(BYTES_COMPLETE) else "None"
    mask = writer.input(4, U16) if operation.has(MULTICAST) else "None"
    writer.run(f"copy_bulk(B, T, {kinds!r}, {target}, {source}, {count}, {barrier}, {mask}, {writer.guard})")


@emits("cp.async.bulk.commit_group", 0, "", ())
@emits("cp.async.bulk.wait_group", 1, "read", ())
@emits("cp.async.bulk.prefetch", (2, 3), f"L2 global {HINT}", ())
def _nothing(writer: Writer, operation: Operation) -> None:
    """Write nothing, because earlier copies were made when they were issued."""


_REDUCED = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
}
"""The types of each bulk reduction in global memory."""
_REDUCED_SHARED = {
    "add": ("u32", "s32", "u64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
}
"""The types of each reduction in shared memory, and of red.async."""
REDUCTIONS = " ".join(_REDUCED)
_REDUCED_TYPES = tuple({name for types in _REDUCED.values() for name in types})


@emits(
    "cp.reduce.async.bulk", (3, 4), f"{_SPACES} {BYTES_COMPLETE} bulk_group {REDUCTIONS} noftz {HINT}", _REDUCED_TYPES
)
def _reduce_bulk(writer: Writer, operation: Operation) -> None:
    """Write a bulk reduction: into global memory in a bulk group, or into shared memory with an mbarrier."""
    to, source_kind = _kinds(writer, operation)
    function = operation.one_of(*REDUCTIONS.split())
    allowed = _REDUCED if to == "global" else _REDUCED_SHARED
    is_half_sum = function == "add" and operation.type in ("f16", "bf16")
    writer.refuse_if(
        source_kind != "shared"
        or operation.type not in allowed.get(function, ())
        or operation.has("noftz") != is_half_sum
    )
    writer.refuse_count_if(len(operation.operands) != 3 + operation.has(BYTES_COMPLETE) + operation.has(HINT))
    target, source = (writer.address_of(operand) for operand in operation.operands[:2])
    count = writer.input(2, U32)
    barrier = writer.address_of(operation.operands[3]) if operation.has(BYTES_COMPLETE) else "None"
    step = name_step(function, operation.type, flushes=False)
    dtype = f"{dtype_name(DTYPES[operation.type])}_t"
    writer.run(
        f"reduce_bulk(B, T, {to!r}, {step!r}, {dtype}, {target}, {source}, {count}, {barrier}, {writer.guard})"
    )


def _complete(writer: Writer, barrier: Argument, count: int) -> None:
    change = f"arrival({writer.scalar(0, U32)}, {writer.scalar(-count % (1 << 64), U64)})"
    change_barrier(writer, Sink(), "shared", writer.address_of(barrier), change)


@emits(
    "st.async",
    3,
    f"weak shared::cluster {BYTES_COMPLETE} v2 v4",
    ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"),
)
def _store_async(writer: Writer, operation: Operation) -> None:
    """Write a store to the cluster's shared memory that completes its bytes at an mbarrier."""
    value = operation.operands[1]
    items = items_of(value)
    dtype = DTYPES[operation.type]
    size = len(items) * dtype.itemsize
    writer.refuse_if(
        not operation.has(BYTES_COMPLETE) or len(items) != int(operation.one_of("v2", "v4")[1:] or 1) or size > 16
    )
    address = writer.address_of(operation.operands[0])
    writer.store("shared", address, dtype, size, writer.values(items, dtype))
    _complete(writer, operation.operands[2], size)


@emits("red.async", 3, f"relaxed cluster shared::cluster {BYTES_COMPLETE} {REDUCTIONS}", ("u32", "s32", "u64", "b32"))
def _reduce_one(writer: Writer, operation: Operation) -> None:
    """Write a reduction in the cluster's shared memory that completes its bytes at an mbarrier."""
    function, dtype = operation.one_of(*REDUCTIONS.split()), DTYPES[operation.type]
    writer.refuse_if(not operation.has(BYTES_COMPLETE) or operation.type not in _REDUCED_SHARED.get(function, ()))
    address, value = writer.address_of(operation.operands[0]), writer.input(1, dtype)
    writer.atomic("shared", function, address, dtype, dtype.itemsize, [value], used=False)
    _complete(writer, operation.operands[2], dtype.itemsize)
