"""What the compiled tier takes: every instruction that the NumPy tier has, clusters, and the memory of peers."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pympsd_server.backends.emulated.memory.address_space import STRICT, AddressSpace
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.ir_text import NotCompiled
from pympsd_server.ptx.compiled_tier.text.kernel_writer import write_text
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.isa.faults import DeviceFault
from pympsd_server.ptx.loading.program import load_program
from pympsd_server.ptx.numpy_tier.instruction_table import TABLE, name_of
from tests.emulated.harness import BASE, HEADER, Device, Never, batches

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ("numpy", "compiled", "escaping")
HOPPER = HEADER.replace("8.0", "8.3").replace("sm_80", "sm_90a")
CORPUS = Path(__file__).parents[1] / "data" / "corpus"
NOT_IN_CORPUS = """applypriority.global.L2::evict_normal [%d0], 128; discard.global.L2 [%d0], 128;
bmsk.clamp.b32 %r0, %r1, %r2; szext.wrap.s32 %r0, %r1, %r2; ldu.global.u32 %r0, [%d0]; pmevent 1;
cp.async.bulk.prefetch.L2.global [%d0], 64; cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%d0, {%r1}];
createpolicy.fractional.L2::evict_first.b64 %d1, 0.5; prefetch.global.L2 [%d0]; prefetchu.L1 [%d0];
elect.sync %r0|%p0, 0xffffffff; getctarank.shared::cluster.u32 %r0, %r1; griddepcontrol.wait;
setmaxnreg.inc.sync.aligned.u32 64; suq.width.b32 %r0, [%d0]; txq.width.b32 %r0, [%d0];
{ .param .u64 f; .param .u64 v; .param .s32 n; st.param.u64 [f], %d0; st.param.u64 [v], %d0;
call (n), vprintf, (f, v); ld.param.s32 %r0, [n]; }
{ .param .u64 h; .param .u32 c; st.param.u64 [h], %d0; st.param.u32 [c], %r0; call cudaGraphSetConditional, (h, c); }
alloca.u64 %d1, 64;"""
"""Forms of the instructions that no kernel of the corpus has."""
DECLARED = """.extern .func (.param .s32 n) vprintf(.param .u64 f, .param .u64 v);
.extern .func cudaGraphSetConditional(.param .u64 h, .param .u32 c);
"""


def names_in(program: str) -> set[str]:
    """Return the instructions of a program's kernels, each of which the compiled tier must take as it is."""
    names = set()
    for kernel in load_program(program.encode()).kernels.values():
        translation = kernel.translation
        code, offsets, size = translation.code, translation.offsets, translation.shared_bytes
        assert write_text(code, offsets, size, (128, 1, 1), has_halves=True, has_masks=True).module_text
        names |= {name_of(operation) for operation in code.operations}
    return names


@pytest.mark.long("")
@pytest.mark.parametrize("tier", ["compiled"], indirect=True)
def test_no_kernel_stays_in_the_numpy_tier_for_an_instruction(tier: str) -> None:
    """The forms of the corpus, and those of the remaining instructions in a loop in which lanes diverge."""
    loop = f"""{HOPPER}{DECLARED}.visible .entry k(.param .u64 p)
    {{ .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<4>;
    ld.param.u64 %d0, [p]; mov.u32 %r3, %tid.x; mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0;
    AGAIN: {NOT_IN_CORPUS} sub.u32 %r3, %r3, 1; setp.gt.s32 %p1, %r3, 0; @%p1 bra AGAIN; bar.sync 0; ret; }}"""
    programs = [path.read_text() for path in sorted(CORPUS.glob("*.ptx"))]
    names = set().union(*map(names_in, [loop, *programs]))
    assert not set(TABLE) - names, "instructions of which this test has no form"


# --- kernels that stay in the NumPy tier

STAYING = """.visible .entry k(.param .u64 p) {{ .reg .b32 %r<3>; .reg .b64 %a; .reg .pred %p; ld.param.u64 %a, [p];
mov.u32 %r1, %tid.x; BACK: {body} st.global.u32 [%a], %r1; ret; }}"""
BACK = "add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, {}; @%p bra BACK;\n"


