"""Flatten a kernel's syntax into one list of operations: resolve scopes, inline calls, append procedures.

The NumPy tier runs all threads of a batch together, block by block, so it needs a kernel that is one flat list of
operations. PTX has nested scopes, functions with their own registers, and calls. `flatten` makes one list of them:

    .func (.reg .u32 r) twice(.reg .u32 x)        mov %1:x, %a           the argument to a register of the instance
    { add.u32 r, x, x; ret; }                     add %1:r, %1:x, %1:x   the body, every name renamed
                                          ──▶     bra 1:$end             ret
    call (%b), twice, (%a);                       1:$end:
                                                  mov %b, %1:r           the result

- *Scopes.* `Names` has the meaning of every name in a scope; an inner scope starts with a copy. A label gets the
  number of its scope as a suffix, because inline assembly repeats labels.
- *Calls* are inlined. Each call is an instance with a prefix of its own, so registers and labels never collide. The
  .param variables of a call are in space "call"; call_parameters.py then turns most of them into registers.
- *Procedures.* A function that can call itself, or is called by its address, cannot be inlined. Its code is appended
  once, with a frame in local memory, and a call becomes "callproc" (procedures.py).
- *Guards.* Most guarded instructions run with a mask. Barriers, calls and traps must not run at all for the threads
  whose guard is false, so `_skip_unless` emits a branch around them.

What must never happen: code that grows without a bound. Inlining can multiply a kernel's code, so a kernel is refused
when it exceeds MAX_OPERATIONS, with the line of the instruction that did.
"""

from collections.abc import Sequence

from attrs import define, evolve, field

from pympsd.vocabulary.device_runtime import is_device_runtime, refusal
from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.faults import InvalidPtx, UnsupportedByMps
from pympsd_server.ptx.lowering.calls import (
    SYSTEM_FUNCTIONS,
    fetch_argument,
    procedure_call,
    store_argument,
    system_call,
)
from pympsd_server.ptx.lowering.function_table import FunctionTable, parameter_layout, shape
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Code,
    Group,
    Memory,
    Operation,
    Predicate,
    Register,
    Symbol,
    Target,
    label,
    plain,
)
from pympsd_server.ptx.lowering.names import Names, Resolver
from pympsd_server.ptx.lowering.procedures import Frame, align, stack_instruction, stack_register
from pympsd_server.ptx.lowering.wide import WIDE, check_wide, lower_wide
from pympsd_server.ptx.syntax.tokens import MAX_REGISTERS
from pympsd_server.ptx.syntax.tree import (
    Arguments,
    Function,
    Immediate,
    Instruction,
    Label,
    Name,
    Operand,
    Prototype,
    Registers,
    Scope,
    Statement,
    Targets,
    Variable,
)

MAX_OPERATIONS = 400_000
STACK_INSTRUCTIONS = frozenset({"alloca", "stacksave", "stackrestore"})
_OF_ADDRESSES = frozenset({"mov", "cvta"})
_NOT_PREDICABLE = frozenset(
    {"bar", "barrier", "trap", "call", "system:assertfail", "brx", "activemask", "vote", "shfl", *STACK_INSTRUCTIONS}
)
_WITHOUT_SYNC_UNTIL = (6, 4)
"""From this version of PTX, only targets below sm_70 have votes and shuffles without .sync."""


def flatten(table: FunctionTable, kernel: Function) -> Code:
    """Return the kernel as one list of operations. Raises InvalidPtx for unknown names and unsupported code."""
    module = table.module
    code = Code(kernel.name, wide_accesses=module.version >= (8, 8) and module.target.architecture >= 100)
    code.carry = code.new_register("u32")
    names = Names({}, "", None)
    for parameter, offset in parameter_layout(kernel.parameters):
        code.parameter_bytes = offset + parameter.size
        names.declare(parameter, Symbol("param", parameter.name, offset))
    flattener = _Flattener(table, code, Resolver(module, table, code))
    flattener.function(kernel, names)
    code.operations.append(plain("exit", (), (), kernel.line))
    flattener.append_procedures()
    return code


