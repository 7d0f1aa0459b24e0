"""Error names and descriptions (CUDA driver API, Error Handling). Available always, also in a forked child."""

from __future__ import annotations

from pympsd_client._arguments.errors import description_of, invalid_value, name_of


def name(error: int) -> bytes:
    """Return a result's name as bytes; INVALID_VALUE for an unknown number."""
    found = name_of(error)
    if found is None:
        raise invalid_value(f"{error} is no CUresult")
    return found


def description(error: int) -> bytes:
    """Return a result's description as bytes; INVALID_VALUE for an unknown number."""
    found = description_of(error)
    if found is None:
        raise invalid_value(f"{error} is no CUresult")
    return found
