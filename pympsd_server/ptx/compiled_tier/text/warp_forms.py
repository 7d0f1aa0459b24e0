"""Write instructions that exchange values between the lanes of a warp, and mbarriers.

The lanes of a warp have all arrived before the segment begins. An mbarrier (runtime/mbarrier.py) changes lane by
lane, the lowest first, in C.
"""

from __future__ import annotations

from typing import Final

from pympsd_server.ptx.compiled_tier.ir_text import SCALAR, sequence
from pympsd_server.ptx.compiled_tier.text.expressions import Expression
from pympsd_server.ptx.compiled_tier.text.instruction_table import writes
from pympsd_server.ptx.compiled_tier.text.lanes import BITS, is_signed
from pympsd_server.ptx.compiled_tier.text.memory_text import MemoryText
from pympsd_server.ptx.isa.datatypes import S32, S64, U32
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.lowering.ir import Argument, Both, Memory, Operation, Sink
from pympsd_server.ptx.syntax.tree import Immediate

WARP_INSTRUCTIONS: Final = frozenset({"shfl", "vote", "activemask", "match", "redux", "elect"})
"""The instructions that need vectors of a whole warp."""
_WORDS: Final = f"<{WARP} x i32>"


@writes("shfl")
def _shuffle(text: MemoryText, operation: Operation) -> None:
    """Write shfl.sync: a fixed permutation if the operands are constants, otherwise a gather from memory."""
    text.refuse_if(text.width != WARP or not operation.has("sync"), "width")
    mode, target = operation.one_of("up", "down", "bfly", "idx"), operation.operands[0]
    value, where, clamp = operation.operands[1:4]
    running = text.as_lanes(text.current())
    words = text.choose(text.vector, running, _WORDS, text.use(value, "u32", text.vector), "zeroinitializer")
    if text.whole_warps and isinstance(where, Immediate) and isinstance(clamp, Immediate):
        sources, valid = _constant_sources(mode, where.value, clamp.value)
        order = ", ".join(f"i32 {source}" for source in sources)
        result = text.value(f"shufflevector {_WORDS} {words}, {_WORDS} poison, {_WORDS} <{order}>")
        truth = text.as_lanes(str(valid - (valid >> 31 << 32)))
    else:
        sources_text, truth = _sources(text, operation, mode)
        text.store(_WORDS, words, "%scratch0")
        places = text.value(f"getelementptr i32, ptr %scratch0, {_WORDS} {sources_text}")
        result = text.call(
            f"llvm.masked.gather.v{WARP}i32.v{WARP}p0",
            _WORDS,
            *(
                (f"<{WARP} x ptr> align 4", places),
                (f"<{WARP} x i1>", "splat (i1 true)"),
                (_WORDS, "zeroinitializer"),
            ),
        )
    if isinstance(target, Both):
        text.assign(target.first, result, "u32", text.vector)
        text.assign_predicate(target.second, truth, text.vector)
    else:
        text.assign(target, result, "u32", text.vector)


def _constant_sources(mode: str, where: int, clamp: int) -> tuple[list[int], int]:
    """Return the lane that each lane reads, and the mask of the lanes whose source is in range."""
    distance, segment, limit = where & 31, clamp >> 8 & 31, clamp & 31
    sources, valid = [], 0
    for lane in range(WARP):
        top = (lane & segment) | (limit & ~segment)
        source = {
            "up": lane - distance,
            "down": lane + distance,
            "bfly": lane ^ distance,
            "idx": (lane & segment) | (distance & ~segment),
        }[mode]
        good = source >= top if mode == "up" else source <= top
        sources.append(source if good else lane)
        valid |= good << lane
    return sources, valid


