"""Find turns: the places between two barriers at which the warps of a block wait for each other.

The problem: a compiled warp runs alone until it waits. On a GPU, and in the NumPy tier, the warps of a block run side
by side. Some programs rely on that instead of a barrier, deliberately or not:

    x = s[tid - 1];  ...  s[tid] = y;  __syncthreads();      warp 1 reads what warp 0 has not overwritten yet
    s[tid] = y;      ...  x = s[tid + 1];                    warp 0 reads what warp 1 has written

The idea: a warp that changes from reading shared memory to writing it, or from writing to reading, stops before this
access until the rest of the block has also come to it. Then all continue. A well-written program loses only a little
time. Between two barriers a warp stops once for each kind of access, which a bit in its frame records, so loops
without barriers do not become slower. Kernels without barriers have no turns, because nothing shows where their
phases end.

An access does not need a turn if all earlier accesses of the other kind had the same address, because it is then the
thread's own element. It also does not need one if no other thread of the block can have accessed the same bytes, as
with two buffers that alternate. `find_turns` represents addresses as a register and an offset or, if possible, as a
multiple of %tid.x and an offset. It follows them on all paths through the kernel, and uses what branches show about
%tid.x:

    @tid < 2 bra L;  x = s[512 + tid - 2];  L: s[tid] = y;      of 512 threads: reads 512 ... 1021, writes 0 ... 511
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import define, evolve, field, frozen

from pympsd_server.ptx.compiled_tier.planning.analysis import access_bytes
from pympsd_server.ptx.lowering.control_flow import EXIT, Block
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Memory,
    Operation,
    Predicate,
    Register,
    Special,
    Symbol,
    is_barrier,
    registers_written,
    space_of,
)
from pympsd_server.ptx.syntax.tree import Immediate

BEFORE_STORE: Final = 1
BEFORE_LOAD: Final = 2
_MAX_TURNS: Final = 64
"""The maximum number of turns of each kind in a kernel, because LLVM must compile an exit and an entry for each."""
_MAX_ADDRESSES: Final = 8
"""The maximum number of known addresses of one kind of access; more become one unknown address."""
_MAX_FACTOR: Final = 1 << 20
_MAX_OFFSET: Final = 1 << 30
"""Values with a larger factor or offset count as unknown, so that known values do not wrap."""
_ORDERS: Final = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
"""The opposite of each comparison, which is true exactly if the comparison is false."""
Threads = tuple[int, int]
"""The minimum and maximum %tid.x of the threads that may come to a place."""


@frozen
class _Value:
    """A value of each thread: symbol + factor * %tid.x + offset.

    The symbol is "dynamic" for the address of dynamic shared memory, or "" for 0.
    """

    symbol: str
    factor: int
    offset: int

    def is_known(self) -> bool:
        return abs(self.factor) <= _MAX_FACTOR and abs(self.offset) <= _MAX_OFFSET


@frozen
class _Access:
    """An access to shared memory, by any number of threads."""

    kind: int
    """The kind of turn that precedes such accesses: BEFORE_STORE or BEFORE_LOAD."""
    base: object = None
    """A register's number, or (symbol, factor) of a known address; None if the address is unknown."""
    offset: int = 0
    extent: tuple[int, int] | None = None
    """The range of bytes that threads may access, from the beginning of shared or dynamic shared memory, or None."""

    def may_conflict(self, other: _Access) -> bool:
        """Return whether two threads may access the same bytes, one by this access and the other by ``other``.

        Accesses at the same address do not conflict, because they are to the thread's own element.
        """
        if self.base is None or other.base is None:
            return True
        if (self.base, self.offset) == (other.base, other.offset):
            return False
        if self.extent is None or other.extent is None or _variable(self) != _variable(other):
            return True
        return self.extent[0] < other.extent[1] and other.extent[0] < self.extent[1]


def _variable(access: _Access) -> object:
    return access.base[0] if isinstance(access.base, tuple) else None


@define
class _State:
    """The state at a place of the code: the accesses since the last barrier, and the turns since then."""

    accesses: set[_Access] = field(factory=set)
    taken: int = BEFORE_STORE | BEFORE_LOAD
    """The kinds of turns that the warp has taken on every path to the place; all kinds if no path is known yet."""
    threads: Threads | None = None
    """The threads that may come to the place, or None if no path is known yet."""


