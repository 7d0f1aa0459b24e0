"""The kernels, their shapes, and the numbers of clients that launch them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import frozen

HERE: Final = Path(__file__).parent
SPIN: Final = HERE / "spin.ptx"
COUNTS: Final = (1, 2, 4, 8, 16, 32, 48)
UNBOUNDED: Final = 0
"""A batch of 0: the stream is never synchronised, only the driver's queue bounds the unfinished launches."""


@frozen
class Kernel:
    """A launch of `spin`: its time, its shape, and the number of launches after which a client synchronises."""

    name: str
    nanoseconds: int
    blocks: int
    threads: int = 32
    batch: int = 1

    def words(self) -> str:
        """Return the first words of commands to clients."""
        return f"{self.nanoseconds} {self.blocks} {self.threads}"


KERNELS: Final = (
    Kernel("10 µs x 1 block", 10_000, 1, batch=256),
    Kernel("100 µs x 8 blocks", 100_000, 8, batch=64),
    Kernel("1 ms x 16 blocks", 1_000_000, 16, batch=8),
    Kernel("~2 µs x 4 blocks", 0, 4, batch=512),
)
"""The batches take 1 to 8 ms: waiting for their ends costs little, and they keep the bound of docs/decisions/004."""

EMPTY: Final = Kernel("empty", 0, 1)
SMALL: Final = Kernel("10 µs x 64 blocks", 10_000, 64, threads=128)
"""The kernel whose quality of service is measured."""


def filling(multiprocessors: int, waves: int = 8) -> Kernel:
    """Return a neighbour that takes every thread of a GPU, 8 waves of blocks of 190 µs: about 1.5 ms."""
    return Kernel("fills the GPU", 190_000, 2 * waves * multiprocessors, threads=1024)
