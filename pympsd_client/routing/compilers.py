"""NVRTC, nvJitLink and nvFatbin under pympsd-run: they return and accept PTX in place of machine code.

The problem: a program requests machine code for its GPU from NVRTC or nvJitLink, and loads that as a module. But an
emulated GPU executes only PTX. (On a GPU the server's driver compiles PTX as well as it loads machine code.)

The idea: the libraries themselves do all the work. Only the functions that make or take machine code are replaced:

- NVRTC compiles for a virtual architecture (``compute_90``) when the program names a real one (``sm_90``). When the
  program requests the machine code it gets the PTX.
- nvJitLink links the inputs, and the program gets its errors and logs. Its output is replaced by PTX that is joined
  from the inputs. Code for link-time optimization becomes PTX by a second link with the option ``-ptx``.
- nvFatbin gets PTX with the right type when the program adds it as machine code.

nvJitLink alone links inputs without PTX, such as objects; an emulated GPU then reports that it cannot execute machine
code. Nothing changes for a program that runs natively.

A library's own functions are reached in two ways, each with its own `Compilers`: through the capsules of
cuda.bindings (`pointers.original`), or in the installed library (`forwarding`) if the program is linked with one of
pympsd's libraries of the same names. If a program uses both ways, one forwards to the other. Then the first replaces
machine code by PTX, and the second does not change anything.
"""

import re
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p, create_string_buffer, memmove, string_at
from importlib import import_module
from typing import Any, Final

from attrs import define, field

from pympsd_client._objects.code.ptx_text import LinkError, is_ptx, join, limit_registers
from pympsd_client._objects.process import process
from pympsd_client.routing.explain import result_of
from pympsd_client.routing.pointers import original

_C_TYPES: Final = {"Q": c_void_p, "i": c_int, "I": c_uint32}
_ORIGINALS: Final = {
    "nvFatbinAddPTX": "QQQQQQ",
    "nvJitLinkGetLinkedPtx": "QQ",
    "nvJitLinkGetLinkedPtxSize": "QQ",
    "nvrtcGetPTX": "QQ",
    "nvrtcGetPTXSize": "QQ",
}
"""The formats of the functions that this module calls but does not replace."""
_FAILURES: Final = {"nvrtc": 11, "nvJitLink": 6, "nvFatbin": -1}
"""The result for an exception, by the beginning of the function's name.

They are NVRTC_ERROR_INTERNAL_ERROR and NVJITLINK_ERROR_INTERNAL. nvFatbin's number differs between versions; -1 is
not one of its errors.
"""
_REGISTERS: Final = re.compile(rb"--?maxrregcount=(\d+)$")


def _options_at(address: int, count: int) -> list[bytes]:
    """Return the options in an array of C strings."""
    texts = (c_void_p * count).from_address(address) if count > 0 and address else ()
    return [string_at(text) for text in texts if text]


def _array_of(options: list[bytes]) -> Any:
    """Return a C array of options as C strings."""
    return (c_char_p * len(options))(*options)


def _max_registers(options: list[bytes]) -> int:
    """Return the maximum number of registers per thread in the options, or 0 if they set none."""
    limits = [int(match[1]) for match in map(_REGISTERS.match, options) if match]
    return limits[-1] if limits else 0


# --- NVRTC

_ARCHITECTURE: Final = re.compile(rb"(-arch=|--gpu-architecture=)sm_(\w+)$")
_SPLIT: Final = (b"-arch", b"--gpu-architecture")
_LINK_LATER: Final = (b"-dlto", b"--dlink-time-opt", b"-dlink-time-opt")


def _request_ptx(options: list[bytes]) -> tuple[list[bytes], bool]:
    """Return the options with real architectures replaced by virtual ones, and whether there were any."""
    result = [_ARCHITECTURE.sub(rb"\1compute_\2", option) for option in options]
    for index, option in enumerate(options[:-1]):
        if option in _SPLIT and options[index + 1].startswith(b"sm_"):
            result[index + 1] = b"compute_" + options[index + 1][3:]
    return result, result != options


# --- nvJitLink

_CUBIN, _PTX, _LTO, _FATBIN, _OBJECT, _LIBRARY, _ANY = 1, 2, 3, 4, 5, 6, 10
"""Values of nvJitLinkInputType."""
_MAY_BE_PTX: Final = frozenset({_CUBIN, _FATBIN, _OBJECT, _LIBRARY, _ANY})


@define
class _Link:
    """The options, inputs and output of a program's link."""

    options: list[bytes]
    inputs: list[tuple[int, bytes, bytes]] = field(factory=list)
    """Each input's type, data and name; a library's data is empty."""
    code: bytes | None = None
    """The result of a request for machine code; None means nvJitLink's own output."""


