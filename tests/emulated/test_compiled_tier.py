"""Kernels as machine code: the same answers as recorded on a GPU, and as the NumPy tier gives."""

from __future__ import annotations

import re
import time
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from processes import wait_until

from pympsd_server.ptx.compiled_tier.batches import batch as compiled_batch
from pympsd_server.ptx.compiled_tier.batches import selection
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.batches.selection import begin_batch, is_undecided, max_blocks
from pympsd_server.ptx.compiled_tier.compilation import machine_code
from pympsd_server.ptx.compiled_tier.compilation.compile_queue import CompileQueue
from pympsd_server.ptx.compiled_tier.compilation.compiler_process import spread_masks
from pympsd_server.ptx.compiled_tier.compilation.machine_code import MachineCode
from pympsd_server.ptx.compiled_tier.text.kernel_writer import write_text
from pympsd_server.ptx.compiled_tier.text.stop_text import StopText
from pympsd_server.ptx.execution.bounded_use import BoundedUse
from pympsd_server.ptx.isa.faults import Cancelled, DeviceFault, LaunchFailed
from pympsd_server.ptx.runtime.batch_state import LaunchSetup
from tests.emulated.conftest import use_tier
from tests.emulated.harness import HEADER, Device, Never, batches, pack, three
from tests.emulated.test_corpus import check_recorded

llvmlite = pytest.importorskip("llvmlite.binding", reason="the extra `compiled`, which `test` has, is not installed")

QUICK = (
    *("atomics32", "block_scan", "calls", "carry128", "constant_memory", "divergence", "dynamic_shared", "f32_arith"),
    *(
        "generic_pointers",
        "int16_arith",
        "last_block",
        "ping_pong",
        "prefix_sum",
        "shuffle_divergent",
        "shuffle_modes",
        "votes_before_sync",
    ),
    *("vector_types", "wrapped_addresses"),
)
"""The kernels of the corpus that run compiled in quick runs, too; test_corpus.py has all of them."""
TIERS = ()


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "compiled")


@pytest.mark.parametrize("name", QUICK)
def test_same_as_recorded(name: str) -> None:
    check_recorded(name)


@pytest.mark.parametrize(
    "name", ["divergence", "dynamic_shared", "generic_pointers", "vector_types", "wrapped_addresses"]
)
def test_same_as_recorded_as_written_for_the_other_kind_of_processor(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here = machine_code.has_masks()
    monkeypatch.setattr(machine_code, "has_masks", lambda: not here)
    check_recorded(name)


def test_the_text_for_a_processor_without_mask_registers_tests_each_lanes_bit() -> None:
    text = """define <32 x i1> @lanes(i32 %0) {
  %2 = xor i32 %0, 1
  %3 = bitcast i32 %2 to <32 x i1>
  ret <32 x i1> %3
}"""
    spread = spread_masks(text)
    assert "bitcast" not in spread
    llvmlite.parse_assembly(spread).verify()
    bits = re.search(r"and <32 x i32> \S+, <(.*)>", spread)
    assert bits is not None
    assert [int(bit.removeprefix("i32 ")) for bit in bits[1].split(", ")] == [1 << lane for lane in range(32)]


SMALL_VECTORS = """.visible .entry k(.param .u64 p)
{ .reg .b64 %a, %b, %p; .reg .b32 %i, %v; .reg .pred %q; ld.param.u64 %p, [p]; mov.u32 %i, %tid.x;
mad.wide.u32 %a, %i, 4, %p; mad.wide.u32 %b, %i, 2, %p; rem.u32 %v, %i, 3; setp.eq.u32 %q, %v, 1; add.u32 %v, %i, 100;
@%q st.global.v4.u8 [%a], {%i, %v, 7, %i}; @!%q st.global.v2.u16 [%a], {%i, %v}; st.global.v2.u8 [%b+256], {%v, %i};
ret; }"""


@pytest.mark.parametrize("threads", [64, 40])
def test_small_vectors_are_stored_without_a_test_of_each_element(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """On a processor without mask registers, LLVM takes long for these tests."""
    monkeypatch.setattr(machine_code, "has_masks", lambda: False)
    np.testing.assert_array_equal(*_results(monkeypatch, SMALL_VECTORS, np.zeros(512, "u1"), (1, threads)))
    kernel = Device(1 << 20).load(HEADER + SMALL_VECTORS).program.kernels["k"].translation
    block = three(threads)
    text = write_text(kernel.code, kernel.offsets, kernel.shared_bytes, block, has_halves=True, has_masks=False)
    assert "llvm.masked.store" not in text.module_text


@pytest.mark.parametrize("name", ["divergence", "shuffle_divergent"])
def test_lanes_are_pending_at_lower_blocks_while_others_escape(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    use_tier(monkeypatch, "escaping")
    check_recorded(name)


NESTED = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %outer, %inner, %n; .reg .b64 %a, %o; .reg .pred %q; mov.u32 %i, %tid.x; ld.param.u64 %a, [p];
mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; mov.u32 %n, 0; and.b32 %outer, %i, 7;
OUTER: xor.b32 %inner, %i, %outer; and.b32 %inner, %inner, 3;
INNER: add.u32 %n, %n, 1; sub.u32 %inner, %inner, 1; setp.ge.s32 %q, %inner, 0; @%q bra INNER;
sub.u32 %outer, %outer, 1; setp.ge.s32 %q, %outer, 0; @%q bra OUTER; st.global.u32 [%a], %n; ret; }"""


def test_lanes_that_have_left_a_loop_wait_for_those_in_a_loop_within_it() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(64, "u4"))
    assert begin(device, NESTED, 1, 64, address).step(10, Never())
    expected = [sum(((i ^ outer) & 3) + 1 for outer in range((i & 7) + 1)) for i in range(64)]
    assert device.get(address, np.zeros(64, "u4")).tolist() == expected


REDUCED = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %n, %c; .reg .b64 %a, %o; .reg .pred %q; mov.u32 %i, %tid.x; ld.param.u64 %a, [p];
mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; setp.lt.u32 %q, %i, 40; and.b32 %c, %i, 3; bar.red.popc.u32 %n, 0, %q;
AGAIN: add.u32 %n, %n, %i; sub.u32 %c, %c, 1; setp.ge.s32 %q, %c, 0; @%q bra AGAIN; st.global.u32 [%a], %n; ret; }"""


def test_a_loop_may_begin_with_the_result_of_a_barrier() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(64, "u4"))
    assert begin(device, REDUCED, 1, 64, address).step(10, Never())
    assert device.get(address, np.zeros(64, "u4")).tolist() == [40 + i * ((i & 3) + 1) for i in range(64)]


def begin(device: Device, ptx: str, grid: int, block: int, *arguments: Any) -> CompiledBatch:
    (batch,) = batches(device.load(HEADER + ptx), "k", three(grid), three(block), arguments)
    assert isinstance(batch, CompiledBatch)
    return batch


STORE = """.visible .entry k(.param .u64 p, .param .u32 step)
{ .reg .b32 %i, %b, %n, %step; .reg .b64 %a, %o; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %i, %tid.x;
mad.lo.u32 %i, %b, %n, %i; ld.param.u32 %step, [step]; ld.param.u64 %a, [p]; mul.wide.u32 %o, %i, %step;
add.s64 %a, %a, %o; st.global.u32 [%a], %i; ret; }"""


@pytest.mark.parametrize(("step", "offset", "elements"), [(4, 0, 400), (4, 2, 600), (12, 0, 600), (8, 0, 300)])
def test_a_fault_names_what_the_numpy_tier_names(
    monkeypatch: pytest.MonkeyPatch, step: int, offset: int, elements: int
) -> None:
    """The address, the size, the block and the thread of the first access that faults."""
    texts = []
    for tier in ("compiled", "numpy"):
        monkeypatch.setenv("PYMPSD_TIER", tier)
        device = Device(1 << 20)
        address = device.put(np.zeros(elements, "u4"))
        with pytest.raises(DeviceFault) as caught:
            device.launch(device.load(HEADER + STORE), "k", 4, 128, address + offset, step)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


WRONG_NUMBER = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %n; .reg .pred %q; mov.u32 %i, %tid.x; setp.ge.u32 %q, %i, 70; INSTRUCTIONS A: B: ret; }"""


@pytest.mark.parametrize("tier", ["numpy", "compiled"])
@pytest.mark.parametrize(
    ("instructions", "words"),
    [
        (
            "selp.u32 %n, 9, 1, %q; T: .branchtargets A, B; brx.idx %n, T;",
            "brx.idx to entry 9, which does not exist (kernel k, block (0, 0, 0), thread (70, 0, 0))",
        ),
        (
            "shr.u32 %n, %i, 5; add.u32 %n, %n, 14; bar.sync %n, 32;",
            "barrier 16 does not exist (kernel k, block (0, 0, 0), thread (64, 0, 0))",
        ),
    ],
)
def test_a_wrong_number_is_the_fault_of_the_thread_that_has_it(
    monkeypatch: pytest.MonkeyPatch, instructions: str, words: str, tier: str
) -> None:
    monkeypatch.setenv("PYMPSD_TIER", tier)
    device = Device(1 << 20)
    with pytest.raises(LaunchFailed, match=re.escape(words)):
        device.launch(device.load(HEADER + WRONG_NUMBER.replace("INSTRUCTIONS", instructions)), "k", 1, 128, 0)


ENDLESS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %v; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p];
AGAIN: ld.volatile.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra AGAIN; st.global.u32 [%a+4], 7; ret; }"""


