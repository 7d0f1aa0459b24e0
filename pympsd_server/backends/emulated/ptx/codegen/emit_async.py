"""mbarrier objects, and asynchronous copies of a few bytes."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.codegen.emission import emits
from pympsd_server.backends.emulated.ptx.codegen.writer import Writer
from pympsd_server.backends.emulated.ptx.datatypes import BOOL, U32, U64
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Operation, Register, Sink
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

_SHARED = ("shared", "shared::cta", "shared::cluster")
_ORDER = "release acquire relaxed cta cluster"
_BARRIER = (
    "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait pending_count noComplete parity "
    f"{' '.join(_SHARED)} {_ORDER}"
)


def _space(o: Operation) -> str:
    return "shared" if o.one_of(*_SHARED) else "generic"


def address_of(w: Writer, memory: Argument) -> str:
    """Write the sum of an address and its offset; return its name."""
    base, offset = w.address(memory)
    return w.keep(f"displaced({base}, {offset})") if offset else base


@emits("mbarrier", (1, 4), _BARRIER, ("b64",))
def _barrier(w: Writer, o: Operation) -> None:
    action = o.modifiers[0] if o.modifiers else ""
    if action == "pending_count" and len(o.operands) == 2:
        return w.assign(o.operands[0], f"pending_count({w.value(o.operands[1], U64)})", U32)
    if action in ("test_wait", "try_wait"):
        return _test_wait(w, o)
    if action == "init" and len(o.operands) == 2:
        value = w.keep(f"initial_barrier({w.value(o.operands[1], U32)})")
        address = address_of(w, o.operands[0])
        w.lines.append(f"store(B, T, {_space(o)!r}, {address}, d_u8_t, 8, ({value},), {w.guard})")
        return None
    if action == "inval" and len(o.operands) == 1:
        w.keep(f"load(B, T, {_space(o)!r}, {address_of(w, o.operands[0])}, d_u8_t, 8, {w.guard})")
        return None
    if action in ("expect_tx", "complete_tx") and len(o.operands) == 2:
        count = w.value(o.operands[1], U32)
        sign = "-" if action == "complete_tx" else ""
        change = f"arrival({w.scalar(0, U32)}, {sign}{count}.astype(d_i8))"
        return change_barrier(w, Sink(), _space(o), address_of(w, o.operands[0]), change)
    if action in ("arrive", "arrive_drop") and 1 <= len(o.operands) <= 3:
        return _arrive(w, o, drop=action == "arrive_drop")
    raise w.refuse()


def _arrive(w: Writer, o: Operation, drop: bool) -> None:
    """A state or _, the object, and a count, or with .expect_tx a number of bytes."""
    if len(o.operands) < 2:
        raise w.refuse(f"{len(o.operands)} operands")
    target, where, *rest = o.operands
    given = w.value(rest[0], U32) if rest else w.scalar(1, U32)
    if o.has("expect_tx"):
        if not rest:
            raise w.refuse("no number of bytes")
        change = f"arrival({w.scalar(1, U32)}, {given}.astype(d_i8), {drop})"
    else:
        change = f"arrival({given}, {w.scalar(0, U64)}, {drop})"
    change_barrier(w, target, _space(o), address_of(w, where), change)


def change_barrier(w: Writer, target: Argument, space: str, address: str, change: str) -> None:
    """Write the change of an mbarrier object; `target` gets its state before."""
    used = not isinstance(target, Sink)
    name = w.name()
    w.lines.append(
        f"{name} = atomic(B, T, {space!r}, 'mbarrier', {address}, d_u8_t, 8, ({w.keep(change)},), {used}, {w.guard})"
    )
    if used:
        w.assign(target, name, U64)


def _test_wait(w: Writer, o: Operation) -> None:
    """A predicate, the object, a state or a parity; try_wait may have a time limit, which is not used."""
    if not 3 <= len(o.operands) <= (4 if o.has("try_wait") else 3):
        raise w.refuse(f"{len(o.operands)} operands")
    barrier = w.keep(f"load(B, T, {_space(o)!r}, {address_of(w, o.operands[1])}, d_u8_t, 8, {w.guard})")
    if o.has("parity"):
        result = f"parity_has_ended({barrier}, {w.value(o.operands[2], U32)})"
    else:
        result = f"phase_has_ended({barrier}, {w.value(o.operands[2], U64)})"
    w.assign(o.operands[0], result, BOOL)


_COPY = f"async ca cg commit_group wait_group wait_all mbarrier arrive noinc global {' '.join(_SHARED)}"
_COPY += " L2::cache_hint L2::64B L2::128B L2::256B"


@emits("cp", (0, 5), _COPY, ("b64",))
def _copy(w: Writer, o: Operation) -> None:
    if not o.has("async"):
        raise w.refuse()
    if o.one_of("commit_group", "wait_group", "wait_all"):
        # The copies before are done already.
        if len(o.operands) != o.has("wait_group"):
            raise w.refuse(f"{len(o.operands)} operands")
    elif o.has("arrive"):
        # Without .noinc the arrival that the copies cause was added to what the phase waits for: it changes nothing.
        if len(o.operands) != 1 or o.types != ("b64",):
            raise w.refuse()
        count = w.scalar(1 if o.has("noinc") else 0, U32)
        change_barrier(w, Sink(), _space(o), address_of(w, o.operands[0]), f"arrival({count}, {w.scalar(0, U64)})")
    else:
        _copy_small(w, o)


def _copy_small(w: Writer, o: Operation) -> None:
    operands = o.operands[: len(o.operands) - o.has("L2::cache_hint")]
    size = operands[2] if len(operands) in (3, 4) else None
    if not isinstance(size, Immediate) or size.value not in ((16,) if o.has("cg") else (4, 8, 16)):
        raise w.refuse("the size is not 4, 8 or 16 (.cg: 16)")
    given = "None"
    if len(operands) == 4:
        last = operands[3]
        if isinstance(last, Register) and w.register_dtype(last.number) == BOOL:
            # The source is ignored where the predicate is true.
            ignored = w.value(last, BOOL)
            given = w.keep(f"select({ignored}, {w.scalar(0, U32)}, {w.scalar(size.value, U32)})")
        else:
            given = w.value(last, U32)
    target, source = (address_of(w, operand) for operand in operands[:2])
    w.lines.append(f"copy_small(B, T, {target}, {source}, {size.value}, {given}, {w.guard})")
