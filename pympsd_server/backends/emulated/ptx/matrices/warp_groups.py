"""wgmma: products of four warps, of matrices in registers and in shared memory. They are done at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Array, Value
from pympsd_server.backends.emulated.ptx.faults import LaunchFailed
from pympsd_server.backends.emulated.ptx.matrices.descriptors import read_matrices
from pympsd_server.backends.emulated.ptx.matrices.fragments import Shape, fragment_of
from pympsd_server.backends.emulated.ptx.matrices.multiply import gathered, rounded, scattered
from pympsd_server.backends.emulated.ptx.runtime.lanes import WARP, Lanes, spread
from pympsd_server.backends.emulated.ptx.runtime.warp import GROUP_WARPS

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

_WARP_ROWS: Final = 16


def multiply_in_groups(
    state: BatchState,
    lanes: Lanes,
    shape: Shape,
    kinds: tuple[str, str, str],
    saturate: bool,
    signs: tuple[int, int],
    transposed: tuple[bool, bool],
    a: tuple[Value, ...],
    b: Value,
    d: tuple[Value, ...],
    accumulate: Value,
    guard: Value | None,
) -> list[Value]:
    """Return the registers of D = A * B + D, or without `accumulate` of A * B.

    `kinds` are the types of the elements of A, B and D; `a` has registers, or one descriptor; `b` is a descriptor;
    `signs` and `transposed` are of A and of B. Where `guard` is false nothing is read, and the result is undefined.
    Raises LaunchFailed unless all threads of each group are here, IllegalAddress for memory that is not there.
    """
    leaders = lanes.fact("leaders", lambda: _leaders(state, lanes))
    if guard is not None:
        leaders = leaders[spread(guard, lanes.count)[leaders]]
    if not len(leaders):
        return [spread(register, lanes.count) for register in d]
    m, n, k = shape
    warps = lanes.pick(state.warp)[leaders][:, None] + np.arange(GROUP_WARPS)
    own = (_WARP_ROWS, n, k)

    def held(matrix: str, registers: tuple[Value, ...], kind: str, columns: int) -> Array:
        """Return the matrices of the groups, whose warps hold 16 rows each in registers."""
        fragment = fragment_of(matrix, own, kind)
        each = gathered(state, lanes, fragment, registers, kind, (_WARP_ROWS, columns))
        return np.asarray(each[warps].reshape(-1, m, columns))

    def stored(descriptor: Value, index: int, rows: int) -> Array:
        """Return the matrices of the groups in shared memory, A or the transpose of B."""
        each = spread(descriptor, lanes.count)[leaders]
        return read_matrices(state, lanes, leaders, each, (rows, k), kinds[index], transposed[index])

    left = stored(a[0], 0, m) if len(a) == 1 else held("a", a, kinds[0], k)
    total = (signs[0] * left) @ (signs[1] * stored(b, 1, n)).transpose(0, 2, 1)
    if np.any(accumulate):
        total += np.where(spread(accumulate, lanes.count)[leaders][:, None, None], held("d", d, kinds[2], n), 0.0)
    sums = rounded(total, kinds[2], saturate)
    of_all = np.zeros((state.warps, _WARP_ROWS, n), sums.dtype)
    of_all[warps] = sums.reshape(-1, GROUP_WARPS, _WARP_ROWS, n)
    return scattered(state, lanes, fragment_of("d", own, kinds[2]), of_all)


def _leaders(state: BatchState, lanes: Lanes) -> Array:
    """Return the positions of the first threads of the warp groups. Raises LaunchFailed if threads are missing."""
    warp = lanes.pick(state.warp)
    rank = warp % state.warps_per_block
    group = warp - rank % GROUP_WARPS
    # The warps of a block's last group may not be there, those that follow are the next block's.
    there = np.bincount(group, minlength=state.warps) == GROUP_WARPS * WARP
    if not there[group].all():
        why = "wgmma needs all threads of four warps, of which the first has a rank that is a multiple of four"
        raise LaunchFailed(why, position=int(np.argmin(there[group])))
    return np.flatnonzero((rank % GROUP_WARPS == 0) & (lanes.pick(state.lane) == 0))