def test_a_kernel_that_waits_has_slices_and_sees_what_the_host_writes() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(2, "u4"))
    batch = begin(device, ENDLESS, 1, 64, address)
    assert not batch.step(0.001, Never())
    device.space.write(address, (1).to_bytes(4, "little"))
    assert batch.step(10, Never())
    assert device.get(address, np.zeros(2, "u4")).tolist() == [1, 7]


def test_an_endless_kernel_is_cancelled() -> None:
    class Soon:
        def __init__(self) -> None:
            self.begin = time.perf_counter()

        def is_set(self) -> bool:
            return time.perf_counter() > self.begin + 0.01

    device = Device(1 << 20)
    with pytest.raises(Cancelled):
        begin(device, ENDLESS, 8, 64, device.put(np.zeros(2, "u4"))).step(60, Soon())


APART = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %v; .reg .b64 %a, %o; .reg .pred %q; .shared .b32 s[32]; .reg .b32 %s;
ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; mov.u32 %s, s;
mad.lo.u32 %s, %i, 4, %s; st.shared.u32 [%s], %i; setp.lt.u32 %q, %i, 11; @%q bra LOW;
bar.sync 0; bra OUT;
LOW: bar.sync 0;
OUT: xor.b32 %v, %i, 31; mov.u32 %s, s; mad.lo.u32 %s, %v, 4, %s; ld.shared.u32 %v, [%s]; st.global.u32 [%a], %v;
ret; }"""


def test_lanes_of_a_warp_at_different_barriers_continue_in_the_numpy_tier() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(32, "u4"))
    assert begin(device, APART, 1, 32, address).step(10, Never())
    assert device.get(address, np.zeros(32, "u4")).tolist() == list(range(31, -1, -1))


LOCKS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %v, %old; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p];
AGAIN: atom.global.cas.b32 %old, [%a], 0, 1; setp.ne.u32 %q, %old, 0; @%q bra AGAIN;
ld.volatile.global.u32 %v, [%a+4]; add.u32 %v, %v, 1; st.volatile.global.u32 [%a+4], %v;
membar.gl; atom.global.exch.b32 %old, [%a], 0; ret; }"""


