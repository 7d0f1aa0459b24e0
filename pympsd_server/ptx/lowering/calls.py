"""Append calls that are not inlined, one operation for each.

They call functions of CUDA's device system library, or procedures of the program.
"""

from collections.abc import Iterator, Sequence

from attrs import frozen

from pympsd.vocabulary.device_runtime import SET_CONDITIONAL
from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.lowering.function_table import parameter_layout
from pympsd_server.ptx.lowering.ir import Argument, Code, Group, Memory, Operation, Register, Symbol, Target, plain
from pympsd_server.ptx.syntax.tree import Function, Immediate, Prototype, Variable


@frozen
class _SystemFunction:
    """A function of the system library: its operation, and the types of its parameters and results."""

    operation: str
    parameters: tuple[str, ...]
    results: tuple[str, ...]


SYSTEM_FUNCTIONS = {
    "vprintf": _SystemFunction("system:vprintf", ("b64", "b64"), ("b32",)),
    "malloc": _SystemFunction("system:malloc", ("b64",), ("b64",)),
    "free": _SystemFunction("system:free", ("b64",), ()),
    SET_CONDITIONAL: _SystemFunction("system:set_conditional", ("b64", "b32"), ()),
    "__assertfail": _SystemFunction("system:assertfail", ("b64", "b64", "b32", "b64", "b64"), ()),
}


def system_call(code: Code, name: str, inputs: Sequence[Argument], results: Sequence[Argument], line: int) -> None:
    """Append the call of a function in SYSTEM_FUNCTIONS. Raises InvalidPtx for a wrong number of arguments.

    `results` may be empty, because some compilers declare a function without its result (Taichi's vprintf).
    """
    callee = SYSTEM_FUNCTIONS[name]
    if len(inputs) != len(callee.parameters) or len(results) not in {0, len(callee.results)}:
        raise InvalidPtx(f"wrong number of arguments for {name}", line)
    arguments = [
        fetch_argument(code, value, type_name, line)
        for value, type_name in zip(inputs, callee.parameters, strict=True)
    ]
    targets = [code.new_register(type_name) for type_name in callee.results]
    code.operations.append(plain(callee.operation, (), (*targets, *arguments), line))
    for register, result, type_name in zip(targets, results, callee.results, strict=bool(results)):
        code.operations.append(store_argument(result, register, type_name, line))


def fetch_argument(code: Code, value: Argument, type_name: str, line: int, offset: int = 0) -> Register:
    """Append a load of a call's .param, or a move of a register; return the register that receives the value.

    If the argument is a vector, `offset` (in bytes) selects the part.
    """
    register = code.new_register(type_name)
    value = _part(value, type_name, offset)
    if isinstance(value, Symbol) and value.space == "call":
        load = Operation("ld", ("param",), (type_name,), (register, Memory(value, offset)), None, line)
        code.operations.append(load)
    else:
        code.operations.append(plain("mov", (type_name,), (register, value), line))
    return register


def store_argument(target: Argument, value: Register, type_name: str, line: int, offset: int = 0) -> Operation:
    """Return a store to a call's .param, or a move to a register; `offset` selects the part of a vector, in bytes."""
    target = _part(target, type_name, offset)
    if isinstance(target, Symbol) and target.space == "call":
        return Operation("st", ("param",), (type_name,), (Memory(target, offset), value), None, line)
    return plain("mov", (type_name,), (target, value), line)


def _part(value: Argument, type_name: str, offset: int) -> Argument:
    return value.items[offset // DTYPES[type_name].itemsize] if isinstance(value, Group) else value


def procedure_call(
    code: Code,
    callee: Target | Group,
    signature: Function | Prototype,
    inputs: Sequence[Argument],
    results: Sequence[Argument],
    line: int,
) -> None:
    """Append a "callproc" operation, which `procedures.expand_calls` replaces.

    Its operands are the results, the callee and the arguments. A result or an argument is an offset in the frame and
    a register. The callee is a label, or a register with an index and the label of a list of functions.
    """
    layout = parameter_layout(signature.returns + signature.parameters)
    count = len(signature.returns)
    arguments: list[Argument] = []
    for (variable, offset), value in zip(layout[count:], inputs, strict=True):
        for start, type_name in _pieces(variable):
            arguments += [Immediate(offset + start), fetch_argument(code, value, type_name, line, start)]
    back: list[Argument] = []
    after = []
    for (variable, offset), target in zip(layout[:count], results, strict=True):
        for start, type_name in _pieces(variable):
            register = code.new_register(type_name)
            back += [Immediate(offset + start), register]
            after.append(store_argument(target, register, type_name, line, start))
    code.operations.append(plain("callproc", (), (Group(tuple(back)), callee, Group(tuple(arguments))), line))
    code.operations += after


def _pieces(variable: Variable) -> Iterator[tuple[int, str]]:
    """Yield the offset and type of each load or store that an access to the whole variable needs."""
    start = 0
    while start < variable.size:
        size = min(8, variable.alignment)
        while start % size or start + size > variable.size:
            size //= 2
        yield start, f"b{8 * size}"
        start += size
