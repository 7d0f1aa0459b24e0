"""CUDA arrays: device memory in which elements, rows and slices follow each other without gaps."""

from __future__ import annotations

from typing import Final

from attrs import define, field

from pympsd_client._arguments.array_structs import ArrayDescription
from pympsd_client._arguments.errors import invalid_handle, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._objects.arrays.shapes import check, element_bytes, level, level_count
from pympsd_client._objects.context import Context, current_on_device_with
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.memory.allocations import other_ranges


@define(eq=False)
class Array:
    """An array, or a level of a mipmapped one, at an address of its context's device."""

    handle: int
    context: Context
    address: int
    description: ArrayDescription
    is_level: bool = False

    @property
    def pitch(self) -> int:
        """The bytes of a row."""
        return self.description.width * element_bytes(self.description)

    @property
    def rows(self) -> int:
        """The rows of a slice."""
        return self.description.height or 1

    @property
    def slices(self) -> int:
        """The slices, layers or faces."""
        return self.description.depth or 1

    @property
    def slice_pitch(self) -> int:
        """The bytes of a slice."""
        return self.pitch * self.rows

    @property
    def size(self) -> int:
        """The bytes of all."""
        return self.slice_pitch * self.slices


@define(eq=False)
class MipmappedArray:
    """Arrays of which each is half as large as the one before, in one piece of memory."""

    handle: int
    context: Context
    address: int
    description: ArrayDescription
    levels: tuple[Array, ...] = field(factory=tuple)


arrays: Final = HandleTable[Array]("CUDA array", "destroyed, or never made")
other_ranges.append(lambda: ((array.address, array.size) for array in arrays.all()))
mipmapped_arrays: Final = HandleTable[MipmappedArray]("mipmapped array", "destroyed, or never made")


def texturing_context() -> Context:
    """Return the current context; NOT_SUPPORTED if its device has no arrays and no textures."""
    return current_on_device_with(
        "MAXIMUM_TEXTURE2D_WIDTH",
        "pympsd has no arrays, textures and surfaces on this device (attribute MAXIMUM_TEXTURE2D_WIDTH is 0). "
        "Use linear memory",
    )


def _checked(given: ArrayDescription | None) -> tuple[Context, ArrayDescription]:
    context = texturing_context()
    if given is None:
        raise invalid_value("the description of the array is NULL")
    check(given, context.device.facts.attributes)
    return context, given


def allocate(context: Context, size: int) -> int:
    """Return the address of new memory that no cuMemFree frees; OUT_OF_MEMORY."""
    (address,) = operations.ALLOCATE.answer.unpack_from(context.call(operations.ALLOCATE, size))
    return int(address)


def create(given: ArrayDescription | None) -> int:
    """Return the handle of a new array, all zero.

    INVALID_VALUE for a description that CUDA does not have, or larger than the device's attributes allow;
    NOT_SUPPORTED for formats of video, graphics and compressed blocks; OUT_OF_MEMORY.
    """
    context, description = _checked(given)
    made = Array(context.mint(), context, 0, description)
    made.address = allocate(context, made.size)
    return arrays.add(made).handle


def destroy(handle: int) -> None:
    """Free an array once the context's work so far is done; INVALID_HANDLE, also for a level of a mipmapped one."""
    found = arrays.find(handle)
    if found.is_level:
        raise invalid_handle(f"{handle:#x} is a level of a mipmapped array, which is destroyed as a whole")
    _destroy(arrays, found)


def _destroy(table: HandleTable[Array] | HandleTable[MipmappedArray], found: Array | MipmappedArray) -> None:
    # Taken out first, so that no other thread frees it too.
    if table.remove(found.handle) is None:
        raise invalid_handle(f"{found.handle:#x} was destroyed meanwhile")
    try:
        found.context.call(operations.FREE, found.address)
    except BaseException:
        table.put_back(found)  # type: ignore[arg-type]  # it is of the table that it was taken from
        raise


def create_mipmapped(given: ArrayDescription | None, asked: int) -> int:
    """Return the handle of a new mipmapped array, all zero.

    The number of levels is from 1 to what the size allows, the nearest to what is asked for. Errors as of
    cuArray3DCreate.
    """
    context, description = _checked(given)
    parts = [level(description, number) for number in range(level_count(description, asked))]
    levels = tuple(Array(context.mint(), context, 0, part, is_level=True) for part in parts)
    made = MipmappedArray(context.mint(), context, 0, description, levels)
    address = made.address = allocate(context, sum(one.size for one in levels))
    for one in levels:
        one.address = address
        address += one.size
        arrays.add(one)
    return mipmapped_arrays.add(made).handle


def level_of(handle: int, number: int) -> int:
    """Return the array that is a level of a mipmapped one, always the same; INVALID_HANDLE, INVALID_VALUE."""
    levels = mipmapped_arrays.find(handle).levels
    if number >= len(levels):
        raise invalid_value(f"level {number} of a mipmapped array that has {len(levels)}")
    return levels[number].handle


def destroy_mipmapped(handle: int) -> None:
    """Free a mipmapped array with its levels once the context's work so far is done; INVALID_HANDLE."""
    found = mipmapped_arrays.find(handle)
    _destroy(mipmapped_arrays, found)
    for one in found.levels:
        arrays.remove(one.handle)
