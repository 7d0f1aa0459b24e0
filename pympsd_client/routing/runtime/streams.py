"""Streams and events (CUDA runtime API, Stream Management and Event Management)."""

from __future__ import annotations

from pympsd_client._objects.stream import resolve
from pympsd_client.routing.runtime.calls import api


def create() -> int:
    """Return a new stream."""
    return int(api.cuStreamCreate(0))


def device(stream: int) -> int:
    """Return the device of a stream."""
    return resolve(stream)[0].device.number


def create_event() -> int:
    """Return a new event."""
    return int(api.cuEventCreate(0))
