"""Encode and decode the answer to loading a module: its functions with their parameter layouts and attributes, and
its globals.

An executor may load functions later than their module, as CUDA does. Then the answer to LOAD_MODULE has only the
functions' names, and the answer to LOAD_FUNCTION describes one function.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from attrs import field, frozen

from pympsd.errors import RemoteError

_Layout = TypeVar("_Layout")


@frozen
class FunctionLayout:
    """One kernel.

    ``parameters`` are offset and size in bytes of each parameter in the flat parameter buffer, in order.
    """

    name: str
    parameters: tuple[tuple[int, int], ...] = ()
    parameter_bytes: int = 0
    attributes: dict[str, int] = field(factory=dict)
    """Attributes by the names of CUfunction_attribute without ``CU_FUNC_ATTRIBUTE_``; empty if the function is not
    loaded.
    """

    @property
    def is_loaded(self) -> bool:
        """Whether the function is loaded; otherwise only its name is known."""
        return bool(self.attributes)

    def encode(self) -> bytes:
        """Return the layout as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> FunctionLayout:
        """Return the layout from an answer to LOAD_FUNCTION, which is not trusted; raise RemoteError if it is
        malformed.
        """
        return _decode(data, cls)


@frozen
class GlobalLayout:
    """One variable: its address and its size in bytes."""

    name: str
    address: int
    size: int
    managed: bool = False
    """True for a managed variable, which PLACE_MANAGED places."""


@frozen
class ModuleLayout:
    """The tail of the answers to LOAD_MODULE and PLACE_MANAGED; LAUNCH names a function by its index."""

    functions: tuple[FunctionLayout, ...]
    globals: tuple[GlobalLayout, ...]
    managed_bytes: int = 0
    """The bytes of memory that the managed variables need, which the client provides with PLACE_MANAGED; 0 without
    any.
    """

    def encode(self) -> bytes:
        """Return the layout as JSON; the native worker writes the same format."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ModuleLayout:
        """Return the layout that a JSON text describes; raise RemoteError if the text is malformed.

        ``data`` is not trusted: it comes from another process.
        """
        return _decode(data, cls)


def _decode(data: bytes, kind: type[_Layout]) -> _Layout:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError(f"a malformed module layout: {error}") from None