def test_lanes_that_spin_for_a_lock_of_a_lane_of_their_warp_end() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(2, "u4"))
    assert begin(device, LOCKS, 2, 64, address).step(60, Never())
    assert device.get(address, np.zeros(2, "u4")).tolist() == [0, 128]


@pytest.mark.parametrize("timer", ["clock", "globaltimer_lo"])
def test_warps_that_wait_for_time_let_others_run_meanwhile(timer: str) -> None:
    """Thousands of warps of a GPU wait simultaneously, and not one after the other."""
    body = f"""{{ .reg .b32 %a, %b; .reg .pred %q; mov.u32 %a, %{timer};
    AGAIN: mov.u32 %b, %{timer}; sub.u32 %b, %b, %a; setp.lt.u32 %q, %b, 5000; @%q bra AGAIN; ret; }}"""
    kernel = Device(1 << 20).load(f"{HEADER}.visible .entry k() {body}").program.kernels["k"]
    code = kernel.translation.code
    assert write_text(code, {}, 0, (64, 1, 1), has_halves=True, has_masks=True).plan.spinning == {1}


WAIT_FOR_LAST = """.visible .entry k(.param .u64 p)
{ .reg .b32 %b, %n, %v; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p];
mov.u32 %b, %ctaid.x; mov.u32 %n, %nctaid.x; sub.u32 %n, %n, 1; setp.eq.u32 %q, %b, %n; @%q st.global.u32 [%a], 1;
AGAIN: ld.relaxed.gpu.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra AGAIN;
red.global.add.u32 [%a+4], 1; ret; }"""


@pytest.fixture
def _no_block_goes_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the NumPy tier took a block over")

    monkeypatch.setattr("pympsd_server.ptx.compiled_tier.batches.batch.Batch", refuse)


@pytest.mark.usefixtures("_no_block_goes_to_numpy")
@pytest.mark.parametrize("blocks", [40, 1000])
def test_blocks_that_wait_for_the_last_one_do_not_keep_it_from_beginning(blocks: int) -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(2, "u4"))
    assert begin(device, WAIT_FOR_LAST, blocks, 32, address).step(60, Never())
    assert device.get(address, np.zeros(2, "u4")).tolist() == [1, blocks * 32]


GRID_SYNC = """.visible .entry k(.param .u64 p)
{ .reg .b32 %b, %n, %v, %i; .reg .b64 %a; .reg .pred %q, %last; ld.param.u64 %a, [p];
mov.u32 %b, %ctaid.x; mov.u32 %n, %nctaid.x; sub.u32 %n, %n, 1; setp.eq.u32 %last, %b, %n;
mov.u32 %i, %tid.x; setp.ne.u32 %q, %i, 0; mov.u32 %v, 1; mov.u32 %n, 0; @!%last bra ARRIVE;
WORK: mad.lo.u32 %v, %v, 5, %b; add.u32 %n, %n, 1; setp.lt.u32 %last, %n, 2000000; @%last bra WORK;
ARRIVE: bar.sync 0; @%q bra MET;
red.global.add.u32 [%a], 1; mov.u32 %n, %nctaid.x;
WAIT: ld.volatile.global.u32 %v, [%a]; setp.lt.u32 %q, %v, %n; @%q bra WAIT;
MET: bar.sync 0; red.global.add.u32 [%a+4], 1; ret; }"""


@pytest.mark.usefixtures("_no_block_goes_to_numpy")
def test_threads_that_wait_for_a_block_with_much_work_stay_in_the_compiled_tier() -> None:
    """The other lanes of their warps wait at a barrier, as in a synchronisation of the grid."""
    device = Device(1 << 20)
    address = device.put(np.zeros(2, "u4"))
    assert begin(device, GRID_SYNC, 300, 64, address).step(60, Never())
    assert device.get(address, np.zeros(2, "u4")).tolist() == [300, 300 * 64]


SIDE_BY_SIDE = """.visible .entry k(.param .u64 p, .param .u32 by)
{ .reg .b32 %i, %v, %r, %s, %t, %by; .reg .b64 %a, %o; .reg .pred %q, %odd; .shared .b32 s[128];
ld.param.u64 %a, [p]; ld.param.u32 %by, [by]; mov.u32 %i, %tid.x; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o;
mov.u32 %s, s; mad.lo.u32 %t, %i, 4, %s; add.u32 %v, %i, %by; and.b32 %v, %v, 127; mad.lo.u32 %s, %v, 4, %s;
and.b32 %v, %i, 1; setp.eq.u32 %odd, %v, 1; mov.u32 %r, 0; {phases} ret; }"""
READ_FIRST = """st.shared.u32 [%t], %i; bar.sync 0;
AGAIN: ld.shared.u32 %v, [%s]; add.u32 %v, %v, 1000; st.shared.u32 [%t], %v; bar.sync 0;
add.u32 %r, %r, 1; setp.lt.u32 %q, %r, 3; @%q bra AGAIN; ld.shared.u32 %v, [%t]; st.global.u32 [%a], %v;"""
READ_FIRST_ON_WAYS = """st.shared.u32 [%t], %i; bar.sync 0;
AGAIN: @%odd bra ODD; ld.shared.u32 %v, [%s]; add.u32 %v, %v, 1000; bra BOTH;
ODD: ld.shared.u32 %v, [%s]; add.u32 %v, %v, 1000;
BOTH: @%odd bra LATER; st.shared.u32 [%t], %v;
LATER: @!%odd bra DONE; st.shared.u32 [%t], %v;
DONE: bar.sync 0; add.u32 %r, %r, 1; setp.lt.u32 %q, %r, 3; @%q bra AGAIN;
ld.shared.u32 %v, [%t]; st.global.u32 [%a], %v;"""
WRITE_FIRST = """mov.u32 %v, %i;
AGAIN: add.u32 %v, %v, 1000; st.shared.u32 [%t], %v; ld.shared.u32 %v, [%s]; bar.sync 0;
add.u32 %r, %r, 1; setp.lt.u32 %q, %r, 3; @%q bra AGAIN; st.global.u32 [%a], %v;"""


