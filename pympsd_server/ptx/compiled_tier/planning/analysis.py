"""Find where the lanes of a kernel's warps may wait for each other, and which registers all lanes of a warp share.

The lanes of a warp run lowest block first, as in the NumPy tier. While block b runs, other lanes of the warp may be
*pending* at some blocks P(b). `find_pending` computes these sets: when lanes leave b, the lowest of b's successors
and P(b) runs next, and while it runs, lanes may be pending at the rest.

The rest follows from P:

- A definition of a register in b must keep the old value of other lanes (*blend*) exactly if the register is live at
  the beginning of a block in P(b). Otherwise no lane can read the overwritten value.
- A register is *uniform*, a scalar of the machine, if all its definitions have uniform operands, none of them blends,
  and none has another result that varies. Otherwise it is *varying*, a vector. Uniform branches make P smaller, so
  both are computed together: the analysis starts from "everything is uniform" and repeats until nothing changes.
- A branch needs a test of masks only if other lanes may be pending.

A *segment* is a block of the kernel, or a part of a block: an instruction that escapes to the NumPy tier is a segment
of its own, so that a warp can stop before it. Lanes are never pending in the middle of a block, so the NumPy tier,
whose groups are at the beginnings of blocks, can take them over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from attrs import define, field, frozen

from pympsd_server.ptx.compiled_tier.ir_text import NotCompiled
from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.machine import TIMERS
from pympsd_server.ptx.lowering.control_flow import EXIT, Block, Meeting
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Code,
    Memory,
    Operation,
    Register,
    Special,
    Symbol,
    has_result,
    is_barrier,
    items_of,
    registers_in,
    registers_read,
    registers_written,
    space_of,
)

_VARYING_SPECIALS = ("%tid", "%laneid", "%lanemask")
_ALWAYS_VARYING = frozenset({"atom", "shfl", "mma", "wmma", "ldmatrix", "movmatrix", "elect"})
_SPINNING = frozenset({"atom", "red", "membar", "fence", "nanosleep", "mbarrier"})
_ORDERED = frozenset({"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "sc"})
_OPERATIONS_PER_FUEL = 16
_SPINNING_WEIGHT = 64
_MAX_PENDING = 2_000_000
"""The maximum number of pairs of segments (a, b) in which lanes may be pending at b while a runs. A pair takes 35
bytes of memory."""
_WAITING_WEIGHT = 4096
"""The fuel for one round of a loop that reads a clock until a time has passed. It is more than a warp gets for a
turn, so the warp reads the clock once in each turn."""


def access_bytes(operation: Operation) -> int:
    """Return how many bytes a load or store accesses for each lane."""
    value = operation.operands[1] if operation.name == "st" else operation.operands[0]
    return DTYPES[operation.type].itemsize * len(items_of(value))


def is_ordered(operation: Operation) -> bool:
    """Return whether a compiler must neither move nor remove an access."""
    return not _ORDERED.isdisjoint(operation.modifiers)


@define
class CodeSegment:
    """A block of the kernel, or the part of a block before, at or after an escaping instruction."""

    operations: list[Operation]
    origin: int
    """The block that begins here; -1 in the middle of a block."""
    escapes: bool = False
    turn: int = 0
    """The kind of turn that a warp takes before the segment (turns.py); 0 for none."""
    terminator: Operation | None = None
    targets: tuple[int, ...] = ()
    following: int | None = None
    live_in: frozenset[int] = frozenset()
    meeting: Meeting | None = None
    attempts: bool = False
    """Whether the escaping instruction is first attempted in machine code, so that it seldom escapes."""

    @property
    def successors(self) -> tuple[int, ...]:
        """The segments that may run next; EXIT for the end of a thread."""
        return (*self.targets, *(() if self.following is None else (self.following,)))


def is_left_whole(terminator: Operation | None) -> bool:
    """Return whether the NumPy tier must execute the whole block, because it ends with a failed assertion."""
    return terminator is not None and terminator.name == "system:assertfail"


def split_blocks(
    blocks: list[Block],
    operations: list[list[Operation]],
    carry: Register,
    is_escape: Callable[[Operation], bool],
    turns: Mapping[int, int],
) -> list[CodeSegment]:
    """Return the kernel's segments in the order of its blocks. The targets of a segment are indices of segments.

    `operations` has the operations of each block. `turns` has, by the id() of an operation, the kind of the turn that
    the warp takes before the operation.
    """
    parts = [
        [(own, False, 0)] if is_left_whole(block.terminator) else _parts(own, is_escape, turns)
        for block, own in zip(blocks, operations, strict=True)
    ]
    begins = [sum(map(len, parts[:number])) for number in range(len(blocks))]
    segments: list[CodeSegment] = []
    for number, block in enumerate(blocks):
        own = [CodeSegment(part, -1, escapes, turn) for part, escapes, turn in parts[number]]
        for index, segment in enumerate(own[:-1]):
            segment.following = begins[number] + index + 1
        first, last = own[0], own[-1]
        first.origin, first.meeting, last.terminator = number, block.meeting, block.terminator
        last.targets = tuple(t if t == EXIT else begins[t] for t in block.targets)
        last.following = EXIT if block.following == EXIT else None
        if block.following is not None and block.following != EXIT:
            last.following = begins[block.following]
        live: set[int] = set().union(*(blocks[s].live_in for s in block.successors if s != EXIT))
        for segment in reversed(own):
            ending = [] if segment.terminator is None else [segment.terminator]
            for operation in [*ending, *reversed(segment.operations)]:
                live -= {r.number for r in registers_written(operation, carry)}
                live |= {r.number for r in registers_read(operation, carry)}
            segment.live_in = frozenset(live)
        first.live_in |= frozenset(block.live_in)
        segments += own
    return segments


def _parts(
    operations: list[Operation], is_escape: Callable[[Operation], bool], turns: Mapping[int, int]
) -> list[tuple[list[Operation], bool, int]]:
    parts: list[tuple[list[Operation], bool, int]] = []
    for operation in operations:
        escapes, turn = is_escape(operation), turns.get(id(operation), 0)
        if escapes or turn or not parts or parts[-1][1]:
            parts.append(([], escapes, turn))
        parts[-1][0].append(operation)
    if not parts or parts[-1][1]:
        parts.append(([], False, 0))
    return parts


@define
class WarpPlan:
    """The result of the analysis. Each list has an element for each segment."""

    segments: list[CodeSegment]
    rows: bool
    """Whether a row of the block's threads (%tid.x) is a multiple of the vector's width."""
    pending: list[set[int]] = field(factory=list)
    varying: set[int] = field(factory=set)
    blend: list[set[int]] = field(factory=list)
    """The registers that are live where other lanes may be pending."""
    weights: dict[int, int] = field(factory=dict)
    """The fuel that a round of a loop takes, by the loop's header."""
    spinning: set[int] = field(factory=set)
    """The headers of loops in which lanes may wait for other lanes."""
    in_spinning: set[int] = field(factory=set)
    """The segments of the loops in `spinning`."""

    def is_varying(self, argument: Argument) -> bool:
        """Return whether an operand may differ between the lanes of a warp."""
        if any(register.number in self.varying for register in registers_in(argument)):
            return True
        names = [item.name for item in items_of(argument) if isinstance(item, Special)]
        return any(is_varying_special(name, rows=self.rows) for name in names)


