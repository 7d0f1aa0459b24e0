"""The functions of cuda.bindings.cynvrtc that make machine code: they answer with PTX for the same architecture.

An emulated GPU executes PTX, and a driver compiles it. NVRTC's own function is called for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p, cast, create_string_buffer, memmove, string_at
from typing import Any, Final

from pympsd_client._objects.code.ptx_text import limited
from pympsd_client._objects.process import process
from pympsd_client.routing.explain import result_of
from pympsd_client.routing.pointers import original

_ARCHITECTURE: Final = re.compile(rb"(-arch=|--gpu-architecture=)sm_(\w+)$")
_SPLIT: Final = (b"-arch", b"--gpu-architecture")
_REGISTERS: Final = re.compile(rb"(?:-maxrregcount|--maxrregcount)=(\d+)$")
_LINK_LATER: Final = (b"-dlto", b"--dlink-time-opt", b"-dlink-time-opt")

_asked: Final[dict[int, int]] = {}
"""The programs whose machine code is PTX, and the most registers a thread of theirs may use (0: no limit)."""


def options_at(address: int, count: int) -> list[bytes]:
    """Return the options of an array of C strings."""
    places = (c_void_p * count).from_address(address) if count > 0 and address else ()
    return [string_at(place) for place in places if place]


def array_of(options: list[bytes]) -> Any:
    """Return an array of C strings."""
    return (c_char_p * len(options))(*options)


def _compile(program: int, count: int, options: int) -> int:
    given = options_at(options, count)
    _asked.pop(program, None)
    if process.native is None and not any(one in _LINK_LATER for one in given):
        given, is_code = _for_ptx(given)
        if is_code:
            limits = [int(match[1]) for match in map(_REGISTERS.match, given) if match]
            _asked[program] = limits[-1] if limits else 0
    call = original("nvrtcCompileProgram", c_void_p, c_int, c_void_p)
    return int(call(program, len(given), cast(array_of(given), c_void_p)))


def _for_ptx(options: list[bytes]) -> tuple[list[bytes], bool]:
    """Return the options with a virtual architecture for a real one, and whether there was a real one."""
    result = [_ARCHITECTURE.sub(rb"\1compute_\2", one) for one in options]
    for index, one in enumerate(options[:-1]):
        if one in _SPLIT and options[index + 1].startswith(b"sm_"):
            result[index + 1] = b"compute_" + options[index + 1][3:]
    return result, result != options


def _ptx(program: int) -> bytes | int:
    """Return a program's PTX, or the result of the call that gives none."""
    size = c_size_t()
    result = int(original("nvrtcGetPTXSize", c_void_p, c_void_p)(program, cast(byref(size), c_void_p)))
    if result:
        return result
    text = create_string_buffer(size.value)
    original("nvrtcGetPTX", c_void_p, c_void_p)(program, cast(text, c_void_p))
    return limited(text.raw.rstrip(b"\0"), _asked[program]) + b"\0"


def _code_size(program: int, size: int) -> int:
    if program not in _asked or not size:
        return int(original("nvrtcGetCUBINSize", c_void_p, c_void_p)(program, size))
    text = _ptx(program)
    if isinstance(text, int):
        return text
    c_size_t.from_address(size).value = len(text)
    return 0


def _code(program: int, code: int) -> int:
    if program not in _asked or not code:
        return int(original("nvrtcGetCUBIN", c_void_p, c_void_p)(program, code))
    text = _ptx(program)
    if isinstance(text, int):
        return text
    memmove(code, text, len(text))
    return 0


def _destroy(program: int) -> int:
    if program:
        _asked.pop(c_void_p.from_address(program).value or 0, None)
    return int(original("nvrtcDestroyProgram", c_void_p)(program))


_FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "nvrtcCompileProgram": (_compile, "QiQ"),
    "nvrtcDestroyProgram": (_destroy, "Q"),
    "nvrtcGetCUBIN": (_code, "QQ"),
    "nvrtcGetCUBINSize": (_code_size, "QQ"),
}


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters."""
    return _FUNCTIONS[name]


def failed(name: str, error: BaseException | None) -> int:
    """Return NVRTC_ERROR_INTERNAL_ERROR for an exception."""
    result_of(name, error)
    return 11
