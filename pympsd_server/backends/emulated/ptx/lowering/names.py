"""The names in a function's text, resolved."""

from __future__ import annotations

import re

from attrs import define, evolve, field

from pympsd_server.backends.emulated.ptx.faults import InvalidPtx
from pympsd_server.backends.emulated.ptx.lowering.function_table import FunctionTable
from pympsd_server.backends.emulated.ptx.lowering.ir import (
    Argument,
    Both,
    Code,
    Group,
    Memory,
    Negative,
    Not,
    Part,
    Predicate,
    Register,
    Sink,
    Special,
    Symbol,
    Target,
)
from pympsd_server.backends.emulated.ptx.lowering.procedures import Frame
from pympsd_server.backends.emulated.ptx.runtime.special_registers import is_special
from pympsd_server.backends.emulated.ptx.syntax import tree
from pympsd_server.backends.emulated.ptx.syntax.tree import (
    Address,
    Arguments,
    Guard,
    Immediate,
    Module,
    Name,
    Negated,
    Operand,
    Pair,
    Prototype,
    Sum,
    Variable,
    Vector,
)

_SELECTOR = re.compile(r"[bh][0-7]+")


@define
class Names:
    """The meaning of names in a scope; `labels` is shared by all scopes of one function instance."""

    meanings: dict[str, Argument]
    prefix: str
    end: str | None
    frame: Frame | None = None
    """The frame of the procedure that the code is part of, None in a kernel."""
    labels: dict[str, str] = field(factory=dict)
    prototypes: dict[str, Prototype] = field(factory=dict)

    def inner(self) -> Names:
        return evolve(self, meanings=dict(self.meanings))


@define
class Resolver:
    """Resolves operands of a kernel. Raises InvalidPtx for unknown names."""

    module: Module
    table: FunctionTable
    code: Code

    def guard(self, guard: Guard, names: Names, line: int) -> Predicate:
        register = names.meanings.get(guard.register)
        if not isinstance(register, Register):
            raise InvalidPtx(f"unknown predicate {guard.register}", line)
        return Predicate(register, guard.negated)

    def argument(self, operand: Operand, names: Names, line: int) -> Argument:
        match operand:
            case Name(text):
                return self._name(text, names, line)
            case Immediate():
                return operand
            case Address(base, offset):
                return self._memory(base, offset, names, line)
            case Vector(items) | Arguments(items):
                return Group(tuple(self.argument(item, names, line) for item in items))
            case Pair(first, second):
                return Both(self.argument(first, names, line), self.argument(second, names, line))
            case Negated(inner):
                register = self.argument(inner, names, line)
                if isinstance(register, Register):
                    return Not(register)
            case tree.Negative(inner):
                register = self.argument(inner, names, line)
                if isinstance(register, Register | Part):
                    return Negative(register)
            case Sum(base, offset):
                symbol = self._name(base.text, names, line)
                if isinstance(symbol, Symbol):
                    return Symbol(symbol.space, symbol.name, symbol.offset + offset)
        raise InvalidPtx("unsupported operand", line)

    def _memory(self, base: Name | Immediate, offset: int, names: Names, line: int) -> Memory:
        if isinstance(base, Immediate):
            return Memory(base, offset)
        argument = self._name(base.text, names, line)
        if not isinstance(argument, Register | Symbol):
            raise InvalidPtx(f"{base.text} is no address", line)
        return Memory(argument, offset)

    def _name(self, text: str, names: Names, line: int) -> Argument:
        known = names.meanings.get(text)
        if known is not None:
            return known
        if text == "_":
            return Sink()
        if text == "WARP_SZ":
            return Immediate(32)
        if text in names.labels:
            return Target(names.labels[text])
        variable = self.module.variables.get(text)
        if variable is not None:
            return self._module_variable(variable, line)
        if is_special(text):
            return Special(text)
        if text in self.table.addresses:
            return Immediate(self.table.addresses[text])
        if text in self.module.functions:
            raise InvalidPtx(f"unsupported: address of function {text}", line)
        base, _, selector = text.rpartition(".")
        register = names.meanings.get(base)
        if isinstance(register, Register) and _SELECTOR.fullmatch(selector):
            return Part(register, selector)
        kind = "special register" if text.startswith("%") else "name"
        raise InvalidPtx(f"unknown or unsupported {kind} {text}", line)

    def _module_variable(self, variable: Variable, line: int) -> Symbol:
        if variable.space == "shared":
            self.code.shared.setdefault(variable.name, variable)
            return Symbol("shared", variable.name)
        if variable.extern:
            raise InvalidPtx(f"unresolved external variable {variable.name}", line)
        return Symbol("const" if variable.space == "const" else "global", variable.name)