def is_varying_special(name: str, *, rows: bool) -> bool:
    """Return whether a special register may differ between the lanes of a warp."""
    return name.startswith(_VARYING_SPECIALS) and not (rows and name in ("%tid.y", "%tid.z"))


def differs_by_lane(operation: Operation) -> bool:
    """Return whether an access may have different results in lanes that have the same address."""
    if operation.name == "mbarrier":
        return space_of(operation) == "generic" or not operation.one_of("test_wait", "try_wait", "pending_count")
    if operation.name not in ("ld", "ldu"):
        return False
    memory = operation.operands[1]
    if isinstance(memory, Memory) and isinstance(memory.base, Symbol) and memory.base.space == "param":
        return False
    return space_of(operation) in ("generic", "local") or operation.guard is not None


def word_of_locals(segments: list[CodeSegment]) -> int:
    """Return the word size of interleaved local memory: the bytes of its largest element, at least 4.

    Return 0 if local memory cannot be interleaved, because it may be accessed other than by loads and stores of
    compiled code. Other accesses need a generic address, which only ``cvta.local`` computes.
    """
    operations = [(operation, segment.escapes) for segment in segments for operation in segment.operations]
    uses = [(o, escapes) for o, escapes in operations if space_of(o) == "local" or _names_local(o)]
    if any(escapes or not _is_plain(operation) for operation, escapes in uses):
        return 0
    sizes = [DTYPES[o.type].itemsize for o, _ in uses if o.name in ("ld", "st")]
    return max(4, *sizes) if sizes and max(sizes) <= 8 else 0


