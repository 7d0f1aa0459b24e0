"""The fake GPUs, shaped as the recorded H200."""

from __future__ import annotations

import hashlib
import struct

NAME = "NVIDIA H200"
SM_COUNT = 132
MEMORY_BYTES = 143155 << 20


def uuid(ordinal: int) -> bytes:
    """Return a device's UUID: always the same, and like that of no device that was recorded."""
    return hashlib.sha256(f"a fake H200, number {ordinal}".encode()).digest()[:16]


def uuid_text(ordinal: int) -> str:
    """Return the UUID as it is printed."""
    text = uuid(ordinal).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def query_record(ordinal: int) -> bytes:
    """Return the record of command 24: 172 bytes."""
    return struct.pack("<iiI12x16s132s", ordinal, 0, 6 + ordinal, uuid(ordinal), NAME.encode())


def client_list_record(ordinal: int) -> bytes:
    """Return the record of command 7 that names a device: 76 bytes."""
    return struct.pack("<ii68s", 0, ordinal, NAME.encode())


def key(device: bytes) -> str:
    """Return the ordinal that an ordinal or UUID of 41 bytes means, as text; one that is not there stays as it is."""
    text = device.rstrip(b"\0").decode()
    if not text.startswith("GPU-"):
        return text
    return next((str(ordinal) for ordinal in range(64) if uuid_text(ordinal).startswith(text)), text)


def multiprocessors(percentage: float) -> int:
    """Return how many SMs a percentage of active threads is: an even number, at least 2."""
    return max(2, int(SM_COUNT * percentage / 100) // 2 * 2)