@define
class _Flattener:
    """The state of `flatten`: the list of operations, and counters that make names unique."""

    table: FunctionTable
    code: Code
    resolver: Resolver
    instances: int = 0
    skips: int = 0
    scopes: int = 0
    procedures: dict[str, Function] = field(factory=dict)
    """The procedures that are called, by name, in the order in which they are appended."""

    def append_procedures(self) -> None:
        """Append the procedures that were called, and those that they call."""
        count = 0
        while count < len(self.procedures):
            self._procedure(tuple(self.procedures.values())[count])
            count += 1

    def _procedure(self, function: Function) -> None:
        stack, line = stack_register(self.code), function.line
        frame = Frame(self.code.new_register("u64"))
        self.instances += 1
        names = Names({}, f"{self.instances}:", None, frame)
        append = self.code.operations.append
        append(label(self._entry(function), line))
        append(plain("mov", ("u64",), (frame.base, stack), line))
        self._place_parameters(function, names, frame)
        reserve = len(self.code.operations)
        append(plain("label", (), (Target(f"{names.prefix}$reserve"),), line))
        self.function(function, names)
        # The size of the frame is known only after the body, which places variables in it.
        size = Immediate(align(frame.size))
        self.code.operations[reserve] = plain("add", ("u64",), (stack, frame.base, size), line)
        self._return_from(frame, line)

    def _place_parameters(self, function: Function, names: Names, frame: Frame) -> None:
        layout = parameter_layout(function.returns + function.parameters)
        for index, (formal, offset) in enumerate(layout):
            frame.size = max(frame.size, offset + formal.size)
            if formal.space == "param":
                register = self._address(frame, offset, formal.line)
                frame.addresses.add(register.number)
                names.declare(formal, register)
            else:
                self._place_registers(formal, offset, names, frame, is_result=index < len(function.returns))

    def _place_registers(self, formal: Variable, offset: int, names: Names, frame: Frame, *, is_result: bool) -> None:
        registers = self._new_registers(formal)
        for start, register in zip(_parts(formal), registers, strict=True):
            if is_result:
                frame.results.append((register, formal.type, offset + start))
                continue
            operands = (register, Memory(frame.base, offset + start))
            self.code.operations.append(Operation("ld", ("local",), (formal.type,), operands, None, formal.line))
        names.declare_registers(formal.name, registers)

    def _new_registers(self, formal: Variable) -> tuple[Register, ...]:
        return tuple(self.code.new_register(formal.type) for _ in _parts(formal))

    def _address(self, frame: Frame, offset: int, line: int) -> Register:
        register = self.code.new_register("u64")
        self.code.operations.append(plain("add", ("u64",), (register, frame.base, Immediate(offset)), line))
        return register

    def _return_from(self, frame: Frame, line: int) -> None:
        for register, type_name, offset in frame.results:
            memory = Memory(frame.base, offset)
            self.code.operations.append(Operation("st", ("local",), (type_name,), (memory, register), None, line))
        self.code.operations.append(plain("procreturn", (), (frame.base,), line))

    def _entry(self, function: Function) -> str:
        self.procedures.setdefault(function.name, function)
        stack_register(self.code)
        return f"$function:{function.name}"

    def function(self, function: Function, names: Names) -> None:
        """Append a function's body. Raises InvalidPtx if it has none."""
        if function.body is None:
            raise InvalidPtx(f"unsupported: call of {function.name}, which has no body", function.line)
        self._scope(self.table.statements(function), names)

    def _scope(self, statements: tuple[Statement, ...], names: Names) -> None:
        """Flatten a scope. Its labels belong to this scope only, because inline assembly repeats their names."""
        self.scopes += 1
        names.suffix = f"#{self.scopes}"
        for statement in statements:
            if isinstance(statement, Label):
                names.labels[statement.name] = names.prefix + statement.name + names.suffix
        self._statements(statements, names)

    def _statements(self, statements: tuple[Statement, ...], names: Names) -> None:
        for statement in statements:
            match statement:
                case Instruction():
                    self._instruction(statement, names)
                case Label():
                    self.code.operations.append(label(names.labels[statement.name], statement.line))
                case Registers():
                    self._registers(statement, names)
                case Variable():
                    self._variable(statement, names)
                case Prototype():
                    names.prototypes[statement.name] = statement
                case Targets():
                    key = names.prefix + statement.name + names.suffix
                    self.code.branch_targets[key] = tuple(names.labels[n] for n in statement.labels)
                    names.labels[statement.name] = key
                case Scope():
                    self._scope(statement.statements, names.inner())

    def _registers(self, registers: Registers, names: Names) -> None:
        if len(self.code.register_types) + len(registers.names) > MAX_REGISTERS:
            raise InvalidPtx(f"the kernel has more than {MAX_REGISTERS} registers", registers.line)
        if registers.type != WIDE:
            for name in registers.names:
                new = tuple(self.code.new_register(registers.type) for _ in range(registers.length))
                names.declare_registers(name, new)
            return
        check_wide(self.table.module, None, registers.line)
        for name in registers.names:
            names.declare_wide(name, (self.code.new_register("b64"), self.code.new_register("b64")))

    def _variable(self, variable: Variable, names: Names) -> None:
        if variable.space in ("global", "const"):
            names.declare(variable, Symbol(variable.space, variable.key))
        elif variable.space == "shared":
            self.code.shared[variable.key] = variable
            names.declare(variable, Symbol("shared", variable.key))
        elif variable.space == "local" and names.frame is not None:
            offset = names.frame.place(variable)
            names.declare(variable, self._address(names.frame, offset, variable.line))
        elif variable.space == "local":
            names.declare(variable, Symbol("local", self._local(variable, names)))
        elif variable.space == "param":
            names.declare(variable, Symbol("call", self._local(variable, names)))
        else:
            raise InvalidPtx(f"unsupported: .{variable.space} variable in a function", variable.line)

    def _local(self, variable: Variable, names: Names) -> str:
        """Add a .local variable, or a .param variable of a call, and return its key."""
        self.skips += 1
        key = f"{names.prefix}{variable.name}#{self.skips}"
        self.code.local[key] = variable
        return key

    def _instruction(self, instruction: Instruction, names: Names) -> None:
        if len(self.code.operations) > MAX_OPERATIONS:
            reason = f"the kernel has more than {MAX_OPERATIONS} operations once its calls are inlined"
            raise InvalidPtx(reason, instruction.line)
        if instruction.name in ("vote", "shfl") and "sync" not in instruction.modifiers:
            self._check_without_sync(instruction)
        apart = instruction.name in _NOT_PREDICABLE or (instruction.name == "ret" and names.frame is not None)
        if instruction.guard is not None and (apart or "sync" in instruction.modifiers):
            self._skip_unless(instruction, names)
        elif instruction.name == "barrier" and instruction.modifiers[:2] == ("cluster", "arrive"):
            # Emit nothing: the thread must wait later, and counts as arrived then.
            if instruction.operands or set(instruction.modifiers[2:]) - {"release", "relaxed", "aligned"}:
                raise InvalidPtx(f"unsupported instruction {instruction.opcode}", instruction.line)
        elif instruction.name == "call":
            self._call(instruction, names)
        elif instruction.name == "ret":
            if names.end is None and names.frame is not None:
                self._return_from(names.frame, instruction.line)
            elif names.end is None:
                self._emit(evolve(instruction, name="exit", modifiers=()), (), names)
            else:
                self._emit(evolve(instruction, name="bra", modifiers=()), (Target(names.end),), names)
        else:
            resolve = self.resolver.address if instruction.name in _OF_ADDRESSES else self.resolver.argument
            operands = tuple(resolve(o, names, instruction.line) for o in instruction.operands)
            if instruction.name in STACK_INSTRUCTIONS:
                self.code.operations.append(stack_instruction(self.code, instruction, operands))
                return
            self._emit(instruction, operands, names)

    def _check_without_sync(self, instruction: Instruction) -> None:
        """Raise InvalidPtx if this version of PTX has no vote or shuffle without .sync for the target (PTX ISA)."""
        version, target = self.table.module.version, self.table.module.target
        if version >= _WITHOUT_SYNC_UNTIL and target.architecture >= 70:
            raise InvalidPtx(
                f"{instruction.opcode} without .sync: PTX {version[0]}.{version[1]} has it for targets below sm_70 "
                f"only, not for {target}; add .sync and a membermask",
                instruction.line,
            )

    def _emit(self, instruction: Instruction, operands: tuple[Argument, ...], names: Names) -> None:
        guard = None if instruction.guard is None else self.resolver.guard(instruction.guard, names, instruction.line)
        modifiers = tuple("param" if m == "param::func" else m for m in instruction.modifiers)
        if names.frame is not None and "param" in modifiers and _bases(operands) & names.frame.addresses:
            modifiers = tuple("local" if m == "param" else m for m in modifiers)
        operation = Operation(instruction.name, modifiers, instruction.types, operands, guard, instruction.line)
        if WIDE in operation.types:
            check_wide(self.table.module, operation, operation.line)
            self.code.operations += lower_wide(operation)
        else:
            self.code.operations.append(operation)

    def _skip_unless(self, instruction: Instruction, names: Names) -> None:
        """Append a guarded instruction that cannot run with a mask, and a branch around it."""
        assert instruction.guard is not None
        self.skips += 1
        after = f"{names.prefix}$skip{self.skips}"
        guard = self.resolver.guard(instruction.guard, names, instruction.line)
        around = Predicate(guard.register, not guard.negated)
        line = instruction.line
        self.code.operations.append(Operation("bra", (), (), (Target(after),), around, line))
        self._instruction(evolve(instruction, guard=None), names)
        self.code.operations.append(label(after, line))

    def _call(self, instruction: Instruction, names: Names) -> None:
        line = instruction.line
        operands = list(instruction.operands)
        results = operands.pop(0).items if operands and isinstance(operands[0], Arguments) else ()  # type: ignore[union-attr]
        callee = operands.pop(0) if operands else None
        if not isinstance(callee, Name):
            raise InvalidPtx("expected a function or a register with the address of one", line)
        inputs = operands.pop(0).items if operands and isinstance(operands[0], Arguments) else ()  # type: ignore[union-attr]
        if callee.text in names.meanings:
            prototype = operands.pop() if operands else None
            self._call_indirectly(callee, prototype, inputs, results, names, line)
            return
        if operands:
            raise InvalidPtx(f"{instruction.opcode} with {len(instruction.operands)} operands", line)
        function = self.table.module.functions.get(callee.text)
        if callee.text in SYSTEM_FUNCTIONS and (function is None or function.body is None):
            arguments, returned = self._arguments(inputs, names, line), self._arguments(results, names, line)
            system_call(self.code, callee.text, arguments, returned, line)
            return
        if function is None or function.body is None:
            if is_device_runtime(callee.text):
                raise UnsupportedByMps(refusal(callee.text), line)
            raise InvalidPtx(f"unsupported: call of {callee.text}, which has no body here", line)
        if len(inputs) != len(function.parameters) or len(results) != len(function.returns):
            raise InvalidPtx(_wrong_counts(f"a call of {callee.text}", function, inputs, results), line)
        if self.table.is_recursive(function.name):
            arguments, returned = self._arguments(inputs, names, line), self._arguments(results, names, line)
            procedure_call(self.code, Target(self._entry(function)), function, arguments, returned, line)
        else:
            self._inline(function, inputs, results, names, line)

    def _arguments(self, operands: tuple[Operand, ...], names: Names, line: int) -> list[Argument]:
        return [self.resolver.argument(operand, names, line) for operand in operands]

    def _call_indirectly(
        self,
        callee: Name,
        prototype_name: Operand | None,
        inputs: tuple[Operand, ...],
        results: tuple[Operand, ...],
        names: Names,
        line: int,
    ) -> None:
        """Append a call through an address. The callee may be any function that the prototype allows."""
        prototype = names.prototypes.get(prototype_name.text) if isinstance(prototype_name, Name) else None
        if prototype is None:
            raise InvalidPtx("unsupported: an indirect call without a .callprototype or .calltargets", line)
        signature: Prototype | Function = prototype
        if prototype.targets:
            functions = tuple(self.table.module.functions[t] for t in prototype.targets if t in self.table.addresses)
            signature = functions[0] if functions else prototype
        else:
            functions = self.table.candidates(shape(prototype.returns, prototype.parameters))
        if len(inputs) != len(signature.parameters) or len(results) != len(signature.returns):
            raise InvalidPtx(_wrong_counts("an indirect call", signature, inputs, results), line)
        address, index = self.resolver.argument(callee, names, line), self.code.new_register("u32")
        candidates = [Immediate(self.table.addresses[f.name]) for f in functions]
        self.code.operations.append(plain("system:function_index", (), (index, address, *candidates), line))
        if not functions:
            return
        self.skips += 1
        key = f"$calls{self.skips}"
        self.code.branch_targets[key] = tuple(self._entry(f) for f in functions)
        arguments, returned = self._arguments(inputs, names, line), self._arguments(results, names, line)
        procedure_call(self.code, Group((index, Target(key))), signature, arguments, returned, line)

    def _inline(
        self,
        function: Function,
        inputs: tuple[Operand, ...],
        results: tuple[Operand, ...],
        names: Names,
        line: int,
    ) -> None:
        self.instances += 1
        prefix = f"{self.instances}:"
        inside = Names({}, prefix, prefix + "$end", names.frame)
        for formal, actual in zip(function.parameters, inputs, strict=True):
            argument = self.resolver.argument(actual, names, line)
            if formal.space != "param":
                values = [fetch_argument(self.code, argument, formal.type, line, start) for start in _parts(formal)]
                inside.declare_registers(formal.name, tuple(values))
            elif isinstance(argument, Symbol) and argument.space == "call":
                inside.declare(formal, argument)  # the callee only reads it, so it needs no copy
            elif formal.size != DTYPES[formal.type].itemsize:
                raise InvalidPtx(f"the argument for the array {formal.name} must be a .param variable", line)
            else:
                new = Symbol("call", self._local(formal, inside))
                inside.declare(formal, new)
                value = fetch_argument(self.code, argument, formal.type, line)
                self.code.operations.append(store_argument(new, value, formal.type, line))
        copies: list[tuple[Argument, Argument, Variable]] = []
        for formal, actual in zip(function.returns, results, strict=True):
            result = self.resolver.argument(actual, names, line)
            if formal.space == "param" and isinstance(result, Symbol):
                inside.declare(formal, result)
                continue
            if formal.space == "param" and formal.size != DTYPES[formal.type].itemsize:
                raise InvalidPtx(f"the result for the array {formal.name} must be a .param variable", line)
            if formal.space == "param":
                inside.declare(formal, Symbol("call", self._local(formal, inside)))
            else:
                inside.declare_registers(formal.name, self._new_registers(formal))
            copies.append((result, inside.meanings[formal.name], formal))
        self.function(function, inside)
        self.code.operations.append(label(prefix + "$end", line))
        for result, inner, formal in copies:
            for start in _parts(formal):
                value = fetch_argument(self.code, inner, formal.type, line, start)
                self.code.operations.append(store_argument(result, value, formal.type, line, start))


def _wrong_counts(
    callee: str, signature: Prototype | Function, inputs: Sequence[object], results: Sequence[object]
) -> str:
    required = f"{len(signature.parameters)} and {len(signature.returns)}"
    given = f"{len(inputs)} and {len(results)}"
    return f"wrong number of arguments or results in {callee}: it must be {required}, not {given}"


def _parts(formal: Variable) -> range:
    """Return the offset of each element of a parameter; a vector has several."""
    return range(0, formal.size, DTYPES[formal.type].itemsize)


def _bases(operands: tuple[Argument, ...]) -> set[int]:
    return {o.base.number for o in operands if isinstance(o, Memory) and isinstance(o.base, Register)}
