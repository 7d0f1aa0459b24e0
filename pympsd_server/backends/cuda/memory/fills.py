"""Fills: checked, and issued row by row or as a rectangle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pympsd_server.backends.cuda.driver.calls import cu
from pympsd_server.backends.cuda.memory.regions import simplified
from pympsd_server.backends.interface import Extent, Fill, Region
from pympsd_server.backends.region_checks import check_elements, check_pitches


def checked_fill(fill: Fill) -> tuple[Extent, Region]:
    """Return the simplified extent and region of a fill; BackendError INVALID_VALUE for what the driver cannot do."""
    check_elements(fill)
    extent, region = fill.extent, fill.destination
    if not extent.is_linear:
        extent, (region,) = simplified(extent, region)
        check_pitches(extent, region)
    return extent, region


def issue_fill(call: Callable[..., Any], fill: Fill, extent: Extent, region: Region, stream: Any) -> None:
    """Issue a fill, simplified as ``checked_fill`` returns it."""
    element = fill.element_bytes
    pattern, count = fill.value & ((1 << 8 * element) - 1), extent.width // element
    if extent.is_linear:
        rows = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}
        call(rows[element], region.base, pattern, count, stream)
        return
    rectangles = {1: cu.cuMemsetD2D8Async, 2: cu.cuMemsetD2D16Async, 4: cu.cuMemsetD2D32Async}
    for index in range(extent.depth):
        address = region.base + index * region.slice_pitch
        call(rectangles[element], address, region.pitch, pattern, count, extent.height, stream)
