"""Replace the .param variables of inlined calls by registers, or by local memory if accesses overlap."""

from itertools import pairwise

from attrs import evolve

from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.lowering.ir import Argument, Code, Memory, Operation, Register, Symbol, items_of, plain


def resolve_call_parameters(code: Code) -> None:
    """Rewrite every use of space "call". Raises InvalidPtx for an instruction that cannot use a call's parameter.

    If all loads and stores of a variable use the same (offset, size) pieces, each piece becomes a register. If pieces
    overlap, or the variable's address is taken, it stays in local memory.
    """
    pieces = _pieces(code)
    slots: dict[tuple[str, int], Register] = {}
    for name, parts in pieces.items():
        if parts is not None:
            del code.local[name]
            for offset, size in parts:
                slots[name, offset] = code.new_register(f"b{8 * size}")
    rewritten: list[Operation] = []
    for operation in code.operations:
        rewritten += _rewrite(operation, pieces, slots)
    code.operations = rewritten


def _access(operation: Operation) -> tuple[str, int, tuple[Argument, ...]] | None:
    """Return (variable, offset, values) of a ld.param or st.param of a call's parameter, None for others."""
    if operation.name not in ("ld", "st") or not operation.has("param"):
        return None
    if len(operation.operands) != 2:
        raise InvalidPtx(f"{operation.opcode} takes 2 operands, not {len(operation.operands)}", operation.line)
    memory, value = operation.operands if operation.name == "st" else reversed(operation.operands)
    if not isinstance(memory, Memory) or not isinstance(memory.base, Symbol) or memory.base.space != "call":
        return None
    return memory.base.name, memory.base.offset + memory.offset, items_of(value)


def _pieces(code: Code) -> dict[str, set[tuple[int, int]] | None]:
    """Return each .param variable's (offset, size) pieces that become registers, or None if it stays in memory."""
    pieces: dict[str, set[tuple[int, int]] | None] = {
        name: set() for name, variable in code.local.items() if variable.space == "param"
    }
    for operation in code.operations:
        access = _access(operation)
        if access is None:
            for symbol in _call_symbols(operation):
                pieces[symbol.name] = None
            continue
        name, offset, values = access
        parts = pieces[name]
        size = DTYPES[operation.type].itemsize
        if parts is not None:
            parts.update((offset + i * size, size) for i in range(len(values)))
    return {name: _disjoint(parts) for name, parts in pieces.items()}


def _disjoint(parts: set[tuple[int, int]] | None) -> set[tuple[int, int]] | None:
    if parts is None:
        return None
    ordered = sorted(parts)
    for (offset, size), (following, _) in pairwise(ordered):
        if offset + size > following:
            return None
    return parts


def _call_symbols(operation: Operation) -> list[Symbol]:
    symbols = []
    for operand in operation.operands:
        base = operand.base if isinstance(operand, Memory) else operand
        if isinstance(base, Symbol) and base.space == "call":
            symbols.append(base)
    return symbols


def _rewrite(
    operation: Operation,
    pieces: dict[str, set[tuple[int, int]] | None],
    slots: dict[tuple[str, int], Register],
) -> list[Operation]:
    """Return the operations that replace an operation: moves of registers, or an access to local memory."""
    access = _access(operation)
    if access is not None and pieces[access[0]] is not None:
        return _moves(operation, access, slots)
    if not _call_symbols(operation):
        return [operation]
    if access is None and operation.name not in ("mov", "cvta"):
        raise InvalidPtx(f"unsupported use of a call's parameter by {operation.opcode}", operation.line)
    operands = tuple(_local(operand) for operand in operation.operands)
    modifiers = tuple("local" if m == "param" else m for m in operation.modifiers)
    return [evolve(operation, operands=operands, modifiers=modifiers)]


def _moves(
    operation: Operation,
    access: tuple[str, int, tuple[Argument, ...]],
    slots: dict[tuple[str, int], Register],
) -> list[Operation]:
    name, offset, values = access
    size = DTYPES[operation.type].itemsize
    moves = []
    for i, value in enumerate(values):
        slot = slots[name, offset + i * size]
        operands = (slot, value) if operation.name == "st" else (value, slot)
        move = plain("mov", (operation.type,), operands, operation.line)
        moves.append(evolve(move, guard=operation.guard))
    return moves


def _local(operand: Argument) -> Argument:
    if isinstance(operand, Symbol) and operand.space == "call":
        return Symbol("local", operand.name, operand.offset)
    if isinstance(operand, Memory) and isinstance(operand.base, Symbol):
        base = _local(operand.base)
        assert isinstance(base, Symbol)
        return Memory(base, operand.offset)
    return operand
