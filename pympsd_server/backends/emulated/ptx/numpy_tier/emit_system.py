"""Functions of CUDA's device system library (CUDA C++ Programming Guide: formatted output), and of the stack."""

from pympsd_server.backends.emulated.ptx.isa.datatypes import DTYPES, S32, U32, U64, dtype_name
from pympsd_server.backends.emulated.ptx.lowering.ir import Group, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

_ALIGNMENTS = frozenset(1 << power for power in range(24))


@emits("system:vprintf", 3)
def _print(writer: Writer, operation: Operation) -> None:
    form, arguments = writer.values(operation.inputs, U64)
    writer.set_result(writer.keep(f"device_print(B, T, {form}, {arguments})"), S32)


@emits("system:function_index", (2, 10_000))
def _function_index(writer: Writer, operation: Operation) -> None:
    """Write the index of the function that is at an address, for the branch that calls it."""
    addresses = tuple(operand.value for operand in operation.operands[2:] if isinstance(operand, Immediate))
    writer.set_result(writer.keep(f"function_index({writer.input(1, U64)}, {addresses})"), U32)


@emits("system:alloca", 4, types=("u32", "u64"))
def _allocate_on_stack(writer: Writer, operation: Operation) -> None:
    """alloca: operands are (the address, the stack pointer) and (the stack pointer, the size, the alignment)."""
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
