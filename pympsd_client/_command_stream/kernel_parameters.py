"""Kernel parameters, packed from any form that cuda.bindings accepts into the flat buffer that ends a LAUNCH record.

The forms are ``(values, ctypes types)``, an address or buffer of an array of pointers, and through ``extra`` the flat
buffer itself (CUDA driver API, cuLaunchKernel; cuda.bindings, cuLaunchKernel).
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final

from pympsd.wire.module_layout import FunctionLayout
from pympsd.wire.records import BY_NAME, pad
from pympsd_client._arguments.bindings import CUdeviceptr
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import number

LAUNCH_FORMAT: Final = BY_NAME["LAUNCH"].layout.format
"""The layout of LAUNCH's header and operands. The layout of a kernel's parameters is appended to it."""
LAUNCH_BYTES: Final = struct.calcsize(LAUNCH_FORMAT)
_CODES: Final[dict[Any, str]] = {
    ctypes.c_bool: "?",
    ctypes.c_byte: "b",
    ctypes.c_ubyte: "B",
    ctypes.c_short: "h",
    ctypes.c_ushort: "H",
    ctypes.c_int: "i",
    ctypes.c_uint: "I",
    ctypes.c_long: "q",
    ctypes.c_ulong: "Q",
    ctypes.c_longlong: "q",
    ctypes.c_ulonglong: "Q",
    ctypes.c_size_t: "Q",
    ctypes.c_float: "f",
    ctypes.c_double: "d",
    ctypes.c_void_p: "Q",
}
_SIMPLE: Final = frozenset(_CODES) | {ctypes.c_char, ctypes.c_wchar}
_SLOT_BYTES: Final = 8
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0

Packer = Callable[..., bytes]
"""A function that packs a whole record from its header's fields, its operands and the parameters' values."""


def record_bytes(layout: FunctionLayout) -> int:
    """Return the length of a function's LAUNCH record."""
    return pad(LAUNCH_BYTES + layout.parameter_bytes)


def raw_packer(layout: FunctionLayout) -> Packer:
    """Return the packer whose last argument is a flat buffer; it packs as many of its bytes as the function takes."""
    padding = record_bytes(layout) - LAUNCH_BYTES - layout.parameter_bytes
    return struct.Struct(f"{LAUNCH_FORMAT}{layout.parameter_bytes}s{padding}x").pack


def packer_for_types(layout: FunctionLayout, types: tuple[Any, ...]) -> Packer | None:
    """Return a packer for values of these ctypes types, or None if each launch must inspect them.

    A type of None is a handle or pointer object, 8 bytes wide.
    """
    if len(types) != len(layout.parameters):
        return None
    parts = [LAUNCH_FORMAT]
    end = 0
    for ctype, (offset, size) in zip(types, layout.parameters, strict=True):
        code = "Q" if ctype is None else _CODES.get(ctype)
        if code is None or struct.calcsize("=" + code) != size or offset < end:
            return None
        parts.append(f"{offset - end}x{code}")
        end = offset + size
    parts.append(f"{record_bytes(layout) - LAUNCH_BYTES - end}x")
    pack = struct.Struct("".join(parts)).pack
    return _convert_handles(pack, types) if None in types else pack


def code_of(ctype: Any) -> str:
    """Return the format of a type that `packer_for_types` accepts: struct's code, or ``o`` for a handle object."""
    return "o" if ctype is None else _CODES[ctype]


def _convert_handles(pack: Packer, types: tuple[Any, ...]) -> Packer:
    """Return a packer that converts handles to int, because they lack the __index__ that struct needs."""
    plain = len(struct.unpack(LAUNCH_FORMAT, bytes(LAUNCH_BYTES)))
    handles = tuple(plain + place for place, ctype in enumerate(types) if ctype is None)

    def pack_handles(*fields: Any) -> bytes:
        values = list(fields)
        for place in handles:
            value = values[place]
            if hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
                raise TypeError(f"a handle is required, not {type(value).__name__}")
            values[place] = int(value)
        return pack(*values)

    return pack_handles


def flat(layout: FunctionLayout, parameters: Any, extra: Any) -> bytes:
    """Return the flat buffer of a function's parameters, which may have any form; raise CudaError, TypeError."""
    if number(extra):
        if layout.parameters and parameters is not None and not (isinstance(parameters, int) and parameters == 0):
            raise invalid_value("kernelParams and extra exclude each other; pass one")
        return _pack_from_extra(layout, number(extra))
    if isinstance(parameters, tuple):
        return _pack_values(layout, parameters)
    return _pack_from_pointers(layout, parameters)


# --- (values, types)


