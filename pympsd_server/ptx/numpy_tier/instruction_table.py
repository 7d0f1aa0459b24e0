"""Register instructions: the emitter of each, and the modifiers, types and operands that it accepts."""

from collections.abc import Callable, Iterable

from attrs import frozen

from pympsd_server.ptx.isa.datatypes import DTYPES, DType
from pympsd_server.ptx.lowering.ir import Operation
from pympsd_server.ptx.numpy_tier.writer import Writer

Emit = Callable[[Writer, Operation], None]


@frozen
class Emitter:
    """A row of the table: an instruction's emitter, and its allowed forms."""

    emit: Emit
    modifiers: frozenset[str]
    types: frozenset[str]
    operands: tuple[int, int]


TABLE: dict[str, Emitter] = {}

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
FLOATS = ("f16", "f32", "f64")
ROUNDINGS = ("rn", "rz", "rm", "rp")
ANY = tuple(DTYPES)


def emits(
    names: str, operands: int | tuple[int, int], modifiers: str = "", types: Iterable[str] = ANY
) -> Callable[[Emit], Emit]:
    """Register an emitter for some instructions, with the modifiers, types and numbers of operands that it accepts.

    The emitter writes the NumPy code of one instruction; ``_copysign`` in emit_float.py is a short example. Any other
    form of the instruction is refused, with its name and line.

    Args:
        names: Opcodes, separated by blanks. A name may include an opcode's first modifiers, as in ``st.async``, which
            is another instruction than ``st``.
        operands: The number of operands, or the minimum and the maximum.
        modifiers: The accepted modifiers, separated by blanks, without their dots.
        types: The accepted types; by default all.
    """
    count = (operands, operands) if isinstance(operands, int) else operands

    def register(emit: Emit) -> Emit:
        for name in names.split():
            TABLE[name] = Emitter(emit, frozenset(modifiers.split()), frozenset(types), count)
        return emit

    return register


def emit(writer: Writer, operation: Operation) -> None:
    """Write one operation. Raises InvalidPtx, with its name and line, if the table does not have its form."""
    writer.begin(operation)
    name = name_of(operation)
    emitter = TABLE.get(name)
    if emitter is None:
        raise writer.refuse()
    for modifier in operation.modifiers[name.count(".") :]:
        if modifier not in emitter.modifiers:
            raise writer.refuse(f"modifier .{modifier}")
    for type_name in operation.types:
        if type_name not in emitter.types:
            raise writer.refuse(f"type .{type_name}")
    low, high = emitter.operands
    if not low <= len(operation.operands) <= high:
        raise writer.refuse(f"{len(operation.operands)} operands")
    emitter.emit(writer, operation)


def name_of(operation: Operation) -> str:
    """Return the longest prefix of an opcode that is in the table, or if none is, the opcode's first word."""
    longest = name = operation.name
    for modifier in operation.modifiers:
        name = f"{name}.{modifier}"
        if name in TABLE:
            longest = name
    return longest


def dtype_of(writer: Writer, operation: Operation) -> DType:
    """Return the dtype of the operation's last type suffix. Raises InvalidPtx if the operation has no type."""
    if not operation.types:
        raise writer.refuse("no type")
    return DTYPES[operation.types[-1]]
