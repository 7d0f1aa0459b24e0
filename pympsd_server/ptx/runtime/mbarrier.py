"""Compute the states of mbarrier objects: 64 bits of shared memory, changed by one thread after another.

From the low bits up, an object contains:

- 20 bits: the number of arrivals that the current phase still needs;
- 20 bits: the number of arrivals that each later phase needs;
- 21 bits: the number of bytes that the phase still needs, which may be negative for a while;
- the highest bit: the parity of the phase.
"""

from typing import Final

import numpy as np

from pympsd_server.ptx.isa.datatypes import Value
from pympsd_server.ptx.math.integers import select

_COUNT: Final = np.uint64((1 << 20) - 1)
_BYTES: Final = np.uint64((1 << 21) - 1)
_EXPECTED_AT: Final = np.uint64(20)
_BYTES_AT: Final = np.uint64(40)
_PHASE_AT: Final = np.uint64(63)
_DROP: Final = np.uint64(1 << 20)


def initial_barrier(count: Value) -> Value:
    """mbarrier.init: return an object whose phases need `count` arrivals (uint32)."""
    wide = count.astype(np.uint64) & _COUNT
    return wide | (wide << _EXPECTED_AT)


def arrival(count: Value, added_bytes: Value, drop: bool = False) -> Value:
    """Return the change that `advance` makes for `count` arrivals (uint32) and `added_bytes` more (or fewer) bytes.

    With `drop`, later phases need `count` fewer arrivals.
    """
    change = (count.astype(np.uint64) & _COUNT) | (added_bytes.astype(np.int64).view(np.uint64) << np.uint64(32))
    return change | _DROP if drop else change


def advance(barrier: Value, change: Value) -> Value:
    """Return the object after an arrival. When a phase has all of its arrivals and bytes, the next phase begins."""
    count = change & _COUNT
    pending = (barrier - count) & _COUNT
    expected = (barrier >> _EXPECTED_AT) & _COUNT
    expected = select((change & _DROP) != 0, (expected - count) & _COUNT, expected)
    missing = ((barrier >> _BYTES_AT) + (change >> np.uint64(32))) & _BYTES
    ends = (pending == 0) & (missing == 0)
    phase = (barrier >> _PHASE_AT) ^ ends.astype(np.uint64)
    pending = select(ends, expected, pending)
    return pending | (expected << _EXPECTED_AT) | (missing << _BYTES_AT) | (phase << _PHASE_AT)


def pending_count(state: Value) -> Value:
    """mbarrier.pending_count: return how many arrivals the phase still needed when an arrive returned `state`."""
    return (state & _COUNT).astype(np.uint32)


def phase_has_ended(barrier: Value, state: Value) -> Value:
    """mbarrier.test_wait: return whether the phase has ended in which an arrive returned `state`."""
    return (barrier >> _PHASE_AT) != (state >> _PHASE_AT)


def parity_has_ended(barrier: Value, parity: Value) -> Value:
    """mbarrier.test_wait.parity: return whether the latest phase of this parity has ended."""
    return (barrier >> _PHASE_AT) != (parity.astype(np.uint64) & np.uint64(1))
