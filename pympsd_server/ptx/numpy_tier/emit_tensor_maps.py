"""Write copies by tensor maps, and changes of tensor maps."""

from pympsd.wire.tensor_map import BYTES, FIELDS
from pympsd_server.ptx.isa.datatypes import DTYPES, S32, U16, U64
from pympsd_server.ptx.lowering.ir import Argument, Group, Operation, items_of, space_of
from pympsd_server.ptx.numpy_tier.emit_async import BYTES_COMPLETE, HINT, MULTICAST, REDUCTIONS
from pympsd_server.ptx.numpy_tier.instruction_table import emits
from pympsd_server.ptx.numpy_tier.writer import Writer
from pympsd_server.ptx.syntax.tree import Immediate

_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")
_SPACES = "global shared::cta shared::cluster"


def _tensor(writer: Writer, operation: Operation, argument: Argument) -> tuple[str, str]:
    """Return the map's address and the text of a tuple of the coordinates, for an operand `[map, {...}]`."""
    count = int((operation.one_of(*_DIMENSIONS) or "0")[0])
    if not isinstance(argument, Group) or len(argument.items) != 1 + count:
        raise writer.refuse("the coordinates")
    place, *coordinates = argument.items
    return writer.value(place, U64), writer.tuple_of(coordinates, S32)


def _spaces(operation: Operation) -> list[str]:
    return [m for m in operation.modifiers if m in _SPACES.split()]


_COPY = f"{' '.join(_DIMENSIONS)} {_SPACES} tile im2col im2col_no_offs {BYTES_COMPLETE} bulk_group {MULTICAST} {HINT}"


@emits("cp.async.bulk.tensor", (2, 6), _COPY, ())
def _copy(writer: Writer, operation: Operation) -> None:
    """Write a copy: from global to shared memory with an mbarrier, or from shared to global in a bulk group."""
    spaces = _spaces(operation)
    if operation.has("bulk_group"):
        return _store(writer, operation, "")
    writer.refuse_if(
        len(spaces) != 2 or spaces[1] != "global" or spaces[0] == "global" or not operation.has(BYTES_COMPLETE)
    )
    extra = operation.has("im2col") + operation.has(MULTICAST) + operation.has(HINT)
    writer.refuse_count_if(len(operation.operands) != 3 + extra or operation.has("im2col_no_offs"))
    target, barrier = writer.address_of(operation.operands[0]), writer.address_of(operation.operands[2])
    place, coordinates = _tensor(writer, operation, operation.operands[1])
    offsets = _offsets(writer, operation, operation.operands[3]) if operation.has("im2col") else "None"
    mask = writer.value(operation.operands[3 + operation.has("im2col")], U16) if operation.has(MULTICAST) else "None"
    writer.run(f"load_box(B, T, {target}, {place}, {coordinates}, {offsets}, {barrier}, {mask}, {writer.guard})")
    return None


def _offsets(writer: Writer, operation: Operation, argument: Argument) -> str:
    """Return the text of a tuple of an im2col copy's offsets in W, H and D."""
    items = items_of(argument)
    writer.refuse_if(
        len(items) != int((operation.one_of(*_DIMENSIONS) or "0")[0]) - 2, f"{len(items)} im2col offsets"
    )
    return writer.tuple_of(items, U16)


def _store(writer: Writer, operation: Operation, function: str) -> None:
    writer.refuse_if(
        _spaces(operation) != ["global", "shared::cta"]
        or len(operation.operands) != 2 + operation.has(HINT)
        or operation.has("im2col")
    )
    place, coordinates = _tensor(writer, operation, operation.operands[0])
    source, is_im2col = writer.address_of(operation.operands[1]), operation.has("im2col_no_offs")
    writer.run(f"store_box(B, T, {place}, {coordinates}, {is_im2col}, {source}, {function!r}, {writer.guard})")


_REDUCE = f"{' '.join(_DIMENSIONS)} global shared::cta tile im2col_no_offs bulk_group {REDUCTIONS} {HINT}"


@emits("cp.reduce.async.bulk.tensor", (2, 3), _REDUCE, ())
def _reduce(writer: Writer, operation: Operation) -> None:
    """Write a reduction from shared to global memory; the map determines the type of the elements."""
    function = operation.one_of(*REDUCTIONS.split())
    writer.refuse_if(not function or not operation.has("bulk_group"))
    _store(writer, operation, function)


@emits("cp.async.bulk.prefetch.tensor", (1, 3), f"{' '.join(_DIMENSIONS)} L2 global tile im2col {HINT}", ())
def _prefetch(writer: Writer, operation: Operation) -> None:
    """Write nothing, because no cache is emulated; only check the operands."""
    _tensor(writer, operation, operation.operands[0])


@emits("tensormap.replace", (2, 3), f"tile global shared::cta b1024 {' '.join(FIELDS)}", ("b32", "b64"))
def _replace(writer: Writer, operation: Operation) -> None:
    """Write the replacement of a map's field; of a field with several elements, the middle operand is the index."""
    field = operation.one_of(*FIELDS)
    wide = field in ("global_address", "global_stride")
    count = FIELDS.get(field, 0)
    writer.refuse_if(
        not (operation.has("tile") and operation.has("b1024")) or operation.types != ("b64" if wide else "b32",)
    )
    writer.refuse_count_if(len(operation.operands) != 2 + (count > 1))
    ordinal = operation.operands[1] if count > 1 else Immediate(0)
    if not isinstance(ordinal, Immediate) or not 0 <= ordinal.value < count:
        raise writer.refuse(f"the ordinal is not 0 to {count - 1}")
    space, address = space_of(operation), writer.address_of(operation.operands[0])
    value = writer.value(operation.operands[-1], DTYPES[operation.type])
    writer.run(f"replace_field(B, T, {space!r}, {address}, {field!r}, {ordinal.value}, {value}, {writer.guard})")


@emits(
    "tensormap.cp_fenceproxy", 3, "global shared::cta tensormap::generic release cta cluster gpu sys sync aligned", ()
)
def _copy_map(writer: Writer, operation: Operation) -> None:
    size = operation.operands[2]
    if _spaces(operation) != ["global", "shared::cta"] or not isinstance(size, Immediate) or size.value != BYTES:
        raise writer.refuse()
    target, source = (writer.address_of(operand) for operand in operation.operands[:2])
    writer.run(f"copy_map(B, T, {target}, {source}, {writer.guard})")
