"""The answer to loading a module: its functions with their parameter layouts and attributes, and its globals.

An executor may load functions later than their module, as CUDA does. Then the answer to LOAD_MODULE has only their
names, and the answer to LOAD_FUNCTION describes one.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from attrs import field, frozen

from pympsd.errors import RemoteError

_Layout = TypeVar("_Layout")


@frozen
class FunctionLayout:
    """One kernel. ``parameters`` are (offset, size) in bytes in the flat parameter buffer, in order."""

    name: str
    parameters: tuple[tuple[int, int], ...] = ()
    parameter_bytes: int = 0
    attributes: dict[str, int] = field(factory=dict)
    """By the names of CUfunction_attribute without ``CU_FUNC_ATTRIBUTE_``; empty if the function is not loaded."""

    @property
    def is_loaded(self) -> bool:
        """Whether more than its name is known."""
        return bool(self.attributes)

    def encode(self) -> bytes:
        """Return the layout as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> FunctionLayout:
        """Read the answer to LOAD_FUNCTION, of another process; raise RemoteError when it does not fit."""
        return _decode(data, cls)


@frozen
class GlobalLayout:
    """One variable: its address and its size in bytes."""

    name: str
    address: int
    size: int
    managed: bool = False
    """True if it is one of the managed variables, which PLACE_MANAGED places."""


@frozen
class ModuleLayout:
    """The tail of the answers to LOAD_MODULE and PLACE_MANAGED; LAUNCH names a function by its index."""

    functions: tuple[FunctionLayout, ...]
    globals: tuple[GlobalLayout, ...]
    managed_bytes: int = 0
    """The memory that the managed variables need, which the client provides by PLACE_MANAGED; 0: there are none."""

    def encode(self) -> bytes:
        """Return the layout as JSON (a native worker writes the same)."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ModuleLayout:
        """Return the layout of a text; raise RemoteError for any other text.

        ``data`` is not trusted: it comes from another process.
        """
        return _decode(data, cls)


def _decode(data: bytes, kind: type[_Layout]) -> _Layout:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError(f"a malformed module layout: {error}") from None
