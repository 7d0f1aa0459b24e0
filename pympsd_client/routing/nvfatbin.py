"""The function of cuda.bindings.cynvfatbin that takes machine code: PTX that NVRTC or nvJitLink gave in place of it
is added as PTX.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import c_size_t, c_void_p, string_at
from importlib import import_module
from typing import Any, Final

from pympsd_client._objects.code.ptx_text import is_ptx
from pympsd_client.routing.explain import result_of
from pympsd_client.routing.pointers import original

_TARGET: Final = re.compile(rb"\.target\s+sm_(\d+)")
_UNKNOWN: Final = -1
"""NVFATBIN_ERROR_INTERNAL has another number in each version."""


def _add_code(handle: int, code: int, size: int, architecture: int, name: int) -> int:
    if code and is_ptx(image := string_at(code, size)):
        if architecture and _is_too_new(image, string_at(architecture)):
            return int(import_module("cuda.bindings.nvfatbin").Result.ERROR_ELF_ARCH_MISMATCH)
        add = original("nvFatbinAddPTX", c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)
        return int(add(handle, code, size, architecture, name, None))
    add = original("nvFatbinAddCubin", c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)
    return int(add(handle, code, size, architecture, name))


def _is_too_new(image: bytes, architecture: bytes) -> bool:
    """Return whether PTX has a target that is newer than an architecture ("90", "sm_90a"), which cannot run it."""
    target, given = _TARGET.search(image), re.search(rb"\d+", architecture)
    return target is not None and given is not None and int(target[1]) > int(given[0])


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters."""
    return _add_code, "QQQQQ"


def failed(name: str, error: BaseException | None) -> int:
    """Return a result that stands for no other error."""
    result_of(name, error)
    return _UNKNOWN
