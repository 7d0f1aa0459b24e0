"""The flags of a launch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd.wire.records import FLAG_COOPERATIVE, FLAG_QUIET
from pympsd.wire.ring_layout import MOST, NO_CLUSTER, cluster_of, packed

_SIZES = st.integers(1, MOST)


@given(st.booleans(), st.tuples(_SIZES, _SIZES, _SIZES))
def test_flags_hold_the_clusters(cooperative: bool, cluster: tuple[int, int, int]) -> None:
    flags = packed(cooperative, cluster)
    assert 0 <= flags < 1 << 16
    assert cluster_of(flags) == cluster
    assert bool(flags & FLAG_COOPERATIVE) == cooperative
    assert not flags & FLAG_QUIET


def test_a_plain_launch_has_no_flags() -> None:
    assert packed(False, NO_CLUSTER) == 0