@pytest.mark.parametrize("tier", ["compiled", "numpy"])
@pytest.mark.parametrize("by", [-1, 1, 32, -40])
@pytest.mark.parametrize("phases", [READ_FIRST, READ_FIRST_ON_WAYS, WRITE_FIRST])
def test_warps_run_side_by_side_where_a_program_has_no_barrier(
    monkeypatch: pytest.MonkeyPatch, phases: str, by: int, tier: str
) -> None:
    """Programs that are right on every GPU read what another warp is about to write, without a barrier between."""
    monkeypatch.setenv("PYMPSD_TIER", tier)
    device = Device(1 << 20)
    address = device.put(np.zeros(128, "u4"))
    device.launch(device.load(HEADER + SIDE_BY_SIDE.replace("{phases}", phases)), "k", 1, 128, address, by % 128)
    expected = (np.arange(128) + 3 * by) % 128 + 3000
    assert device.get(address, np.zeros(128, "u4")).tolist() == expected.tolist()


OWN_GUARD = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %v; .reg .b64 %a, %o; .reg .pred %p, %q; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x;
mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; and.b32 %v, %i, 1; setp.eq.u32 %p, %v, 1; setp.lt.u32 %q, %i, 20;
GUARD setp.gt.u32 RESULTS, %i, 40;
selp.u32 %v, 1, 0, %p; @%q add.u32 %v, %v, 2; st.global.u32 [%a], %v; ret; }"""


@pytest.mark.parametrize("tier", ["numpy", "compiled"])
@pytest.mark.parametrize("results", ["%p|%q", "%q|%p"])
@pytest.mark.parametrize("guard", ["@%p", "@!%p", "@%q", "@!%q"])
def test_a_comparison_may_set_its_own_guard(
    monkeypatch: pytest.MonkeyPatch, guard: str, results: str, tier: str
) -> None:
    monkeypatch.setenv("PYMPSD_TIER", tier)
    device = Device(1 << 20)
    address = device.put(np.zeros(64, "u4"))
    ptx = HEADER + OWN_GUARD.replace("GUARD", guard).replace("RESULTS", results)
    device.launch(device.load(ptx), "k", 1, 64, address)
    i = np.arange(64)
    before = {"%p": i % 2 == 1, "%q": i < 20}
    holds = before[guard[-2:]] != ("!" in guard)
    first, second = results.split("|")
    after = {first: np.where(holds, i > 40, before[first]), second: np.where(holds, i <= 40, before[second])}
    assert device.get(address, np.zeros(64, "u4")).tolist() == (after["%p"] + 2 * after["%q"]).tolist()


TINY_SUM = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i; .reg .b64 %a, %o; .reg .f32 %x, %y, %z, %n; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x;
mul.wide.u32 %o, %i, 16; add.s64 %a, %a, %o; ld.global.v4.f32 {%x, %y, %z, %n}, [%a];
INSTRUCTION; st.global.f32 [%a+12], %z; ret; }"""


@pytest.mark.parametrize("tier", ["numpy", "compiled"])
@pytest.mark.parametrize("mode", ["rm", "rp", "rz"])
def test_results_next_to_the_smallest_normal_number_are_flushed_after_rounding(
    monkeypatch: pytest.MonkeyPatch, mode: str, tier: str
) -> None:
    """.ftz flushes what is tiny after it is rounded, if the exponent had no limit; the same as on an H200."""
    monkeypatch.setenv("PYMPSD_TIER", tier)
    device, least, little = Device(1 << 20), 2.0**-126, 2.0**-90
    rows = np.array([[least, -little, least, 9], [-least, -little, -least, 9], [least, little, least, 9]], "f4")
    address = device.put(rows)  # x, y, z: x * y + z is a little less, or more, than the smallest number
    ptx = HEADER + TINY_SUM.replace("INSTRUCTION", f"fma.{mode}.ftz.f32 %z, %x, %y, %z")
    device.launch(device.load(ptx), "k", 1, 3, address)
    above = np.nextafter(np.float32(least), np.float32(1)) if mode == "rp" else np.float32(least)
    expected = [least if mode == "rp" else 0, -least if mode == "rm" else 0, above]
    assert device.get(address, rows)[:, 3].tolist() == expected


ESCAPES = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %b, %n, %v; .reg .b64 %a, %o; .reg .pred %q; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x;
mov.u32 %i, %tid.x; mad.lo.u32 %i, %b, %n, %i; and.b32 %v, %i, 3; setp.eq.u32 %q, %v, 1; ld.param.u64 %a, [p];
mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; mov.u32 %v, 5; @%q bra OUT;
vadd4.u32.u32.u32.add %v, %i, 0, %v;
OUT: st.global.u32 [%a], %v; ret; }"""


def test_an_instruction_that_escapes_runs_for_the_lanes_that_reach_it() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(320, "u4"))
    assert begin(device, ESCAPES, 4, 80, address).step(10, Never())
    i = np.arange(320)
    expected = np.where(i % 4 == 1, 5, 5 + i % 256 + i // 256)
    assert device.get(address, np.zeros(320, "u4")).tolist() == expected.tolist()


ROUNDS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %n; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p]; mov.u32 %i, 0; mov.u32 %n, %tid.x;
AGAIN: mad.lo.u32 %n, %n, 5, 1; add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 1000; @%q bra AGAIN;
st.global.u32 [%a], %n; ret; }"""


def test_a_kernel_that_takes_long_is_compiled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    device = Device(1 << 20)
    module, address = device.load(HEADER + ROUNDS), device.put(np.zeros(1, "u4"))
    results, deadline = set(), time.monotonic() + 60
    while time.monotonic() < deadline:
        (batch,) = batches(module, "k", three(1), three(32), (address,))
        assert batch.step(60, Never())
        results.add(int(device.get(address, np.zeros(1, "u4"))[0]))
        if isinstance(batch, CompiledBatch):
            break
    assert isinstance(batch, CompiledBatch)
    assert len(results) == 1


