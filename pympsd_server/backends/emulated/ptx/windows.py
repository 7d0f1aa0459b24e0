"""Where shared, local and parameter memory appear among generic addresses.

Device windows begin far above, at 0x6000_0000_0000, so an address tells its space.
"""

from __future__ import annotations

WINDOW_BITS = 40
WINDOWS = {"shared": 1 << WINDOW_BITS, "local": 2 << WINDOW_BITS, "param": 3 << WINDOW_BITS}
SPACE_OF_WINDOW = {base >> WINDOW_BITS: space for space, base in WINDOWS.items()}
