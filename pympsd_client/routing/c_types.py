"""The codes of C types in the formats of entry points, derived from a row's parameter or a capsule's signature.

The codes are those of native/src/entry_points.c.
"""

import builtins
import re
from typing import Any, Final

from pympsd_client._arguments.bindings import bindings

_NUMBERS: Final = {
    "int": "i",
    "CUdevice": "i",
    "unsigned int": "I",
    "cuuint32_t": "I",
    "unsigned short": "H",
    "unsigned char": "B",
    "float": "f",
    "double": "d",
}
_WIDE: Final = frozenset({"size_t", "unsigned long long", "cuuint64_t", "CUdeviceptr", "CUtexObject", "CUsurfObject"})
BY_VALUE: Final = {
    "CUmemLocation": 8,
    "CUipcMemHandle": 64,
    "CUipcEventHandle": 64,
    "cudaExtent": 24,
    "cudaPitchedPtr": 32,
    "cudaChannelFormatDesc": 20,
}
"""The structures that functions take by value, and their sizes in bytes."""
STRUCTURES: Final = {
    "CUuuid": 16,
    "CUexecAffinityParam": 8,
    "CUmemLocation": 8,
    "CUipcMemHandle": 64,
    "CUipcEventHandle": 64,
    "CUmemPoolPtrExportData": 64,
    "CUdevResource": 144,
    "CUdevprop": 56,
    "cudaDevResource": 144,
    "CUDA_ARRAY_DESCRIPTOR": 24,
    "CUDA_ARRAY3D_DESCRIPTOR": 40,
    "CUDA_RESOURCE_DESC": 144,
    "CUDA_TEXTURE_DESC": 104,
    "CUDA_RESOURCE_VIEW_DESC": 112,
    "CUmemAllocationProp": 32,
    "CUmemPoolProps": 88,
    "CUstreamAttrValue": 64,
    "CUtensorMap": 128,
}
"""The structures that functions return, and their sizes in bytes."""
_IN_FORMAT: Final = re.compile(r"[>?|]?[a-zA-Z]\d*")
"""The pattern of one parameter in a format."""


def parameters(signature: str) -> tuple[str, ...]:
    """Return the types of a C function's parameters, without ``const``."""
    inside = signature[signature.index("(") + 1 : signature.rindex(")")].strip()
    if inside in ("", "void"):
        return ()
    return tuple(plain(type) for type in inside.split(","))


def plain(type: str) -> str:
    """Return a C type without ``const``, ``struct`` and ``enum``, and with one space before its asterisks."""
    spaced = type.replace("*", " * ").replace("PY_LONG_LONG", "long long")
    words = [word for word in spaced.split() if word not in ("const", "struct", "enum")]
    stars = words.count("*")
    name = " ".join(word for word in words if word != "*")
    return f"{name} {'*' * stars}" if stars else name


def code(type: str) -> str:
    """Return the code of an integer's, enum's, handle's or pointer's type."""
    if type.endswith("*") or type in _WIDE:
        return "Q"
    if type in _NUMBERS:
        return _NUMBERS[type]
    if type.startswith("cuda"):  # in the runtime, names of handles and functions end with _t, those of enums do not
        is_wide = (type.endswith("_t") and type != "cudaError_t") or type == "cudaGraphConditionalHandle"
        return "Q" if is_wide else "i"
    type_: Any = getattr(bindings, type, None)
    return "i" if isinstance(type_, builtins.type) and issubclass(type_, int) else "Q"  # an enum, or a handle


def select_threads_stream(format: str, types: tuple[str, ...]) -> str:
    """Return a function's format in which a NULL stream stands for the calling thread's own stream.

    >>> select_threads_stream("Q>QQ", ("CUdeviceptr", "CUevent *", "CUstream"))
    'Q>Qt'
    """
    codes = zip(_IN_FORMAT.findall(format), types, strict=True)
    return "".join("t" if type in ("CUstream", "cudaStream_t") else code for code, type in codes)


def structure(type: str) -> Any:
    """Return the class of cuda.bindings for the structure that a pointer type points to; None for other types."""
    pointee: Any = getattr(bindings, type.removesuffix(" *"), None) if type.endswith(" *") else None
    bases = pointee.__mro__ if isinstance(pointee, builtins.type) else ()
    return pointee if any(base.__name__.endswith("_st") for base in bases) else None