def _names_local(operation: Operation) -> bool:
    symbols = [a.base if isinstance(a, Memory) else a for a in operation.operands]
    return any(isinstance(s, Symbol) and s.space == "local" for s in symbols)


def _is_plain(operation: Operation) -> bool:
    """Return whether an operation is a load or store of local memory, or computes an address in local memory."""
    if operation.name in ("ld", "st"):
        return space_of(operation) == "local"
    return operation.name in ("mov", "add", "sub") or (operation.name == "cvta" and operation.has("to"))


def analyse(code: Code, segments: list[CodeSegment], *, rows: bool) -> WarpPlan:
    """Return the plan of a kernel. Raises NotCompiled if its lanes may be pending at too many places."""
    plan = WarpPlan(segments, rows)
    while True:
        before = len(plan.varying)
        plan.pending = find_pending(plan)
        plan.blend = [set().union(*(segments[k].live_in for k in p)) for p in plan.pending]
        for segment, blended in zip(segments, plan.blend, strict=True):
            ending = [] if segment.terminator is None else [segment.terminator]
            for operation in [*segment.operations, *ending]:
                results = {r.number for r in registers_written(operation, code.carry)}
                varies = segment.escapes or _result_varies(operation, plan, code.carry)
                # All results of an operation have one shape, so either all of them vary or none.
                if varies or results & blended or results & plan.varying:
                    plan.varying |= results
        if len(plan.varying) == before:
            break
    _find_loops(plan)
    return plan


def _result_varies(operation: Operation, plan: WarpPlan, carry: Register) -> bool:
    if operation.name in _ALWAYS_VARYING or differs_by_lane(operation):
        return True
    if operation.guard is not None and operation.guard.register.number in plan.varying:
        return True
    if operation.name in ("bar", "barrier", "activemask"):
        return False
    if operation.name in ("vote", "redux"):
        return operation.has("sync") and plan.is_varying(operation.operands[-1])
    if operation.name in ("addc", "subc", "madc") and carry.number in plan.varying:
        return True
    start = 1 if has_result(operation) else 0
    return any(plan.is_varying(operand) for operand in operation.operands[start:])


def _reads_timer(operation: Operation) -> bool:
    """Return whether an operation reads the time. A loop with it may wait for time, as all warps of a GPU can."""
    return any(isinstance(a, Special) and a.name[1:] in TIMERS for a in operation.operands)


def _find_loops(plan: WarpPlan) -> None:
    """Find the loops of a plan: set the fuel of their rounds, and record those in which lanes may wait."""
    ends = {
        header: end
        for end, segment in enumerate(plan.segments)
        for header in segment.successors
        if header != EXIT and header <= end
    }
    """The last segment that branches back to each header of a loop."""
    bodies = [segment.operations for segment in plan.segments]
    lengths = _sums_before(len(body) for body in bodies)
    waiting = _sums_before(any(map(_reads_timer, body)) for body in bodies)
    spinning = _sums_before(any(o.name in _SPINNING or is_ordered(o) for o in body) for body in bodies)
    for header, end in ends.items():
        waits = waiting[end + 1] > waiting[header]
        spins = waits or spinning[end + 1] > spinning[header]
        by_length = 1 + (lengths[end + 1] - lengths[header]) // _OPERATIONS_PER_FUEL
        plan.weights[header] = _WAITING_WEIGHT if waits else _SPINNING_WEIGHT if spins else by_length
        if spins:
            plan.spinning.add(header)
            plan.in_spinning.update(range(header, end + 1))


def _sums_before(numbers: Iterable[int]) -> list[int]:
    """Return the sum of the numbers before each index; the difference of two is the sum of the numbers in between."""
    return list(accumulate(numbers, initial=0))


def _ways(segment: CodeSegment, plan: WarpPlan) -> list[set[int]]:
    """Return the sets of segments to which lanes may go, a set for each way in which a segment may end."""
    last = segment.terminator
    following = set() if segment.following is None else {segment.following}
    if last is None or is_barrier(last):
        return [following - {EXIT}]
    targets = set(segment.targets) - {EXIT}
    if last.name == "brx":
        return [targets] if plan.is_varying(last.operands[0]) else [{t} for t in targets]
    if last.guard is None:
        return [targets]
    if last.guard.register.number in plan.varying:
        return [(targets | following) - {EXIT}]
    return [targets, following - {EXIT}]