class _Addresses:
    """The values of registers that have only one definition."""

    def __init__(self, blocks: Sequence[Block], carry: Register, places: Mapping[tuple[str, str], int]) -> None:
        self._places = places
        self._definitions: dict[int, Operation] = {}
        several: set[int] = set()
        for block in blocks:
            for operation in (*block.operations, *([block.terminator] if block.terminator else [])):
                for register in registers_written(operation, carry):
                    several |= {register.number} & self._definitions.keys()
                    self._definitions[register.number] = operation
        for number in several:
            del self._definitions[number]
        self._values: dict[int, _Value | None] = {}

    def value_of(self, argument: Argument) -> _Value | None:
        """Return an operand's value, or None if it is not of the form of `_Value`."""
        if isinstance(argument, Immediate):
            return _Value("", 0, int(argument.value)) if isinstance(argument.value, int) else None
        if isinstance(argument, Symbol):
            return self._address_of(argument) if argument.space == "shared" else None
        if isinstance(argument, Special):
            return _Value("", 1, 0) if argument.name == "%tid.x" else None
        if not isinstance(argument, Register):
            return None
        if argument.number not in self._values:
            self._values[argument.number] = None  # in case the value depends on itself
            operation = self._definitions.get(argument.number)
            if operation is not None and operation.guard is None:
                value = self._result(operation)
                self._values[argument.number] = value if value is not None and value.is_known() else None
        return self._values[argument.number]

    def _address_of(self, variable: Symbol) -> _Value:
        place = self._places.get((variable.space, variable.name), -1)
        return _Value("" if place >= 0 else "dynamic", 0, max(place, 0) + variable.offset)

    def _result(self, operation: Operation) -> _Value | None:
        name, inputs = operation.name, [self.value_of(argument) for argument in operation.inputs]
        if not operation.type.startswith(("b", "u", "s")) or operation.has("hi") or operation.has("sat"):
            return None
        if name in ("mov", "cvta") or (name == "cvt" and operation.type[1:] in ("32", "64")):
            return inputs[0]
        if name == "shl" and isinstance(operation.inputs[1], Immediate):
            return _product(inputs[0], _Value("", 0, 1 << min(operation.inputs[1].value, 31)))
        if name in ("mul", "mad"):
            product = _product(inputs[0], inputs[1])
            return product if name == "mul" else _sum(product, inputs[2])
        if name == "sub" and inputs[1] is not None:
            inputs[1] = _product(inputs[1], _Value("", 0, -1))
        return _sum(inputs[0], inputs[1]) if name in ("add", "sub") else None

    def access_of(self, operation: Operation, threads: Threads) -> _Access | None:
        """Return an operation's access to shared memory, or None if it does not access shared memory."""
        if operation.name not in ("ld", "ldu", "st") or space_of(operation) != "shared":
            return None
        memory = operation.operands[0] if operation.name == "st" else operation.operands[1]
        if not isinstance(memory, Memory):
            return None
        kind = BEFORE_STORE if operation.name == "st" else BEFORE_LOAD
        value = self.value_of(memory.base)
        if value is None:
            base = memory.base.number if isinstance(memory.base, Register) else repr(memory.base)
            return _Access(kind, base, memory.offset)
        offset, (least, greatest) = value.offset + memory.offset, self.refine(operation.guard, threads)
        ends = sorted(value.factor * thread + offset for thread in (least, greatest))
        return _Access(kind, (value.symbol, value.factor), offset, (ends[0], ends[1] + access_bytes(operation)))

    def refine(self, guard: Predicate | None, threads: Threads, *, holds: bool = True) -> Threads:
        """Return the threads for which a guard is true, or without `holds` the threads for which it is false."""
        test = self._definitions.get(guard.register.number) if guard is not None else None
        if guard is None or test is None or test.operands[0] != guard.register:
            return threads
        if (test.name, len(test.modifiers), test.guard) != ("setp", 1, None) or test.type not in ("s32", "u32"):
            return threads
        left, right = map(self.value_of, test.operands[1:])
        if left != _Value("", 1, 0) or right is None or (right.symbol, right.factor) != ("", 0) or right.offset < 0:
            return threads
        order = test.modifiers[0] if holds != guard.negated else _ORDERS.get(test.modifiers[0], "")
        (least, greatest), bound = threads, right.offset
        if order in ("lt", "le", "eq"):
            greatest = min(greatest, bound - (order == "lt"))
        if order in ("gt", "ge", "eq"):
            least = max(least, bound + (order == "gt"))
        return (least, greatest) if least <= greatest else threads


