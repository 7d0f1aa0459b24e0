"""Operations between lanes, also when the lanes of a warp have diverged."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.loading.program import load_program
from tests.emulated.fragments import run_fragment
from tests.emulated.harness import HEADER, Device

LANES = np.arange(96, dtype="u4")
VALUES = (LANES * 2654435761 % 1000).astype("u4")
FULL = "0xffffffff"


def rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, 32)


@pytest.mark.parametrize("delta", [0, 1, 5, 16, 31])
def test_shuffles_read_other_lanes(delta: int) -> None:
    lane = LANES % 32
    sources = {
        "up": (np.where(lane >= delta, lane - delta, lane), lane >= delta, 0),
        "down": (np.where(lane + delta < 32, lane + delta, lane), lane + delta < 32, 31),
        "bfly": (lane ^ delta, lane >= 0, 31),
        "idx": (np.full(96, delta), lane >= 0, 31),
    }
    for mode, (source, valid, clamp) in sources.items():
        text = f"shfl.sync.{mode}.b32 %d|%p, %a, {delta}, {clamp}, {FULL}; @!%p not.b32 %d, %d;"
        actual = run_fragment(text, "u4", VALUES)
        shuffled = VALUES[LANES // 32 * 32 + source]
        np.testing.assert_array_equal(actual, np.where(valid, shuffled, ~shuffled))


def test_shuffle_in_segments() -> None:
    """Width 8: clamp 0x1800 | 31 for down, lanes stay in their segment."""
    actual = run_fragment(f"shfl.sync.down.b32 %d, %a, 3, {0x181F}, {FULL};", "u4", VALUES)
    lane = LANES % 8
    np.testing.assert_array_equal(actual, VALUES[np.where(lane + 3 < 8, LANES + 3, LANES)])


def test_votes_combine_predicates_of_a_warp() -> None:
    odd = "and.b32 %i1, %a, 1; setp.ne.u32 %p, %i1, 0; "
    bits = np.packbits(rows(VALUES) % 2 == 1, axis=1, bitorder="little").view("u4").reshape(-1).repeat(32)
    np.testing.assert_array_equal(run_fragment(f"{odd}vote.sync.ballot.b32 %d, %p, {FULL};", "u4", VALUES), bits)
    for mode, expected in (
        ("any", bits != 0),
        ("all", bits == 0xFFFFFFFF),
        ("uni", (bits == 0) | (bits == 2**32 - 1)),
    ):
        text = f"{odd}vote.sync.{mode}.pred %q, %p, {FULL}; selp.b32 %d, 1, 0, %q;"
        np.testing.assert_array_equal(run_fragment(text, "u4", VALUES), expected)


def test_matches_find_lanes_with_equal_values() -> None:
    small = VALUES % 5
    equal = rows(small)[:, :, None] == rows(small)[:, None, :]
    expected = np.packbits(equal, axis=2, bitorder="little").view("u4").reshape(-1)
    np.testing.assert_array_equal(run_fragment(f"match.any.sync.b32 %d, %a, {FULL};", "u4", small), expected)
    same = np.repeat(np.array([3, 4, 4], "u4"), 32)
    same[70] = 5
    text = f"match.all.sync.b32 %d|%p, %a, {FULL}; @%p xor.b32 %d, %d, 1;"
    actual = run_fragment(text, "u4", same)
    np.testing.assert_array_equal(actual, np.where(LANES < 64, 0xFFFFFFFE, 0))


@pytest.mark.parametrize(("mode", "function"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)])
def test_reductions_combine_a_warp(mode: str, function: np.ufunc) -> None:
    expected = function.reduce(rows(VALUES), axis=1).repeat(32)
    actual = run_fragment(f"redux.sync.{mode}.u32 %d, %a, {FULL};", "u4", VALUES)
    np.testing.assert_array_equal(actual, expected)


def test_elect_and_activemask() -> None:
    actual = run_fragment(
        """setp.ge.u32 %p, %i0, 7; @!%p bra L; elect.sync %d|%q, 0xffffff80;
        @%q add.u32 %d, %d, 100; bra M; L: activemask.b32 %d; M:""",
        "u4",
        LANES[:32],
        header=HEADER.replace("sm_80", "sm_90"),  # elect is not there before
    )
    expected = np.full(32, 7)
    expected[:7] = 0x7F
    expected[7] = 107
    np.testing.assert_array_equal(actual, expected)


def test_lanes_meet_across_a_divergence() -> None:
    """Lane 0 takes a long detour first; the others wait for it at the shuffle inside the branch."""
    text = f"""
      and.b32 %i1, %i0, 31; mov.u32 %i2, 0; mov.u32 %i4, %a;
      setp.ne.u32 %p, %i1, 0; @%p bra JOIN;
    LOOP: add.u32 %i2, %i2, 1; setp.lt.u32 %q, %i2, 50; @%q bra LOOP;
      add.u32 %i4, %i4, 1000; bra LATE;
    JOIN: setp.gt.u32 %q, %i1, 99; @%q bra LATE;
      bra SHARED;
    LATE: add.u32 %i4, %i4, 5;
    SHARED: shfl.sync.idx.b32 %d, %i4, 0, 31, {FULL};"""
    actual = run_fragment(text, "u4", VALUES)
    np.testing.assert_array_equal(actual, (rows(VALUES)[:, 0] + 1005).repeat(32))


def test_only_the_named_lanes_wait_for_each_other() -> None:
    """Even lanes shuffle among themselves, odd lanes spin until an even lane has passed its shuffle."""
    ptx = (
        HEADER
        + """
