"""Define the profiles of the devices of emulated machines, from a B200 to the pre-Volta P100.

Figures are those that the vendor publishes (CUDA C++ Programming Guide, table of compute capabilities, and the
product pages). The memory and attributes of the H200 (tests/data/corpus/recorded.json) and the H100
(tests/data/device-attributes-h100.txt) are as driver 580 reports them. Features that the emulated device lacks, such
as GPUDirect, are 0, and so are the PCI ids of a board. SMs, clocks, memory and bus of the other devices are from the
products' data sheets; the L2 cache that may be set aside is 0 if NVIDIA does not publish it.

The chunks of static SM partitions are recorded with an H100 and reported for an H200. Other profiles have as many
whole chunks as their SMs make; `vocabulary.partitions` has the size of a chunk. A machine description can state other
chunks, because a GPU whose chunks stay inside a GPC may have fewer: an A100 has 26 chunks of 4 SMs, a B200 has 16 of
8.
"""

from typing import Final

from attrs import field, frozen


@frozen
class Profile:
    """One kind of device, without the identity (UUID, PCI address) that a machine gives it.

    ``attributes`` has the values of CUdevice_attribute by the names without their prefix.
    """

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    attributes: dict[str, int] = field(factory=dict)
    sm_chunks: tuple[int, int] | None = None
    """The attribute ``sm_chunks`` of DeviceProperties; the module's docstring states the sources."""
    reserved_bytes: int = 0
    """The attribute ``reserved_bytes`` of DeviceProperties: the bytes by which NVML's total exceeds CUDA's. 0 if only
    one is known."""


_FEATURES: Final = """
COMPUTE_PREEMPTION_SUPPORTED MPS_ENABLED GPU_OVERLAP CAN_MAP_HOST_MEMORY CONCURRENT_KERNELS ECC_ENABLED
UNIFIED_ADDRESSING STREAM_PRIORITIES_SUPPORTED GLOBAL_L1_CACHE_SUPPORTED LOCAL_L1_CACHE_SUPPORTED
HOST_REGISTER_SUPPORTED MANAGED_MEMORY CONCURRENT_MANAGED_ACCESS COOPERATIVE_LAUNCH MEMORY_POOLS_SUPPORTED
CAN_USE_64_BIT_STREAM_MEM_OPS CAN_USE_STREAM_WAIT_VALUE_NOR HOST_MEMORY_POOLS_SUPPORTED CAN_TEX2D_GATHER
"""
"""The attributes that are 1 on every device."""
_LACKING: Final = """
KERNEL_EXEC_TIMEOUT INTEGRATED COMPUTE_MODE TCC_DRIVER PCI_DOMAIN_ID READ_ONLY_HOST_REGISTER_SUPPORTED
CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM MULTI_GPU_BOARD PAGEABLE_MEMORY_ACCESS HOST_NATIVE_ATOMIC_SUPPORTED
HOST_NUMA_ID
"""
"""The attributes that are 0 on every device."""
_EVERY_DEVICE: Final = {
    **dict.fromkeys(_FEATURES.split(), 1),
    **dict.fromkeys(_LACKING.split(), 0),
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2147483647,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "TOTAL_CONSTANT_MEMORY": 65536,
    "WARP_SIZE": 32,
    "MAX_PITCH": 2147483647,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "TEXTURE_ALIGNMENT": 512,
    "TEXTURE_PITCH_ALIGNMENT": 32,
    "SURFACE_ALIGNMENT": 512,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "NUMA_ID": -1,
}

_EXTENTS: Final = {
    131072: "TEXTURE1D_WIDTH TEXTURE2D_WIDTH SURFACE2D_WIDTH TEXTURE2D_LINEAR_WIDTH",
    65536: "TEXTURE2D_HEIGHT SURFACE2D_HEIGHT",
    16384: """
        TEXTURE3D_WIDTH TEXTURE3D_HEIGHT TEXTURE3D_DEPTH SURFACE3D_WIDTH SURFACE3D_HEIGHT SURFACE3D_DEPTH
    """,
    32768: """
        TEXTURE2D_LAYERED_WIDTH TEXTURE2D_LAYERED_HEIGHT TEXTURE1D_LAYERED_WIDTH TEXTURE2D_GATHER_WIDTH
        TEXTURE2D_GATHER_HEIGHT TEXTURE3D_DEPTH_ALTERNATE TEXTURECUBEMAP_WIDTH TEXTURECUBEMAP_LAYERED_WIDTH
        SURFACE1D_WIDTH SURFACE1D_LAYERED_WIDTH SURFACE2D_LAYERED_WIDTH SURFACE2D_LAYERED_HEIGHT
        SURFACECUBEMAP_WIDTH SURFACECUBEMAP_LAYERED_WIDTH TEXTURE2D_MIPMAPPED_WIDTH
        TEXTURE2D_MIPMAPPED_HEIGHT TEXTURE1D_MIPMAPPED_WIDTH
    """,
    2048: """
        TEXTURE2D_LAYERED_LAYERS TEXTURE1D_LAYERED_LAYERS SURFACE1D_LAYERED_LAYERS SURFACE2D_LAYERED_LAYERS
    """,
    8192: "TEXTURE3D_WIDTH_ALTERNATE TEXTURE3D_HEIGHT_ALTERNATE",
    2046: "TEXTURECUBEMAP_LAYERED_LAYERS SURFACECUBEMAP_LAYERED_LAYERS",
    268435456: "TEXTURE1D_LINEAR_WIDTH",
    65000: "TEXTURE2D_LINEAR_HEIGHT",
    2097120: "TEXTURE2D_LINEAR_PITCH",
}
"""The attributes with the largest extents of arrays, textures and surfaces.

They were recorded with an H200 and an H100. For other devices they are from the table of compute capabilities, which
has the same values from 6.0 on.
"""
_TEXTURES: Final = {f"MAXIMUM_{name}": extent for extent, names in _EXTENTS.items() for name in names.split()}

