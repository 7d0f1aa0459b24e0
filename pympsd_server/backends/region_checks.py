"""What the regions of copies and fills must keep to on every device. Pure."""

from __future__ import annotations

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Extent, Fill, Region


def check_pitches(extent: Extent, region: Region, most: int | None = None) -> None:
    """Raise BackendError INVALID_VALUE if rows or slices overlap, or the pitch is more than ``most``."""
    if extent.height > 1 and (region.pitch < extent.width or (most is not None and region.pitch > most)):
        limit = "" if most is None else f" and at most {most}"
        raise _invalid(f"a pitch of {region.pitch} bytes: it must be at least the width of {extent.width}{limit}")
    if extent.depth > 1 and region.slice_pitch < (least := region.span(Extent(extent.width, extent.height))):
        raise _invalid(f"a slice pitch of {region.slice_pitch} bytes: it must be at least {least}")


def check_elements(fill: Fill) -> None:
    """Raise BackendError INVALID_VALUE unless elements have 1, 2 or 4 bytes, and all of them are aligned."""
    element, region, extent = fill.element_bytes, fill.destination, fill.extent
    offsets = region.base | extent.width
    if not extent.is_linear:
        offsets |= region.pitch | region.slice_pitch
    if element not in (1, 2, 4) or offsets % element:
        raise _invalid(f"a fill of {element}-byte elements, rows of {extent.width} bytes at {region.base:#x}")


def _invalid(reason: str) -> BackendError:
    return BackendError(Result.ERROR_INVALID_VALUE, reason)
