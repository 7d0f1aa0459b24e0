"""Define the machine that PTX code sees: its warps, its address windows and its special registers.

A generic address determines its state space. Global memory begins at 0x6000_0000_0000. Far below it, each other space
has a window of 2^40 bytes:

    1 << 40   shared memory of the thread's block, and of the other blocks in its cluster
    2 << 40   the thread's local memory
    3 << 40   parameters of the kernel
    4 << 40   functions, 16 bytes each: an address identifies a function, but no code is stored there

The low 24 bits of a shared address are the offset in a block's memory. The bits above them are the block's rank in
its cluster plus one, or 0 for the thread's own block.
"""

from typing import Final

WARP: Final = 32
"""The number of threads in a warp."""
GROUP_WARPS: Final = 4
"""The number of warps in a warp group. The first warp's rank in its block is a multiple of this."""
BARRIERS: Final = 16
"""The number of barriers that each block has."""
WINDOW_BITS: Final = 40
WINDOWS: Final = {"shared": 1 << WINDOW_BITS, "local": 2 << WINDOW_BITS, "param": 3 << WINDOW_BITS}
SPACE_OF_WINDOW: Final = {base >> WINDOW_BITS: space for space, base in WINDOWS.items()}
CLUSTER_BARRIER: Final = BARRIERS
"""The index of the only barrier of a cluster; smaller indices are barriers of a block."""
RANK_SHIFT: Final = 24
FUNCTION_BASE: Final = 4 << WINDOW_BITS
FUNCTION_BYTES: Final = 16

AXES = ("x", "y", "z")
VECTORS = (
    "tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid",
)  # fmt: skip
_SCALAR_NAMES = (
    "laneid warpid nwarpid smid nsmid gridid lanemask_eq lanemask_lt lanemask_le lanemask_gt lanemask_ge "
    "clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi dynamic_smem_size total_smem_size "
    "envreg1 envreg2 cluster_ctarank cluster_nctarank is_explicit_cluster aggr_smem_size"
)
SCALARS = frozenset(_SCALAR_NAMES.split())
TIMERS = frozenset(["clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"])


RESERVED_SHARED_BYTES: Final = 1024
"""The shared memory of each block that is reserved for system software; it begins at address 0."""
RESERVED_SHARED: Final = {
    "%reserved_smem_offset_begin": 0,
    "%reserved_smem_offset_end": 288,
    "%reserved_smem_offset_cap": RESERVED_SHARED_BYTES,
    "%reserved_smem_offset_0": 0,
    "%reserved_smem_offset_1": 0,
}
"""The special registers of reserved shared memory, as on an H100. CUDA's cooperative groups use the 288 bytes from
%reserved_smem_offset_1 to synchronize tiles of several warps."""
SHARED_UNIT_BYTES: Final = 128
"""The unit, in bytes, in which a block's shared memory is allocated (compute capability 8.0 and higher)."""


def is_special(text: str) -> bool:
    """Return whether `%text` is a special register that this device has."""
    name, _, axis = text[1:].partition(".")
    if not text.startswith("%"):
        return False
    return (name in VECTORS and axis in AXES) or (not axis and name in SCALARS)


def vector_axes(text: str) -> list[str]:
    """Return the three parts of a special register that is a vector, such as %tid, or [] for any other text."""
    return [f"{text}.{axis}" for axis in AXES] if text[:1] == "%" and text[1:] in VECTORS else []
