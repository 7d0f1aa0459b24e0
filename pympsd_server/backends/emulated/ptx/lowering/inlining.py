"""A kernel's syntax to flat operations: scopes resolved, .func calls inlined."""

from __future__ import annotations

from attrs import define, evolve, field

from pympsd.vocabulary.device_runtime import is_device_runtime, refusal
from pympsd_server.backends.emulated.ptx.faults import InvalidPtx, UnsupportedByMps
from pympsd_server.backends.emulated.ptx.lowering.ir import (
    Argument,
    Both,
    Code,
    Group,
    Memory,
    Not,
    Operation,
    Predicate,
    Register,
    Sink,
    Special,
    Symbol,
    Target,
    label,
    plain,
)
from pympsd_server.backends.emulated.ptx.runtime.special_registers import is_special
from pympsd_server.backends.emulated.ptx.syntax.tree import (
    Address,
    Arguments,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Name,
    Negated,
    Operand,
    Pair,
    Registers,
    Scope,
    Statement,
    Sum,
    Targets,
    Variable,
    Vector,
)

MAXIMUM_OPERATIONS = 400_000
_NOT_PREDICABLE = frozenset({"bar", "barrier", "trap", "call", "assertfail", "brx", "activemask"})


@define
class _Names:
    """The meaning of names in a scope; `labels` is shared by all scopes of one function instance."""

    meanings: dict[str, Argument]
    prefix: str
    end: str | None
    labels: dict[str, str] = field(factory=dict)

    def inner(self) -> _Names:
        return evolve(self, meanings=dict(self.meanings))


def flatten(module: Module, kernel: Function) -> Code:
    """Return the kernel as one list of operations. Raises InvalidPtx for what cannot be inlined or resolved."""
    code = Code(kernel.name)
    code.carry = code.new_register("u32")
    names = _Names({}, "", None)
    for parameter, offset in parameter_layout(kernel.parameters):
        names.meanings[parameter.name] = Symbol("param", parameter.name, offset)
    flattener = _Flattener(module, code)
    flattener.function(kernel, names, (kernel.name,))
    code.operations.append(plain("exit", (), (), kernel.line))
    return code


