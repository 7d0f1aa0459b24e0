"""The side of a procedure's caller: arguments into the frame of the callee, results out of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pympsd_server.backends.emulated.ptx.lowering.function_table import parameter_layout
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Code, Group, Target, plain
from pympsd_server.backends.emulated.ptx.lowering.system_calls import fetched, stored
from pympsd_server.backends.emulated.ptx.syntax.tree import Function, Immediate, Prototype, Variable


def procedure_call(
    code: Code,
    callee: Target | Group,
    called: Function | Prototype,
    inputs: Sequence[Argument],
    results: Sequence[Argument],
    line: int,
) -> None:
    """Append a "callproc" operation, which `procedures.expand_calls` replaces.

    Its operands are the results and the arguments, each an offset in the frame and a register, and between them the
    callee: its label, or a register with an index and the label of a list of functions.
    """
    layout = parameter_layout(called.returns + called.parameters)
    count = len(called.returns)
    arguments: list[Argument] = []
    for (variable, offset), given in zip(layout[count:], inputs, strict=True):
        for start, type_name in _pieces(variable):
            arguments += [Immediate(offset + start), fetched(code, given, type_name, line, start)]
    back: list[Argument] = []
    after = []
    for (variable, offset), target in zip(layout[:count], results, strict=True):
        for start, type_name in _pieces(variable):
            register = code.new_register(type_name)
            back += [Immediate(offset + start), register]
            after.append(stored(target, register, type_name, line, start))
    code.operations.append(plain("callproc", (), (Group(tuple(back)), callee, Group(tuple(arguments))), line))
    code.operations += after


def _pieces(variable: Variable) -> Iterator[tuple[int, str]]:
    """Yield offsets and types that cover a variable."""
    start = 0
    while start < variable.size:
        size = min(8, variable.alignment)
        while start % size or start + size > variable.size:
            size //= 2
        yield start, f"b{8 * size}"
        start += size
