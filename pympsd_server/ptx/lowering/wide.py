"""Replace registers of 128 bits (.b128) by pairs of 64-bit registers.

PTX has them for atom.cas and atom.exch; otherwise only mov, ld, ldu and st take them. A load or a store becomes one
of .v2.b64, which has the same alignment; a mov becomes two. The two atomics keep their type.
"""

from attrs import evolve

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.lowering.ir import Argument, Group, Operation
from pympsd_server.ptx.syntax.tree import Immediate, Module

WIDE = "b128"
_SINCE, _ATOMICS_SINCE = (70, (8, 3)), (90, (8, 3))
_HALF = (1 << 64) - 1


def check_wide(module: Module, operation: Operation | None, line: int) -> None:
    """Raise InvalidPtx if the module's target or version is too old for an operation of type .b128.

    If ``operation`` is None, check the declaration of registers of that type.
    """
    atomic = operation is not None and operation.name == "atom"
    architecture, version = _ATOMICS_SINCE if atomic else _SINCE
    if module.target.architecture < architecture or module.version < version:
        subject = operation.opcode if operation is not None else f"type .{WIDE}"
        have = f"PTX {'.'.join(map(str, module.version))} for {module.target}"
        needs = f"PTX {'.'.join(map(str, version))} and a target of sm_{architecture} or newer"
        raise InvalidPtx(f"{subject} needs {needs}, not {have}", line)


def lower_wide(operation: Operation) -> list[Operation]:
    """Return the operations that replace an operation of type .b128.

    Raises InvalidPtx for an operation that PTX does not have with this type.
    """
    if operation.types != (WIDE,) or operation.one_of("v2", "v4", "v8"):
        raise InvalidPtx(f"unsupported instruction {operation.opcode}", operation.line)
    if operation.name == "atom":
        return [operation]
    if operation.name in ("ld", "ldu", "st"):
        return [evolve(operation, modifiers=(*operation.modifiers, "v2"), types=("b64",))]
    if operation.name != "mov" or len(operation.operands) != 2:
        raise InvalidPtx(
            f"unsupported instruction {operation.opcode}: only mov, ld, ldu, st, atom.cas and atom.exch have .{WIDE}",
            operation.line,
        )
    target, source = (_halves(operand, operation) for operand in operation.operands)
    return [evolve(operation, types=("b64",), operands=pair) for pair in zip(target, source, strict=True)]


def _halves(operand: Argument, operation: Operation) -> tuple[Argument, Argument]:
    """Return the lower and the upper 64 bits of an operand of mov."""
    if isinstance(operand, Immediate) and operand.form == "int":
        # Constants have 64 bits and are not sign-extended to 128 (recorded on an H100).
        return Immediate(operand.value & _HALF), Immediate(0)
    items = operand.items if isinstance(operand, Group) else ()
    if len(items) == 2:
        return items[0], items[1]
    if len(items) == 4:
        return Group(items[:2]), Group(items[2:])
    raise InvalidPtx(f"unsupported instruction {operation.opcode}: operand of other than 128 bits", operation.line)
