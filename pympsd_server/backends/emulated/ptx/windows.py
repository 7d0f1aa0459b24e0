"""Where shared, local and parameter memory appear among generic addresses.

Device windows begin far above, at 0x6000_0000_0000, so an address determines its space.
"""

from __future__ import annotations

WINDOW_BITS = 40
WINDOWS = {"shared": 1 << WINDOW_BITS, "local": 2 << WINDOW_BITS, "param": 3 << WINDOW_BITS}
SPACE_OF_WINDOW = {base >> WINDOW_BITS: space for space, base in WINDOWS.items()}
CLUSTER_BARRIER = 16
"""The number of the one barrier of a cluster, behind those of its blocks."""
RANK_SHIFT = 24
"""Above this bit of a shared address is the rank, plus one, of another block of the cluster; 0 is the own block."""
FUNCTION_BASE = 4 << WINDOW_BITS
FUNCTION_BYTES = 16
"""A function's address says which it is; there is no code at it."""