_PERSISTING_CACHE: Final = {62914560: 39321600, 52428800: 32768000, 41943040: 31457280}
"""The bytes of the L2 cache that may be set aside, by the size of the cache in bytes.

The values were recorded with an H200 and an H100; that of the A100 is three quarters of its cache (CUDA C++
Programming Guide, L2 Set-Aside Cache).
"""
_ACCESS_WINDOW_BYTES: Final = 134217728
_HOPPER_SHARED: Final = 233472


def _architecture(
    shared_per_sm: int,
    shared_optin: int,
    threads_per_sm: int,
    clock: int,
    memory_clock: int,
    bus: int,
    l2: int,
) -> dict[str, int]:
    """Return the attributes that follow from an architecture's sizes (bytes), clocks (kHz) and bus width (bits)."""
    return {
        **_EVERY_DEVICE,
        **_TEXTURES,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": shared_per_sm,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": shared_optin,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024 if shared_optin > 100000 else 0,
        "MAX_THREADS_PER_MULTIPROCESSOR": threads_per_sm,
        "CLOCK_RATE": clock,
        "MEMORY_CLOCK_RATE": memory_clock,
        "GLOBAL_MEMORY_BUS_WIDTH": bus,
        "L2_CACHE_SIZE": l2,
        "ASYNC_ENGINE_COUNT": 3,
        "MAX_PERSISTING_L2_CACHE_SIZE": _PERSISTING_CACHE.get(l2, 0),
        "MAX_ACCESS_POLICY_WINDOW_SIZE": _ACCESS_WINDOW_BYTES if l2 in _PERSISTING_CACHE else 0,
        "MEM_SYNC_DOMAIN_COUNT": 4 if shared_per_sm == _HOPPER_SHARED else 1,
        "TENSOR_MAP_ACCESS_SUPPORTED": int(shared_per_sm == _HOPPER_SHARED),
    }


def _graphics(clock: int, memory_clock: int, bus: int, l2: int, blocks: int, ratio: int) -> dict[str, int]:
    """Return the attributes of a device of compute capability 8.6 or 8.9.

    ``blocks``: the number of blocks in an SM; ``ratio``: the speed of single precision divided by that of double
    precision.
    """
    return {
        **_architecture(102400, 101376, 1536, clock, memory_clock, bus, l2),
        "MAX_BLOCKS_PER_MULTIPROCESSOR": blocks,
        "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": ratio,
    }


_SMALL: Final = {"MAX_BLOCKS_PER_MULTIPROCESSOR": 16, "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 32}
"""The attributes that differ on compute capabilities 7.5 and 8.7."""

PROFILES: Final = {
    "H200": Profile(
        "NVIDIA H200", (9, 0), 132, 150109880320,
        _architecture(233472, 232448, 2048, 1980000, 3201000, 6016, 62914560), sm_chunks=(15, 8),
        reserved_bytes=(143771 << 20) - 150109880320,
    ),
    "H100": Profile(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 85017493504,
        _architecture(233472, 232448, 2048, 1980000, 2619000, 5120, 52428800), sm_chunks=(15, 8),
        reserved_bytes=(81559 << 20) - 85017493504,
    ),
    "A100": Profile(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 81038 << 20,
        _architecture(167936, 166912, 2048, 1410000, 1593000, 5120, 41943040),
    ),
    "V100": Profile(
        "Tesla V100-SXM2-32GB", (7, 0), 80, 32494 << 20,
        _architecture(98304, 98304, 2048, 1530000, 877000, 4096, 6291456),
    ),
    "P100": Profile(
        "Tesla P100-SXM2-16GB", (6, 0), 56, 16276 << 20,
        _architecture(65536, 49152, 2048, 1480500, 715000, 4096, 4194304),
    ),
    "B200": Profile(
        "NVIDIA B200", (10, 0), 148, 183359 << 20,
        _architecture(_HOPPER_SHARED, 232448, 2048, 1965000, 3996000, 8192, 126 << 20),
    ),
    "L40S": Profile("NVIDIA L40S", (8, 9), 142, 46068 << 20, _graphics(2520000, 9001000, 384, 96 << 20, 24, 64)),
    "L20": Profile("NVIDIA L20", (8, 9), 92, 46068 << 20, _graphics(2520000, 9001000, 384, 96 << 20, 24, 64)),
    "A10": Profile("NVIDIA A10", (8, 6), 72, 23028 << 20, _graphics(1695000, 6251000, 384, 6291456, 16, 32)),
    "T4": Profile(
        "Tesla T4", (7, 5), 40, 15360 << 20,
        _architecture(65536, 65536, 1024, 1590000, 5001000, 256, 4194304) | _SMALL,
    ),
    "Orin": Profile(
        "Orin", (8, 7), 16, 62841 << 20,
        _architecture(167936, 166912, 1536, 1300000, 3200000, 256, 4194304) | _SMALL | {"INTEGRATED": 1},
    ),
}  # fmt: skip