def _sum(first: _Value | None, second: _Value | None) -> _Value | None:
    if first is None or second is None or (first.symbol and second.symbol):
        return None
    return _Value(first.symbol or second.symbol, first.factor + second.factor, first.offset + second.offset)


def _product(first: _Value | None, second: _Value | None) -> _Value | None:
    if first is None or second is None or first.symbol or second.symbol or (first.factor and second.factor):
        return None
    factor = first.factor * second.offset + second.factor * first.offset
    return _Value("", factor, first.offset * second.offset)


def uses_turns(operations: Sequence[Operation]) -> bool:
    """Return whether a kernel may have turns, so that its code depends on the number of threads in a block."""
    has_barrier = any(map(is_barrier, operations))
    return has_barrier and any(o.name in ("ld", "ldu", "st") and space_of(o) == "shared" for o in operations)


def find_turns(
    blocks: Sequence[Block],
    operations: Sequence[list[Operation]],
    carry: Register,
    places: Mapping[tuple[str, str], int],
    threads: int,
) -> dict[int, int]:
    """Return the kind of the turn before each access that needs one; the key is the id() of the access.

    A kind with more than _MAX_TURNS turns is left out. `operations` has the operations of each block without its
    terminator, `places` the offset of each variable by (space, name). `threads` is the maximum number of threads in a
    row.
    """
    if not any(is_barrier(block.terminator) for block in blocks):
        return {}
    turns: dict[int, int] = {}
    addresses = _Addresses(blocks, carry, places)
    states = [_State() for _ in blocks]
    states[0].taken, states[0].threads = 0, (0, threads - 1)
    work = [0]
    while work:
        number = work.pop(0)
        after = _find_state_after(operations[number], states[number], carry, turns, addresses)
        if is_barrier(blocks[number].terminator):
            after = _State(taken=0, threads=after.threads)
        for successor, reached in _ways(blocks[number], after, addresses):
            state = states[successor]
            joined = _join(state, evolve(after, threads=reached))
            if joined != state:
                states[successor] = joined
                work.append(successor)
    kinds = Counter(turns.values())
    return {at: kind for at, kind in turns.items() if kinds[kind] <= _MAX_TURNS}


def _ways(block: Block, after: _State, addresses: _Addresses) -> Iterator[tuple[int, Threads]]:
    """Yield each block that may run next, and the threads that may go to it."""
    assert after.threads is not None
    guard = block.terminator.guard if block.terminator is not None else None
    for successor in set(block.successors) - {EXIT}:
        is_target, is_following = successor in block.targets, successor == block.following
        if is_target == is_following or (block.terminator is not None and block.terminator.name != "bra"):
            yield successor, after.threads
        else:
            yield successor, addresses.refine(guard, after.threads, holds=is_target)


def _join(first: _State, second: _State) -> _State:
    """Return the state at a place at which two paths meet."""
    threads = [state.threads for state in (first, second) if state.threads is not None]
    hull = min(least for least, _ in threads), max(greatest for _, greatest in threads)
    return _State(first.accesses | second.accesses, first.taken & second.taken, hull)


def _find_state_after(
    operations: list[Operation], before: _State, carry: Register, turns: dict[int, int], addresses: _Addresses
) -> _State:
    """Return the state after a block's operations; add the turns that they need to `turns`."""
    accesses, turns_taken = set(before.accesses), before.taken
    assert before.threads is not None
    for operation in operations:
        access = addresses.access_of(operation, before.threads)
        if access is not None:
            of_other_kind = {a for a in accesses if a.kind != access.kind}
            if not turns_taken & access.kind and any(map(access.may_conflict, of_other_kind)):
                turns[id(operation)] = access.kind
            turns_taken |= turns.get(id(operation), 0)
            accesses.add(access)
            if len(same := accesses - of_other_kind) > _MAX_ADDRESSES:
                accesses = (accesses - same) | {_Access(access.kind)}
        written = {register.number for register in registers_written(operation, carry)}
        if written:
            accesses = {_Access(a.kind) if a.base in written else a for a in accesses}
    return _State(accesses, turns_taken, before.threads)
