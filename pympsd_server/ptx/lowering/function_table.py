"""Find the statements and addresses of a module's functions, which addresses are taken, and which functions recurse.

A function is parsed when its statements are first needed. So a kernel costs only the functions that it can reach:
those that it calls, and if one of these calls through an address, every function whose address is taken.

A .global, .const or .shared variable that a function declares lives as long as the module. `place_static_variables`
gives it a key of its own.
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
"""The pattern of a .global or .const directive. It begins with a fixed character and checks the characters before it
later, so re skips other text eight times faster."""


def declares_module_memory(body: FunctionText) -> bool:
    """Return whether a function may declare .global or .const variables, which the module needs when it is loaded."""
    return _DECLARATION.search(body.text) is not None


def place_static_variables(module: Module, function: str, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return the statements with a key for each static variable, and add .global and .const ones to the module.

    A key is not a valid name in PTX, so code outside the scope cannot name the variable. If two scopes of a function
    declare the same name, they have two variables. A function that is inlined twice has each variable once.
    """
    return _Function(module, function).statements(statements, {})


@define
class _Function:
    """A function whose static variables are being placed."""

    module: Module
    name: str
    counts: dict[str, int] = field(factory=dict)

    def statements(self, statements: tuple[Statement, ...], outer: dict[str, str]) -> tuple[Statement, ...]:
        """Return statements with keys for their variables; `outer` has the keys of the outer scopes' names."""
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
    """Return a key that is equal for all functions that can be called through the same prototype."""
    sizes = tuple((offset, variable.size) for variable, offset in parameter_layout(returns + parameters))
    return len(returns), sizes


@define(slots=False)
class FunctionTable:
    """The statements, addresses and callees of a module's functions, computed when a kernel first needs them.

    Call `parse_static_variables` first: after it the module has all of its variables.
    """

    module: Module
    _statements: dict[FunctionText, tuple[Statement, ...]] = field(factory=dict)
    _callees_of: dict[str, set[str]] = field(factory=dict)
    _recursive: dict[str, bool] = field(factory=dict)

    def parse_static_variables(self) -> None:
        """Add the .global and .const variables of functions, and the aliases, to the module. Raises InvalidPtx."""
        for function in self.module.functions.values():
            if function.body is not None and declares_module_memory(function.body):
                self.statements(function)
        for alias, name in self.module.aliases.items():
            self.module.functions[alias] = evolve(self.module.functions[name], name=alias)

    def statements(self, function: Function) -> tuple[Statement, ...]:
        """Return a function's statements, or () if it is only declared. Raises InvalidPtx."""
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
        """The functions whose address is taken, in the order of their addresses."""
        addressed_names = {v.symbol for variable in self.module.variables.values() for v in variable.initial}
        for function in self.module.functions.values():
            if self._may_take_address(function):
                for instruction in instructions_of(self.statements(function)):
                    addressed_names |= _names(instruction)
        return tuple(self.module.functions[name] for name in self.addresses if name in addressed_names)

    def candidates(self, call_shape: tuple[object, ...]) -> tuple[Function, ...]:
        """Return the functions that an indirect call may reach, if its prototype has this `shape`."""
        return tuple(f for f in self.addressed if shape(f.returns, f.parameters) == call_shape)

    def _may_take_address(self, function: Function) -> bool:
        """Return whether the text of a function names a function other than as the callee of a call."""
        if function.body is None or not self.addresses:
            return False
        return not self.addresses.keys().isdisjoint(_WORD.findall(_CALLEE.sub("", function.body.text)))

    def is_recursive(self, name: str) -> bool:
        """Return whether a function can call itself, directly or through others. Raises InvalidPtx."""
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
    """Yield the instructions among the statements and in their scopes."""
    for statement in statements:
        if isinstance(statement, Instruction):
            yield statement
        elif isinstance(statement, Scope):
            yield from instructions_of(statement.statements)


def _names(instruction: Instruction) -> set[str]:
    """Return the names in an instruction except the callee of a call."""
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