def test_blocks_of_a_kernel_with_loops_are_undecided_until_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    monkeypatch.setattr(selection, "_MAX_WAIT", 60)
    device = Device(1 << 20)
    module, address = device.load(HEADER + ROUNDS), device.put(np.zeros(1, "u4"))
    kernel, setup = module.program.kernels["k"], LaunchSetup((8192, 1, 1), (32, 1, 1), address.to_bytes(8, "little"))
    assert is_undecided(module, kernel, setup)
    first, deadline = max_blocks(kernel, setup), time.monotonic() + 60
    assert first == 1024
    while is_undecided(module, kernel, setup):
        assert time.monotonic() < deadline
        begin_batch(module, "k", setup, 0, np.zeros(32, np.int64)).step(0.1, Never())
    assert max_blocks(kernel, setup) == 8192
    assert isinstance(begin_batch(module, "k", setup, first, np.zeros(8192 - first, np.int64)), CompiledBatch)


def test_blocks_wait_only_for_a_time_for_a_compiler_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    monkeypatch.setattr(selection, "_MAX_WAIT", 0)
    monkeypatch.setattr(selection, "_queue", CompileQueue(0))  # as if other programs' kernels had all slots
    device = Device(1 << 20)
    module, address = device.load(HEADER + ROUNDS), device.put(np.zeros(1, "u4"))
    kernel, setup = module.program.kernels["k"], LaunchSetup((8192, 1, 1), (32, 1, 1), address.to_bytes(8, "little"))
    deadline = time.monotonic() + 60
    while is_undecided(module, kernel, setup):
        assert time.monotonic() < deadline
        begin_batch(module, "k", setup, 0, np.zeros(32, np.int64)).step(0.1, Never())
    assert not isinstance(begin_batch(module, "k", setup, 0, np.zeros(32, np.int64)), CompiledBatch)


def test_code_and_batches_that_were_not_used_for_longest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounds of one byte, each launch drops all of the launch before."""
    for bounded in (selection._loaded, compiled_batch._kept):
        monkeypatch.setattr(bounded, "max_bytes", 1)
    ptx = """.visible .entry k(.param .u64 p) { .reg .b32 %n; .reg .b64 %a;
ld.param.u64 %a, [p]; ld.global.u32 %n, [%a]; add.u32 %n, %n, 1; st.global.u32 [%a], %n; ret; }"""
    device = Device(1 << 20)
    modules = [device.load(f"{HEADER}{ptx}// {number}") for number in range(2)]
    address = device.put(np.zeros(1, "u4"))
    codes, kept = WeakSet[MachineCode](), WeakSet[CompiledBatch]()
    for count in range(1, 5):
        module = modules[count % 2]
        device.launch(module, "k", 1, 32, address)
        codes.update(module.program.kernels["k"].translation.machine_codes.values())
        kept.update(module.kept.values())
        assert device.get(address, np.zeros(1, "u4")) == [count]
        assert (len(codes), len(kept)) == (1, 1)


def test_code_is_counted_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only at the next launch of its kernel, which may never come."""
    monkeypatch.setattr(selection._loaded, "max_bytes", 1)
    monkeypatch.setattr(selection, "_SECONDS_BEFORE_COMPILING", 0)
    monkeypatch.setenv("PYMPSD_KERNEL_CACHE", "off")
    device = Device(1 << 20)
    module, address = device.load(HEADER + ROUNDS), device.put(np.zeros(1, "u4"))
    device.launch(module, "k", 1, 32, address)
    codes = module.program.kernels["k"].translation.machine_codes
    assert [type(code) for code in codes.values()] == [MachineCode]
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    device.launch(device.load(f"{HEADER}{ROUNDS}// another"), "k", 1, 32, address)
    wait_until(lambda: not codes, "the drop of the first kernel's code")


def test_bounded_objects_are_dropped_in_the_order_of_their_last_use() -> None:
    dropped: list[Never] = []
    bounded, items = BoundedUse(30, dropped.append), [Never() for _ in range(5)]
    for index in (0, 1, 0, 2, 3):
        bounded.use(items[index], 10, 0)
    assert dropped == [items[1]]
    del items[2]  # its owner has dropped it
    bounded.use(items[3], 10, 0)
    assert dropped == [items[1]]
    bounded.use(items[1], 100, 0)
    assert dropped == [items[1], items[0], items[2], items[3]]


def test_bounded_objects_of_the_user_who_has_most_are_dropped() -> None:
    dropped: list[Never] = []
    bounded = BoundedUse(40, dropped.append)
    first, second, third = ([Never() for _ in range(5)] for _ in range(3))
    bounded.use(second[0], 10, 2)
    for item in first:
        bounded.use(item, 10, 1)
    assert dropped == first[:2]
    for item in second[1:]:
        bounded.use(item, 10, 2)
    assert dropped == [*first[:3], *second[:3]]
    bounded.use(third[0], 15, 3)
    assert dropped[6:] == [first[3], second[3]]


def test_an_object_counts_as_that_of_the_user_who_used_it_last() -> None:
    dropped: list[Never] = []
    bounded, items = BoundedUse(30, dropped.append), [Never() for _ in range(4)]
    for item, user in zip(items[:3], (1, 1, 2), strict=True):
        bounded.use(item, 10, user)
    for user in (1, 2):
        bounded.use(items[0], 10, user)
    bounded.use(items[3], 10, 3)
    assert dropped == [items[2]]


