"""Write instructions between the lanes of a warp, which have met when the block begins.

The second half of the module has functions of CUDA's device system library (CUDA C++ Programming Guide, Formatted
Output) and of the stack.
"""

from pympsd_server.ptx.isa.datatypes import BOOL, DTYPES, S32, U32, U64, dtype_name
from pympsd_server.ptx.lowering.ir import Group, Operation, Special
from pympsd_server.ptx.numpy_tier.instruction_table import emits
from pympsd_server.ptx.numpy_tier.writer import Writer
from pympsd_server.ptx.syntax.tree import Immediate

_EVERYONE = 0xFFFFFFFF


def _require_sync(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(not operation.has("sync"), ".sync is needed")


def _require_count(writer: Writer, operation: Operation, count: int) -> None:
    """Raise InvalidPtx unless there are `count` operands, and with .sync a membermask after them."""
    writer.refuse_count_if(len(operation.operands) != count + operation.has("sync"))


@emits("shfl", (4, 5), "sync up down bfly idx", ("b32",))
def _shuffle(writer: Writer, operation: Operation) -> None:
    _require_count(writer, operation, 4)
    mode = operation.one_of("up", "down", "bfly", "idx")
    value, where, clamp = writer.values(operation.operands[1:4], U32)
    name = writer.name()
    writer.run(f"{name}, {name}p = shuffle(B, T, {mode!r}, {value}, {where}, {clamp})")
    writer.assign_both(operation.operands[0], name, f"{name}p")


@emits("vote", (2, 3), "sync all any uni ballot", ("pred", "b32"))
def _vote(writer: Writer, operation: Operation) -> None:
    """Write a vote. Without .sync, the lanes that execute it together vote."""
    _require_count(writer, operation, 2)
    mode = operation.one_of("all", "any", "uni", "ballot")
    writer.refuse_if(
        operation.types != (("b32",) if mode == "ballot" else ("pred",)), "the type is .b32 of .ballot, else .pred"
    )
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
    writer.assign_both(operation.operands[0], name, f"{name}p")


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
    writer.assign_both(operation.operands[0], name, f"{name}p")


@emits("mapa", 3, "shared::cluster", ("u32", "u64"))
def _map_address(writer: Writer, operation: Operation) -> None:
    """Write mapa: convert a shared address to the same address in another block of the cluster."""
    dtype = DTYPES[operation.type]
    address, rank = writer.input(1, dtype), writer.input(2, U32)
    writer.set_result(f"address_in_block({address}, {rank})", dtype)


@emits("getctarank", 2, "shared::cluster", ("u32", "u64"))
def _rank(writer: Writer, operation: Operation) -> None:
    """Write getctarank: find the rank of the block to which a shared address belongs."""
    address = writer.input(1, DTYPES[operation.type])
    own_rank = writer.value(Special("%cluster_ctarank"), U32)
    writer.set_result(f"rank_of_address({address}, {own_rank})", U32)


_ALIGNMENTS = frozenset(1 << power for power in range(24))


@emits("system:vprintf", 3)
def _print(writer: Writer, operation: Operation) -> None:
    form, arguments = writer.values(operation.inputs, U64)
    writer.set_result(writer.keep(f"device_print(B, T, {form}, {arguments})"), S32)


@emits("system:function_index", (2, 10_000))
def _function_index(writer: Writer, operation: Operation) -> None:
    """Write the index of the function at an address, for the branch that calls the function."""
    addresses = tuple(operand.value for operand in operation.operands[2:] if isinstance(operand, Immediate))
    writer.set_result(writer.keep(f"function_index({writer.input(1, U64)}, {addresses})"), U32)


@emits("system:alloca", 4, types=("u32", "u64"))
def _allocate_on_stack(writer: Writer, operation: Operation) -> None:
    """Write alloca. Results: an address, the new stack pointer. Inputs: the stack pointer, a size, an alignment."""
    target, pointer, size, alignment = operation.operands
    if not isinstance(alignment, Immediate) or alignment.value not in _ALIGNMENTS or not isinstance(target, Group):
        raise writer.refuse("the alignment is not a power of two")
    dtype = DTYPES[operation.type]
    start = writer.keep(f"align_up({writer.value(pointer, U64)}, {max(16, alignment.value)})")
    end = writer.keep(f"align_up({start} + {writer.value(size, dtype)}.astype(d_u8), 16)")
    address, stack = target.items
    writer.assign(address, f"{start}.astype({dtype_name(dtype)})", dtype)
    writer.assign(stack, end, U64)


@emits("system:malloc", 2)
def _malloc(writer: Writer, operation: Operation) -> None:
    writer.set_result(writer.keep(f"device_malloc(B, T, {writer.input(1, U64)})"), U64)


@emits("system:free", 1)
def _free(writer: Writer, operation: Operation) -> None:
    writer.run(f"device_free(B, T, {writer.input(0, U64)})")


@emits("system:set_conditional", 2)
def _set_conditional(writer: Writer, operation: Operation) -> None:
    handle, value = writer.input(0, U64), writer.input(1, U32)
    writer.run(f"set_conditional(B, T, {handle}, {value})")
