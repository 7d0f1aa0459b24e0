"""Rounding of a part of a device's multiprocessors (SMs), by compute capability.

A percentage and an execution affinity give a multiple of a step, and not less than a minimum. Both figures differ
between architectures, and NVIDIA documents neither. Each row of the table names where its figures come from; a row
that nobody has measured is marked, and so is every display of a device that uses it. The parts of green contexts have
documented figures of their own.

To add an architecture, add a row here; tests/vocabulary/test_sm_rounding.py checks the table.
"""

from fractions import Fraction
from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import ThreadPercentage


@frozen
class SmRounding:
    """The figures of one architecture, in SMs."""

    capability: tuple[int, int]
    """The minimum compute capability of the devices that the row is for."""
    step: int
    """Percentages and execution affinities amount to multiples of this number of SMs."""
    minimum: int
    """The minimum number of SMs that a percentage or an affinity gives."""
    green_minimum: int
    """The minimum number of SMs of a green context (CUDA driver API, Green Contexts)."""
    green_alignment: int
    """The number of SMs in a green context is a multiple of this (same source)."""
    is_measured: bool
    """True if ``step`` and ``minimum`` were seen on a device of this architecture."""
    source: str
    """The source of ``step`` and ``minimum``."""

    def round_down(self, count: int, available: int) -> int:
        """Return a number of SMs rounded down to the step: at least the minimum, at most ``available``.

        ``count`` and ``available`` are SMs; a percentage is rounded this way.
        """
        return min(available, max(self.minimum, count - count % self.step))

    def round_up(self, count: int, available: int) -> int:
        """Return a number of SMs rounded up to the step: at least the minimum, at most ``available``.

        ``count`` and ``available`` are SMs; an execution affinity is rounded this way.
        """
        return min(available, max(self.minimum, -(-count // self.step) * self.step))

    def __str__(self) -> str:
        """Return a description for users, without the source."""
        text = f"SMs by percentage: steps of {self.step}, at least {self.minimum}"
        return text if self.is_measured else f"{text} (not measured on a device of this kind)"


ROUNDINGS: Final = (
    SmRounding((10, 0), 2, 8, 8, 8, False, "as compute capability 9.0"),
    SmRounding((9, 0), 2, 8, 8, 8, True, "an H200 and an H100 with driver 580"),
    SmRounding((8, 0), 2, 4, 4, 2, False, "the figures of green contexts"),
    SmRounding((7, 0), 2, 2, 2, 2, True, "public reports of a T4: 10 % of 40 SMs are 4, 20 % are 8, 5 % are 2"),
)
"""The rows, from the newest architecture to the oldest that limits SMs (MPS documents, 2.3.5.2: Volta and newer)."""


def count_multiprocessors(percentage: ThreadPercentage, device: DeviceProperties) -> int:
    """Return how many SMs a percentage of a device amounts to, rounded down by `rounding`; all SMs before Volta.

    The exact number is computed without binary fractions: 33.3 % of 1,000 SMs are 333. 100 % are always all SMs, also
    if the device has a number that is not a multiple of the step.
    """
    if percentage.value >= 100 or not device.is_volta_or_newer:
        return device.multiprocessors
    # As written, 33.3 being 333/1000: nothing is lost to binary fractions.
    exact = int(Fraction(repr(float(percentage.value))) * device.multiprocessors // 100)
    return rounding(device).round_down(exact, device.multiprocessors)


def rounding(device: DeviceProperties) -> SmRounding:
    """Return the row of a device; raise LookupError before Volta, where nothing limits SMs.

    It is the row of the newest architecture that is not newer than the device. For a device of an architecture that
    is not in the table, the figures of the one before are used.
    """
    for row in ROUNDINGS:
        if device.compute_capability >= row.capability:
            return row
    raise LookupError(f"{device.name} is older than Volta, where contexts have all SMs")
