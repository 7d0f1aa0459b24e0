"""A kernel's blocks to Python functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
from attrs import define, field, frozen

from pympsd_server.backends.emulated.ptx.codegen import (
    emit_arithmetic,
    emit_bits,
    emit_compare,
    emit_convert,
    emit_float,
    emit_memory,
    emit_warp,
)
from pympsd_server.backends.emulated.ptx.codegen.emission import emit
from pympsd_server.backends.emulated.ptx.codegen.writer import Constants, Writer
from pympsd_server.backends.emulated.ptx.datatypes import BOOL, DTYPE_NAMES, U32
from pympsd_server.backends.emulated.ptx.faults import InvalidPtx
from pympsd_server.backends.emulated.ptx.lowering.control_flow import EXIT, Block, build_blocks, without_dead_results
from pympsd_server.backends.emulated.ptx.lowering.ir import Code, Operation, Register, Sink, Symbol
from pympsd_server.backends.emulated.ptx.math import bits, conversion, directed_doubles, floats, integers, rounding
from pympsd_server.backends.emulated.ptx.runtime import atomics, spaces, special_registers, warp
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

EMITTERS = (emit_arithmetic, emit_bits, emit_compare, emit_convert, emit_float, emit_memory, emit_warp)
_LIBRARY = (
    atomics, bits, conversion, directed_doubles, floats, integers, rounding, spaces, special_registers, warp
)  # fmt: skip
_SPINNING = frozenset({"atom", "red", "membar", "fence", "nanosleep"})
_LAST = {"exit": "exit", "trap": "trap", "brkpt": "trap", "assertfail": "assert"}
_BARRIER_MODIFIERS = frozenset(["sync", "arrive", "red", "popc", "and", "or", "aligned", "cta"])


@frozen
class BarrierPlan:
    """How a barrier behaves: `reduction` is popc, and, or, or "" for plain; arrive does not wait."""

    arrive: bool
    reduction: str
    result: int | None


@frozen
class BlockPlan:
    """What the scheduler knows of a block. `kind` says what its function returns:

    "next": registers of `target`; "branch": (condition, registers of `target`, registers of `following`);
    "index": (index, one tuple of registers per entry of `targets`); "exit": nothing; "trap", "assert";
    "barrier": ((number, count or None, predicate or None), registers of `following`).
    `meeting` is a membermask (or the position of its register in live_in) for which lanes meet first.
    """

    kind: str
    target: int
    following: int
    targets: tuple[int, ...]
    live_in: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    meeting: int | np.uint32 | None
    weight: int
    barrier: BarrierPlan | None


@define
class Translation:
    """One kernel, translated: plans, and functions that are compiled when first needed."""

    code: Code
    plans: list[BlockPlan]
    source: str
    constants: Constants
    shared_bytes: int
    local_bytes: int
    _compiled: CodeType | None = None
    _lock: threading.Lock = field(factory=threading.Lock)

    def functions(self, addresses: dict[str, int]) -> list[Callable[..., Any]]:
        """The block functions, with the addresses of the linked module's variables."""
        with self._lock:
            if self._compiled is None:
                self._compiled = compile(self.source, f"<ptx {self.code.name}>", "exec")
        names = dict(_namespace())
        names.update(self.constants.values)
        for name, (variable, offset) in self.constants.addresses.items():
            names[name] = np.uint64((addresses[variable] + offset) & (2**64 - 1))
        exec(self._compiled, names)
        return [names[f"block{i}"] for i in range(len(self.plans))]


def _namespace() -> dict[str, Any]:
    names: dict[str, Any] = {"np": np}
    for name, scalar in DTYPE_NAMES.items():
        names[name] = scalar
        names[f"{name}_t"] = np.dtype(scalar)
    for module in _LIBRARY:
        names.update({n: v for n, v in vars(module).items() if callable(v) and not n.startswith("_")})
    return names


@define
class _Layout:
    """Offsets of a kernel's shared and local variables; extern shared begins at -1 (after the static)."""

    offsets: dict[tuple[str, str], int] = field(factory=dict)
    shared_bytes: int = 0
    local_bytes: int = 0

    def offset_of(self, symbol: Symbol) -> int:
        return symbol.offset if symbol.space == "param" else self.offsets[symbol.space, symbol.name]