.visible .entry k(.param .u64 flag, .param .u64 out)
{
  .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<4>;
  ld.param.u64 %d0, [flag]; ld.param.u64 %d1, [out];
  mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0;
  mul.wide.u32 %d2, %r0, 4; add.s64 %d1, %d1, %d2;
  @%p0 bra EVEN;
WAIT: ld.volatile.global.u32 %r2, [%d0]; setp.eq.u32 %p1, %r2, 0; @%p1 bra WAIT;
  st.global.u32 [%d1], %r2;
  ret;
EVEN: shfl.sync.bfly.b32 %r3, %r0, 2, 31, 0x55555555;
  st.volatile.global.u32 [%d0], 7;
  st.global.u32 [%d1], %r3;
  ret;
}
"""
    )
    device = Device(1 << 20)
    flag, out = device.put(np.zeros(1, "u4")), device.put(np.zeros(32, "u4"))
    device.launch(device.load(ptx), "k", 1, 32, flag, out)
    lanes = np.arange(32)
    np.testing.assert_array_equal(device.get(out, np.zeros(32, "u4")), np.where(lanes % 2, 7, lanes ^ 2))


IN_THEIR_SEGMENT = 0x181F
"""Of 8 lanes, for shfl.down: what would come from beyond comes from the lane itself."""
OF_40 = "setp.lt.u32 %q, %i0, 32; selp.b32 %i1, 0xffffffff, 0xff, %q;"
"""%i1: the lanes that there are, of 40 threads."""


def votes_of(values: np.ndarray) -> list[int]:
    """Return what each of 40 threads receives when the threads with a value above 500 vote."""
    bits = [sum(1 << i for i, v in enumerate(values[a:b]) if v > 500) for a, b in ((0, 32), (32, 40))]
    return [bits[0]] * 32 + [bits[1]] * 8


def test_partial_last_warp() -> None:
    values = VALUES[:40]
    actual = run_fragment(f"shfl.sync.down.b32 %d, %a, 1, {IN_THEIR_SEGMENT}, 0xff;", "u4", values[:8])
    np.testing.assert_array_equal(actual, [*values[1:8], values[7]])
    actual = run_fragment(f"{OF_40} shfl.sync.down.b32 %d, %a, 1, {IN_THEIR_SEGMENT}, %i1;", "u4", values)
    np.testing.assert_array_equal(actual, [values[i + 1] if i % 8 < 7 else values[i] for i in range(40)])
    actual = run_fragment(f"{OF_40} setp.gt.u32 %p, %a, 500; vote.sync.ballot.b32 %d, %p, %i1;", "u4", values)
    np.testing.assert_array_equal(actual, votes_of(values))


def test_missing_lanes_are_not_waited_for() -> None:
    """A member mask may name them, as it may name lanes that have left."""
    values = VALUES[:40]
    actual = run_fragment("setp.gt.u32 %p, %a, 500; vote.sync.ballot.b32 %d, %p, 0xffffffff;", "u4", values)
    np.testing.assert_array_equal(actual, votes_of(values))


def test_a_shuffle_from_a_missing_lane_keeps_the_own_value() -> None:
    """PTX leaves open what comes; here it is not what happens to lie in a register."""
    actual = run_fragment("shfl.sync.down.b32 %d, %a, 1, 31, 0xff;", "u4", VALUES[:8])
    np.testing.assert_array_equal(actual, [*VALUES[1:8], VALUES[7]])


def test_warp_barrier_in_both_branches() -> None:
    """bar.warp.sync at two places is one meeting."""
    text = f"""
      and.b32 %i1, %i0, 1; setp.eq.u32 %p, %i1, 0; @%p bra EVEN;
      bar.warp.sync {FULL}; mov.u32 %d, 1; bra END;
    EVEN: bar.warp.sync {FULL}; mov.u32 %d, 2;
    END:"""
    np.testing.assert_array_equal(run_fragment(text, "u4", VALUES), np.where(LANES % 2, 1, 2))


def test_lanes_that_meet_at_two_barriers_take_no_lanes_of_other_warps_along() -> None:
    """The first warp's lanes meet at two places; the second's wait at one of them for lanes that still loop."""
    text = f"""
      .shared .align 4 .b32 seen; .reg .b32 %n; .reg .pred %more;
      and.b32 %i1, %i0, 1; setp.eq.u32 %p, %i1, 0; @%p bra SAME;
      setp.lt.u32 %p, %i0, 32; @%p bra OTHER;
      mov.u32 %n, 0;
    LOOP: add.u32 %n, %n, 1; setp.lt.u32 %more, %n, 20000; @%more bra LOOP;
      st.shared.b32 [seen], %n;
    SAME: bar.warp.sync {FULL}; ld.volatile.shared.b32 %d, [seen]; bra END;
    OTHER: bar.warp.sync {FULL}; mov.u32 %d, 0;
    END:"""
    actual = run_fragment(text, "u4", VALUES[:64])
    np.testing.assert_array_equal(actual[32:], np.full(32, 20000))


@pytest.mark.parametrize(("odd", "even"), [(611, 487), (487, 611), (615, 488)])
def test_lanes_of_two_branches_exchange_values_in_each_round(odd: int, even: int) -> None:
    """Each branch has a barrier before and after its read, so no lane writes the next value too early."""

    def branch(name: str, weight: int, least: int) -> str:
        return f"""
    {name}: mov.u32 %n, 0; mad.lo.u32 %m, %w, {weight}, {least};
    {name}_LOOP: add.u32 %n, %n, 1; setp.lt.u32 %p, %n, %m; @%p bra {name}_LOOP;
      add.u32 %v, %i0, %i1; st.volatile.shared.u32 [%own], %v;
      bar.warp.sync {FULL}; ld.volatile.shared.u32 %v, [%others]; mad.lo.u32 %d, %d, 3, %v; bar.warp.sync {FULL};
      bra NEXT;"""

    text = f"""
      .shared .align 4 .b32 words[128]; .reg .b32 %n, %m, %v, %w, %own, %others, %role;
      shl.b32 %own, %i0, 2; mov.u32 %v, words; add.u32 %own, %own, %v; xor.b32 %others, %own, 4;
      and.b32 %role, %i0, 1; shr.u32 %w, %i0, 5; mov.u32 %i1, 0; mov.u32 %d, 0;
    ROUND: setp.eq.u32 %p, %role, 0; @%p bra EVEN;
    {branch("ODD", odd, 28)}
    {branch("EVEN", even, 9)}
    NEXT: add.u32 %i1, %i1, 1; setp.lt.u32 %p, %i1, 5; @%p bra ROUND;"""
    lanes, expected = LANES[:64], np.zeros(64, "u4")
    for number in range(5):
        expected = expected * 3 + (lanes ^ 1) + number
    np.testing.assert_array_equal(run_fragment(text, "u4", VALUES[:64]), expected)


PASCAL = HEADER.replace("8.0", "6.0").replace("sm_80", "sm_60")
WITHOUT_SYNC = [
    "vote.ballot.b32 %i1, %p;",
    "vote.all.pred %q, %p;",
    "vote.any.pred %q, !%p;",
    "vote.uni.pred %q, %p;",
    "shfl.bfly.b32 %i1, %a, 1, 31;",
    "shfl.up.b32 %i1|%q, %a, 1, 0;",
]


def test_votes_without_sync() -> None:
    """Those vote who execute the instruction: of 40 threads, the second warp has 8."""
    values = VALUES[:40]
    vote = "setp.gt.u32 %p, %a, 500; "
    bits = np.array(votes_of(values))
    present = np.where(np.arange(40) < 32, 0xFFFFFFFF, 0xFF)
    actual = run_fragment(vote + "vote.ballot.b32 %d, %p;", "u4", values, header=PASCAL)
    np.testing.assert_array_equal(actual, bits)
    actual = run_fragment(vote + "vote.ballot.b32 %d, !%p;", "u4", values, header=PASCAL)
    np.testing.assert_array_equal(actual, present & ~bits)
    for threshold in (0, 500, 1000):
        high = values >= threshold
        warps = [high[:32], high[32:]]
        answers = {
            "all": [w.all() for w in warps],
            "any": [w.any() for w in warps],
            "uni": [w.all() or not w.any() for w in warps],
        }
        for mode, expected in answers.items():
            text = f"setp.ge.u32 %p, %a, {threshold}; vote.{mode}.pred %q, %p; selp.b32 %d, 1, 0, %q;"
            actual = run_fragment(text, "u4", values, header=PASCAL)
            np.testing.assert_array_equal(actual, np.repeat(expected, [32, 8]))


def test_a_vote_without_sync_is_of_the_threads_of_its_branch() -> None:
    text = "setp.lt.u32 %p, %i0, 5; mov.u32 %d, 77; @!%p bra M; vote.ballot.b32 %d, %p; M:"
    actual = run_fragment(text, "u4", VALUES[:32], header=PASCAL)
    np.testing.assert_array_equal(actual, [31] * 5 + [77] * 27)
    guarded = "setp.lt.u32 %p, %i0, 5; setp.ge.u32 %q, %i0, 3; mov.u32 %d, 77; @%p vote.ballot.b32 %d, %q;"
    actual = run_fragment(guarded, "u4", VALUES[:32], header=PASCAL)
    np.testing.assert_array_equal(actual, [24] * 5 + [77] * 27)


@pytest.mark.parametrize("delta", [1, 5])
def test_shuffles_without_sync(delta: int) -> None:
    lane = LANES % 32
    sources = {
        "up": (np.where(lane >= delta, lane - delta, lane), lane >= delta, 0),
        "down": (np.where(lane + delta < 32, lane + delta, lane), lane + delta < 32, 31),
        "bfly": (lane ^ delta, lane >= 0, 31),
        "idx": (np.full(96, delta), lane >= 0, 31),
    }
    for mode, (source, valid, clamp) in sources.items():
        text = f"shfl.{mode}.b32 %d|%p, %a, {delta}, {clamp}; @!%p not.b32 %d, %d;"
        shuffled = VALUES[LANES // 32 * 32 + source]
        actual = run_fragment(text, "u4", VALUES, header=PASCAL)
        np.testing.assert_array_equal(actual, np.where(valid, shuffled, ~shuffled))


def kernel_of(version: str, target: str, text: str) -> bytes:
    declared = ".reg .b32 %a, %i<4>; .reg .pred %p, %q;"
    header = f".version {version}\n.target {target}\n.address_size 64\n"
    return f"{header}.visible .entry k() {{ {declared}\n{text}\nret; }}".encode()


def test_lanes_join_after_a_long_loop_without_sync() -> None:
    """Each lane leaves the loop after a different time, but all of a warp shuffle and vote together."""
    text = """
      and.b32 %i1, %i0, 31; mul.lo.u32 %i1, %i1, 400; mov.u32 %i2, 0;
    LOOP: add.u32 %i2, %i2, 1; setp.lt.u32 %p, %i2, %i1; @%p bra LOOP;
      shfl.bfly.b32 %d, %a, 1, 31; setp.ge.u32 %p, %a, 0; vote.ballot.b32 %i1, %p; xor.b32 %d, %d, %i1;"""
    actual = run_fragment(text, "u4", VALUES[:64], header=PASCAL)
    np.testing.assert_array_equal(actual, VALUES[LANES[:64] ^ 1] ^ np.uint32(0xFFFFFFFF))


@pytest.mark.parametrize("text", WITHOUT_SYNC)
@pytest.mark.parametrize(
    ("version", "target"), [("6.0", "sm_60"), ("6.3", "sm_75"), ("6.4", "sm_61"), ("9.0", "sm_50")]
)
def test_older_versions_and_targets_allow_forms_without_sync(version: str, target: str, text: str) -> None:
    load_program(kernel_of(version, target, text))


@pytest.mark.parametrize("text", WITHOUT_SYNC)
@pytest.mark.parametrize(("version", "target"), [("6.4", "sm_70"), ("9.0", "sm_90")])
def test_newer_versions_and_targets_refuse_forms_without_sync(version: str, target: str, text: str) -> None:
    opcode = text.split()[0]
    words = (
        rf"line 5: {opcode} without \.sync: PTX {version} has it for targets below sm_70 only, not for {target}; add"
    )
    with pytest.raises(InvalidPtx, match=words):
        load_program(kernel_of(version, target, text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("match.any.b32 %i1, %a, -1;", r"\.sync is needed"),
        ("redux.add.u32 %i1, %a, -1;", r"\.sync is needed"),
        ("bar 0;", r"one of \.sync, \.arrive and \.red"),
        ("barrier.aligned 0;", r"one of \.sync, \.arrive and \.red"),
        ("bar.warp -1;", r"bar\.warp: modifier"),
        ("vote.ballot.b32 %i1, %p, -1;", "3 operands"),
        ("vote.ballot.pred %q, %p;", r"\.b32 of \.ballot"),
        ("shfl.bfly.b32 %i1, %a, 1, 31, -1;", "5 operands"),
    ],
)
def test_newer_operations_always_need_sync(text: str, words: str) -> None:
    with pytest.raises(InvalidPtx, match=words):
        load_program(kernel_of("6.3", "sm_60", text))
