"""The flags of a launch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd.wire.records import FLAG_COOPERATIVE, FLAG_QUIET, MAX_CLUSTER, NO_CLUSTER, cluster_of, pack_launch_flags

_SIZES = st.integers(1, MAX_CLUSTER)


@given(st.booleans(), st.tuples(_SIZES, _SIZES, _SIZES))
def test_flags_hold_the_clusters(cooperative: bool, cluster: tuple[int, int, int]) -> None:
    flags = pack_launch_flags(cooperative, cluster)
    assert 0 <= flags < 1 << 16
    assert cluster_of(flags) == cluster
    assert bool(flags & FLAG_COOPERATIVE) == cooperative
    assert not flags & FLAG_QUIET


def test_a_plain_launch_has_no_flags() -> None:
    assert pack_launch_flags(False, NO_CLUSTER) == 0
