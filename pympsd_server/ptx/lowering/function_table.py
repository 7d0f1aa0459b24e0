"""The functions of a module: their statements, their addresses, whose address is taken, and which call themselves.

A function is parsed when its statements are first asked for, so that a kernel costs only what it can reach: the
functions that it calls, and if one of them calls by an address those whose address is taken.

Variables that functions declare and that live as long as the module (.global, .const and .shared ones) become the
module's: `place_static_variables`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from attrs import define, evolve, field

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.isa.machine import FUNCTION_BASE, FUNCTION_BYTES
from pympsd_server.ptx.syntax.parser import parse_body
from pympsd_server.ptx.syntax.tree import (
    Function,
    FunctionText,
    Initialiser,
    Instruction,
    Module,
    Name,
    Registers,
    Scope,
    Statement,
    Sum,
    Variable,
    Vector,
)

_STATIC = frozenset({"global", "const", "shared"})
_DECLARATION: Final = re.compile(r"\.(?:global(?<=[\s;{}/]\.global)|const(?<=[\s;{}/]\.const))\b")
"""Begins with a character, and looks back afterwards: re then skips other text eight times faster."""


def declares_module_memory(body: FunctionText) -> bool:
    """Return whether a function may declare .global or .const variables, which exist before it is parsed."""
    return _DECLARATION.search(body.text) is not None


def place_static_variables(module: Module, function: str, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Give each static variable of a function a key of its own, and enter .global and .const ones in the module.

    A key is not a name of PTX, so that nothing outside of the scope finds the variable. Two variables of one name, in
    two scopes of a function, are two variables; a function that is inlined twice has each of them once.
    """
    return _Function(module, function).statements(statements, {})


@define
class _Function:
    """The static variables of one function while they are placed."""

    module: Module
    name: str
    counts: dict[str, int] = field(factory=dict)

    def statements(self, statements: tuple[Statement, ...], outer: dict[str, str]) -> tuple[Statement, ...]:
        """Return the statements with their keys; `outer` are the keys of the names of outer scopes."""
        keys, result = dict(outer), []
        for statement in statements:
            if isinstance(statement, Scope):
                statement = Scope(self.statements(statement.statements, keys))
            elif isinstance(statement, Variable) and statement.space in _STATIC:
                number = self.counts[statement.name] = self.counts.get(statement.name, 0) + 1
                key = f"{self.name}:{statement.name}" if number == 1 else f"{self.name}:{statement.name}#{number}"
                initial = tuple(_rename_initialiser(value, keys) for value in statement.initial)
                keys[statement.name] = key
                if statement.space != "shared":
                    self.module.variables[key] = evolve(statement, name=key, key=key, initial=initial)
                statement = evolve(statement, key=key)
            elif isinstance(statement, Variable):
                keys.pop(statement.name, None)
            elif isinstance(statement, Registers):
                for name in statement.names:
                    keys.pop(name, None)
            result.append(statement)
        return tuple(result)


def _rename_initialiser(value: Initialiser, keys: dict[str, str]) -> Initialiser:
    return value if value.symbol is None else evolve(value, symbol=keys.get(value.symbol, value.symbol))


Layout = list[tuple[Variable, int]]
MAX_STATEMENTS: Final = 400_000
_WORD: Final = re.compile(r"[A-Za-z_$%][\w$]*")
_CALLEE: Final = re.compile(r"\bcall(?:\.\w+)*\s*(?:\([^()]*\)\s*,\s*)?[\w$%]+")