def _read_file(path: bytes) -> bytes:
    """Return the content of a file; empty if it cannot be read, which nvJitLink reports itself."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


# --- nvFatbin

_TARGET: Final = re.compile(rb"\.target\s+sm_(\d+)")


def _is_too_new(image: bytes, architecture: bytes) -> bool:
    """Return whether the target of PTX is newer than an architecture ("90", "sm_90a"), which then cannot run it."""
    target, number = _TARGET.search(image), re.search(rb"\d+", architecture)
    return target is not None and number is not None and int(target[1]) > int(number[0])


# --- the replaced functions

FORMATS: Final = {
    "nvFatbinAddCubin": "QQQQQ",
    "nvJitLinkAddData": "QiQQQ",
    "nvJitLinkAddFile": "QiQ",
    "nvJitLinkComplete": "Q",
    "nvJitLinkCreate": "QIQ",
    "nvJitLinkDestroy": "Q",
    "nvJitLinkGetLinkedCubin": "QQ",
    "nvJitLinkGetLinkedCubinSize": "QQ",
    "nvrtcCompileProgram": "QiQ",
    "nvrtcDestroyProgram": "Q",
    "nvrtcGetCUBIN": "QQ",
    "nvrtcGetCUBINSize": "QQ",
}
"""The functions that are replaced, and the formats of their parameters."""


class Compilers:
    """The replacements for one copy of the libraries.

    ``original`` returns a function of that copy, given its name and the ctypes types of its parameters.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original: Final = original
        self._programs: Final[dict[int, int]] = {}
        """NVRTC's programs whose code is PTX, and their maximum number of registers per thread (0 means no limit)."""
        self._links: Final[dict[int, _Link]] = {}
        self._functions: Final[dict[str, Callable[..., int]]] = {
            "nvFatbinAddCubin": self._add_code,
            "nvJitLinkAddData": self._add_data,
            "nvJitLinkAddFile": self._add_file,
            "nvJitLinkComplete": self._complete,
            "nvJitLinkCreate": self._create_link,
            "nvJitLinkDestroy": self._destroy_link,
            "nvJitLinkGetLinkedCubin": self._replace_function("nvJitLinkGetLinkedCubin", self._link_code),
            "nvJitLinkGetLinkedCubinSize": self._replace_function("nvJitLinkGetLinkedCubinSize", self._link_code),
            "nvrtcCompileProgram": self._compile,
            "nvrtcDestroyProgram": self._destroy_program,
            "nvrtcGetCUBIN": self._replace_function("nvrtcGetCUBIN", self._program_code),
            "nvrtcGetCUBINSize": self._replace_function("nvrtcGetCUBINSize", self._program_code),
        }

    def resolve(self, name: str) -> tuple[Callable[..., int], str]:
        """Return the replacement for a function, and the format of its parameters; raise KeyError if it has none."""
        return self._functions[name], FORMATS[name]

    def _call(self, name: str, *arguments: Any) -> int:
        """Call a library's own function and return its result."""
        format = _ORIGINALS.get(name) or FORMATS[name]
        return int(self._original(name, *(_C_TYPES[code] for code in format))(*arguments))

    def _read_text(self, name: str, handle: Any) -> bytes | int:
        """Return the PTX from function ``name``, without the final NUL, or the result of a call that has failed."""
        size = c_size_t()
        if result := self._call(f"{name}Size", handle, byref(size)):
            return result
        text = create_string_buffer(size.value)
        return self._call(name, handle, text) or text.raw.rstrip(b"\0")

    def _replace_function(self, name: str, code_of: Callable[[int], bytes | int | None]) -> Callable[[int, int], int]:
        """Return a replacement for the function ``name``, which stores the code of a handle, or its size.

        ``code_of`` returns the code, or the result of a call that has failed, or None; then the library's own
        function is called.
        """

        def give(handle: int, address: int) -> int:
            code = code_of(handle) if address else None
            if code is None:
                return self._call(name, handle, address)
            if isinstance(code, int):
                return code
            if name.endswith("Size"):
                c_size_t.from_address(address).value = len(code)
            else:
                memmove(address, code, len(code))
            return 0

        return give

    def _compile(self, program: int, count: int, options: int) -> int:
        texts = _options_at(options, count)
        self._programs.pop(program, None)
        if process.native is None and not any(text in _LINK_LATER for text in texts):
            texts, is_code = _request_ptx(texts)
            if is_code:
                self._programs[program] = _max_registers(texts)
        return self._call("nvrtcCompileProgram", program, len(texts), _array_of(texts))

    def _program_code(self, program: int) -> bytes | int | None:
        """Return a program's PTX and a NUL, or the result of a call that has failed; None for other programs."""
        if program not in self._programs:
            return None
        text = self._read_text("nvrtcGetPTX", program)
        return text if isinstance(text, int) else limit_registers(text, self._programs[program]) + b"\0"

    def _destroy_program(self, program: int) -> int:
        if program:
            self._programs.pop(c_void_p.from_address(program).value or 0, None)
        return self._call("nvrtcDestroyProgram", program)

    def _create_link(self, handle: int, count: int, options: int) -> int:
        result = self._call("nvJitLinkCreate", handle, count, options)
        if not result and process.native is None:
            self._links[c_void_p.from_address(handle).value or 0] = _Link(_options_at(options, count))
        return result

    def _add_data(self, handle: int, kind: int, data: int, size: int, name: int) -> int:
        link = self._links.get(handle)
        if link is not None and data and kind in _MAY_BE_PTX and is_ptx(string_at(data, size)):
            kind = _PTX  # from this module's NVRTC or nvJitLink in an earlier step
        result = self._call("nvJitLinkAddData", handle, kind, data, size, name)
        if not result and link is not None:
            link.inputs.append((kind, string_at(data, size), string_at(name) if name else b""))
        return result

    def _add_file(self, handle: int, kind: int, name: int) -> int:
        link = self._links.get(handle)
        data = _read_file(string_at(name)) if link is not None and name else b""
        if kind in _MAY_BE_PTX and is_ptx(data):
            kind = _PTX
        result = self._call("nvJitLinkAddFile", handle, kind, name)
        if not result and link is not None:
            link.inputs.append((kind, data, string_at(name)))
        return result

    def _complete(self, handle: int) -> int:
        link = self._links.get(handle)
        result = self._call("nvJitLinkComplete", handle)
        if not result and link is not None and b"-ptx" not in link.options:
            link.code = self._join(link)
        return result

    def _join(self, link: _Link) -> bytes | None:
        """Return the PTX of all inputs except libraries, which nvJitLink searches; None if an input has none."""
        inputs = [entry for entry in link.inputs if entry[0] != _LIBRARY]
        if len(inputs) == 1 and inputs[0][0] == _FATBIN:
            return inputs[0][1]
        texts = [(name.decode(errors="replace"), data) for kind, data, name in inputs if kind == _PTX]
        for_later = [entry for entry in inputs if entry[0] == _LTO]
        if len(texts) + len(for_later) != len(inputs) or not inputs:
            return None
        if for_later:
            optimized = self._optimize(link.options, for_later)
            if optimized is None:
                return None
            texts.append(("code for link-time optimization", optimized))
        try:
            return limit_registers(join(texts), _max_registers(link.options)).rstrip(b"\0") + b"\0"
        except LinkError:
            return None

    def _optimize(self, options: list[bytes], inputs: list[tuple[int, bytes, bytes]]) -> bytes | None:
        """Return the PTX that nvJitLink generates from code for link-time optimization; None if it fails."""
        handle, with_ptx = c_void_p(), [*options, b"-ptx"]
        if self._call("nvJitLinkCreate", byref(handle), len(with_ptx), _array_of(with_ptx)):
            return None
        try:
            if any(
                self._call("nvJitLinkAddData", handle, kind, data, len(data), name) for kind, data, name in inputs
            ):
                return None
            if self._call("nvJitLinkComplete", handle):
                return None
            text = self._read_text("nvJitLinkGetLinkedPtx", handle)
            return None if isinstance(text, int) else text
        finally:
            self._call("nvJitLinkDestroy", byref(handle))

    def _link_code(self, handle: int) -> bytes | None:
        link = self._links.get(handle)
        return None if link is None else link.code

    def _destroy_link(self, handle: int) -> int:
        if handle:
            self._links.pop(c_void_p.from_address(handle).value or 0, None)
        return self._call("nvJitLinkDestroy", handle)

    def _add_code(self, handle: int, code: int, size: int, architecture: int, name: int) -> int:
        if code and is_ptx(image := string_at(code, size)):
            if architecture and _is_too_new(image, string_at(architecture)):
                return int(import_module("cuda.bindings.nvfatbin").Result.ERROR_ELF_ARCH_MISMATCH)
            return self._call("nvFatbinAddPTX", handle, code, size, architecture, name, None)
        return self._call("nvFatbinAddCubin", handle, code, size, architecture, name)


_routed: Final = Compilers(original)


def resolve(name: str, signature: str) -> tuple[Callable[..., int], str]:
    """Return the function behind an entry point of cuda.bindings, and the format of its parameters."""
    return _routed.resolve(name)


def result_of_error(name: str, error: BaseException | None) -> int:
    """Return the result for an exception in a call, and explain the failure."""
    result_of(name, error)
    return next(result for beginning, result in _FAILURES.items() if name.startswith(beginning))
