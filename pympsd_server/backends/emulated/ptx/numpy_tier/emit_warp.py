"""Instructions between the lanes of a warp. Their lanes have met when the block begins."""

from pympsd_server.backends.emulated.ptx.isa.datatypes import BOOL, DTYPES, U32
from pympsd_server.backends.emulated.ptx.lowering.ir import Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer

_EVERYONE = 0xFFFFFFFF


def _require_sync(writer: Writer, operation: Operation) -> None:
    if not operation.has("sync"):
        raise writer.refuse(".sync is needed")


def _require_count(writer: Writer, operation: Operation, count: int) -> None:
    """Refuse other than `count` operands and, with .sync, a membermask behind them."""
    if len(operation.operands) != count + operation.has("sync"):
        raise writer.refuse_count()


@emits("shfl", (4, 5), "sync up down bfly idx", ("b32",))
def _shuffle(writer: Writer, operation: Operation) -> None:
    _require_count(writer, operation, 4)
    mode = operation.one_of("up", "down", "bfly", "idx")
    value, where, clamp = writer.values(operation.operands[1:4], U32)
    name = writer.name()
    writer.run(f"{name}, {name}p = shuffle(B, T, {mode!r}, {value}, {where}, {clamp})")
    writer.assign_both(operation.operands[0], name, U32, f"{name}p")


@emits("vote", (2, 3), "sync all any uni ballot", ("pred", "b32"))
def _vote(writer: Writer, operation: Operation) -> None:
    """Write a vote. Without .sync the voters are the threads that execute it together."""
    _require_count(writer, operation, 2)
    mode = operation.one_of("all", "any", "uni", "ballot")
    if operation.types != (("b32",) if mode == "ballot" else ("pred",)):
        raise writer.refuse("the type is .b32 of .ballot, else .pred")
    predicate = writer.input(1, BOOL)
    mask = writer.input(2, U32) if operation.has("sync") else writer.scalar(_EVERYONE, U32)
    result = f"vote(B, T, {mode!r}, {predicate}, {mask})"
    writer.set_result(result, U32 if mode == "ballot" else BOOL)


@emits("activemask", 1, "", ("b32",))
def _active(writer: Writer, operation: Operation) -> None:
    writer.set_result("active_mask(B, T)", U32)


@emits("match", 3, "any all sync", ("b32", "b64"))
def _match(writer: Writer, operation: Operation) -> None:
    _require_sync(writer, operation)
    value, mask = (writer.input(1, DTYPES[operation.type]), writer.input(2, U32))
    name = writer.name()
    writer.run(f"{name}, {name}p = match(B, T, {operation.one_of('any', 'all')!r}, {value}, {mask})")
    writer.assign_both(operation.operands[0], name, U32, f"{name}p")


@emits("redux", 3, "sync add min max and or xor", ("u32", "s32", "b32"))
def _reduce(writer: Writer, operation: Operation) -> None:
    _require_sync(writer, operation)
    mode = operation.one_of("add", "min", "max", "and", "or", "xor")
    dtype = DTYPES[operation.type]
    value, mask = writer.input(1, dtype), writer.input(2, U32)
    writer.set_result(f"reduce(B, T, {mode!r}, {value}, {mask})", dtype)


@emits("elect", 2, "sync", ())
def _elect(writer: Writer, operation: Operation) -> None:
    name = writer.name()
    writer.run(f"{name}, {name}p = elect(B, T, {writer.input(1, U32)})")
    writer.assign_both(operation.operands[0], name, U32, f"{name}p")


@emits("mapa", 3, "shared::cluster", ("u32", "u64"))
def _map_address(writer: Writer, operation: Operation) -> None:
    """The address of a shared variable in another block of the cluster."""
    dtype = DTYPES[operation.type]
    address, rank = writer.input(1, dtype), writer.input(2, U32)
    writer.set_result(f"address_in_block({address}, {rank})", dtype)


@emits("getctarank", 2, "shared::cluster", ("u32", "u64"))
def _rank(writer: Writer, operation: Operation) -> None:
    """The rank of the block that a shared address is in."""
    address = writer.input(1, DTYPES[operation.type])
    own = writer.keep("special(B, T, '%cluster_ctarank', d_u4_t)")
    writer.set_result(f"rank_of_address({address}, {own})", U32)