def find_pending(plan: WarpPlan) -> list[set[int]]:
    """Return, for each segment, the segments at which other lanes of the warp may be pending while it runs.

    Raises NotCompiled above _MAX_PENDING. During the computation a set is an integer with a bit for each segment.
    """
    segments = plan.segments
    pending, reached, work = [0] * len(segments), 1, {0: None}

    def note(segment: int, others: int) -> None:
        """Record that a segment may run, and that other lanes may be pending at `others` meanwhile.

        After the segment, the lowest of its pending segments runs, and lanes may be pending at the rest.
        """
        nonlocal reached
        while not reached >> segment & 1 or others & ~pending[segment]:
            reached |= 1 << segment
            pending[segment] |= others
            work[segment] = None
            if not pending[segment]:
                return
            # When the segment's lanes have ended, the lanes at all of its pending segments run.
            lowest = pending[segment] & -pending[segment]
            segment, others = lowest.bit_length() - 1, pending[segment] ^ lowest

    def choose_among(candidates: int, parked: int = 0) -> None:
        while candidates:
            lowest = candidates & -candidates
            candidates ^= lowest
            note(lowest.bit_length() - 1, candidates | parked)
            if not parked:
                return

    while work:
        at, _ = work.popitem()
        if segments[at].escapes:  # its lanes continue after it, even if others are pending at lower segments
            note(at + 1, pending[at])
        else:
            for targets in _ways(segments[at], plan):
                choose_among(pending[at] | sum(1 << target for target in targets))
        if segments[at].meeting is not None:  # lanes that must wait for others stay here
            own = 1 << at
            choose_among(pending[at] & ~own, own)
    if (count := sum(map(int.bit_count, pending))) > _MAX_PENDING:
        raise NotCompiled(f"lanes may wait at {count} places of the code; compiled are at most {_MAX_PENDING}")
    numbers = list(range(len(segments)))  # so that the sets share these integers
    return [{numbers[bit] for bit in _bits(mask)} for mask in pending]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@frozen
class Accesses:
    """Accesses of a segment relative to the same value of a register, which one check covers."""

    space: str
    base: Memory
    """The address of the accesses, without their offsets."""
    sites: set[tuple[int, int]] = field(factory=set)
    """The offset and the size of each access, in bytes."""
    guarded: bool = False

    @property
    def low(self) -> int:
        """The lowest offset, in bytes."""
        return min(offset for offset, _ in self.sites)

    @property
    def high(self) -> int:
        """The end of the last access, as an offset in bytes."""
        return max(offset + nbytes for offset, nbytes in self.sites)

    @property
    def align(self) -> int:
        """The size of each access in bytes, and its alignment."""
        return max(nbytes for _, nbytes in self.sites)


def group_accesses(operations: list[Operation], carry: Register) -> dict[int, Accesses]:
    """Return the group of accesses to which each load and store of a segment belongs, by the operation's index.

    Accesses of a group have the same size, and their offsets are multiples of it.
    """
    groups: dict[int, Accesses] = {}
    open_groups: dict[tuple[str, int, int], Accesses] = {}
    for index, operation in enumerate(operations):
        if operation.name in ("ld", "ldu", "st"):
            memory = operation.operands[0] if operation.name == "st" else operation.operands[1]
            if isinstance(memory, Memory):
                groups[index] = _group(operation, memory, open_groups)
        elif operation.name in ("atom", "red", "mbarrier", "cp"):
            place = next((x for x in operation.operands[:2] if isinstance(x, Memory)), None)
            if place is not None:
                guarded = operation.guard is not None
                sites = {(place.offset, DTYPES[operation.type].itemsize)} if operation.type in DTYPES else set()
                groups[index] = Accesses(space_of(operation), Memory(place.base), sites, guarded)
        for register in registers_written(operation, carry):
            for key in [k for k in open_groups if k[1] == register.number]:
                del open_groups[key]
    return groups


def _group(operation: Operation, memory: Memory, open_groups: dict[tuple[str, int, int], Accesses]) -> Accesses:
    space, nbytes = space_of(operation), access_bytes(operation)
    group = Accesses(space, Memory(memory.base), guarded=operation.guard is not None)
    in_window = space in ("global", "const", "shared") and abs(memory.offset) < 1 << 20
    if isinstance(memory.base, Register) and not group.guarded and in_window and memory.offset % nbytes == 0:
        group = open_groups.setdefault((space, memory.base.number, nbytes), group)
    group.sites.add((memory.offset, nbytes))
    return group
