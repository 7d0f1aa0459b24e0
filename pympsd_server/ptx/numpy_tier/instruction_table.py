"""The table of instructions: which emitter writes which, and which modifiers it accepts."""

from collections.abc import Callable, Iterable

from attrs import frozen

from pympsd_server.ptx.isa.datatypes import DTYPES, DType
from pympsd_server.ptx.lowering.ir import Operation
from pympsd_server.ptx.numpy_tier.writer import Writer

Emit = Callable[[Writer, Operation], None]


@frozen
class Emitter:
    """A row of the table: the emitter of an instruction, and its allowed forms."""

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
    """Register an emitter for some instructions, with the modifiers, types and operand counts that it accepts.

    The emitter writes the NumPy code of one instruction; ``_copysign`` in emit_float.py is a short example. An
    instruction in any other form is refused by its name and line.

    Args:
        names: Opcodes, separated by blanks. A name may have the modifiers that an opcode begins with: ``st.async`` is
            not ``st``.
        operands: How many operands the instruction has, or the lowest and the highest number.
        modifiers: The modifiers that it accepts, separated by blanks, without their dots.
        types: The types that it accepts; default: all.
    """
    count = (operands, operands) if isinstance(operands, int) else operands

    def register(emit: Emit) -> Emit:
        for name in names.split():
            TABLE[name] = Emitter(emit, frozenset(modifiers.split()), frozenset(types), count)
        return emit

    return register


def emit(writer: Writer, operation: Operation) -> None:
    """Write one operation. Raises InvalidPtx, with its name and line, for anything not in the table."""
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
    """Return the longest beginning of an opcode that is in the table, at least its name."""
    longest = name = operation.name
    for modifier in operation.modifiers:
        name = f"{name}.{modifier}"
        if name in TABLE:
            longest = name
    return longest


def dtype_of(writer: Writer, operation: Operation) -> DType:
    """Return the dtype of the operation's last type suffix."""
    if not operation.types:
        raise writer.refuse("no type")
    return DTYPES[operation.types[-1]]
