"""The functions of a module: their addresses, whose address is taken, and which call themselves."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from attrs import define

from pympsd_server.backends.emulated.ptx.isa.machine import FUNCTION_BASE, FUNCTION_BYTES
from pympsd_server.backends.emulated.ptx.syntax.tree import (
    Function,
    Instruction,
    Module,
    Name,
    Scope,
    Statement,
    Sum,
    Variable,
    Vector,
)

Layout = list[tuple[Variable, int]]


def parameter_layout(parameters: tuple[Variable, ...]) -> Layout:
    """Return each parameter with its offset in the parameter buffer."""
    layout, offset = [], 0
    for parameter in parameters:
        offset = -(-offset // parameter.alignment) * parameter.alignment
        layout.append((parameter, offset))
        offset += parameter.size
    return layout


def shape(returns: tuple[Variable, ...], parameters: tuple[Variable, ...]) -> tuple[object, ...]:
    """Return what two functions have in common that can be called through one prototype."""
    sizes = tuple((offset, variable.size) for variable, offset in parameter_layout(returns + parameters))
    return len(returns), sizes


@define(slots=False)
class FunctionTable:
    """Computed from a module as far as its kernels ask."""

    module: Module

    @cached_property
    def addresses(self) -> Mapping[str, int]:
        """The address of each function that is not a kernel and has a body."""
        aliases = self.module.aliases
        functions = [(name, f) for name, f in self.module.functions.items() if name not in aliases]
        callable_ = [name for name, f in functions if not f.is_entry and f.body is not None]
        addresses = {name: FUNCTION_BASE + FUNCTION_BYTES * index for index, name in enumerate(callable_, 1)}
        return addresses | {alias: addresses[name] for alias, name in aliases.items()}

    @cached_property
    def addressed(self) -> tuple[Function, ...]:
        """The functions whose address is taken, in their order."""
        taken = {v.symbol for variable in self.module.variables.values() for v in variable.initial}
        for function in self.module.functions.values():
            for instruction in _instructions(function.body or ()):
                taken |= _names(instruction)
        return tuple(self.module.functions[name] for name in self.addresses if name in taken)

    def candidates(self, call_shape: tuple[object, ...]) -> tuple[Function, ...]:
        """Return the functions that an indirect call of this shape may reach."""
        return tuple(f for f in self.addressed if shape(f.returns, f.parameters) == call_shape)

    @cached_property
    def recursive(self) -> frozenset[str]:
        """The functions that can come to call themselves."""
        calls = {name: self._callees(function) for name, function in self.module.functions.items()}
        return frozenset(name for name in calls if name in _reachable(calls, name))

    def _callees(self, function: Function) -> set[str]:
        callees: set[str] = set()
        for instruction in _instructions(function.body or ()):
            if instruction.name != "call":
                continue
            callee = next((o for o in instruction.operands if isinstance(o, Name)), None)
            if callee is not None and callee.text in self.module.functions:
                callees.add(callee.text)
            else:
                callees |= {candidate.name for candidate in self.addressed}
        return callees


def _reachable(calls: dict[str, set[str]], start: str) -> set[str]:
    reachable: set[str] = set()
    todo = [start]
    while todo:
        new = calls.get(todo.pop(), set()) - reachable
        reachable |= new
        todo += new
    return reachable


def _instructions(statements: tuple[Statement, ...]) -> Iterator[Instruction]:
    for statement in statements:
        if isinstance(statement, Instruction):
            yield statement
        elif isinstance(statement, Scope):
            yield from _instructions(statement.statements)


def _names(instruction: Instruction) -> set[str]:
    """Return the names in an instruction, less the callee of a call."""
    names: set[str] = set()
    first = instruction.name == "call"
    for operand in instruction.operands:
        for item in operand.items if isinstance(operand, Vector) else (operand,):
            if isinstance(item, Name) and first:
                first = False
            elif isinstance(item, Name):
                names.add(item.text)
            elif isinstance(item, Sum):
                names.add(item.base.text)
    return names
