"""Variables that functions declare and that live as long as the module: .global, .const and .shared ones."""

import re
from typing import Final

from attrs import define, evolve, field

from pympsd_server.backends.emulated.ptx.syntax.tree import (
    FunctionText,
    Initialiser,
    Module,
    Registers,
    Scope,
    Statement,
    Variable,
)

_STATIC = frozenset({"global", "const", "shared"})
_DECLARATION: Final = re.compile(r"[\s;{}/]\.(?:global|const)\b")


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
                initial = tuple(_with_key(value, keys) for value in statement.initial)
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


def _with_key(value: Initialiser, keys: dict[str, str]) -> Initialiser:
    return value if value.symbol is None else evolve(value, symbol=keys.get(value.symbol, value.symbol))
