"""CUDA arrays: device memory in which elements, rows and slices follow each other without gaps."""

from typing import Final

from attrs import define, field

from pympsd_client._arguments.array_structs import ArrayDescription
from pympsd_client._arguments.errors import invalid_handle, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._objects.arrays.shapes import check, element_bytes, level, level_count
from pympsd_client._objects.context import Context, current_on_device_with
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.memory.allocations import allocate_unlisted, other_ranges


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
        """The size of a row in bytes."""
        return self.description.width * element_bytes(self.description)

    @property
    def rows(self) -> int:
        """The number of rows in a slice."""
        return self.description.height or 1

    @property
    def slices(self) -> int:
        """The number of slices, layers or faces."""
        return self.description.depth or 1

    @property
    def slice_pitch(self) -> int:
        """The size of a slice in bytes."""
        return self.pitch * self.rows

    @property
    def size(self) -> int:
        """The size of the whole array in bytes."""
        return self.slice_pitch * self.slices


@define(eq=False)
class MipmappedArray:
    """Arrays in one piece of memory, each with half the dimensions of the one before."""

    handle: int
    context: Context
    address: int
    description: ArrayDescription
    levels: tuple[Array, ...] = field(factory=tuple)


arrays: Final = HandleTable[Array]("CUDA array", "destroyed, or never made")
other_ranges.append(lambda: ((array.address, array.size) for array in arrays.list_all()))
mipmapped_arrays: Final = HandleTable[MipmappedArray]("mipmapped array", "destroyed, or never made")


def require_texturing_context() -> Context:
    """Return the current context; raise NOT_SUPPORTED if its device has no arrays and no textures."""
    return current_on_device_with(
        "MAXIMUM_TEXTURE2D_WIDTH",
        "pympsd has no arrays, textures and surfaces on this device (attribute MAXIMUM_TEXTURE2D_WIDTH is 0). "
        "Use linear memory",
    )


def _check_description(description: ArrayDescription | None) -> tuple[Context, ArrayDescription]:
    context = require_texturing_context()
    if description is None:
        raise invalid_value("the description of the array is NULL")
    check(description, context.device.properties.attributes)
    return context, description


def create(given_description: ArrayDescription | None) -> int:
    """Return the handle of a new array, all zero.

    Raise INVALID_VALUE for a description that CUDA does not define or that exceeds the device's attributes,
    NOT_SUPPORTED for formats of video, graphics and compressed blocks, OUT_OF_MEMORY.
    """
    context, description = _check_description(given_description)
    array = Array(context.allocate_handle(), context, 0, description)
    array.address = allocate_unlisted(context, array.size)
    return arrays.add(array).handle


def destroy(handle: int) -> None:
    """Free an array once the context's earlier work is done.

    Raise INVALID_HANDLE, also for a level of a mipmapped array.
    """
    array = arrays.find(handle)
    if array.is_level:
        raise invalid_handle(f"{handle:#x} is a level of a mipmapped array, which is destroyed as a whole")
    with arrays.take_out(array):
        array.context.call(operations.FREE, array.address)


def create_mipmapped(given_description: ArrayDescription | None, requested_levels: int) -> int:
    """Return the handle of a new mipmapped array, all zero.

    The array gets the requested number of levels, but at least 1 and at most as many as its size allows. Raise the
    errors of cuArray3DCreate.
    """
    context, description = _check_description(given_description)
    parts = [level(description, number) for number in range(level_count(description, requested_levels))]
    levels = tuple(Array(context.allocate_handle(), context, 0, part, is_level=True) for part in parts)
    mipmapped = MipmappedArray(context.allocate_handle(), context, 0, description, levels)
    address = mipmapped.address = allocate_unlisted(context, sum(array.size for array in levels))
    for array in levels:
        array.address = address
        address += array.size
        arrays.add(array)
    return mipmapped_arrays.add(mipmapped).handle


def level_of(handle: int, number: int) -> int:
    """Return the handle of a mipmapped array's level, always the same one; raise INVALID_HANDLE, INVALID_VALUE."""
    levels = mipmapped_arrays.find(handle).levels
    if number >= len(levels):
        raise invalid_value(f"level {number} of a mipmapped array that has {len(levels)}")
    return levels[number].handle


def destroy_mipmapped(handle: int) -> None:
    """Free a mipmapped array with its levels once the context's earlier work is done; raise INVALID_HANDLE."""
    mipmapped = mipmapped_arrays.find(handle)
    with mipmapped_arrays.take_out(mipmapped):
        mipmapped.context.call(operations.FREE, mipmapped.address)
    for array in mipmapped.levels:
        arrays.remove(array.handle)