def _sources(text: MemoryText, operation: Operation, mode: str) -> tuple[str, str]:
    """Return the lane that each lane reads, and the lanes whose source is in range, for operands in registers."""
    lane = Expression(text, text.vector, S32, sequence(WARP, "i32"))
    distance, clamp = (text.expression(x, S32, text.vector) for x in operation.operands[2:4])
    distance, segment = distance & 31, (clamp >> 8) & 31
    base, position_bits = lane & segment, ~segment
    top = base | (clamp & 31 & position_bits)
    if mode == "idx":
        source = base | (distance & position_bits)
    else:
        source = lane - distance if mode == "up" else lane + distance if mode == "down" else lane ^ distance
    truth = ~(source < top if mode == "up" else source > top)
    exists = truth
    if not text.whole_warps:  # instead of a lane past the end of the block, a lane reads itself
        here = text.splat("%lanes_here", "i32", text.vector)
        exists = truth & (source < Expression(text, text.vector, S32, here))
    return (exists.choose(source, lane) & 31).name, truth.name


@writes("vote activemask")
def _vote(text: MemoryText, operation: Operation) -> None:
    """Write vote.sync, vote or activemask, from the mask of the lanes whose predicate is true."""
    text.refuse_if(text.width != WARP, "width")
    target, mask = operation.operands[0], text.current()
    if operation.name == "activemask":
        return text.assign(target, mask, "u32", SCALAR)
    true = text.as_mask(text.predicate(operation.operands[1], text.vector))
    true = text.op("and", "i32", true, mask)
    shape, members = SCALAR, "-1"
    if operation.has("sync"):
        shape = text.vector if text.plan.is_varying(operation.operands[2]) else SCALAR
        members = text.use(operation.operands[2], "u32", shape)
    true, mask = text.splat(true, "i32", shape), text.splat(mask, "i32", shape)
    kind = shape.of("i32")
    votes, voters = text.op("and", kind, true, members), text.op("and", kind, mask, members)
    mode = operation.one_of("all", "any", "uni", "ballot")
    if mode == "ballot":
        return text.assign(target, votes, "u32", shape)
    every = text.op("icmp eq", kind, votes, voters)
    if mode == "any":
        truth = text.op("icmp ne", kind, votes, shape.constant("i32", 0))
    elif mode == "all":
        truth = every
    else:
        truth = text.op("or", shape.of("i1"), every, text.op("icmp eq", kind, votes, shape.constant("i32", 0)))
    return text.assign_predicate(target, truth, shape)


@writes("redux")
def _reduce(text: MemoryText, operation: Operation) -> None:
    """Write redux.sync. If the membermask varies, the lowest lane of each mask reduces the values of its lanes."""
    target, _, members = operation.operands
    text.refuse_if(text.width != WARP, "width")
    if not text.plan.is_varying(members):
        mask = text.op("and", "i32", text.current(), text.use(members, "u32", SCALAR))
        return text.assign(target, _reduce_lanes(text, operation, mask), operation.type, SCALAR)
    running = text.splat(text.current(), "i32", text.vector)
    voters = text.op("and", _WORDS, running, text.use(members, "u32", text.vector))
    lowest = text.op("and", _WORDS, voters, text.op("sub", _WORDS, "zeroinitializer", voters))
    leaders = text.as_mask(text.op("icmp eq", _WORDS, lowest, text.special("%lanemask_eq")[0]))
    text.store(_WORDS, "zeroinitializer", "%scratch0")

    def reduce_group(lane: str) -> None:
        """Write the reduction of the lanes in a leader's mask."""
        group = text.value(f"extractelement {_WORDS} {voters}, i64 {lane}")
        total = text.splat(_reduce_lanes(text, operation, group), "i32", text.vector)
        others = text.load(_WORDS, "%scratch0")
        text.store(_WORDS, text.choose(text.vector, text.as_lanes(group), _WORDS, total, others), "%scratch0")

    text.write_lane_loop(leaders, reduce_group)
    return text.assign(target, text.load(_WORDS, "%scratch0"), operation.type, text.vector)


