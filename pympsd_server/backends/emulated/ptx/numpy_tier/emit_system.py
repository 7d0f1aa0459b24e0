"""Functions of CUDA's device system library (CUDA C++ Programming Guide: formatted output), and of the stack."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import DTYPES, S32, U32, U64, dtype_name
from pympsd_server.backends.emulated.ptx.lowering.ir import Group, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

_ALIGNMENTS = frozenset(1 << power for power in range(24))


@emits("system:vprintf", 3)
def _print(w: Writer, o: Operation) -> None:
    form, arguments = (w.value(x, U64) for x in o.operands[1:])
    w.assign(o.operands[0], w.keep(f"device_print(B, T, {form}, {arguments})"), S32)


@emits("system:function_index", (2, 10_000))
def _function_index(w: Writer, o: Operation) -> None:
    """Which of the functions an address is, for the branch that calls it."""
    known = tuple(each.value for each in o.operands[2:] if isinstance(each, Immediate))
    w.assign(o.operands[0], w.keep(f"function_index({w.value(o.operands[1], U64)}, {known})"), U32)


@emits("system:alloca", 4, types=("u32", "u64"))
def _allocate_on_stack(w: Writer, o: Operation) -> None:
    """alloca: operands are (the address, the stack pointer) and (the stack pointer, the size, the alignment)."""
    target, pointer, size, alignment = o.operands
    if not isinstance(alignment, Immediate) or alignment.value not in _ALIGNMENTS or not isinstance(target, Group):
        raise w.refuse("the alignment is no power of two")
    dtype = DTYPES[o.type]
    start = w.keep(f"aligned_up({w.value(pointer, U64)}, {max(16, alignment.value)})")
    end = w.keep(f"aligned_up({start} + {w.value(size, dtype)}.astype(d_u8), 16)")
    address, stack = target.items
    w.assign(address, f"{start}.astype({dtype_name(dtype)})", dtype)
    w.assign(stack, end, U64)


@emits("system:malloc", 2)
def _malloc(w: Writer, o: Operation) -> None:
    w.assign(o.operands[0], w.keep(f"device_malloc(B, T, {w.value(o.operands[1], U64)})"), U64)


@emits("system:free", 1)
def _free(w: Writer, o: Operation) -> None:
    w.lines.append(f"device_free(B, T, {w.value(o.operands[0], U64)})")


@emits("system:set_conditional", 2)
def _set_conditional(w: Writer, o: Operation) -> None:
    handle, value = w.value(o.operands[0], U64), w.value(o.operands[1], U32)
    w.lines.append(f"set_conditional(B, T, {handle}, {value})")
