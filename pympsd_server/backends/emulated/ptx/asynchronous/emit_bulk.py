"""Bulk copies and reductions, and asynchronous stores; bulk groups are complete as soon as they are made."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.codegen.emission import emits
from pympsd_server.backends.emulated.ptx.codegen.emit_async import address_of, change_barrier
from pympsd_server.backends.emulated.ptx.codegen.writer import Writer
from pympsd_server.backends.emulated.ptx.datatypes import DTYPES, U16, U32, U64, dtype_name
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation, Sink

BYTES_COMPLETE = "mbarrier::complete_tx::bytes"
MULTICAST = "multicast::cluster"
HINT = "L2::cache_hint"
_SHARED = ("shared::cta", "shared::cluster")
_SPACES = f"global {' '.join(_SHARED)}"


def _kinds(w: Writer, o: Operation) -> tuple[str, str]:
    """Return where a copy goes, and where it comes from: "global" or "shared"."""
    found = ["global" if m == "global" else "shared" for m in o.modifiers if m in ("global", *_SHARED)]
    if len(found) != 2 or o.has(BYTES_COMPLETE) == o.has("bulk_group") or found == ["global", "global"]:
        raise w.refuse()
    if (found[0] == "global") != o.has("bulk_group"):
        raise w.refuse()
    return found[0], found[1]


@emits("cp.async.bulk", (0, 6), f"{_SPACES} {BYTES_COMPLETE} bulk_group {MULTICAST} {HINT}", ())
def _copy(w: Writer, o: Operation) -> None:
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
def _reduce(w: Writer, o: Operation) -> None:
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
def _store(w: Writer, o: Operation) -> None:
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