def _layout(code: Code) -> _Layout:
    layout = _Layout()
    for name, variable in code.shared.items():
        if variable.count is None or variable.extern:
            layout.offsets["shared", name] = -1
            continue
        start = -(-layout.shared_bytes // variable.alignment) * variable.alignment
        layout.offsets["shared", name] = start
        layout.shared_bytes = start + variable.size
    for name, variable in code.local.items():
        start = -(-layout.local_bytes // variable.alignment) * variable.alignment
        layout.offsets["local", name] = start
        layout.local_bytes = start + variable.size
    return layout


def translate(code: Code) -> Translation:
    """Translate a whole kernel. Raises InvalidPtx naming the first instruction that is not supported."""
    layout = _layout(code)
    blocks = build_blocks(code)
    constants = Constants()
    plans, lines = [], []
    for number, block in enumerate(blocks):
        writer = Writer(code, constants, _parameters_at_zero(layout), block.live_in)
        for operation in without_dead_results(block, blocks, code.carry):
            emit(writer, operation)
        plan, returned = _finish(writer, block, blocks)
        plans.append(plan)
        arguments = "".join(f", r{r}" for r in block.live_in)
        lines.append(f"def block{number}(B, T{arguments}):")
        lines += [f"    {line}" for line in writer.text(returned)]
    source = "\n".join(lines)
    return Translation(code, plans, source, constants, layout.shared_bytes, layout.local_bytes)


def _parameters_at_zero(layout: _Layout) -> Callable[[Symbol], int]:
    def offset_of(symbol: Symbol) -> int:
        # A parameter's own offset is part of its symbol already.
        return 0 if symbol.space == "param" else layout.offset_of(symbol)

    return offset_of


def _outgoing(writer: Writer, blocks: list[Block], target: int) -> str:
    if target == EXIT:
        return "()"
    return f"({''.join(writer.register_value(r) + ', ' for r in blocks[target].live_in)})"


def _finish(w: Writer, block: Block, blocks: list[Block]) -> tuple[BlockPlan, str]:
    last = block.terminator
    following = EXIT if block.following is None else block.following
    if last is None:
        return _plan(block, w, "next", target=following), _outgoing(w, blocks, following)
    w.begin(last)
    if last.name == "bra":
        return _branch(w, block, blocks, last, block.targets[0], following)
    if last.name == "brx":
        index = w.value(last.operands[0], U32)
        all_targets = ", ".join(_outgoing(w, blocks, t) for t in block.targets)
        return _plan(block, w, "index"), f"{index}, ({all_targets},)"
    if last.name in ("bar", "barrier"):
        return _barrier(w, block, blocks, last, following)
    if last.name == "exit" and last.guard is not None:
        return _branch(w, block, blocks, last, EXIT, following)
    return _plan(block, w, _LAST[last.name]), "None"


def _branch(
    w: Writer, block: Block, blocks: list[Block], last: Operation, target: int, following: int
) -> tuple[BlockPlan, str]:
    if last.guard is None:
        return _plan(block, w, "next", target=target), _outgoing(w, blocks, target)
    if last.guard.negated:
        target, following = following, target
    condition = w.value(last.guard.register, BOOL)
    taken, other = _outgoing(w, blocks, target), _outgoing(w, blocks, following)
    plan = _plan(block, w, "branch", target=target, following=following)
    return plan, f"{condition}, {taken}, {other}"


def _barrier(w: Writer, block: Block, blocks: list[Block], last: Operation, following: int) -> tuple[BlockPlan, str]:
    unknown = [m for m in last.modifiers if m not in _BARRIER_MODIFIERS]
    if unknown:
        raise w.refuse(f"modifier .{unknown[0]}")
    arrive, operands = last.has("arrive"), list(last.operands)
    reduction = last.one_of("popc", "and", "or")
    predicate, target = "None", None
    if last.has("red"):
        if not reduction or len(operands) < 3:
            raise w.refuse()
        target, predicate = operands.pop(0), w.value(operands.pop(), BOOL)
    if not 1 <= len(operands) <= 2:
        raise w.refuse(f"{len(operands)} operands")
    number = w.value(operands[0], U32)
    count = w.value(operands[1], U32) if len(operands) == 2 else "None"
    after = blocks[following].live_in if following != EXIT else ()
    result = None
    if isinstance(target, Register):
        # A placeholder: the scheduler puts the result there when the barrier opens.
        result = after.index(target.number) if target.number in after else None
        w.current[target.number] = (w.scalar(0, w.register_dtype(target.number)), w.register_dtype(target.number))
    elif target is not None and not isinstance(target, Sink):
        raise w.refuse("the result is no register")
    plan = BarrierPlan(arrive, reduction, result)
    outgoing = _outgoing(w, blocks, following)
    made = _plan(block, w, "barrier", following=following, barrier=plan)
    return made, f"({number}, {count}, {predicate}), {outgoing}"


def _plan(
    block: Block,
    w: Writer,
    kind: str,
    target: int = EXIT,
    following: int = EXIT,
    barrier: BarrierPlan | None = None,
) -> BlockPlan:
    spins = any(
        o.name in _SPINNING or o.has("volatile") or o.has("acquire") or o.has("relaxed") for o in block.operations
    )
    dtypes = tuple(w.register_dtype(r) for r in block.live_in)
    meeting = _meeting(block, w)
    return BlockPlan(
        kind, target, following, block.targets, block.live_in, dtypes, meeting, 64 if spins else 1, barrier
    )


def _meeting(block: Block, w: Writer) -> int | np.uint32 | None:
    if block.meeting is None:
        return None
    if isinstance(block.meeting, Immediate):
        return np.uint32(block.meeting.value & 0xFFFFFFFF)
    if isinstance(block.meeting, Register) and w.register_dtype(block.meeting.number) != BOOL:
        return block.live_in.index(block.meeting.number)
    line = block.operations[0].line if block.operations else None
    raise InvalidPtx("unsupported membermask", line)
