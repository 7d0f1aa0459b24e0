"""Instructions between the lanes of a warp. Their lanes have met when the block begins."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import BOOL, DTYPES, U32
from pympsd_server.backends.emulated.ptx.lowering.ir import Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer

_EVERYONE = 0xFFFFFFFF


def _require_sync(w: Writer, o: Operation) -> None:
    if not o.has("sync"):
        raise w.refuse(".sync is needed")


def _require_count(w: Writer, o: Operation, count: int) -> None:
    """Refuse other than `count` operands and, with .sync, a membermask behind them."""
    if len(o.operands) != count + o.has("sync"):
        raise w.refuse(f"{len(o.operands)} operands")


@emits("shfl", (4, 5), "sync up down bfly idx", ("b32",))
def _shuffle(w: Writer, o: Operation) -> None:
    _require_count(w, o, 4)
    mode = o.one_of("up", "down", "bfly", "idx")
    value, where, clamp = (w.value(x, U32) for x in o.operands[1:4])
    name = w.name()
    w.lines.append(f"{name}, {name}p = shuffle(B, T, {mode!r}, {value}, {where}, {clamp})")
    w.assign_both(o.operands[0], name, U32, f"{name}p")


@emits("vote", (2, 3), "sync all any uni ballot", ("pred", "b32"))
def _vote(w: Writer, o: Operation) -> None:
    """Write a vote. Without .sync the voters are the threads that execute it together."""
    _require_count(w, o, 2)
    mode = o.one_of("all", "any", "uni", "ballot")
    if o.types != (("b32",) if mode == "ballot" else ("pred",)):
        raise w.refuse("the type is .b32 of .ballot, else .pred")
    predicate = w.value(o.operands[1], BOOL)
    mask = w.value(o.operands[2], U32) if o.has("sync") else w.scalar(_EVERYONE, U32)
    result = f"vote(B, T, {mode!r}, {predicate}, {mask})"
    w.assign(o.operands[0], result, U32 if mode == "ballot" else BOOL)


@emits("activemask", 1, "", ("b32",))
def _active(w: Writer, o: Operation) -> None:
    w.assign(o.operands[0], "active_mask(B, T)", U32)


@emits("match", 3, "any all sync", ("b32", "b64"))
def _match(w: Writer, o: Operation) -> None:
    _require_sync(w, o)
    value, mask = w.value(o.operands[1], DTYPES[o.type]), w.value(o.operands[2], U32)
    name = w.name()
    w.lines.append(f"{name}, {name}p = match(B, T, {o.one_of('any', 'all')!r}, {value}, {mask})")
    w.assign_both(o.operands[0], name, U32, f"{name}p")


@emits("redux", 3, "sync add min max and or xor", ("u32", "s32", "b32"))
def _reduce(w: Writer, o: Operation) -> None:
    _require_sync(w, o)
    mode = o.one_of("add", "min", "max", "and", "or", "xor")
    dtype = DTYPES[o.type]
    value, mask = w.value(o.operands[1], dtype), w.value(o.operands[2], U32)
    w.assign(o.operands[0], f"reduce(B, T, {mode!r}, {value}, {mask})", dtype)


@emits("elect", 2, "sync", ())
def _elect(w: Writer, o: Operation) -> None:
    name = w.name()
    w.lines.append(f"{name}, {name}p = elect(B, T, {w.value(o.operands[1], U32)})")
    w.assign_both(o.operands[0], name, U32, f"{name}p")


@emits("mapa", 3, "shared::cluster", ("u32", "u64"))
def _map_address(w: Writer, o: Operation) -> None:
    """The address of a shared variable in another block of the cluster."""
    dtype = DTYPES[o.type]
    address, rank = w.value(o.operands[1], dtype), w.value(o.operands[2], U32)
    w.assign(o.operands[0], f"address_in_block({address}, {rank})", dtype)


@emits("getctarank", 2, "shared::cluster", ("u32", "u64"))
def _rank(w: Writer, o: Operation) -> None:
    """The rank of the block that a shared address is in."""
    address = w.value(o.operands[1], DTYPES[o.type])
    own = w.keep("special(B, T, '%cluster_ctarank', d_u4_t)")
    w.assign(o.operands[0], f"rank_of_address({address}, {own})", U32)