def parameter_layout(parameters: tuple[Variable, ...]) -> list[tuple[Variable, int]]:
    """Return each parameter with its offset in the parameter buffer."""
    layout, offset = [], 0
    for parameter in parameters:
        offset = -(-offset // parameter.alignment) * parameter.alignment
        layout.append((parameter, offset))
        offset += parameter.size
    return layout


@define
class _Flattener:
    module: Module
    code: Code
    instances: int = 0
    skips: int = 0

    def function(self, function: Function, names: _Names, stack: tuple[str, ...]) -> None:
        if function.body is None:
            raise InvalidPtx(f"unsupported: call of {function.name}, which has no body", function.line)
        self._collect_labels(function.body, names)
        self._statements(function.body, names, stack)

    def _collect_labels(self, statements: tuple[Statement, ...], names: _Names) -> None:
        for statement in statements:
            if isinstance(statement, Label):
                names.labels[statement.name] = names.prefix + statement.name
            elif isinstance(statement, Scope):
                self._collect_labels(statement.statements, names)

    def _statements(self, statements: tuple[Statement, ...], names: _Names, stack: tuple[str, ...]) -> None:
        for statement in statements:
            match statement:
                case Instruction():
                    self._instruction(statement, names, stack)
                case Label():
                    self.code.operations.append(label(names.labels[statement.name], statement.line))
                case Registers():
                    for name in statement.names:
                        names.meanings[name] = self.code.new_register(statement.type)
                case Variable():
                    self._variable(statement, names, stack[-1])
                case Targets():
                    key = names.prefix + statement.name
                    self.code.branch_targets[key] = tuple(names.labels[n] for n in statement.labels)
                    names.labels[statement.name] = key
                case Scope():
                    self._statements(statement.statements, names.inner(), stack)

    def _variable(self, variable: Variable, names: _Names, function: str) -> None:
        if variable.space == "shared":
            # One for all instances of its function, as a static variable is.
            key = f"{function}:{variable.name}"
            self.code.shared[key] = variable
            names.meanings[variable.name] = Symbol("shared", key)
        elif variable.space == "local":
            key = f"{names.prefix}{variable.name}#{len(self.code.local)}"
            self.code.local[key] = variable
            names.meanings[variable.name] = Symbol("local", key)
        elif variable.space == "param":
            self.skips += 1
            key = f"{names.prefix}{variable.name}#{self.skips}"
            self.code.local[key] = variable
            names.meanings[variable.name] = Symbol("call", key)
        else:
            raise InvalidPtx(f"unsupported: .{variable.space} variable in a function", variable.line)

    def _instruction(self, instruction: Instruction, names: _Names, stack: tuple[str, ...]) -> None:
        if len(self.code.operations) > MAXIMUM_OPERATIONS:
            raise InvalidPtx("the kernel is too large once its calls are inlined", instruction.line)
        if instruction.guard is not None and (instruction.name in _NOT_PREDICABLE or "sync" in instruction.modifiers):
            self._skip_unless(instruction, names, stack)
        elif instruction.name == "call":
            self._call(instruction, names, stack)
        elif instruction.name == "ret":
            self._return(instruction, names)
        else:
            operands = tuple(self._argument(o, names, instruction.line) for o in instruction.operands)
            self._emit(instruction, operands, names)

    def _emit(self, instruction: Instruction, operands: tuple[Argument, ...], names: _Names) -> None:
        guard = None if instruction.guard is None else self._guard(instruction.guard, names, instruction.line)
        self.code.operations.append(
            Operation(instruction.name, instruction.modifiers, instruction.types, operands, guard, instruction.line)
        )

    def _skip_unless(self, instruction: Instruction, names: _Names, stack: tuple[str, ...]) -> None:
        """A guarded instruction that threads must not run masked: branch around it."""
        assert instruction.guard is not None
        self.skips += 1
        after = f"{names.prefix}$skip{self.skips}"
        guard = self._guard(instruction.guard, names, instruction.line)
        around = Predicate(guard.register, not guard.negated)
        line = instruction.line
        self.code.operations.append(Operation("bra", (), (), (Target(after),), around, line))
        self._instruction(evolve(instruction, guard=None), names, stack)
        self.code.operations.append(label(after, line))

    def _return(self, instruction: Instruction, names: _Names) -> None:
        if names.end is None:
            self._emit(evolve(instruction, name="exit", modifiers=()), (), names)
        else:
            self._emit(evolve(instruction, name="bra", modifiers=()), (Target(names.end),), names)

    def _guard(self, guard: Guard, names: _Names, line: int) -> Predicate:
        register = names.meanings.get(guard.register)
        if not isinstance(register, Register):
            raise InvalidPtx(f"unknown predicate {guard.register}", line)
        return Predicate(register, guard.negated)

    def _call(self, instruction: Instruction, names: _Names, stack: tuple[str, ...]) -> None:
        line = instruction.line
        operands = list(instruction.operands)
        results = operands.pop(0).items if operands and isinstance(operands[0], Arguments) else ()  # type: ignore[union-attr]
        callee = operands.pop(0) if operands else None
        if not isinstance(callee, Name) or callee.text in names.meanings or len(operands) > 1:
            raise InvalidPtx("unsupported: indirect call", line)
        inputs = operands[0].items if operands and isinstance(operands[0], Arguments) else ()
        if callee.text == "__assertfail":
            self.code.operations.append(plain("assertfail", (), (), line))
            return
        function = self.module.functions.get(callee.text)
        if function is None or function.body is None:
            if is_device_runtime(callee.text):
                raise UnsupportedByMps(refusal(callee.text), line)
            raise InvalidPtx(f"unsupported: call of {callee.text}, which has no body here", line)
        if callee.text in stack:
            raise InvalidPtx(f"unsupported: recursion of {callee.text}", line)
        if len(inputs) != len(function.parameters) or len(results) != len(function.returns):
            raise InvalidPtx(f"wrong number of arguments for {callee.text}", line)
        self._inline(function, inputs, results, names, stack, line)

    def _inline(
        self,
        function: Function,
        inputs: tuple[Operand, ...],
        results: tuple[Operand, ...],
        names: _Names,
        stack: tuple[str, ...],
        line: int,
    ) -> None:
        self.instances += 1
        prefix = f"{self.instances}:"
        inside = _Names({}, prefix, prefix + "$end")
        for formal, actual in zip(function.parameters, inputs, strict=True):
            inside.meanings[formal.name] = self._bind(formal, self._argument(actual, names, line), line)
        back: list[tuple[Argument, Argument, str]] = []
        for formal, actual in zip(function.returns, results, strict=True):
            wanted = self._argument(actual, names, line)
            if formal.space == "param":
                inside.meanings[formal.name] = wanted
            else:
                register = self.code.new_register(formal.type)
                inside.meanings[formal.name] = register
                back.append((wanted, register, formal.type))
        self.function(function, inside, (*stack, function.name))
        self.code.operations.append(label(prefix + "$end", line))
        for wanted, inner, type_name in back:
            self.code.operations.append(plain("mov", (type_name,), (wanted, inner), line))

    def _bind(self, formal: Variable, given: Argument, line: int) -> Argument:
        """Alias a call's .param (its value is only read inside), or copy a register."""
        if formal.space == "param":
            if not (isinstance(given, Symbol) and given.space == "call"):
                raise InvalidPtx("unsupported: register passed for a .param argument", line)
            return given
        register = self.code.new_register(formal.type)
        self.code.operations.append(plain("mov", (formal.type,), (register, given), line))
        return register

    def _argument(self, operand: Operand, names: _Names, line: int) -> Argument:
        match operand:
            case Name(text):
                return self._name(text, names, line)
            case Immediate():
                return operand
            case Address(base, offset):
                return self._memory(base, offset, names, line)
            case Vector(items) | Arguments(items):
                return Group(tuple(self._argument(item, names, line) for item in items))
            case Pair(first, second):
                return Both(self._argument(first, names, line), self._argument(second, names, line))
            case Negated(inner):
                register = self._argument(inner, names, line)
                if isinstance(register, Register):
                    return Not(register)
            case Sum(base, offset):
                symbol = self._name(base.text, names, line)
                if isinstance(symbol, Symbol):
                    return Symbol(symbol.space, symbol.name, symbol.offset + offset)
        raise InvalidPtx("unsupported operand", line)

    def _memory(self, base: Name | Immediate, offset: int, names: _Names, line: int) -> Memory:
        if isinstance(base, Immediate):
            return Memory(base, offset)
        argument = self._name(base.text, names, line)
        if not isinstance(argument, Register | Symbol):
            raise InvalidPtx(f"{base.text} is no address", line)
        return Memory(argument, offset)

    def _name(self, text: str, names: _Names, line: int) -> Argument:
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
        if text in self.module.functions:
            raise InvalidPtx(f"unsupported: address of function {text}", line)
        kind = "special register" if text.startswith("%") else "name"
        raise InvalidPtx(f"unknown or unsupported {kind} {text}", line)

    def _module_variable(self, variable: Variable, line: int) -> Symbol:
        if variable.space == "shared":
            self.code.shared.setdefault(variable.name, variable)
            return Symbol("shared", variable.name)
        if variable.extern:
            raise InvalidPtx(f"unresolved external variable {variable.name}", line)
        return Symbol("const" if variable.space == "const" else "global", variable.name)
