"""PTX on NumPy: load an image, link it into a client's memory, run batches of CTAs.

A kernel's basic blocks become Python functions in which each instruction is a NumPy operation over a
group of threads. `load_program` refuses, by name and line, what is not supported.
"""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.faults import (
    Cancelled,
    DeviceAssertion,
    DeviceFault,
    IllegalAddress,
    InvalidPtx,
    LaunchFailed,
    MisalignedAddress,
    NotPtx,
    OutOfMemory,
    UnsupportedByMps,
)
from pympsd_server.backends.emulated.ptx.linking import LoadedModule
from pympsd_server.backends.emulated.ptx.program import Global, Kernel, Program, load_program
from pympsd_server.backends.emulated.ptx.runtime.batch import Batch, CancelFlag, preferred_blocks

__all__ = [
    "Batch",
    "CancelFlag",
    "Cancelled",
    "DeviceAssertion",
    "DeviceFault",
    "Global",
    "IllegalAddress",
    "InvalidPtx",
    "Kernel",
    "LaunchFailed",
    "LoadedModule",
    "MisalignedAddress",
    "NotPtx",
    "OutOfMemory",
    "Program",
    "UnsupportedByMps",
    "load_program",
    "preferred_blocks",
]