def everywhere(blocks: int) -> str:
    labels = ", ".join(f"L{i}" for i in range(blocks))
    return f"T: .branchtargets {labels};\n" + "".join(
        f"L{i}: add.u32 %r1, %r1, 1; brx.idx %r1, T;\n" for i in range(blocks)
    )


@pytest.mark.long(but=["compiled-blocks", "compiled-text"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("".join(map(BACK.format, range(4001))), "4005 blocks of code; compiled are at most 4000"),
        ("".join(map(BACK.format, range(2100))), "lanes may wait at .* places"),
        ("sqrt.rm.f64 %a, %a;" * 10_001, "segments of code; compiled are at most 10000"),
        (everywhere(500), "more than 6000000 characters of LLVM's text"),
        ("ld.global.u32 %r2, [%a]; add.u32 %r1, %r1, %r2;\n" * 20_000, "more than 6000000 characters of LLVM's text"),
    ],
    ids=["blocks", "places", "segments", "text", "operations"],
)  # fmt: skip
@pytest.mark.parametrize("tier", ["compiled"], indirect=True)
def test_a_kernel_that_is_too_large_is_refused_before_it_takes_much_memory(tier: str, body: str, reason: str) -> None:
    translation = load_program((HEADER + STAYING.format(body=body)).encode()).kernels["k"].translation
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (200 << 20), limits[1]))
    try:
        with pytest.raises(NotCompiled, match=reason):
            write_text(translation.code, translation.offsets, 0, (64, 1, 1), has_halves=True, has_masks=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


# --- clusters

CLUSTER = """.visible .entry k(.param .u64 p) .explicitcluster .reqnctapercluster BLOCKS
{ .reg .b32 %i, %b, %r, %n, %s, %t, %v, %c; .reg .b64 %a, %o, %g; .reg .pred %q; .shared .b32 sums[64];
ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %r, %cluster_ctarank;
mov.u32 %n, %cluster_nctarank; mov.u32 %s, sums; mov.u32 %c, 0;
"""
END = """mov.u32 %t, %ntid.x; mad.lo.u32 %t, %b, %t, %i; mul.wide.u32 %o, %t, 4; add.s64 %a, %a, %o;
st.global.u32 [%a], %v; ret; }"""
ROUNDS = """AGAIN: rem.u32 %v, %c, %n; mapa.shared::cluster.u32 %t, %s, %v; mad.lo.u32 %t, %i, 4, %t;
red.shared::cluster.add.u32 [%t], %b; barrier.cluster.arrive; barrier.cluster.wait;
add.u32 %c, %c, 1; setp.lt.u32 %q, %c, 5; @%q bra AGAIN; mad.lo.u32 %t, %i, 4, %s; ld.shared.u32 %v, [%t];"""


@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("threads", [64, 40])
def test_blocks_of_a_cluster_add_to_each_others_memory_in_rounds(tier: str, blocks: int, threads: int) -> None:
    """Whole warps and others; the memory of earlier and of later blocks."""
    device, grid = Device(1 << 20), 4 * blocks
    device.multiprocessors = 4
    out = np.zeros(grid * threads, "u4")
    address = device.put(out)
    module = device.load(HOPPER + CLUSTER.replace("BLOCKS", f"{blocks}, 1, 1") + ROUNDS + END)
    device.launch(module, "k", grid, threads, address)
    after = device.get(address, out).reshape(grid, threads)
    for block in range(grid):
        first, rank = block - block % blocks, block % blocks
        rounds = sum(c % blocks == rank for c in range(5))
        assert (after[block] == rounds * sum(range(first, first + blocks))).all()


APART = """setp.eq.u32 %q, %r, 1; @!%q bra ALL; setp.lt.u32 %q, %i, 11; @%q bra LOW; bar.sync 0; bra ALL;
LOW: bar.sync 0;
ALL: mad.lo.u32 %t, %i, 4, %s; st.shared.u32 [%t], %b; barrier.cluster.arrive; barrier.cluster.wait;
xor.b32 %v, %r, 1; mapa.shared::cluster.u32 %t, %t, %v; ld.shared::cluster.u32 %v, [%t];
barrier.cluster.arrive; barrier.cluster.wait;"""


def test_the_numpy_tier_takes_over_all_blocks_of_a_cluster(tier: str) -> None:
    """A lane of one block is at another barrier than its warp."""
    device, out = Device(1 << 20), np.zeros((4, 64), "u4")
    address = device.put(out)
    module = device.load(HOPPER + CLUSTER.replace("BLOCKS", "2, 1, 1") + APART + END)
    device.launch(module, "k", 4, 64, address)
    assert device.get(address, out).tolist() == [[block ^ 1] * 64 for block in range(4)]


OUTSIDE = "mapa.shared::cluster.u32 %t, %s, RANK; ld.shared::cluster.u32 %v, [%t+OFFSET];"


@pytest.mark.parametrize(("rank", "offset"), [(2, 0), (1, 256), (1, 2), (0, -4)])
def test_a_fault_in_a_cluster_names_what_the_numpy_tier_names(
    monkeypatch: pytest.MonkeyPatch, tier: str, rank: int, offset: int
) -> None:
    texts = []
    for setting in (os.environ["PYMPSD_TIER"], "numpy"):
        monkeypatch.setenv("PYMPSD_TIER", setting)
        device = Device(1 << 20)
        body = OUTSIDE.replace("RANK", str(rank)).replace("OFFSET", str(offset))
        module = device.load(HOPPER + CLUSTER.replace("BLOCKS", "2, 1, 1") + body + END)
        with pytest.raises(DeviceFault) as caught:
            device.launch(module, "k", 4, 32, device.put(np.zeros(128, "u4")))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


# --- peers

PEER = """.visible .entry k(.param .u64 own, .param .u64 peer) { .reg .b32 %i, %v, %w, %s; .reg .b64 %a, %b, %o;
.reg .pred %q; .shared .align 16 .b32 words[64]; ld.param.u64 %a, [own]; ld.param.u64 %b, [peer]; mov.u32 %i, %tid.x;
mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; atom.global.add.u32 %v, [%b+1024], 1; add.s64 %b, %b, %o;
ld.global.u32 %v, [%b]; ld.global.u32 %w, [%b+256]; add.u32 %v, %v, %w; st.global.u32 [%a], %v;
setp.lt.u32 %q, %i, 32; @%q mov.u64 %a, %b; ld.u32 %v, [%a]; add.u32 %v, %v, 1000; st.u32 [%a], %v;
mov.u32 %s, words; mad.lo.u32 %s, %i, 4, %s; cp.async.ca.shared.global [%s], [%b+512], 4; cp.async.wait_all;
ld.shared.u32 %v, [%s]; st.global.u32 [%b+768], %v; ret; }"""


class Spaces:
    """Two devices, of which the first reaches the memory of the second; a client of each is this process."""

    def __init__(self) -> None:
        self.own, self.peer = (AddressSpace(BASE + (number << 24), 1 << 20, 1 << 22) for number in range(2))
        self.device, self.other = Device(1 << 12), Device(1 << 12)
        self.device.space, self.other.space = self.own, self.peer
        self.own.bounds = self.peer.bounds = STRICT
        self.own.map_peer(os.getpid(), self.peer.publish(self.peer.base), self.peer.base - self.own.base)


@pytest.fixture
def spaces() -> Iterator[Spaces]:
    spaces = Spaces()
    yield spaces
    spaces.own.close()
    spaces.peer.close()


def launch(spaces: Spaces, tier: str, own: int, peer: int) -> None:
    (batch,) = batches(spaces.device.load(HEADER + PEER), "k", (1, 1, 1), (64, 1, 1), (own, peer))
    assert isinstance(batch, Batch if tier == "numpy" else CompiledBatch)
    assert batch.step(60, Never())


def test_kernels_access_the_memory_of_peers(spaces: Spaces, tier: str) -> None:
    words = np.arange(257, dtype="u4")
    own, peer = spaces.device.put(np.zeros(64, "u4")), spaces.other.put(words)
    launch(spaces, tier, own, peer)
    i = np.arange(64)
    sums, there = i + i + 64, spaces.other.get(peer, words)
    assert spaces.device.get(own, words[:64]).tolist() == np.where(i < 32, sums, sums + 1000).tolist()
    assert there[:64].tolist() == np.where(i < 32, i + 1000, i).tolist()
    assert there[192:256].tolist() == list(range(128, 192))
    assert there[256] == 256 + 64


LONG = """.visible .entry k(.param .u64 p, .param .u32 rounds) { .reg .b32 %i, %n, %v; .reg .b64 %a; .reg .pred %q;
ld.param.u64 %a, [p]; ld.param.u32 %n, [rounds]; mov.u32 %i, 0; AGAIN: ld.volatile.global.u32 %v, [%a];
add.u32 %v, %v, 1; st.volatile.global.u32 [%a], %v; add.u32 %i, %i, 1; setp.lt.u32 %q, %i, %n; @%q bra AGAIN; ret;
}"""


def test_a_peer_is_mapped_while_a_kernel_runs_and_between_two_launches(tier: str) -> None:
    """The space is then mapped elsewhere in this process, because it has become larger."""
    device, other = Device(1 << 12), Device(1 << 12)
    device.space, other.space = (AddressSpace(BASE + (number << 24), 1 << 20, 1 << 22) for number in range(2))
    module, address, expected = device.load(HEADER + LONG), device.put(np.zeros(1, "u4")), 0
    there = other.put(np.full(1, 7, "u4"))
    for rounds in (1, 1 << 12, 1):
        (batch,) = batches(module, "k", (1, 1, 1), (1, 1, 1), (address, rounds))
        if rounds > 1:
            assert not batch.step(0, Never())
            window = other.space.publish(other.space.base)
            device.space.map_peer(os.getpid(), window, other.space.base - device.space.base)
            gc.collect()  # the former mapping, unless it is used
            if isinstance(batch, CompiledBatch):
                batch.look_at_allocations(at_rest=False)  # as when a thread has accessed what it did not know
        while not batch.step(1.0, Never()):
            pass
        if isinstance(batch, CompiledBatch):
            batch.keep()
        expected += rounds
        assert device.get(address, np.zeros(1, "u4")).tolist() == [expected]
    (batch,) = batches(module, "k", (1, 1, 1), (1, 1, 1), (there, 1))
    assert batch.step(60, Never())
    assert other.get(there, np.zeros(1, "u4")).tolist() == [8]
    module.unload()
    device.space.close()
    other.space.close()


@pytest.mark.parametrize("offset", [512 + 4, -(1 << 24) + (1 << 20) + 64, 2, 1 << 40])
def test_a_fault_in_a_peers_window_names_what_the_numpy_tier_names(
    monkeypatch: pytest.MonkeyPatch, spaces: Spaces, tier: str, offset: int
) -> None:
    """Behind the peer's allocation, where its memory is mapped behind the own, misaligned, and far away."""
    own, peer = spaces.device.put(np.zeros(64, "u4")), spaces.other.put(np.zeros(128, "u4"))
    texts = []
    for setting in (os.environ["PYMPSD_TIER"], "numpy"):
        monkeypatch.setenv("PYMPSD_TIER", setting)
        with pytest.raises(DeviceFault) as caught:
            launch(spaces, "numpy" if setting == "numpy" else tier, own, peer + offset)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_memory_that_a_peer_frees_is_gone_for_the_next_launch(spaces: Spaces, tier: str) -> None:
    own, peer = spaces.device.put(np.zeros(64, "u4")), spaces.other.put(np.zeros(257, "u4"))
    launch(spaces, tier, own, peer)
    spaces.peer.free(peer)
    with pytest.raises(DeviceFault):
        launch(spaces, tier, own, peer)
