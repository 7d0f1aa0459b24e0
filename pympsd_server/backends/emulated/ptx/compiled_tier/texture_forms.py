"""Textures and surfaces: attempts, whose common cases are in C (native/src/kernel_textures.c).

Handles and coordinates of all lanes are stored in `%access`, a structure that C knows, and values are loaded from it:

    64-bit handles | 3 rows of 32-bit coordinates | 4 rows of values, each as wide as the access; a row has 32 lanes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pympsd_server.backends.emulated.ptx.compiled_tier.instruction_table import attempts
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import BITS
from pympsd_server.backends.emulated.ptx.compiled_tier.memory_text import MemoryText
from pympsd_server.backends.emulated.ptx.isa.machine import WARP
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Memory, Operation, items_of
from pympsd_server.backends.emulated.ptx.textures.surfaces import SURFACE_GEOMETRIES

_PLACES, _VALUES, ACCESS_BYTES = 8 * WARP, 20 * WARP, 52 * WARP
"""Where the coordinates and the values begin, and the size of all."""
_LAYERED, _INTEGERS, _STORES = 4, 8, 8
_BEYOND: Final = {"trap": 0, "clamp": 16, "zero": 32}


def _set_access(text: MemoryText, operation: Operation, place: Argument) -> int:
    """Store the handles and coordinates of `[object, {...}]`; return the dimensions, and whether there are layers."""
    geometry = operation.one_of(*SURFACE_GEOMETRIES)
    if not geometry or not isinstance(place, Group):
        raise text.refuse()
    handle, *rest = items_of(place)
    if isinstance(handle, Memory):
        handle = handle.base
    how = SURFACE_GEOMETRIES[geometry] | (_LAYERED if geometry.startswith("a") else 0)
    text.store(text.vector.of("i64"), text.use(handle, "u64", text.vector), "%access")
    for index, item in enumerate(rest[: SURFACE_GEOMETRIES[geometry] + geometry.startswith("a")]):
        at = text.field("%access", _PLACES + 4 * WARP * index)
        text.store(text.vector.of("i32"), text.use(item, "u32", text.vector), at)
    return how


def _new_sites(text: MemoryText) -> str:
    """Return the first of two places of accesses: to the object, and to its elements."""
    text.site_count += 2
    return str(text.site_count - 2)


def _row(text: MemoryText, index: int) -> str:
    return text.field("%access", _VALUES + 8 * WARP * index)


def _call(text: MemoryText, name: str, *arguments: int) -> None:
    """Call a function of C for the lanes that execute the operation; escape if it has not done it."""
    numbers = [("i32", str(number)) for number in arguments]
    where = ("ptr", "%ctx"), ("i64", _new_sites(text)), ("i32", text.as_word(text.active()))
    failed = text.call(name, "i32", *where, *numbers, ("ptr", "%access"))
    text.escape_unless(text.op("icmp eq", "i32", failed, "0"))


def _get_values(text: MemoryText, targets: Sequence[Argument], type_name: str, bits: int) -> None:
    for index, item in enumerate(targets):
        value = text.load(text.vector.of(f"i{bits}"), _row(text, index))
        text.assign(item, value, type_name, text.vector)


@attempts("tex")
def _sample(text: MemoryText, operation: Operation) -> None:
    if operation.has("grad"):
        raise text.refuse()
    how = _set_access(text, operation, operation.operands[1]) | (_INTEGERS if operation.types[1] == "s32" else 0)
    _call(text, "kernels_sample", how)
    _get_values(text, items_of(operation.operands[0]), operation.types[0], 32)


@attempts("suld sust")
def _access_surface(text: MemoryText, operation: Operation) -> None:
    stores, bits = operation.name == "sust", BITS[operation.type]
    place, values = operation.operands if stores else reversed(operation.operands)
    how = _set_access(text, operation, place) | _BEYOND[operation.one_of(*_BEYOND)] | (_STORES if stores else 0)
    items = items_of(values)
    for index, item in enumerate(items if stores else ()):
        text.store(text.vector.of(f"i{bits}"), text.use(item, operation.type, text.vector), _row(text, index))
    _call(text, "kernels_surface", how, bits // 8, len(items))
    if not stores:
        _get_values(text, items, operation.type, bits)
