"""Expand the calls of procedures: functions that recurse or are called by their address, and so need a stack.

A procedure's frame contains its results, its parameters and its variables, in this order. Below the frame, the caller
has saved the registers that it needs after the call, and the number of the call site. The procedure returns to this
site.
"""

from attrs import define, field

from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.lowering.control_flow import EXIT, build_blocks
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Code,
    Group,
    Memory,
    Operation,
    Register,
    Symbol,
    Target,
    label,
    plain,
    registers_read,
    registers_written,
)
from pympsd_server.ptx.syntax.tree import Immediate, Instruction, Variable

STACK_BYTES = 64 << 10
"""The size of each thread's stack in a kernel that calls procedures. (In CUDA it is 1 KiB, for spilled registers.)"""
MAX_RETURNS = 100_000
"""The maximum of a kernel's procedure calls times its returns from procedures, because any return may lead to any of
the call sites."""
_ALIGNMENT = 16
_STACK = "$stack"
_RETURNS = "$returns"


def align(size: int) -> int:
    """Round a size in bytes up to the alignment of frames."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@define
class Frame:
    """The frame of a procedure that is being flattened. `base` contains its address, `size` is in bytes."""

    base: Register
    size: int = 0
    addresses: set[int] = field(factory=set)
    """The numbers of the registers that contain the addresses of .param parameters."""
    results: list[tuple[Register, str, int]] = field(factory=list)
    """The results that the procedure returns in registers: (register, type, offset in the frame)."""

    def place(self, variable: Variable) -> int:
        """Enlarge the frame by a variable, and return the variable's offset."""
        start = -(-self.size // variable.alignment) * variable.alignment
        self.size = start + variable.size
        return start


def stack_register(code: Code) -> Register:
    """Return the stack pointer; give the kernel one if it has none."""
    if code.stack is None:
        code.stack = code.new_register("u64")
        code.local[_STACK] = Variable(_STACK, "local", "b8", _ALIGNMENT, 1, STACK_BYTES, False, (), 0)
        code.operations.insert(0, plain("mov", ("u64",), (code.stack, Symbol("local", _STACK)), 0))
    return code.stack


def stack_instruction(code: Code, o: Instruction, operands: tuple[Argument, ...]) -> Operation:
    """Return the operation for alloca, stacksave or stackrestore, with the stack pointer. Raises InvalidPtx."""
    stack = stack_register(code)
    counts = (2, 3) if o.name == "alloca" else (1, 1)
    if o.types not in (("u32",), ("u64",)) or o.modifiers or not counts[0] <= len(operands) <= counts[1]:
        raise InvalidPtx(f"unsupported instruction {o.opcode} with {len(operands)} operands", o.line)
    if o.name == "alloca":
        alignment = operands[2] if len(operands) == 3 else Immediate(8)
        allocation = (Group((operands[0], stack)), stack, operands[1], alignment)
        return plain("system:alloca", o.types, allocation, o.line)
    if o.name == "stacksave":
        return plain("cvt", (*o.types, "u64"), (operands[0], stack), o.line)
    return plain("cvt", ("u64", *o.types), (stack, operands[0]), o.line)


def expand_calls(code: Code) -> None:
    """Replace "callproc" and "procreturn" by saves, branches and restores. Raises InvalidPtx above MAX_RETURNS."""
    if not any(operation.name in ("callproc", "procreturn") for operation in code.operations):
        return
    alive = _alive_after_calls(code)
    expanded: list[Operation] = []
    sites = [o for o in code.operations if o.name == "callproc"]
    returns = sum(operation.name == "procreturn" for operation in code.operations)
    if len(sites) * returns > MAX_RETURNS:
        reason = f"{len(sites)} calls that are not inlined, and {returns} places from which they return"
        raise InvalidPtx(f"the kernel has {reason}: more than {MAX_RETURNS} together", sites[0].line)
    code.branch_targets[_RETURNS] = tuple(_site(number) for number in range(len(sites)))
    number = 0
    for operation in code.operations:
        if operation.name == "callproc":
            expanded += _call(code, operation, number, sorted(alive[number]))
            number += 1
        elif operation.name == "procreturn":
            expanded += _return(code, operation)
        else:
            expanded.append(operation)
    code.operations = expanded


def _site(number: int) -> str:
    return f"$site{number}"


def _alive_after_calls(code: Code) -> list[set[int]]:
    """Return, for each call in order, the registers that are read after it."""
    blocks = build_blocks(code)
    alive: list[set[int]] = []
    for block in blocks:
        live: set[int] = set().union(*(blocks[s].live_in for s in block.successors if s != EXIT))
        in_block: list[set[int]] = []
        terminator = [] if block.terminator is None else [block.terminator]
        for operation in reversed([*block.operations, *terminator]):
            results = {r.number for r in registers_written(operation, code.carry)}
            if operation.name == "callproc":
                in_block.append(live - results)
            if operation.guard is None:
                live = live - results
            live = live | {r.number for r in registers_read(operation, code.carry)}
        alive += in_block[::-1]
    assert code.stack is not None
    for registers in alive:
        registers.discard(code.stack.number)
    return alive


def _call(code: Code, call: Operation, number: int, saved: list[int]) -> list[Operation]:
    """Return the operations of a call: save registers, store the arguments, jump, load the results, restore."""
    stack, line = code.stack, call.line
    assert stack is not None
    results, callee, arguments = call.operands
    assert isinstance(results, Group)
    assert isinstance(arguments, Group)
    offsets, size = [], 0
    for register in saved:
        width = max(4, DTYPES[code.register_types[register]].itemsize)
        size = -(-size // width) * width
        offsets.append(size)
        size += width
    below = align(size) + _ALIGNMENT
    site = code.new_register("u32")
    out: list[Operation] = []
    for register, offset in zip(saved, offsets, strict=True):
        out += _save(code, Register(register), Memory(stack, offset), line)
    out.append(plain("mov", ("u32",), (site, Immediate(number)), line))
    out.append(_local("st", "u32", Memory(stack, below - _ALIGNMENT), site, line))
    stores = [(m, v) for m, v in zip(arguments.items[::2], arguments.items[1::2], strict=True)]
    for at, value in stores:
        out.append(_local("st", _type_of(code, value), Memory(stack, below + _offset(at)), value, line))
    out.append(plain("add", ("u64",), (stack, stack, Immediate(below)), line))
    out.append(_jump(callee, line))
    out.append(label(_site(number), line))
    for at, value in zip(results.items[::2], results.items[1::2], strict=True):
        out.append(_local("ld", _type_of(code, value), Memory(stack, _offset(at)), value, line))
    out.append(plain("sub", ("u64",), (stack, stack, Immediate(below)), line))
    for register, offset in zip(saved, offsets, strict=True):
        out += _restore(code, Register(register), Memory(stack, offset), line)
    return out


def _jump(callee: Argument, line: int) -> Operation:
    if isinstance(callee, Target):
        return plain("bra", (), (callee,), line)
    assert isinstance(callee, Group)
    return Operation("brx", ("idx",), (), callee.items, None, line)


def _offset(at: Argument) -> int:
    assert isinstance(at, Immediate)
    return at.value


def _type_of(code: Code, value: Argument) -> str:
    assert isinstance(value, Register)
    return f"b{8 * DTYPES[code.register_types[value.number]].itemsize}"


def _local(name: str, type_name: str, memory: Memory, value: Argument, line: int) -> Operation:
    operands = (memory, value) if name == "st" else (value, memory)
    return Operation(name, ("local",), (type_name,), operands, None, line)


def _save(code: Code, register: Register, memory: Memory, line: int) -> list[Operation]:
    if code.register_types[register.number] != "pred":
        return [_local("st", _type_of(code, register), memory, register, line)]
    number = code.new_register("u32")
    select = plain("selp", ("u32",), (number, Immediate(1), Immediate(0), register), line)
    return [select, _local("st", "u32", memory, number, line)]


def _restore(code: Code, register: Register, memory: Memory, line: int) -> list[Operation]:
    if code.register_types[register.number] != "pred":
        return [_local("ld", _type_of(code, register), memory, register, line)]
    number = code.new_register("u32")
    test = Operation("setp", ("ne",), ("u32",), (register, number, Immediate(0)), None, line)
    return [_local("ld", "u32", memory, number, line), test]


def _return(code: Code, operation: Operation) -> list[Operation]:
    """Return the operations that jump to the site whose number is below the frame."""
    assert code.stack is not None
    (base,) = operation.operands
    assert isinstance(base, Register)
    site, line = code.new_register("u32"), operation.line
    if not code.branch_targets[_RETURNS]:
        return [plain("trap", (), (), line)]
    return [
        _local("ld", "u32", Memory(base, -_ALIGNMENT), site, line),
        plain("mov", ("u64",), (code.stack, base), line),
        Operation("brx", ("idx",), (), (site, Target(_RETURNS)), None, line),
    ]