def _pack_values(layout: FunctionLayout, parameters: tuple[Any, ...]) -> bytes:
    """Return the flat buffer of parameters given as ``(values, ctypes types)``; raise TypeError, INVALID_VALUE."""
    if len(parameters) != 2 or not all(isinstance(part, tuple) for part in parameters):
        raise TypeError("kernelParams is (values, ctypes types), both tuples, an address or a buffer of pointers")
    values, types = parameters
    if len(values) != len(types):
        raise TypeError(f"kernelParams has {len(values)} values and {len(types)} types")
    if len(values) != len(layout.parameters):
        raise _wrong_count(layout, len(values))
    buffer = bytearray(layout.parameter_bytes)
    for index, (value, ctype, (offset, size)) in enumerate(zip(values, types, layout.parameters, strict=True)):
        data = _value_bytes(value, ctype, size)
        if len(data) < size:
            raise invalid_value(
                f"parameter {index} of {layout.name} has {size} bytes, the value given has {len(data)}"
            )
        buffer[offset : offset + size] = data[:size]
    return bytes(buffer)


def _value_bytes(value: Any, ctype: Any, size: int) -> bytes:
    """Return the bytes that the driver would read at the value's address; a simple type is padded with zeros to 8."""
    if ctype is None:
        return _object_bytes(value, size)
    if ctype is ctypes.c_void_p:
        return _pointer_value(value).to_bytes(_SLOT_BYTES, "little")
    if ctype not in _SIMPLE:
        raise TypeError(f"Unsupported type: {ctype!r}")
    if ctype is ctypes.c_double and isinstance(value, ctypes.c_float):
        value = value.value
    buffer = value if isinstance(value, ctype) else ctype(value)
    return bytes(buffer).ljust(_SLOT_BYTES, b"\0")


def _object_bytes(value: Any, size: int) -> bytes:
    if callable(getattr(value, "getPtr", None)):
        return ctypes.string_at(value.getPtr(), size)
    if isinstance(value, ctypes.Structure):
        return bytes(memoryview(value).cast("B"))
    if isinstance(value, int) and hasattr(value, "name"):  # an enum member
        return int(value).to_bytes(_SLOT_BYTES, "little", signed=value < 0)
    raise TypeError(
        "a parameter of type None must be a handle of cuda.bindings or a ctypes.Structure, not "
        f"{type(value).__name__}"
    )


def _pointer_value(value: Any) -> int:
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    if isinstance(value, int):
        return value & (1 << 64) - 1
    if isinstance(value, CUdeviceptr):  # here cuda.bindings would pass the address of the handle object
        return int(value)
    if callable(getattr(value, "getPtr", None)):
        return int(value.getPtr())
    raise TypeError(f"a c_void_p parameter must be an int, a c_void_p or a handle, not {type(value).__name__}")


# --- pointers


def _pack_from_pointers(layout: FunctionLayout, parameters: Any) -> bytes:
    """Return the flat buffer of parameters given as an array of pointers to the values; raise INVALID_VALUE."""
    count = len(layout.parameters)
    if count == 0:
        return b""
    with HostMemory(parameters) as memory:
        if memory.address == 0:
            raise _wrong_count(layout, 0)
        memory.check(count * 8, to_be_written=False)
        pointers = struct.unpack(f"={count}Q", ctypes.string_at(memory.address, count * 8))
        buffer = bytearray(layout.parameter_bytes)
        for index, (pointer, (offset, size)) in enumerate(zip(pointers, layout.parameters, strict=True)):
            if pointer == 0:
                raise invalid_value(f"the pointer to parameter {index} of {layout.name} is NULL")
            buffer[offset : offset + size] = ctypes.string_at(pointer, size)
    return bytes(buffer)


def _pack_from_extra(layout: FunctionLayout, address: int) -> bytes:
    """Return the flat buffer to which the array ``extra`` at an address points; raise INVALID_VALUE."""
    pointer = count = 0
    while True:
        key, value = struct.unpack("=2Q", ctypes.string_at(address, 8) + _second(address))
        if key == _END:
            break
        if key == _BUFFER_POINTER:
            pointer = value
        elif key == _BUFFER_SIZE:
            count = int.from_bytes(ctypes.string_at(value, 8), "little")
        else:
            raise invalid_value(f"extra has an unknown key {key}; CU_LAUNCH_PARAM_END is missing, perhaps")
        address += 16
    if layout.parameter_bytes == 0:
        return b""
    if pointer == 0 or count < layout.parameter_bytes:
        raise invalid_value(
            f"the parameters of {layout.name} have {layout.parameter_bytes} bytes, the buffer in extra has {count}"
        )
    return ctypes.string_at(pointer, layout.parameter_bytes)


def _second(address: int) -> bytes:
    """Return the 8 bytes after a key; zeros after CU_LAUNCH_PARAM_END, which needs no value."""
    return ctypes.string_at(address + 8, 8) if int.from_bytes(ctypes.string_at(address, 8), "little") else bytes(8)


def _wrong_count(layout: FunctionLayout, count: int) -> CudaError:
    return invalid_value(f"{layout.name} has {len(layout.parameters)} parameters, {count} were given")