def parameter_layout(parameters: tuple[Variable, ...]) -> Layout:
    """Return each parameter with its offset in the parameter buffer."""
    layout, offset = [], 0
    for parameter in parameters:
        offset = -(-offset // parameter.alignment) * parameter.alignment
        layout.append((parameter, offset))
        offset += parameter.size
    return layout


def shape(returns: tuple[Variable, ...], parameters: tuple[Variable, ...]) -> tuple[object, ...]:
    """Return the part of a function's declaration that is equal for all functions callable through one prototype."""
    sizes = tuple((offset, variable.size) for variable, offset in parameter_layout(returns + parameters))
    return len(returns), sizes


@define(slots=False)
class FunctionTable:
    """Computed from a module as far as its kernels ask.

    `parse_static_variables` comes first: the variables of the module are complete after it.
    """

    module: Module
    _statements: dict[FunctionText, tuple[Statement, ...]] = field(factory=dict)
    _callees_of: dict[str, set[str]] = field(factory=dict)
    _recursive: dict[str, bool] = field(factory=dict)

    def parse_static_variables(self) -> None:
        """Enter the .global and .const variables of functions in the module, and its aliases. Raises InvalidPtx."""
        for function in self.module.functions.values():
            if function.body is not None and declares_module_memory(function.body):
                self.statements(function)
        for alias, name in self.module.aliases.items():
            self.module.functions[alias] = evolve(self.module.functions[name], name=alias)

    def statements(self, function: Function) -> tuple[Statement, ...]:
        """Return a function's statements, () for a declaration. Raises InvalidPtx."""
        if function.body is None:
            return ()
        statements = self._statements.get(function.body)
        if statements is None:
            if function.body.text.count(";") > MAX_STATEMENTS:
                raise InvalidPtx(f"{function.name} has more than {MAX_STATEMENTS} statements", function.line)
            name = self.module.aliases.get(function.name, function.name)
            statements = place_static_variables(self.module, name, parse_body(function.body))
            self._statements[function.body] = statements
        return statements

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
        addressed_names = {v.symbol for variable in self.module.variables.values() for v in variable.initial}
        for function in self.module.functions.values():
            if self._may_take_address(function):
                for instruction in instructions_of(self.statements(function)):
                    addressed_names |= _names(instruction)
        return tuple(self.module.functions[name] for name in self.addresses if name in addressed_names)

    def candidates(self, call_shape: tuple[object, ...]) -> tuple[Function, ...]:
        """Return the functions that an indirect call of this shape may reach."""
        return tuple(f for f in self.addressed if shape(f.returns, f.parameters) == call_shape)

    def _may_take_address(self, function: Function) -> bool:
        """Return whether a function's text names another one, except as the callee of a call."""
        if function.body is None or not self.addresses:
            return False
        return not self.addresses.keys().isdisjoint(_WORD.findall(_CALLEE.sub("", function.body.text)))

    def is_recursive(self, name: str) -> bool:
        """Return whether a function can come to call itself. Raises InvalidPtx."""
        if name not in self._recursive:
            self._recursive[name] = name in self._reachable(name)
        return self._recursive[name]

    def _reachable(self, name: str) -> set[str]:
        reachable: set[str] = set()
        todo = [name]
        while todo:
            new = self._callees(todo.pop()) - reachable
            reachable |= new
            todo += new
        return reachable

    def _callees(self, name: str) -> set[str]:
        callees = self._callees_of.get(name)
        if callees is None:
            callees = self._callees_of[name] = self._find_callees(self.module.functions[name])
        return callees

    def _find_callees(self, function: Function) -> set[str]:
        callees: set[str] = set()
        for instruction in instructions_of(self.statements(function)):
            if instruction.name != "call":
                continue
            callee = next((o for o in instruction.operands if isinstance(o, Name)), None)
            if callee is not None and callee.text in self.module.functions:
                callees.add(callee.text)
            else:
                callees |= {candidate.name for candidate in self.addressed}
        return callees


def instructions_of(statements: tuple[Statement, ...]) -> Iterator[Instruction]:
    """Yield the instructions of statements and of the scopes in them."""
    for statement in statements:
        if isinstance(statement, Instruction):
            yield statement
        elif isinstance(statement, Scope):
            yield from instructions_of(statement.statements)


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
