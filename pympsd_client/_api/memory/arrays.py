"""CUDA arrays, and copies of bytes between them and other memory (CUDA driver API, Memory Management)."""

from pympsd_client._api.memory import copies
from pympsd_client._arguments.array_structs import pack_2d, pack_3d
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import null_argument
from pympsd_client._objects.arrays.array import arrays
from pympsd_client._objects.context import require_context


def description(handle: int) -> bytes:
    """Return the CUDA_ARRAY_DESCRIPTOR of an array; raise INVALID_HANDLE."""
    return pack_2d(arrays.find(handle).description)


def description_3d(handle: int) -> bytes:
    """Return the CUDA_ARRAY3D_DESCRIPTOR of an array; raise INVALID_HANDLE."""
    return pack_3d(arrays.find(handle).description)


def copy_from_host(array: int, offset: int, host: HostMemory, count: int, stream: int, wait: bool = False) -> None:
    """Copy from the host to an array at a byte offset in its first row, as cuMemcpyHtoD does."""
    copies.copy_host_to_device(_address_in_row(array, offset, count), host, count, stream, wait)


def copy_to_host(host: HostMemory, array: int, offset: int, count: int, stream: int, wait: bool = False) -> None:
    """Copy bytes of an array's first row to the host, as cuMemcpyDtoH does."""
    copies.copy_device_to_host(host, _address_in_row(array, offset, count), count, stream, wait)


def copy_from_device(array: int, offset: int, source: int, count: int) -> None:
    """Copy device memory to an array at a byte offset in its first row, as cuMemcpyDtoD does."""
    copies.copy_device_to_device(_address_in_row(array, offset, count), source, count, 0, True)


def copy_to_device(destination: int, array: int, offset: int, count: int) -> None:
    """Copy bytes of an array's first row to device memory, as cuMemcpyDtoD does."""
    copies.copy_device_to_device(destination, _address_in_row(array, offset, count), count, 0, True)


def copy_between(destination: int, at: int, source: int, start: int, count: int) -> None:
    """Copy bytes of an array's first row to the first row of another array or of the same, as cuMemcpyDtoD does."""
    copies.copy_device_to_device(
        _address_in_row(destination, at, count), _address_in_row(source, start, count), count, 0, True
    )


def address_at(handle: int, offset: int, count: int) -> int:
    """Return the address of ``count`` bytes of an array, 0 for 0 bytes.

    Raise INVALID_VALUE for NULL, and if the bytes end beyond the array.
    """
    require_context()
    if not count:
        return 0
    if not handle:
        raise null_argument("the array")
    array = arrays.find(handle)
    if offset + count > array.size:
        raise invalid_value(f"{count} bytes from {offset} on are not all within an array of {array.size} bytes")
    return array.address + offset


def _address_in_row(handle: int, offset: int, count: int) -> int:
    """Return the address of ``count`` bytes in an array's first row, 0 for 0 bytes.

    Raise INVALID_VALUE for NULL, and if the bytes end beyond the first row, as recorded on an H200 for arrays of all
    shapes.
    """
    address = address_at(handle, offset, count)
    if count and offset + count > (pitch := arrays.find(handle).pitch):
        raise invalid_value(
            f"{count} bytes from {offset} on are not all within the array's first row of {pitch} bytes; copy several "
            "rows by cuMemcpy2D or cuMemcpy3D"
        )
    return address
