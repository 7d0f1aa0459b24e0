"""Tensor Map Object Management: tensor maps are made and changed in the program's memory, without the executor.

`pympsd.wire.tensor_map` has the layout of a map. The alignment of a map in memory is not checked, because
cuda.bindings itself aligns maps to 16 bytes, not to 64.
"""

import ctypes
from typing import Any

from attrs import evolve

from pympsd.wire.tensor_map import BYTES, Im2col, TensorMap, check, check_rank, pack, unpack
from pympsd_client._arguments.errors import invalid_value, not_supported
from pympsd_client._arguments.values import address_of, read_numbers
from pympsd_client._objects.context import current_on_device_with


def _check_device() -> None:
    """Raise NOT_SUPPORTED unless the current context's device has tensor maps; INVALID_CONTEXT without a current
    context.
    """
    current_on_device_with(
        "TENSOR_MAP_ACCESS_SUPPORTED",
        "this device has no tensor maps (attribute TENSOR_MAP_ACCESS_SUPPORTED is 0): they need an emulated "
        "device of compute capability 9.0. Copy by cp.async or plain loads",
    )


def _numbers(name: str, argument: Any, count: int, code: str) -> tuple[int, ...]:
    """Return the numbers in an array; raise INVALID_VALUE for NULL and for a list that is too short."""
    elements = read_numbers(argument, count, code)
    if len(elements) < count:
        raise invalid_value(f"{name} has {len(elements)} elements; {count} are needed")
    return tuple(elements[:count])


def _pack(tensor_map: TensorMap) -> bytes:
    try:
        check(tensor_map)
    except ValueError as error:
        raise invalid_value(str(error)) from None
    if tensor_map.interleave:
        raise not_supported("the emulated device has no interleaved layouts of tensor maps")
    return pack(tensor_map)


def _tensor(
    least: int,
    data_type: int,
    rank: int,
    address: int,
    dimensions: Any,
    strides: Any,
    element_strides: Any,
    modes: tuple[int, int, int, int],
) -> TensorMap:
    """Return a tensor's map without its box, which depends on the kind of map.

    ``modes``: interleave, swizzle, L2 promotion, and the fill of elements out of bounds. Raise INVALID_VALUE for
    fewer than ``least`` dimensions.
    """
    _check_device()
    try:
        check_rank(rank, least)  # before arrays of that many elements are read
    except ValueError as error:
        raise invalid_value(str(error)) from None
    return TensorMap(
        data_type,
        address,
        _numbers("globalDim", dimensions, rank, "Q"),
        _numbers("globalStrides", strides, rank - 1, "Q"),
        (0,) * rank,
        _numbers("elementStrides", element_strides, rank, "I"),
        *modes,
    )


def encode_tiled(
    data_type: int,
    rank: int,
    address: int,
    dimensions: Any,
    strides: Any,
    box: Any,
    element_strides: Any,
    interleave: int,
    swizzle: int,
    l2_promotion: int,
    fill: int,
) -> bytes:
    """Return a map of tiles of a tensor.

    Raise INVALID_VALUE for values that the manual does not allow, NOT_SUPPORTED for interleaved layouts and if the
    current context's device has no tensor maps, INVALID_CONTEXT without a current context.
    """
    modes = interleave, swizzle, l2_promotion, fill
    tensor = _tensor(1, data_type, rank, address, dimensions, strides, element_strides, modes)
    return _pack(evolve(tensor, box=_numbers("boxDim", box, rank, "I")))


def encode_im2col(
    data_type: int,
    rank: int,
    address: int,
    dimensions: Any,
    strides: Any,
    lower_corner: Any,
    upper_corner: Any,
    channels: int,
    pixels: int,
    element_strides: Any,
    interleave: int,
    swizzle: int,
    l2_promotion: int,
    fill: int,
) -> bytes:
    """Return a map of columns of pixels of a tensor; raise the errors of `encode_tiled`."""
    modes = interleave, swizzle, l2_promotion, fill
    tensor = _tensor(3, data_type, rank, address, dimensions, strides, element_strides, modes)
    lower = _numbers("pixelBoxLowerCorner", lower_corner, rank - 2, "i")
    upper = _numbers("pixelBoxUpperCorner", upper_corner, rank - 2, "i")
    return _pack(evolve(tensor, im2col=Im2col(lower, upper, channels, pixels)))


def encode_im2col_wide() -> bytes:
    """Raise NOT_SUPPORTED, because such maps need a device of compute capability 10.0."""
    _check_device()
    raise not_supported("cuTensorMapEncodeIm2colWide needs a device of compute capability 10.0")


def replace_address(argument: Any, address: int) -> None:
    """Replace the global address in a map.

    Raise INVALID_VALUE if it is not a map, or the address is misaligned for it.
    """
    _check_device()
    if argument is None:
        raise invalid_value("tensorMap is NULL; pass one that cuTensorMapEncodeTiled has made")
    location = address_of(argument, "CUtensorMap")
    try:
        tensor_map = unpack(ctypes.string_at(location, BYTES))
    except ValueError as error:
        raise invalid_value(f"tensorMap: {error}") from None
    data = _pack(evolve(tensor_map, address=address))
    ctypes.memmove(location, data, BYTES)
