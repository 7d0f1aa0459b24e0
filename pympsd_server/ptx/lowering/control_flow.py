"""Find the basic blocks of a kernel, and the registers alive at their starts.

The size of the code that either tier writes is in proportion to the kernel's operations, to the targets of its
branches, and to the registers that are alive at the starts of blocks. So each of the three has a maximum, and a
kernel that exceeds one of them is refused.
"""

from attrs import define, evolve, field, frozen

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Code,
    Operation,
    Register,
    Sink,
    Target,
    is_barrier,
    registers_read,
    registers_written,
)
from pympsd_server.ptx.syntax.tree import Immediate

ENDS_BLOCK = frozenset({"bra", "brx", "exit", "bar", "barrier", "trap", "brkpt", "system:assertfail", "procreturn"})
WHOLE_WARP = frozenset({"mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "setmaxnreg"})
_EVERYONE = Immediate(0xFFFFFFFF)
EXIT = -1
MAX_LIVE = 2_000_000
"""The maximum number of registers that are alive at the starts of blocks, summed over a kernel's blocks."""
MAX_TARGETS = 2_000_000
"""The maximum number of targets that a kernel's branches have together."""
MAX_OPERATIONS_PER_BLOCK = 4000
"""The maximum number of operations of a block; a longer one is divided, because compiling it takes more memory."""


@frozen
class Meeting:
    """The lanes that must meet before a block runs: those in the warp's membermask, or all lanes of a warp group."""

    mask: Argument
    in_group: bool = False


@define
class Block:
    """A basic block: operations without branches, then perhaps a terminator."""

    operations: list[Operation] = field(factory=list)
    terminator: Operation | None = None
    targets: tuple[int, ...] = ()
    following: int | None = None
    live_in: tuple[int, ...] = ()
    meeting: Meeting | None = None

    @property
    def successors(self) -> tuple[int, ...]:
        """The indices of the blocks that may run next; EXIT for the end of a thread."""
        after = () if self.following is None else (self.following,)
        return (*self.targets, *after)


def meeting_of(operation: Operation) -> Meeting | None:
    """Return which lanes must meet before an operation such as shfl.sync or bar.warp.sync; None for other operations.

    Raises InvalidPtx if the operation lacks its membermask.
    """
    if operation.name in WHOLE_WARP:
        return Meeting(_EVERYONE) if operation.has("sync") else None
    if operation.name == "wgmma":
        return Meeting(_EVERYONE, in_group=True) if operation.has("mma_async") else None
    if not operation.has("sync") or (is_barrier(operation) and not operation.has("warp")):
        return None
    if not operation.operands:
        raise InvalidPtx(f"unsupported instruction: {operation.opcode} without operands", operation.line)
    return Meeting(operation.operands[-1])


def build_blocks(code: Code) -> list[Block]:
    """Split the code into blocks, with their targets, successors and live-in registers.

    Raises InvalidPtx for unknown labels and for a kernel that is too large.
    """
    blocks, labels = _split(code)
    targets = 0
    for index, block in enumerate(blocks):
        _connect(block, index, labels, code, len(blocks))
        targets += len(block.targets)
        if targets > MAX_TARGETS:
            raise InvalidPtx(f"the kernel's branches have more than {MAX_TARGETS} targets, counted at each branch")
    _liveness(blocks, code.carry)
    return blocks


def _split(code: Code) -> tuple[list[Block], dict[str, int]]:
    """Split the operations into blocks, and return the blocks with the index of each label's block."""
    blocks, labels = [Block()], {}
    synchronized: Block | None = None
    written: set[Argument] = set()  # the registers that the last block's operations set, if it has operations
    for operation in code.operations:
        block = blocks[-1]
        if operation.name == "label":
            if block.operations or block.meeting is not None:
                blocks.append(Block())
            labels[_label(operation)] = len(blocks) - 1
            continue
        meeting = meeting_of(operation)
        if meeting is not None:
            started = bool(block.operations) or block.meeting is not None
            # Lanes that have met at several bar.warp.sync are not together: they meet again at the next.
            is_again = is_barrier(operation) and block is synchronized
            if is_again or (started and block.meeting != meeting) or (block.operations and meeting.mask in written):
                block = Block()
                blocks.append(block)
            block.meeting = meeting
            if is_barrier(operation):
                synchronized = block
                continue
        if operation.name in ENDS_BLOCK and meeting is None:
            block.terminator = operation
            blocks.append(Block())
            continue
        if len(block.operations) >= MAX_OPERATIONS_PER_BLOCK:
            block = Block()
            blocks.append(block)
        if not block.operations:
            written.clear()
        block.operations.append(operation)
        written.update(registers_written(operation, Register(-1)))
    return blocks, labels


def _label(operation: Operation) -> str:
    target = operation.operands[-1] if operation.operands else None
    if not isinstance(target, Target):
        raise InvalidPtx(f"{operation.opcode}: expected a label", operation.line)
    return target.label


def _connect(block: Block, index: int, labels: dict[str, int], code: Code, count: int) -> None:
    """Set the targets and the following block of a block by its terminator; `count` is the number of blocks."""
    last = block.terminator
    after = index + 1 if index + 1 < count else EXIT
    name = "" if last is None else last.name
    if last is not None and name == "bra":
        block.targets = (_target(_label(last), labels, last.line),)
    elif last is not None and name == "brx":
        names = code.branch_targets.get(_label(last))
        if names is None:
            raise InvalidPtx("brx.idx without .branchtargets", last.line)
        block.targets = tuple(_target(n, labels, last.line) for n in names)
    elif name == "exit":
        block.targets = (EXIT,)
    if last is None or last.guard is not None or is_barrier(last):
        block.following = after


def _target(name: str, labels: dict[str, int], line: int) -> int:
    if name not in labels:
        raise InvalidPtx(f"unknown label {name}", line)
    return labels[name]


def _liveness(blocks: list[Block], carry: Register) -> None:
    """Set live_in: follow each use of a register back to its definitions. Raises InvalidPtx above MAX_LIVE."""
    uses_of_blocks, defined = [], []
    for block in blocks:
        uses, definitions = _collect_uses(block, carry)
        uses_of_blocks.append(uses)
        defined.append(definitions)
    predecessors: list[list[int]] = [[] for _ in blocks]
    for index, block in enumerate(blocks):
        for successor in dict.fromkeys(block.successors):
            if successor != EXIT:
                predecessors[successor].append(index)
    live = [uses.copy() for uses in uses_of_blocks]
    total = sum(map(len, live))
    for index, uses in enumerate(uses_of_blocks):
        for register in uses:
            todo = [index]
            while todo:
                for before in predecessors[todo.pop()]:
                    if register not in live[before] and register not in defined[before]:
                        live[before].add(register)
                        todo.append(before)
                        total += 1
            if total > MAX_LIVE:
                raise InvalidPtx(f"the kernel has more than {MAX_LIVE} live registers, counted at all its labels")
    for block, registers in zip(blocks, live, strict=True):
        block.live_in = tuple(sorted(registers))


def _collect_uses(block: Block, carry: Register) -> tuple[set[int], set[int]]:
    uses: set[int] = set()
    definitions: set[int] = set()
    if block.meeting is not None and isinstance(block.meeting.mask, Register):
        uses.add(block.meeting.mask.number)
    terminator = [] if block.terminator is None else [block.terminator]
    for operation in [*block.operations, *terminator]:
        uses |= {r.number for r in registers_read(operation, carry)} - definitions
        definitions |= {r.number for r in registers_written(operation, carry)}
    return uses, definitions


def drop_dead_results(block: Block, blocks: list[Block], carry: Register) -> list[Operation]:
    """Return the block's operations without moves whose results are never read; unread results of atom become `_`.

    All other operations stay, because only their emitters find out whether they are valid.
    """
    live: set[int] = set().union(*(blocks[s].live_in for s in block.successors if s != EXIT))
    if block.terminator is not None:
        live |= {r.number for r in registers_read(block.terminator, carry)}
    operations: list[Operation] = []
    for operation in reversed(block.operations):
        results = {r.number for r in registers_written(operation, carry)}
        if results and not results & live:
            if operation.name == "mov":
                continue
            if operation.name == "atom":
                operation = evolve(operation, operands=(Sink(), *operation.inputs))
        if operation.guard is None:
            live -= results
        live |= {r.number for r in registers_read(operation, carry)}
        operations.append(operation)
    return operations[::-1]
