"""The answer to loading a module: its functions with their parameter layouts and attributes, and its globals."""

from __future__ import annotations

import msgspec
from attrs import frozen

from pympsd.errors import RemoteError


@frozen
class FunctionLayout:
    """One kernel. ``parameters`` are (offset, size) in bytes in the flat parameter buffer, in order."""

    name: str
    parameters: tuple[tuple[int, int], ...]
    parameter_bytes: int
    attributes: dict[str, int]
    """By the names of CUfunction_attribute without ``CU_FUNC_ATTRIBUTE_``."""


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
        """Return it as JSON (a native worker writes it too)."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ModuleLayout:
        """Read it; raise RemoteError when it does not fit.

        ``data`` is not trusted: it comes from another process.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteError(f"a malformed module layout: {error}") from None
