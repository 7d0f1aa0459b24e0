"""Write the end of a block: the plan for the terminator, and the value that the block's function returns."""

import numpy as np

from pympsd_server.ptx.isa.datatypes import BOOL, U32, U64
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.isa.machine import CLUSTER_BARRIER, GROUP_WARPS
from pympsd_server.ptx.lowering.block_plans import BarrierPlan, BlockPlan
from pympsd_server.ptx.lowering.control_flow import EXIT, Block
from pympsd_server.ptx.lowering.ir import Operation, Register, Sink, is_barrier
from pympsd_server.ptx.numpy_tier.writer import Writer
from pympsd_server.ptx.syntax.tree import Immediate

_SPINNING = frozenset({"atom", "red", "membar", "fence", "nanosleep", "mbarrier"})
_LAST = {"exit": "exit", "trap": "trap", "brkpt": "trap"}
BARRIER_MODIFIERS = frozenset(
    ["sync", "arrive", "red", "popc", "and", "or", "aligned", "cta", "cluster", "wait", "acquire"]
)


def emit_end(writer: Writer, block: Block, blocks: list[Block]) -> tuple[BlockPlan, str]:
    """Return a block's plan and the text of its function's return value. Raises InvalidPtx."""
    last = block.terminator
    following = EXIT if block.following is None else block.following
    if last is None:
        return _plan(block, writer, "next", target=following), _outgoing(writer, blocks, following)
    writer.begin(last)
    if last.name == "bra":
        return _branch(writer, block, blocks, last, block.targets[0], following)
    if last.name == "brx":
        index = writer.value(last.operands[0], U32)
        all_targets = ", ".join(_outgoing(writer, blocks, t) for t in block.targets)
        return _plan(block, writer, "index"), f"{index}, ({all_targets},)"
    if is_barrier(last):
        return _barrier(writer, block, blocks, last, following)
    if last.name == "exit" and last.guard is not None:
        return _branch(writer, block, blocks, last, EXIT, following)
    if last.name == "system:assertfail":
        message, file, function = (writer.value(last.operands[i], U64) for i in (0, 1, 3))
        line = writer.value(last.operands[2], U32)
        return _plan(block, writer, "assert"), f"{message}, {file}, {line}, {function}"
    return _plan(block, writer, _LAST[last.name]), "None"


def _outgoing(writer: Writer, blocks: list[Block], target: int) -> str:
    if target == EXIT:
        return "()"
    return f"({''.join(writer.register_value(r) + ', ' for r in blocks[target].live_in)})"


def _branch(
    writer: Writer, block: Block, blocks: list[Block], last: Operation, target: int, following: int
) -> tuple[BlockPlan, str]:
    if last.guard is None:
        return _plan(block, writer, "next", target=target), _outgoing(writer, blocks, target)
    if last.guard.negated:
        target, following = following, target
    condition = writer.value(last.guard.register, BOOL)
    taken, fall_through = _outgoing(writer, blocks, target), _outgoing(writer, blocks, following)
    plan = _plan(block, writer, "branch", target=target, following=following)
    return plan, f"{condition}, {taken}, {fall_through}"


def _barrier(
    writer: Writer, block: Block, blocks: list[Block], last: Operation, following: int
) -> tuple[BlockPlan, str]:
    """Return the plan and the return value of a block that ends at a barrier. Raises InvalidPtx."""
    for modifier in last.modifiers:
        writer.refuse_if(modifier not in BARRIER_MODIFIERS, f"modifier .{modifier}")
    if last.has("cluster"):
        writer.refuse_if(not last.has("wait") or last.operands)
        plan = BarrierPlan(False, "", None, cluster=True)
        block_plan = _plan(block, writer, "barrier", following=following, barrier=plan)
        return (
            block_plan,
            f"({writer.scalar(CLUSTER_BARRIER, U32)}, None, None), {_outgoing(writer, blocks, following)}",
        )
    writer.refuse_if(last.has("wait") or last.has("acquire"))
    writer.refuse_if(not last.one_of("sync", "arrive", "red"), "one of .sync, .arrive and .red is needed")
    arrive, operands = last.has("arrive"), list(last.operands)
    reduction = last.one_of("popc", "and", "or")
    predicate, target = "None", None
    if last.has("red"):
        writer.refuse_if(not reduction or len(operands) < 3)
        target, predicate = operands.pop(0), writer.value(operands.pop(), BOOL)
    writer.refuse_if(not 1 <= len(operands) <= 2, f"{len(operands)} operands")
    number = writer.value(operands[0], U32)
    count = writer.value(operands[1], U32) if len(operands) == 2 else "None"
    after = blocks[following].live_in if following != EXIT else ()
    result = None
    if isinstance(target, Register):
        # A placeholder, which `store_result` replaces by the result when the barrier opens.
        result = after.index(target.number) if target.number in after else None
        writer.current[target.number] = (
            writer.scalar(0, writer.register_dtype(target.number)),
            writer.register_dtype(target.number),
        )
    elif target is not None and not isinstance(target, Sink):
        raise writer.refuse("the result is not a register")
    plan = BarrierPlan(arrive, reduction, result)
    outgoing = _outgoing(writer, blocks, following)
    block_plan = _plan(block, writer, "barrier", following=following, barrier=plan)
    return block_plan, f"({number}, {count}, {predicate}), {outgoing}"


def _plan(
    block: Block,
    writer: Writer,
    kind: str,
    target: int = EXIT,
    following: int = EXIT,
    barrier: BarrierPlan | None = None,
) -> BlockPlan:
    """Return a block's plan, with the weight of a step and the lanes that must meet."""
    spins = any(
        operation.name in _SPINNING
        or operation.has("volatile")
        or operation.has("acquire")
        or operation.has("relaxed")
        for operation in block.operations
    )
    dtypes = tuple(writer.register_dtype(r) for r in block.live_in)
    meeting = _meeting(block, writer)
    weight = 64 if spins else 1
    warps = GROUP_WARPS if block.meeting is not None and block.meeting.in_group else 1
    # A bulk copy runs for one thread after another, and each may copy as much as shared memory has.
    in_turn = any(operation.name == "cp" and operation.has("bulk") for operation in block.operations)
    joins = any(operation.name in ("shfl", "vote") and not operation.has("sync") for operation in block.operations)
    return BlockPlan(
        kind, target, following, block.targets, block.live_in, dtypes, meeting, weight, barrier, warps, in_turn, joins
    )


def _meeting(block: Block, writer: Writer) -> int | np.uint32 | None:
    if block.meeting is None:
        return None
    mask = block.meeting.mask
    if isinstance(mask, Immediate):
        return np.uint32(mask.value & 0xFFFFFFFF)
    if isinstance(mask, Register) and writer.register_dtype(mask.number) != BOOL:
        return block.live_in.index(mask.number)
    line = block.operations[0].line if block.operations else None
    raise InvalidPtx("unsupported membermask", line)