def _results(monkeypatch: pytest.MonkeyPatch, ptx: str, data: np.ndarray, shape: Any) -> list[np.ndarray]:
    """Return what a kernel makes of data in each tier; the shape is its blocks and the threads of each."""
    results = []
    for tier in ("compiled", "numpy"):
        monkeypatch.setenv("PYMPSD_TIER", tier)
        device = Device(1 << 20)
        address = device.put(data)
        device.launch(device.load(HEADER + ptx), "k", *shape, address)
        results.append(device.get(address, data))
    return results


@pytest.mark.parametrize("name", ["ex2", "lg2", "sin", "cos", "tanh"])
def test_functions_have_the_same_bits_in_both_tiers(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Over all exponents, both signs, infinities and NaN."""
    ptx = f""".visible .entry k(.param .u64 p)
{{ .reg .b32 %i, %b, %n; .reg .b64 %a, %o; .reg .f32 %x;
mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x;
mad.lo.u32 %i, %b, %n, %i; ld.param.u64 %a, [p]; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o;
ld.global.f32 %x, [%a]; {name}.approx.f32 %x, %x; st.global.f32 [%a], %x; ret; }}"""
    inputs = np.arange(0, 1 << 32, 65521 * 2, dtype=np.uint64).astype("u4")[:32768]
    results = _results(monkeypatch, ptx, inputs, (128, 256))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("operation", ["add.rz", "add.rm", "sub.rp", "mul.rz", "fma.rm", "fma.rp.ftz", "add.rm.ftz"])
def test_roundings_have_the_same_bits_in_both_tiers(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    third = ", %z" if operation.startswith("fma") else ""
    ptx = f""".visible .entry k(.param .u64 p)
{{ .reg .b32 %i; .reg .b64 %a, %o; .reg .f32 %x, %y, %z; mov.u32 %i, %tid.x; ld.param.u64 %a, [p];
mul.wide.u32 %o, %i, 12; add.s64 %a, %a, %o; ld.global.f32 %x, [%a]; ld.global.f32 %y, [%a+4];
ld.global.f32 %z, [%a+8]; {operation}.f32 %x, %x, %y{third}; st.global.f32 [%a], %x; ret; }}"""
    values = np.random.default_rng(7).integers(0, 1 << 32, (1024, 3), dtype=np.uint64).astype("u4")
    near = np.array([0, 0x80000000, 0x3F800000, 0xBF800000, 1, 0x80000001, 0x00800000, 0x7F7FFFFF], "u4")
    values[:512] = near[values[:512] % 8]
    results = [result.view("f4") for result in _results(monkeypatch, ptx, values, (1, 1024))]
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(*(np.signbit(result) & ~np.isnan(result) for result in results))


@pytest.mark.parametrize("operation", ["fma.rn", "fma.rn.ftz", "fma.rn.sat", "add.ftz", "sub.rn", "mul.ftz.sat"])
def test_halves_have_the_same_bits_in_both_tiers(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Random halves, and sums next to the middle between two halves."""
    third = ", %z" if operation.startswith("fma") else ""
    ptx = f""".visible .entry k(.param .u64 p)
{{ .reg .b32 %i, %b, %n; .reg .b64 %a, %o; .reg .b16 %x, %y, %z; mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x;
mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %i; ld.param.u64 %a, [p];
mul.wide.u32 %o, %i, 8; add.s64 %a, %a, %o; ld.global.b16 %x, [%a]; ld.global.b16 %y, [%a+2];
ld.global.b16 %z, [%a+4]; {operation}.f16 %x, %x, %y{third}; st.global.b16 [%a], %x; ret; }}"""
    rng = np.random.default_rng(11)
    values = rng.integers(0, 1 << 16, (64, 1024, 4)).astype("u2")
    near = np.array([0, 0x8000, 0x3C00, 0xBC00, 1, 0x8001, 0x0400, 0x7BFF, 0x3C01, 0x1001, 0x9001, 0x0C00], "u2")
    values[:16] = near[values[:16] % len(near)]
    results = [result.view("f2") for result in _results(monkeypatch, ptx, values, (64, 1024))]
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(*(np.signbit(result) & ~np.isnan(result) for result in results))


@pytest.mark.parametrize("operation", ["set.eq.f16.f16", "set.lt.f16.f16", "set.neu.f32.f32", "set.ge.u32.s32"])
def test_set_has_the_same_bits_in_both_tiers(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    bits = 16 if "f16" in operation else 32
    ptx = f""".visible .entry k(.param .u64 p)
{{ .reg .b32 %i; .reg .b64 %a, %o; .reg .b{bits} %x, %y; mov.u32 %i, %tid.x; ld.param.u64 %a, [p];
mul.wide.u32 %o, %i, 8; add.s64 %a, %a, %o; ld.global.b{bits} %x, [%a]; ld.global.b{bits} %y, [%a+4];
{operation} %x, %x, %y; st.global.b{bits} [%a], %x; ret; }}"""
    near = np.array([0, 0x80008000, 0x3C003C00, 0xBF80BC00, 0x7F807C00, 0x7FC07E00, 0xFFFF_FFFF, 5], "u4")
    values = np.stack(np.meshgrid(near, near), -1).reshape(64, 2)
    results = _results(monkeypatch, ptx, values, (1, 64))
    np.testing.assert_array_equal(*results)


MANY_BARRIERS = """.visible .entry k(.param .u64 p)
{{ .reg .b32 %i, %v, %s; .reg .b64 %a, %o; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mul.wide.u32 %o, %i, 4;
add.s64 %a, %a, %o; .shared .b32 s[64]; mov.u32 %s, s; mad.lo.u32 %s, %i, 4, %s; mov.u32 %v, 0;
{phases} st.global.u32 [%a], %v; ret; }}"""
PHASE = "add.u32 %v, %v, %i; st.shared.u32 [%s], %v; bar.sync 0; ld.shared.u32 %v, [%s]; "


@pytest.mark.parametrize("threads", [32, 64])
def test_a_register_is_saved_once_however_many_barriers_follow(threads: int) -> None:
    """LLVM needed seconds for a sorting network, whose addresses were saved at each of its barriers."""
    device = Device(1 << 20)
    address = device.put(np.zeros(64, "u4"))
    saves = []
    for phases in (30, 60):
        ptx = MANY_BARRIERS.format(phases=PHASE * phases)
        assert begin(device, ptx, 1, threads, address).step(60, Never())
        assert device.get(address, np.zeros(64, "u4")).tolist()[:threads] == [phases * i for i in range(threads)]
        kernel = device.load(HEADER + ptx).program.kernels["k"].translation
        text = write_text(
            kernel.code, kernel.offsets, kernel.shared_bytes, (threads, 1, 1), has_halves=True, has_masks=True
        )
        saves.append(len(re.findall(r"store <32 x i64> .*, align 4\n", text.module_text)))
    assert saves[0] == saves[1]


SEQUENCES = """.visible .entry k(.param .u64 p, .param .u32 shift, .param .u64 less)
{{ .reg .b32 %i, %n, %v, %x, %shift; .reg .b64 %a, %o, %w, %less; .reg .pred %q; mov.u32 %i, %tid.{axis};
ld.param.u32 %shift, [shift]; ld.param.u64 %a, [p]; ld.param.u64 %less, [less];
sub.s32 %i, %i, 3; add.s32 %i, %i, %shift; mov.u32 %n, 0;
AGAIN: {extend} sub.s64 %o, %o, %less; add.s64 %o, %a, %o; ld.global.u32 %v, [%o];
add.u32 %v, %v, %n; st.global.u32 [%o+8192], %v; add.s32 %i, %i, 64;
bar.sync 0; add.u32 %n, %n, 1; setp.lt.u32 %q, %n, 3; @%q bra AGAIN; ret; }}"""
EXTENSIONS = {
    "mul.wide.s32": "mul.wide.s32 %o, %i, 4;",
    "mul.wide.u32": "mul.wide.u32 %o, %i, 4;",
    "mad.wide.u32": "mov.u64 %w, 0; mad.wide.u32 %o, %i, 4, %w;",
    "cvt.s64.s32": "cvt.s64.s32 %w, %i; shl.b64 %o, %w, 2;",
    "cvt.u64.u32": "cvt.u64.u32 %w, %i; mul.lo.u64 %o, %w, 4;",
    "shl.b32": "shl.b32 %x, %i, 2; cvt.u64.u32 %o, %x;",
}


@pytest.mark.parametrize("extend", sorted(EXTENSIONS))
@pytest.mark.parametrize("shape", [("x", (80,)), ("x", (32, 2)), ("y", (4, 16))])
def test_sequences_of_addresses_may_wrap(
    monkeypatch: pytest.MonkeyPatch, extend: str, shape: tuple[str, tuple[int, ...]]
) -> None:
    """Wherever an index of 32 bits wraps, both tiers reach the same memory, or name the same fault."""
    axis, block = shape
    ptx = HEADER + SEQUENCES.format(axis=axis, extend=EXTENSIONS[extend])
    shifts = (6, -40, 2**31 - 30, 2**31 - 200, 2**32 - 30, 2**30 - 30)
    cases = [
        (shift, less)
        for shift in shifts
        for less in {shift * 4 - 4096, (shift - 2**32) * 4 - 4096, shift * 4 % 2**32 - 4096}
    ]
    answers: list[list[object]] = []
    for tier in ("compiled", "numpy"):
        monkeypatch.setenv("PYMPSD_TIER", tier)
        device, data = Device(1 << 20), np.zeros(4096, "u4")
        module, words = device.load(ptx), np.arange(4096, dtype="u4")
        address = device.put(words)
        answers.append([])
        for shift, less in cases:
            device.space.write(address, words.tobytes())
            try:
                device.launch(module, "k", 1, block, address, shift % 2**32, less % 2**64)
            except DeviceFault as fault:
                answers[-1].append(str(fault))
            else:
                answers[-1].append(device.get(address, data).tolist())
    for case, compiled, translated in zip(cases, *answers, strict=True):
        assert compiled == translated, case


SMALL = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %v, %n, %s; .reg .b64 %a, %o; .reg .f64 %f; .reg .pred %q, %even; .shared .b32 s[8];
ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mov.u32 %s, %tid.y; mov.u32 %n, %ntid.x; mad.lo.u32 %i, %s, %n, %i;
mov.u32 %s, s; mad.lo.u32 %s, %i, 4, %s; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; add.u32 %v, %i, 3; mov.u32 %n, 0;
AGAIN: and.b32 %o32, %v, 1; setp.eq.u32 %even, %o32, 0; @%even shr.u32 %v, %v, 1; @!%even mad.lo.u32 %v, %v, 3, 1;
add.u32 %n, %n, 1; setp.ne.u32 %q, %v, 1; @%q bra AGAIN; setp.gt.u32 %q, %n, 7; cvt.rn.f64.u32 %f, %n;
sqrt.rm.f64 %f, %f; cvt.rzi.u32.f64 %v, %f; @%q add.u32 %n, %n, %v; st.shared.u32 [%s], %n; bar.sync 0;
ld.shared.u32 %v, [s]; add.u32 %n, %n, %v; st.global.u32 [%a], %n; ret; }""".replace("%n, %s;", "%n, %s, %o32;", 1)


@pytest.mark.parametrize("block", [1, 5, 8, (2, 4)])
def test_blocks_of_few_threads_have_short_vectors(monkeypatch: pytest.MonkeyPatch, block: Any) -> None:
    results = _results(monkeypatch, SMALL, np.zeros(8, "u4"), (3, block))
    np.testing.assert_array_equal(*results)
    assert results[0][0] > 0
    kernel = Device(1 << 20).load(HEADER + SMALL).program.kernels["k"].translation
    text = write_text(kernel.code, kernel.offsets, kernel.shared_bytes, three(block), has_halves=True, has_masks=True)
    assert (text.width, len(text.escapes)) == (8, 1)


TWO_WARPS = """.visible .entry k(.param .u64 p, .param .u32 v)
{ .reg .b32 %i, %v, %s; .reg .b64 %a, %o; .shared .b32 s[64]; ld.param.u64 %a, [p]; ld.param.u32 %v, [v];
mov.u32 %i, %tid.x; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; mov.u32 %s, s; mad.lo.u32 %s, %i, 4, %s;
red.shared.add.u32 [%s], %v; bar.sync 0; ld.shared.u32 %v, [%s]; st.global.u32 [%a], %v; ret; }"""


def test_a_kept_batch_runs_the_next_launch_of_its_shape_from_the_beginning() -> None:
    device = Device(1 << 20)
    module, batch_of = device.load(HEADER + TWO_WARPS), {}
    for value, block in ((7, 64), (9, 64), (11, 32), (13, 64)):
        address = device.put(np.zeros(64, "u4"))  # the allocations change between launches
        (batch,) = batches(module, "k", (1, 1, 1), (block, 1, 1), (address, value))
        assert isinstance(batch, CompiledBatch)
        assert not batch.finished
        assert batch.step(10, Never())
        assert device.get(address, np.zeros(64, "u4")).tolist() == [value] * block + [0] * (64 - block)
        assert batch_of.setdefault(block, batch) is batch
        batch.keep()
        device.space.free(address)


def test_later_blocks_of_a_launch_run_in_the_batch_that_the_first_ones_left() -> None:
    device = Device(1 << 20)
    blocks = """.visible .entry k(.param .u64 p)
    { .reg .b32 %i, %b, %n; .reg .b64 %a, %o; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x;
    mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %i; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o;
    st.global.u32 [%a], %b; ret; }"""
    module, address = device.load(HEADER + blocks), device.put(np.zeros(256, "u4"))
    setup = LaunchSetup((4, 1, 1), (64, 1, 1), pack(module.program, "k", (address,)), 0)
    used = []
    for first in (0, 1, 2):
        batch = begin_batch(module, "k", setup, first, np.arange(1))
        assert isinstance(batch, CompiledBatch)
        assert batch.step(10, Never())
        batch.keep()
        used.append(batch)
    assert used == [used[0]] * 3
    assert device.get(address, np.zeros(256, "u4")).tolist() == [*np.repeat((0, 1, 2), 64), *[0] * 64]


def test_a_kept_batch_faults_where_memory_is_freed() -> None:
    device = Device(1 << 20)
    module = device.load(HEADER + TWO_WARPS)
    address = device.put(np.zeros(64, "u4"))
    for _ in range(2):
        (batch,) = batches(module, "k", (1, 1, 1), (64, 1, 1), (address, 1))
        assert isinstance(batch, CompiledBatch)
        assert batch.step(10, Never())
        batch.keep()
    device.space.free(address)
    (batch,) = batches(module, "k", (1, 1, 1), (64, 1, 1), (address, 1))
    with pytest.raises(DeviceFault, match="outside of the allocations"):
        batch.step(10, Never())


SUMS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %k, %at, %n, %v; .reg .b64 %a, %o, %w; .reg .f32 %f; .reg .f64 %d; .reg .pred %q;
.shared .align 8 .b8 s[520]; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mov.u32 %k, %tid.y; mov.u32 %n, %ntid.x;
mad.lo.u32 %i, %k, %n, %i; mad.lo.u32 %k, %i, 7, 3; and.b32 %k, %k, 15; mov.u32 %at, s; mad.lo.u32 %at, %k, 32, %at;
mul.lo.u32 %v, %i, 0x9E3779B1; cvt.u64.u32 %w, %v; mul.lo.u64 %w, %w, 0x10001; cvt.rn.f32.u32 %f, %v;
cvt.rn.f64.u64 %d, %w; red.shared.add.u32 [%at], 1; red.shared.xor.b32 [%at+4], %v; red.shared.add.u64 [%at+8], %w;
red.shared.add.f64 [%at+16], %d; red.shared.add.f32 [%at+24], %f; red.shared.add.u32 [s+512], %v;
setp.lt.u32 %q, %i, 70; @!%q bra OUT; red.shared.or.b32 [%at+28], %v; red.shared.add.u32 [s+516], 3;
OUT: bar.sync 0; mov.u32 %at, s; mad.lo.u32 %at, %i, 4, %at; ld.shared.u32 %v, [%at+8];
mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; st.global.u32 [%a], %v; ret; }"""


@pytest.mark.parametrize("block", [128, (16, 8)])
def test_sums_in_shared_memory_are_added_in_the_order_of_lanes(monkeypatch: pytest.MonkeyPatch, block: Any) -> None:
    """Sums of floats depend on it; in vectors of 32 and of 16 lanes, by all of them and by some."""
    compiled, numpy = _results(monkeypatch, SUMS, np.zeros(128, "u4"), (1, block))
    np.testing.assert_array_equal(compiled, numpy)
    assert compiled[6::8].tolist() == [*[8] * 15, sum(i * 0x9E3779B1 for i in range(128)) % 2**32]
    assert compiled[-1] == 3 * 70


def test_threads_that_are_in_no_part_of_the_code_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would be an error of the code's writer; the executor continues."""
    device = Device(1 << 20)
    address = device.put(np.zeros(64, "u4"))
    with monkeypatch.context() as patch:
        patch.setattr(StopText, "end_lanes", lambda *_: None)
        with pytest.raises(LaunchFailed, match="internal error, threads were lost: set PYMPSD_TIER=numpy") as caught:
            device.launch(device.load(HEADER + TWO_WARPS), "k", 1, 64, address, 1)
    assert (caught.value.block, caught.value.thread) == ((0, 0, 0), (0, 0, 0))
    device.launch(device.load(HEADER + TWO_WARPS), "k", 1, 64, address, 1)
    assert device.get(address, np.zeros(64, "u4")).tolist() == [1] * 64
