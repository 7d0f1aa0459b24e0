"""Resolve the names in a function's text to registers, symbols, labels and immediates.

`Names` is one scope: the meaning of each name in it. `Resolver` turns an operand of the syntax tree into an argument
of an operation. It looks a name up in the scope first, then among the module's variables, special registers and
functions. Two kinds of operand need operations of their own, which it appends: an array element whose index is in a
register, and outside of brackets the sum of a register and an offset.
"""

from __future__ import annotations

import re

from attrs import define, evolve, field

from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.isa.machine import RESERVED_SHARED, RESERVED_SHARED_BYTES, is_special, vector_axes
from pympsd_server.ptx.lowering.function_table import FunctionTable
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Both,
    Code,
    Group,
    Memory,
    Negative,
    Not,
    Operation,
    Part,
    Predicate,
    Register,
    Sink,
    Special,
    Symbol,
    Target,
    plain,
)
from pympsd_server.ptx.lowering.procedures import Frame
from pympsd_server.ptx.syntax import tree
from pympsd_server.ptx.syntax.tree import (
    Address,
    Arguments,
    Element,
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
    """The names of one scope, and the argument that each stands for."""

    meanings: dict[str, Argument]
    prefix: str
    end: str | None
    frame: Frame | None = None
    """The frame of the procedure to which the scope belongs, or None outside of procedures."""
    labels: dict[str, str] = field(factory=dict)
    prototypes: dict[str, Prototype] = field(factory=dict)
    variables: dict[str, Variable] = field(factory=dict)
    """The names that are variables; the meaning of such a name is the variable's address."""
    suffix: str = ""
    """The suffix of the scope's labels, which no other scope has."""

    def inner(self) -> Names:
        """Return the names of a scope inside this one: at first, the same names."""
        return evolve(
            self,
            meanings=dict(self.meanings),
            labels=dict(self.labels),
            prototypes=dict(self.prototypes),
            variables=dict(self.variables),
        )

    def declare(self, variable: Variable, meaning: Argument) -> None:
        """Declare a variable whose address is `meaning`."""
        self.meanings[variable.name] = meaning
        self.variables[variable.name] = variable

    def declare_registers(self, name: str, registers: tuple[Register, ...]) -> None:
        """Declare a register `%v`, or if there are several a vector `%v` and its parts `%v.x` or `%v.r`, ..."""
        self.meanings[name] = registers[0] if len(registers) == 1 else Group(registers)
        self.variables.pop(name, None)
        if len(registers) > 1:
            for letters in ("xyzw", "rgba"):
                self.meanings |= {f"{name}.{letter}": r for letter, r in zip(letters, registers, strict=False)}

    def declare_wide(self, name: str, halves: tuple[Register, Register]) -> None:
        """Declare a register of 128 bits by its lower and upper halves, which have no names."""
        self.meanings[name] = Group(halves)
        self.variables.pop(name, None)


@define
class Resolver:
    """Turns the operands of a kernel's instructions into arguments. Raises InvalidPtx for unknown names."""

    module: Module
    table: FunctionTable
    code: Code

    def guard(self, guard: Guard, names: Names, line: int) -> Predicate:
        """Return an instruction's guard. Raises InvalidPtx unless it names a register."""
        register = names.meanings.get(guard.register)
        if not isinstance(register, Register):
            raise InvalidPtx(f"unknown predicate {guard.register}", line)
        return Predicate(register, guard.negated)

    def argument(self, operand: Operand, names: Names, line: int) -> Argument:
        """Return the argument for an operand; append the operations that it needs. Raises InvalidPtx."""
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
                return self._address(self._memory(base, offset, names, line), line)
            case Element():
                return self._element(operand, names, line)
        raise InvalidPtx("unsupported operand", line)

    def address(self, operand: Operand, names: Names, line: int) -> Argument:
        """Return the argument for an operand of mov or cvta. For an array element, this is the element's address."""
        argument = self.argument(operand, names, line)
        return (
            self._address(argument, line)
            if isinstance(operand, Element) and isinstance(argument, Memory)
            else argument
        )

    def _element(self, element: Element, names: Names, line: int) -> Memory:
        """Return an array's element as a memory operand; append the operations that compute its address."""
        name = element.base.text
        variable = names.variables.get(name) if name in names.meanings else self.module.variables.get(name)
        if variable is None:
            raise InvalidPtx(f"{name} is not an array", line)
        size = DTYPES[variable.type].itemsize
        memory = self._memory(element.base, element.offset * size, names, line)
        if element.index is None:
            return memory
        index = self._name(element.index.text, names, line)
        kind = self.code.register_types[index.number] if isinstance(index, Register) else ""
        if kind not in ("u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64"):
            raise InvalidPtx(f"the index {element.index.text} is not a register with an integer", line)
        wide, at = self.code.new_register("u64"), self.code.new_register("u64")
        base = self._address(Memory(memory.base, 0), line)
        self.code.operations += [
            plain("cvt", ("s64" if kind[0] == "s" else "u64", kind.replace("b", "u")), (wide, index), line),
            Operation("mad", ("lo",), ("u64",), (at, wide, Immediate(size), base), None, line),
        ]
        return Memory(at, memory.offset)

    def _address(self, memory: Memory, line: int) -> Argument:
        """Return the address of a memory operand; append an addition if a register and an offset must be added."""
        base, offset = memory.base, memory.offset
        if isinstance(base, Symbol):
            return Symbol(base.space, base.name, base.offset + offset)
        if not offset or not isinstance(base, Register):
            return base
        register = self.code.new_register("u64")
        self.code.operations.append(plain("add", ("u64",), (register, base, Immediate(offset)), line))
        return register

    def _memory(self, base: Name | Immediate, offset: int, names: Names, line: int) -> Memory:
        if isinstance(base, Immediate):
            return Memory(base, offset)
        argument = self._name(base.text, names, line)
        if not isinstance(argument, Register | Symbol):
            raise InvalidPtx(f"{base.text} is not an address", line)
        return Memory(argument, offset)

    def _name(self, text: str, names: Names, line: int) -> Argument:
        """Return the argument that a name stands for: in the scope, in the module, or in PTX. Raises InvalidPtx."""
        meaning = names.meanings.get(text)
        if meaning is not None:
            return meaning
        if text == "_":
            return Sink()
        if text == "WARP_SZ":
            return Immediate(32)
        if text in names.labels:
            return Target(names.labels[text])
        variable = self.module.variables.get(text)
        if variable is not None:
            return self._module_variable(variable, line)
        if text in RESERVED_SHARED:
            self.code.reserved_shared_bytes = RESERVED_SHARED_BYTES
            return Immediate(RESERVED_SHARED[text])
        if is_special(text):
            return Special(text)
        if axes := vector_axes(text):
            return Group((*map(Special, axes), Immediate(0)))
        if text.endswith(".w") and vector_axes(text[:-2]):
            return Immediate(0)
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
