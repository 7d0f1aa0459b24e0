"""Blocks per multiprocessor, compared with CUDA's occupancy calculation."""

from __future__ import annotations

from itertools import repeat

import pytest

from pympsd.devices.profiles import PROFILES
from pympsd.vocabulary.occupancy import block_cost, blocks_per_multiprocessor, multiprocessor_capacity, warp_registers


@pytest.mark.parametrize(
    ("model", "threads", "shared_bytes", "blocks"),
    [
        ("H200", 1, 0, 32),
        ("H200", 64, 0, 32),
        ("H200", 65, 0, 21),  # three warps
        ("H200", 1024, 0, 2),
        ("H200", 128, 48 << 10, 4),  # 49 KiB of 228 each
        ("H200", 32, 232448, 1),
        ("H200", 32, 6272, 32),  # with the KiB of the system 7,296 of 233,472
        ("H200", 32, 6273, 31),
        ("H200", 32, 6400, 31),
        ("H200", 32, 6401, 30),  # the next granule
        ("A100", 256, 0, 8),
        ("V100", 256, 96 << 10, 1),
        ("V100", 64, 3072, 32),
        ("V100", 64, 3073, 29),  # 3,328 of 98,304, nothing reserved
        ("P100", 1024, 0, 2),
    ],
)
def test_blocks_of_known_models(model: str, threads: int, shared_bytes: int, blocks: int) -> None:
    assert blocks_per_multiprocessor(PROFILES[model].attributes, threads, shared_bytes) == blocks


@pytest.mark.parametrize(
    ("registers", "threads", "blocks"),
    [
        (32, 1024, 2),  # 64 warps of 1,024 registers: the file just holds them
        (33, 1024, 1),  # 1,280 a warp: 48 warps
        (64, 256, 4),
        (128, 256, 2),
        (255, 1024, 0),  # 8 warps only
        (255, 128, 2),
        (16, 32, 32),  # blocks bound it
        # cuOccupancyMaxActiveBlocksPerMultiprocessor of a kernel with 80 registers on an H200, driver 580.
        *zip(repeat(80), (32, 64, 96, 128, 256, 512, 1024), (24, 12, 8, 6, 3, 1, 0), strict=False),
    ],
)
def test_registers_limit_the_occupancy_if_they_count(registers: int, threads: int, blocks: int) -> None:
    h200 = PROFILES["H200"].attributes
    assert blocks_per_multiprocessor(h200, threads, 0, warp_registers(registers)) == blocks


def test_a_block_that_does_not_fit() -> None:
    assert blocks_per_multiprocessor({"MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 1000}, 32, 1001) == 0
    assert blocks_per_multiprocessor({"MAX_THREADS_PER_MULTIPROCESSOR": 512}, 1024, 0) == 0
    assert blocks_per_multiprocessor({"MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 0}, 32, 0) == 32


@pytest.mark.parametrize("model", sorted(PROFILES))
@pytest.mark.parametrize(("threads", "shared_bytes"), [(1, 0), (96, 5000), (1000, 100), (33, 40000)])
def test_the_number_of_blocks_fits_and_one_more_does_not(model: str, threads: int, shared_bytes: int) -> None:
    attributes = PROFILES[model].attributes
    most = blocks_per_multiprocessor(attributes, threads, shared_bytes)
    pairs = list(zip(multiprocessor_capacity(attributes), block_cost(attributes, threads, shared_bytes), strict=True))
    assert all(cost * most <= room for room, cost in pairs)
    assert any(cost * (most + 1) > room for room, cost in pairs)