def _reduce_lanes(text: MemoryText, operation: Operation, mask: str) -> str:
    """Return the reduction of the values of the lanes in a mask, as i32."""
    type_name, mode = operation.type, operation.one_of("add", "min", "max", "and", "or", "xor")
    signed = is_signed(type_name)
    extremes = {"min": (1 << 31) - 1 if signed else -1, "max": -(1 << 31) if signed else 0}
    neutral = {"and": -1, **extremes}.get(mode, 0)
    values = text.use(operation.operands[1], type_name, text.vector)
    values = text.choose(text.vector, text.as_lanes(mask), _WORDS, values, f"splat (i32 {neutral})")
    name = ("s" if signed else "u") + mode if mode in extremes else mode
    return text.call(f"llvm.vector.reduce.{name}.v{WARP}i32", "i32", (_WORDS, values))


@writes("match")
def _match(text: MemoryText, operation: Operation) -> None:
    """Write match.sync: find, for each lane, the voters that have the lane's value."""
    target, value, members = operation.operands
    truths = target.second if isinstance(target, Both) else None
    result = target.first if isinstance(target, Both) else target
    text.refuse_if(text.width != WARP or not operation.has("sync"), "width")
    shape = text.vector if any(map(text.plan.is_varying, (value, members))) else SCALAR
    kind = shape.of("i32")
    voters = text.op("and", kind, text.splat(text.current(), "i32", shape), text.use(members, "u32", shape))
    same = _equal_lanes(text, operation, voters) if shape.lanes else voters
    agreed = text.op("icmp eq", kind, same, voters)
    if operation.has("all"):
        same = text.choose(shape, agreed, kind, same, shape.constant("i32", 0))
    else:
        agreed = shape.constant("i1", 1)
    text.assign(result, same, "u32", shape)
    if truths is not None:
        text.assign_predicate(truths, agreed, shape)


def _equal_lanes(text: MemoryText, operation: Operation, voters: str) -> str:
    """Return, for each lane, the mask of the voters that have the same value."""
    element = f"i{BITS[operation.type]}"
    kind, values = text.vector.of(element), text.use(operation.operands[1], operation.type, text.vector)
    for lane in range(WARP):
        value = text.splat(text.value(f"extractelement {kind} {values}, i64 {lane}"), element, text.vector)
        text.store("i32", text.as_mask(text.op("icmp eq", kind, values, value)), text.field("%scratch0", 4 * lane))
    return text.op("and", _WORDS, text.load(_WORDS, "%scratch0"), voters)


@writes("elect")
def _elect(text: MemoryText, operation: Operation) -> None:
    target, members = operation.operands
    if text.width != WARP or not isinstance(target, Both):
        raise text.refuse("width")
    shape = text.vector if text.plan.is_varying(members) else SCALAR
    kind = shape.of("i32")
    voters = text.op("and", kind, text.splat(text.current(), "i32", shape), text.use(members, "u32", shape))
    leader = text.call(f"llvm.cttz.{shape.mangled('i32')}", kind, (kind, voters), ("i1", "false"))
    text.assign(target.first, leader, "u32", shape)
    leaders = text.splat(leader, "i32", text.vector) if shape is SCALAR else leader
    is_leader = text.op("icmp eq", _WORDS, leaders, sequence(WARP, "i32"))
    text.assign_predicate(target.second, is_leader, text.vector)


# --- mbarriers

_DROP: Final = 1 << 20
_COUNT: Final = _DROP - 1
_BYTES_AT, _EXPECTED_AT, _PHASE_AT = 32, 20, 63


def _wide(text: MemoryText, argument: Argument) -> str:
    """Return a 32-bit operand as a vector of i64."""
    value = text.use(argument, "u32", text.vector)
    return text.cast("zext", value, text.vector.of("i32"), text.vector.of("i64"))


def count_arrivals(text: MemoryText, count: int | str, added_bytes: str = "", *, drops: bool = False) -> str:
    """Return the change of an mbarrier by an arrival, as a vector of i64 (see `arrival` in runtime/mbarrier.py)."""
    kind, vector = text.vector.of("i64"), text.vector
    if isinstance(count, int):
        change = vector.constant("i64", count)
    else:
        change = text.op("and", kind, count, vector.constant("i64", _COUNT))
    if added_bytes:
        change = text.op("or", kind, change, text.op("shl", kind, added_bytes, vector.constant("i64", _BYTES_AT)))
    return text.op("or", kind, change, vector.constant("i64", _DROP if drops else 0))


