"""Copies by tensor maps, and changes of tensor maps."""

from __future__ import annotations

from pympsd.wire.tensor_map import BYTES, FIELDS
from pympsd_server.backends.emulated.ptx.isa.datatypes import DTYPES, S32, U16, U64
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.emit_async import (
    BYTES_COMPLETE,
    HINT,
    MULTICAST,
    REDUCTIONS,
    address_of,
)
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")
_SPACES = "global shared::cta shared::cluster"


def _tensor(w: Writer, o: Operation, argument: Argument) -> tuple[str, str]:
    """Return the address of the map, and a tuple of the coordinates, of `[map, {...}]`."""
    wanted = int((o.one_of(*_DIMENSIONS) or "0")[0])
    if not isinstance(argument, Group) or len(argument.items) != 1 + wanted:
        raise w.refuse("the coordinates")
    place, *coordinates = argument.items
    return w.value(place, U64), f"({', '.join(w.value(each, S32) for each in coordinates)},)"


def _spaces(o: Operation) -> list[str]:
    return [m for m in o.modifiers if m in _SPACES.split()]


_COPY = f"{' '.join(_DIMENSIONS)} {_SPACES} tile im2col im2col_no_offs {BYTES_COMPLETE} bulk_group {MULTICAST} {HINT}"


@emits("cp.async.bulk.tensor", (2, 6), _COPY, ())
def _copy(w: Writer, o: Operation) -> None:
    """Global to shared memory with an mbarrier, or shared to global memory in a bulk group."""
    spaces = _spaces(o)
    if o.has("bulk_group"):
        return _store(w, o, "")
    if len(spaces) != 2 or spaces[1] != "global" or spaces[0] == "global" or not o.has(BYTES_COMPLETE):
        raise w.refuse()
    extra = o.has("im2col") + o.has(MULTICAST) + o.has(HINT)
    if len(o.operands) != 3 + extra or o.has("im2col_no_offs"):
        raise w.refuse(f"{len(o.operands)} operands")
    target, barrier = address_of(w, o.operands[0]), address_of(w, o.operands[2])
    place, coordinates = _tensor(w, o, o.operands[1])
    offsets = _offsets(w, o, o.operands[3]) if o.has("im2col") else "None"
    mask = w.value(o.operands[3 + o.has("im2col")], U16) if o.has(MULTICAST) else "None"
    w.lines.append(f"load_box(B, T, {target}, {place}, {coordinates}, {offsets}, {barrier}, {mask}, {w.guard})")
    return None


def _offsets(w: Writer, o: Operation, argument: Argument) -> str:
    """Return a tuple of the offsets in W, H and D of an im2col copy."""
    items = argument.items if isinstance(argument, Group) else (argument,)
    if len(items) != int((o.one_of(*_DIMENSIONS) or "0")[0]) - 2:
        raise w.refuse(f"{len(items)} im2col offsets")
    return f"({', '.join(w.value(each, U16) for each in items)},)"


def _store(w: Writer, o: Operation, function: str) -> None:
    if _spaces(o) != ["global", "shared::cta"] or len(o.operands) != 2 + o.has(HINT) or o.has("im2col"):
        raise w.refuse()
    place, coordinates = _tensor(w, o, o.operands[0])
    source, is_im2col = address_of(w, o.operands[1]), o.has("im2col_no_offs")
    w.lines.append(f"store_box(B, T, {place}, {coordinates}, {is_im2col}, {source}, {function!r}, {w.guard})")


_REDUCE = f"{' '.join(_DIMENSIONS)} global shared::cta tile im2col_no_offs bulk_group {REDUCTIONS} {HINT}"


@emits("cp.reduce.async.bulk.tensor", (2, 3), _REDUCE, ())
def _reduce(w: Writer, o: Operation) -> None:
    """Shared to global memory; the map has the type of the elements."""
    function = o.one_of(*REDUCTIONS.split())
    if not function or not o.has("bulk_group"):
        raise w.refuse()
    _store(w, o, function)


@emits(
    "cp.async.bulk.prefetch.tensor",
    (1, 3),
    f"{' '.join(_DIMENSIONS)} L2 global tile im2col {HINT}",
    (),
)
def _prefetch(w: Writer, o: Operation) -> None:
    """There is no cache."""
    _tensor(w, o, o.operands[0])


@emits(
    "tensormap.replace",
    (2, 3),
    f"tile global shared::cta b1024 {' '.join(FIELDS)}",
    ("b32", "b64"),
)
def _replace(w: Writer, o: Operation) -> None:
    """One field of a map; of those that a map has several of, the operand in the middle says which."""
    field = o.one_of(*FIELDS)
    wide = field in ("global_address", "global_stride")
    count = FIELDS.get(field, 0)
    if not (o.has("tile") and o.has("b1024")) or o.types != ("b64" if wide else "b32",):
        raise w.refuse()
    if len(o.operands) != 2 + (count > 1):
        raise w.refuse(f"{len(o.operands)} operands")
    ordinal = o.operands[1] if count > 1 else Immediate(0)
    if not isinstance(ordinal, Immediate) or not 0 <= ordinal.value < count:
        raise w.refuse(f"the ordinal is not 0 to {count - 1}")
    space = "shared" if o.has("shared::cta") else "global" if o.has("global") else "generic"
    address, value = address_of(w, o.operands[0]), w.value(o.operands[-1], DTYPES[o.type])
    w.lines.append(f"replace_field(B, T, {space!r}, {address}, {field!r}, {ordinal.value}, {value}, {w.guard})")


@emits(
    "tensormap.cp_fenceproxy",
    3,
    "global shared::cta tensormap::generic release cta cluster gpu sys sync aligned",
    (),
)
def _copy_map(w: Writer, o: Operation) -> None:
    size = o.operands[2]
    if _spaces(o) != ["global", "shared::cta"] or not isinstance(size, Immediate) or size.value != BYTES:
        raise w.refuse()
    target, source = (address_of(w, operand) for operand in o.operands[:2])
    w.lines.append(f"copy_map(B, T, {target}, {source}, {w.guard})")
