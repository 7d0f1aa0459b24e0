"""The functions of the driver API, one row each: name, parameters as in C, and the core function behind it.

A row is ``name(parameters) = core``. Parameters stand in C's order with C's types; ``out`` marks those that C
returns through a pointer and Python returns in the tuple, ``inout`` those that a caller also gives. The core is a
function in ``pympsd_client``, in the chapter's module where no other is named. It gets the inputs in order, or what
its own parentheses list, as plain ints, structs, names and `HostMemory`, returns the outputs as plain values, and
raises CudaError.
"""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures import arrays, devices, execution, graphs, memory, streams
from pympsd_client.signatures.rows import Calling, Parameter, Signature

_CHAPTERS: Final = (devices, memory, arrays, execution, streams, graphs)
SIGNATURES: Final = {row.name: row for chapter in _CHAPTERS for row in chapter.ROWS}
"""The rows by name."""

__all__ = ["SIGNATURES", "Calling", "Parameter", "Signature"]