def arrive(text: MemoryText, place: Argument, target: Argument, change: str) -> None:
    """Change each lane's mbarrier; `target` receives its state before the change."""
    _put_barriers(text, place)
    text.store(text.vector.of("i64"), change, "%scratch1")
    mask = ("i32", text.as_word(text.active()))
    text.call("kernels_advance", "void", ("ptr", "%scratch0"), mask, ("ptr", "%scratch1"))
    if not isinstance(target, Sink):
        text.assign(target, text.load(text.vector.of("i64"), "%scratch1"), "u64", text.vector)


def _put_barriers(text: MemoryText, place: Argument) -> None:
    """Check the addresses of the lanes' mbarriers, and store the host addresses in %scratch0."""
    if not isinstance(place, Memory):
        raise text.refuse()
    group = text.groups[text.index]
    addresses = text.host_addresses(text.check(group, text.active()), place.offset)
    text.store(text.vector.of("i64"), addresses, "%scratch0")


@writes("mbarrier")
def _barrier(text: MemoryText, operation: Operation) -> None:
    """Write an mbarrier instruction. All of them except pending_count check the addresses of the objects."""
    action, operands = operation.modifiers[0], operation.operands
    if action == "pending_count":
        shape = text.shape_of(operands[0])
        state = text.cast("trunc", text.use(operands[1], "u64", shape), shape.of("i64"), shape.of("i32"))
        count = text.op("and", shape.of("i32"), state, shape.constant("i32", _COUNT))
        return text.assign(operands[0], count, "u32", shape)
    if action in ("test_wait", "try_wait"):
        return _test_wait(text, operation)
    if action == "inval":
        return _put_barriers(text, operands[0])
    if action == "init":
        kind = text.vector.of("i64")
        count = text.op("and", kind, _wide(text, operands[1]), text.vector.constant("i64", _COUNT))
        expected = text.op("shl", kind, count, text.vector.constant("i64", _EXPECTED_AT))
        _put_barriers(text, operands[0])
        text.store(kind, text.op("or", kind, count, expected), "%scratch1")
        where = (("ptr", "%scratch0"), ("i32", text.as_word(text.active())), ("i32", "8"), ("ptr", "%scratch1"))
        text.call("kernels_scatter", "void", *where)
        return None
    if action in ("expect_tx", "complete_tx"):
        added = _wide(text, operands[1])
        if action == "complete_tx":
            added = text.op("sub", text.vector.of("i64"), "zeroinitializer", added)
        return arrive(text, operands[0], Sink(), count_arrivals(text, 0, added))
    arrivals: str | int = _wide(text, operands[2]) if len(operands) > 2 else 1
    drops = action == "arrive_drop"
    if operation.has("expect_tx") and isinstance(arrivals, str):
        change = count_arrivals(text, 1, arrivals, drops=drops)
    else:
        change = count_arrivals(text, arrivals, drops=drops)
    return arrive(text, operands[1], operands[0], change)


def _test_wait(text: MemoryText, operation: Operation) -> None:
    place = operation.operands[1]
    if not isinstance(place, Memory):
        raise text.refuse()
    text.fence_compiler()
    (state,), shape = text.load_items(text.groups[text.index], place.offset, 64, 1)
    wide = text.shape_of(operation.operands[0]) if not shape.lanes else shape
    value = Expression(text, wide, S64, text.splat(state, "i64", wide) if not shape.lanes else state)
    if operation.has("parity"):
        phase = text.expression(operation.operands[2], U32, wide).astype(S64) << _PHASE_AT
    else:
        phase = text.expression(operation.operands[2], S64, wide)
    text.assign_predicate(operation.operands[0], ((value ^ phase) < 0).name, wide)
