"""What a context on the emulated device costs of its memory."""

from __future__ import annotations

from typing import Final

from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd_server.backends.budget import GRANULE_BYTES

FIXED_OVERHEAD_BYTES: Final = 28 << 20
MULTIPROCESSOR_OVERHEAD_BYTES: Final = 7537 * GRANULE_BYTES
"""A context costs 28 MiB and 3.68 MiB for every multiprocessor it may use, until it is destroyed.

Measured on an H200 with driver 580 for limits of 10 to 132 SMs (65 to 514 MiB, on this line within 1 MiB): what a
limit leaves in pieces of 16 MiB is the same here. Other models are made to cost the same.
"""
SHARED_CONTEXT_OVERHEAD_BYTES: Final = 8 << 20
"""What a context costs before Volta, where all clients share the one context of their server."""


def context_overhead(facts: DeviceFacts, multiprocessors: int) -> int:
    """Return the bytes that a context on this number of multiprocessors costs by itself."""
    if not facts.is_volta_or_newer:
        return SHARED_CONTEXT_OVERHEAD_BYTES
    return FIXED_OVERHEAD_BYTES + multiprocessors * MULTIPROCESSOR_OVERHEAD_BYTES
