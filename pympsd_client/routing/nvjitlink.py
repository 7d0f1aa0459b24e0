"""The functions of cuda.bindings.cynvjitlink that link machine code: they answer with PTX, joined from the inputs.

nvJitLink itself links the inputs too, and its errors and logs are the program's; the machine code alone is not its
own. Code for link-time optimization becomes PTX by nvJitLink's option ``-ptx``. Inputs that hold no PTX, such as
objects, are linked by nvJitLink alone: an emulated GPU then says that it executes no machine code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import (
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint32,
    c_void_p,
    cast,
    create_string_buffer,
    memmove,
    string_at,
)
from typing import Any, Final

from attrs import define, field

from pympsd_client._objects.code.ptx_text import LinkError, is_ptx, join, limited
from pympsd_client._objects.process import process
from pympsd_client.routing.explain import result_of
from pympsd_client.routing.nvrtc import array_of, options_at
from pympsd_client.routing.pointers import original

_SUCCESS, _INTERNAL = 0, 6
_CUBIN, _PTX, _LTO, _FATBIN, _OBJECT, _LIBRARY, _ANY = 1, 2, 3, 4, 5, 6, 10
_MAY_BE_PTX: Final = frozenset({_CUBIN, _FATBIN, _OBJECT, _LIBRARY, _ANY})
_REGISTERS: Final = re.compile(rb"-maxrregcount=(\d+)$")


@define
class _Link:
    """What a program links, by the handle of nvJitLink's own object."""

    options: list[bytes]
    inputs: list[tuple[int, bytes, bytes]] = field(factory=list)
    """Type, data, name; of a library no data."""
    code: bytes | None = None
    """The answer to a request for machine code; None: nvJitLink's own."""


_links: Final[dict[int, _Link]] = {}


def _create(handle: int, count: int, options: int) -> int:
    result = int(original("nvJitLinkCreate", c_void_p, c_uint32, c_void_p)(handle, count, options))
    if result == _SUCCESS and process.native is None:
        _links[c_void_p.from_address(handle).value or 0] = _Link(options_at(options, count))
    return result


def _add_data(handle: int, kind: int, data: int, size: int, name: int) -> int:
    link = _links.get(handle)
    if link is not None and data and kind in _MAY_BE_PTX and is_ptx(string_at(data, size)):
        kind = _PTX  # made by the routed NVRTC or nvJitLink in an earlier step
    call = original("nvJitLinkAddData", c_void_p, c_int, c_void_p, c_size_t, c_void_p)
    result = int(call(handle, kind, data, size, name))
    if result == _SUCCESS and link is not None:
        link.inputs.append((kind, string_at(data, size), string_at(name) if name else b""))
    return result


def _add_file(handle: int, kind: int, name: int) -> int:
    link = _links.get(handle)
    data = _contents(string_at(name)) if link is not None and name else b""
    if kind in _MAY_BE_PTX and is_ptx(data):
        kind = _PTX
    result = int(original("nvJitLinkAddFile", c_void_p, c_int, c_void_p)(handle, kind, name))
    if result == _SUCCESS and link is not None:
        link.inputs.append((kind, data, string_at(name)))
    return result


def _contents(path: bytes) -> bytes:
    """Return what a file holds; nothing if it cannot be read, which nvJitLink says itself."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _complete(handle: int) -> int:
    link = _links.get(handle)
    result = int(original("nvJitLinkComplete", c_void_p)(handle))
    if result == _SUCCESS and link is not None and b"-ptx" not in link.options:
        link.code = _joined(link)
    return result


def _joined(link: _Link) -> bytes | None:
    """Return the PTX of all inputs, None if some hold none. Libraries are searched by nvJitLink alone."""
    inputs = [one for one in link.inputs if one[0] != _LIBRARY]
    if len(inputs) == 1 and inputs[0][0] == _FATBIN:
        return inputs[0][1]
    texts = [(name.decode(errors="replace"), data) for kind, data, name in inputs if kind == _PTX]
    for_later = [one for one in inputs if one[0] == _LTO]
    if len(texts) + len(for_later) != len(inputs) or not inputs:
        return None
    if for_later:
        made = _optimized(link.options, for_later)
        if made is None:
            return None
        texts.append(("code for link-time optimization", made))
    limits = [int(match[1]) for match in map(_REGISTERS.match, link.options) if match]
    try:
        return limited(join(texts), limits[-1] if limits else 0).rstrip(b"\0") + b"\0"
    except LinkError:
        return None


def _optimized(options: list[bytes], inputs: list[tuple[int, bytes, bytes]]) -> bytes | None:
    """Return the PTX that nvJitLink makes of code for link-time optimization, None if it makes none."""
    handle, size, given = c_void_p(), c_size_t(), [*options, b"-ptx"]
    array = array_of(given)
    create = original("nvJitLinkCreate", c_void_p, c_uint32, c_void_p)
    if create(cast(byref(handle), c_void_p), len(given), cast(array, c_void_p)):
        return None
    try:
        add = original("nvJitLinkAddData", c_void_p, c_int, c_char_p, c_size_t, c_char_p)
        if any(add(handle, kind, data, len(data), name) for kind, data, name in inputs):
            return None
        if original("nvJitLinkComplete", c_void_p)(handle):
            return None
        if original("nvJitLinkGetLinkedPtxSize", c_void_p, c_void_p)(handle, cast(byref(size), c_void_p)):
            return None
        text = create_string_buffer(size.value)
        failed = original("nvJitLinkGetLinkedPtx", c_void_p, c_void_p)(handle, cast(text, c_void_p))
        return None if failed else text.raw.rstrip(b"\0")
    finally:
        original("nvJitLinkDestroy", c_void_p)(cast(byref(handle), c_void_p))


def _code_size(handle: int, size: int) -> int:
    link = _links.get(handle)
    if link is None or link.code is None or not size:
        return int(original("nvJitLinkGetLinkedCubinSize", c_void_p, c_void_p)(handle, size))
    c_size_t.from_address(size).value = len(link.code)
    return _SUCCESS


def _code(handle: int, code: int) -> int:
    link = _links.get(handle)
    if link is None or link.code is None or not code:
        return int(original("nvJitLinkGetLinkedCubin", c_void_p, c_void_p)(handle, code))
    memmove(code, link.code, len(link.code))
    return _SUCCESS


def _destroy(handle: int) -> int:
    if handle:
        _links.pop(c_void_p.from_address(handle).value or 0, None)
    return int(original("nvJitLinkDestroy", c_void_p)(handle))


_FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "nvJitLinkAddData": (_add_data, "QiQQQ"),
    "nvJitLinkAddFile": (_add_file, "QiQ"),
    "nvJitLinkComplete": (_complete, "Q"),
    "nvJitLinkCreate": (_create, "QIQ"),
    "nvJitLinkDestroy": (_destroy, "Q"),
    "nvJitLinkGetLinkedCubin": (_code, "QQ"),
    "nvJitLinkGetLinkedCubinSize": (_code_size, "QQ"),
}


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters."""
    return _FUNCTIONS[name]


def failed(name: str, error: BaseException | None) -> int:
    """Return NVJITLINK_ERROR_INTERNAL for an exception."""
    result_of(name, error)
    return _INTERNAL
