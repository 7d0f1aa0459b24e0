"""mbarrier objects, and asynchronous copies of a few bytes."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import BOOL, DTYPES, U16, U32, U64, dtype_name
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation, Register, Sink
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

_BULK_SHARED = ("shared::cta", "shared::cluster")
_SHARED = ("shared", *_BULK_SHARED)
_ORDER = "release acquire relaxed cta cluster"
_BARRIER = (
    "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait pending_count noComplete parity "
    f"{' '.join(_SHARED)} {_ORDER}"
)


def _space(o: Operation) -> str:
    return "shared" if o.one_of(*_SHARED) else "generic"


def address_of(w: Writer, memory: Argument) -> str:
    """Write the sum of an address and its offset; return its name."""
    base, offset = w.address(memory)
    return w.keep(f"displaced({base}, {offset})") if offset else base


@emits("mbarrier", (1, 4), _BARRIER, ("b64",))
def _barrier(w: Writer, o: Operation) -> None:
    action = o.modifiers[0] if o.modifiers else ""
    if action == "pending_count" and len(o.operands) == 2:
        return w.assign(o.operands[0], f"pending_count({w.value(o.operands[1], U64)})", U32)
    if action in ("test_wait", "try_wait"):
        return _test_wait(w, o)
    if action == "init" and len(o.operands) == 2:
        value = w.keep(f"initial_barrier({w.value(o.operands[1], U32)})")
        address = address_of(w, o.operands[0])
        w.lines.append(f"store(B, T, {_space(o)!r}, {address}, d_u8_t, 8, ({value},), {w.guard})")
        return None
    if action == "inval" and len(o.operands) == 1:
        w.keep(f"load(B, T, {_space(o)!r}, {address_of(w, o.operands[0])}, d_u8_t, 8, {w.guard})")
        return None
    if action in ("expect_tx", "complete_tx") and len(o.operands) == 2:
        count = w.value(o.operands[1], U32)
        sign = "-" if action == "complete_tx" else ""
        change = f"arrival({w.scalar(0, U32)}, {sign}{count}.astype(d_i8))"
        return change_barrier(w, Sink(), _space(o), address_of(w, o.operands[0]), change)
    if action in ("arrive", "arrive_drop") and 1 <= len(o.operands) <= 3:
        return _arrive(w, o, drop=action == "arrive_drop")
    raise w.refuse()


def _arrive(w: Writer, o: Operation, drop: bool) -> None:
    """A state or _, the object, and a count, or with .expect_tx a number of bytes."""
    if len(o.operands) < 2:
        raise w.refuse(f"{len(o.operands)} operands")
    target, where, *rest = o.operands
    given = w.value(rest[0], U32) if rest else w.scalar(1, U32)
    if o.has("expect_tx"):
        if not rest:
            raise w.refuse("no number of bytes")
        change = f"arrival({w.scalar(1, U32)}, {given}.astype(d_i8), {drop})"
    else:
        change = f"arrival({given}, {w.scalar(0, U64)}, {drop})"
    change_barrier(w, target, _space(o), address_of(w, where), change)


def change_barrier(w: Writer, target: Argument, space: str, address: str, change: str) -> None:
    """Write the change of an mbarrier object; `target` gets its state before."""
    used = not isinstance(target, Sink)
    name = w.name()
    w.lines.append(
        f"{name} = atomic(B, T, {space!r}, 'mbarrier', {address}, d_u8_t, 8, ({w.keep(change)},), {used}, {w.guard})"
    )
    if used:
        w.assign(target, name, U64)


def _test_wait(w: Writer, o: Operation) -> None:
    """A predicate, the object, a state or a parity; try_wait may have a time limit, which is not used."""
    if not 3 <= len(o.operands) <= (4 if o.has("try_wait") else 3):
        raise w.refuse(f"{len(o.operands)} operands")
    barrier = w.keep(f"load(B, T, {_space(o)!r}, {address_of(w, o.operands[1])}, d_u8_t, 8, {w.guard})")
    if o.has("parity"):
        result = f"parity_has_ended({barrier}, {w.value(o.operands[2], U32)})"
    else:
        result = f"phase_has_ended({barrier}, {w.value(o.operands[2], U64)})"
    w.assign(o.operands[0], result, BOOL)


_COPY = f"async ca cg commit_group wait_group wait_all mbarrier arrive noinc global {' '.join(_SHARED)}"
_COPY += " L2::cache_hint L2::64B L2::128B L2::256B"


@emits("cp", (0, 5), _COPY, ("b64",))
def _copy(w: Writer, o: Operation) -> None:
    if not o.has("async"):
        raise w.refuse()
    if o.one_of("commit_group", "wait_group", "wait_all"):
        # The copies before are done already.
        if len(o.operands) != o.has("wait_group"):
            raise w.refuse(f"{len(o.operands)} operands")
    elif o.has("arrive"):
        # Without .noinc the arrival that the copies cause was added to what the phase waits for: it changes nothing.
        if len(o.operands) != 1 or o.types != ("b64",):
            raise w.refuse()
        count = w.scalar(1 if o.has("noinc") else 0, U32)
        change_barrier(w, Sink(), _space(o), address_of(w, o.operands[0]), f"arrival({count}, {w.scalar(0, U64)})")
    else:
        _copy_small(w, o)


def _copy_small(w: Writer, o: Operation) -> None:
    operands = o.operands[: len(o.operands) - o.has("L2::cache_hint")]
    size = operands[2] if len(operands) in (3, 4) else None
    if not isinstance(size, Immediate) or size.value not in ((16,) if o.has("cg") else (4, 8, 16)):
        raise w.refuse("the size is not 4, 8 or 16 (.cg: 16)")
    given = "None"
    if len(operands) == 4:
        last = operands[3]
        if isinstance(last, Register) and w.register_dtype(last.number) == BOOL:
            # The source is ignored where the predicate is true.
            ignored = w.value(last, BOOL)
            given = w.keep(f"select({ignored}, {w.scalar(0, U32)}, {w.scalar(size.value, U32)})")
        else:
            given = w.value(last, U32)
    target, source = (address_of(w, operand) for operand in operands[:2])
    w.lines.append(f"copy_small(B, T, {target}, {source}, {size.value}, {given}, {w.guard})")


BYTES_COMPLETE = "mbarrier::complete_tx::bytes"
MULTICAST = "multicast::cluster"
HINT = "L2::cache_hint"
_SPACES = f"global {' '.join(_BULK_SHARED)}"


def _kinds(w: Writer, o: Operation) -> tuple[str, str]:
    """Return where a copy goes, and where it comes from: "global" or "shared"."""
    found = ["global" if m == "global" else "shared" for m in o.modifiers if m in ("global", *_BULK_SHARED)]
    if len(found) != 2 or o.has(BYTES_COMPLETE) == o.has("bulk_group") or found == ["global", "global"]:
        raise w.refuse()
    if (found[0] == "global") != o.has("bulk_group"):
        raise w.refuse()
    return found[0], found[1]


@emits("cp.async.bulk", (0, 6), f"{_SPACES} {BYTES_COMPLETE} bulk_group {MULTICAST} {HINT}", ())
def _copy_bulk(w: Writer, o: Operation) -> None:
    """Global to shared memory or shared to shared with an mbarrier, shared to global memory in a bulk group."""
    kinds = _kinds(w, o)
    extra = o.has(MULTICAST) + o.has(HINT)
    if len(o.operands) != 3 + o.has(BYTES_COMPLETE) + extra or (o.has(MULTICAST) and kinds != ("shared", "global")):
        raise w.refuse(f"{len(o.operands)} operands")
    target, source = (address_of(w, operand) for operand in o.operands[:2])
    count = w.value(o.operands[2], U32)
    barrier = address_of(w, o.operands[3]) if o.has(BYTES_COMPLETE) else "None"
    mask = w.value(o.operands[4], U16) if o.has(MULTICAST) else "None"
    w.lines.append(f"copy_bulk(B, T, {kinds!r}, {target}, {source}, {count}, {barrier}, {mask}, {w.guard})")


@emits("cp.async.bulk.commit_group", 0, "", ())
@emits("cp.async.bulk.wait_group", 1, "read", ())
@emits("cp.async.bulk.prefetch", (2, 3), f"L2 global {HINT}", ())
def _nothing(w: Writer, o: Operation) -> None:
    """The copies before are done already."""


_REDUCED = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
"""The types of bulk reductions in global memory."""
_REDUCED_SHARED = {
    "add": ("u32", "s32", "u64"),
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32",),
    "or": ("b32",),
    "xor": ("b32",),
}
"""Those in shared memory, and of red.async."""
REDUCTIONS = " ".join(_REDUCED)
_REDUCED_TYPES = tuple({name for types in _REDUCED.values() for name in types})


@emits(
    "cp.reduce.async.bulk",
    (3, 4),
    f"{_SPACES} {BYTES_COMPLETE} bulk_group {REDUCTIONS} noftz {HINT}",
    _REDUCED_TYPES,
)
def _reduce_bulk(w: Writer, o: Operation) -> None:
    """Shared memory to global memory in a bulk group, or to shared memory with an mbarrier."""
    to, source_kind = _kinds(w, o)
    function = o.one_of(*REDUCTIONS.split())
    allowed = _REDUCED if to == "global" else _REDUCED_SHARED
    is_half_sum = function == "add" and o.type in ("f16", "bf16")
    if source_kind != "shared" or o.type not in allowed.get(function, ()) or o.has("noftz") != is_half_sum:
        raise w.refuse()
    if len(o.operands) != 3 + o.has(BYTES_COMPLETE) + o.has(HINT):
        raise w.refuse(f"{len(o.operands)} operands")
    target, source = (address_of(w, operand) for operand in o.operands[:2])
    count = w.value(o.operands[2], U32)
    barrier = address_of(w, o.operands[3]) if o.has(BYTES_COMPLETE) else "None"
    name, dtype = f"{function}_bf16" if o.type == "bf16" else function, f"{dtype_name(DTYPES[o.type])}_t"
    w.lines.append(f"reduce_bulk(B, T, {to!r}, {name!r}, {dtype}, {target}, {source}, {count}, {barrier}, {w.guard})")


def _complete(w: Writer, barrier: Argument, count: int) -> None:
    change = f"arrival({w.scalar(0, U32)}, {w.scalar(-count % (1 << 64), U64)})"
    change_barrier(w, Sink(), "shared", address_of(w, barrier), change)


@emits(
    "st.async",
    3,
    f"weak shared::cluster {BYTES_COMPLETE} v2 v4",
    ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"),
)
def _store_async(w: Writer, o: Operation) -> None:
    """A store to shared memory of the cluster, which completes its bytes at an mbarrier."""
    value = o.operands[1]
    items = value.items if isinstance(value, Group) else (value,)
    dtype = DTYPES[o.type]
    size = len(items) * dtype.itemsize
    if not o.has(BYTES_COMPLETE) or len(items) != int(o.one_of("v2", "v4")[1:] or 1) or size > 16:
        raise w.refuse()
    address = address_of(w, o.operands[0])
    values = ", ".join(w.value(item, dtype) for item in items)
    w.lines.append(f"store(B, T, 'shared', {address}, {dtype_name(dtype)}_t, {size}, ({values},), {w.guard})")
    _complete(w, o.operands[2], size)


@emits(
    "red.async",
    3,
    f"relaxed cluster shared::cluster {BYTES_COMPLETE} {REDUCTIONS}",
    ("u32", "s32", "u64", "b32"),
)
def _reduce_one(w: Writer, o: Operation) -> None:
    """A reduction in shared memory of the cluster, which completes its bytes at an mbarrier."""
    function, dtype = o.one_of(*REDUCTIONS.split()), DTYPES[o.type]
    if not o.has(BYTES_COMPLETE) or o.type not in _REDUCED_SHARED.get(function, ()):
        raise w.refuse()
    address, value = address_of(w, o.operands[0]), w.value(o.operands[1], dtype)
    w.lines.append(
        f"atomic(B, T, 'shared', {function!r}, {address}, {dtype_name(dtype)}_t, {dtype.itemsize}, ({value},), False,"
        f" {w.guard})"
    )
    _complete(w, o.operands[2], dtype.itemsize)
