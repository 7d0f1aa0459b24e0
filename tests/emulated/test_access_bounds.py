"""One check serves all accesses off a base: what it lets through is inside, and what it stops is named exactly.

The kernels are random. They make their accesses once inside the memory if that is possible, so that the quick check
has an allocation to compare with, and then at an edge. Which accesses are outside or misaligned is computed here,
from the PTX manual. Bytes on both sides of the memory show whether anything else was written: allocations next to
the one that is used, and in the compiled tier the bytes next to the slabs of shared and local memory.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from attrs import evolve, frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd_server.ptx.compiled_tier.batches import batch as compiled_batch
from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, MisalignedAddress
from tests.emulated.conftest import use_tier
from tests.emulated.harness import HEADER, Device

EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out

TIERS = ()
SIZE = 2048
"""The bytes of each space that the kernels may access."""
GUARD = 4096
SPACES = ("global", "shared", "local", "generic global", "generic shared", "generic local", "narrow shared")
"""Narrow: the base is a register of 32 bits."""
TIER_NAMES = ("compiled", "numpy")


@frozen
class Access:
    is_store: bool
    bits: int
    length: int
    offset: int
    words: str
    guard: int | None
    """The access is of the threads that have one of these bits in their number."""

    @property
    def nbytes(self) -> int:
        return self.bits // 8 * self.length

    def text(self, register: str, space: str) -> str:
        registers = [f"%v{self.bits}_{i}" for i in range(self.length)]
        value = registers[0] if self.length == 1 else "{" + ", ".join(registers) + "}"
        vector = "" if self.length == 1 else f".v{self.length}"
        place = f"[{register}{'+' if self.offset >= 0 else ''}{self.offset}]"
        name = f"{'st' if self.is_store else 'ld'}{self.words}{space}{vector}.b{self.bits}"
        guard = "" if self.guard is None else f"and.b32 %t, %i, {self.guard}; setp.ne.u32 %p, %t, 0; @%p "
        return f"{guard}{name} {place}, {value};" if self.is_store else f"{guard}{name} {value}, {place};"


@frozen
class Case:
    space: str
    threads: int
    start: int
    """The base of thread 0, from the beginning of the memory."""
    stride: int
    is_uniform: bool
    mask: int
    """The threads that have none of these bits in their number make no access."""
    accesses: tuple[Access, ...]

    def base(self, thread: int) -> int:
        return self.start + (0 if self.is_uniform else thread * self.stride)

    def safe_start(self) -> int | None:
        """Return a start from which all accesses are inside and aligned, None if there is none."""
        lowest = min((at for _, at, _ in self.touched()), default=0)
        case = evolve(self, start=self.start - lowest // 16 * 16)
        return None if case.bad() else case.start

    def bad(self) -> list[tuple[int, int, Access]]:
        """The accesses that are outside or misaligned."""
        return [(t, at, x) for t, at, x in self.touched() if not 0 <= at <= SIZE - x.nbytes or at % x.nbytes]

    def touched(self) -> list[tuple[int, int, Access]]:
        """Each thread that makes an access, its offset from the beginning of the memory, and the access."""
        threads = [t for t in range(self.threads) if t & self.mask]
        return [
            (t, self.base(t) + access.offset, access)
            for t in threads
            for access in self.accesses
            if access.guard is None or t & access.guard
        ]


@st.composite
def accesses(draw: st.DrawFn) -> Access:
    bits, length = draw(st.sampled_from([(8, 1), (8, 1), (16, 1), (32, 1), (32, 1), (32, 2), (32, 4), (64, 1)]))
    step = draw(st.sampled_from([bits // 8 * length] * 7 + [1]))
    guard = draw(st.sampled_from([None, None, None, 1, 2, 16]))
    words = draw(st.sampled_from(["", "", ".volatile"]))
    return Access(draw(st.booleans()), bits, length, draw(st.integers(-4, 8)) * step, words, guard)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A case whose lowest or highest access is at the edge of the memory, or just beyond it."""
    chosen = tuple(draw(st.lists(accesses(), min_size=1, max_size=4)))
    threads, widest = draw(st.sampled_from([16, 32, 40])), max(access.nbytes for access in chosen)
    stride = draw(st.sampled_from([widest, widest, widest, -widest, 2 * widest, 0, 4, 1]))
    mask = draw(st.sampled_from([63, 63, 63, 1, 32]))
    space, is_uniform = draw(st.sampled_from(SPACES)), draw(st.booleans())
    case = Case(space, threads, 0, stride, is_uniform, mask, chosen)
    touched = case.touched() or [(0, 0, chosen[0])]
    lowest, highest = min(at for _, at, _ in touched), max(at + x.nbytes for _, at, x in touched)
    beyond = draw(st.sampled_from([0, 0, 0, 1, 64, *[widest] * 5]))
    start = draw(st.sampled_from([-lowest - beyond, SIZE - highest + beyond]))
    return evolve(case, start=start)


def split(space: str) -> tuple[bool, str, str]:
    """Return whether addresses are generic, the space itself, and the register of the base."""
    kind, _, name = space.rpartition(" ")
    return kind == "generic", name, "%n" if kind == "narrow" else "%a"


def kernel(case: Case) -> str:
    generic, space, register = split(case.space)
    name = "" if generic else f".{space}"
    base = {"global": "ld.param.u64 %a, [p];", "shared": "mov.u64 %a, s;", "local": "mov.u64 %a, l;"}[space]
    if generic and space != "global":
        base += f"cvta.{space}.u64 %a, %a;"
    index = "" if case.is_uniform else f"cvt.s64.s32 %o, %i; mul.lo.s64 %o, %o, {case.stride}; add.s64 %a, %a, %o;"
    safe = case.safe_start()
    lines = "\n".join(access.text(register, name) for access in case.accesses)
    registers = "".join(f".reg .b{b} {', '.join(f'%v{b}_{i}' for i in range(4))};" for b in (8, 16, 32, 64))
    values = "".join(f"mov.b{b} %v{b}_{i}, {0x5A + i};" if b > 8 else "" for b in (16, 32, 64) for i in range(4))
    return f"""{HEADER}.visible .entry k(.param .u64 p, .param .u64 q)
{{ .reg .b64 %a, %o; .reg .b32 %i, %t, %n, %round; .reg .pred %p; {registers} .shared .align 16 .b8 s[{SIZE}];
.local .align 16 .b8 l[{SIZE}]; mov.u32 %i, %tid.x; {values}
cvt.u8.u32 %v8_0, %i; cvt.u8.u32 %v8_1, %i; cvt.u8.u32 %v8_2, %i; cvt.u8.u32 %v8_3, %i;
and.b32 %t, %i, {case.mask}; setp.eq.u32 %p, %t, 0; @%p bra OUT;
mov.u32 %round, {int(safe is not None)};
AGAIN: {base} setp.eq.u32 %p, %round, 0; selp.b64 %o, {case.start}, {safe or 0}, %p; add.s64 %a, %a, %o; {index}
cvt.u32.u64 %n, %a; {lines}
sub.u32 %round, %round, 1; setp.ge.s32 %p, %round, 0; @%p bra AGAIN;
OUT: bar.sync 0; mov.u64 %a, s; shl.b32 %t, %i, 2; cvt.u64.u32 %o, %t; add.s64 %a, %a, %o;
ld.shared.u32 %v32_0, [%a]; ld.param.u64 %a, [q]; add.s64 %a, %a, %o; st.global.u32 [%a], %v32_0; ret; }}"""


class Guarded:
    """Slabs of the compiled tier with bytes on both sides that nothing may write."""

    def __init__(self) -> None:
        self.slabs: list[np.ndarray[Any, Any]] = []

    def allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        whole = np.full(nbytes + 2 * GUARD + 64, 0xC3, np.uint8)
        begin = GUARD + -(int(whole.ctypes.data) + GUARD) % 64
        whole[begin : begin + nbytes] = 0
        self.slabs.append(whole)
        self.ends = begin, nbytes
        assert (begin + int(whole.ctypes.data)) % 64 == 0
        return whole[begin : begin + nbytes]

    def check(self) -> None:
        for whole in self.slabs:
            assert (whole[: GUARD - 64] == 0xC3).all()
            assert (whole[-(GUARD - 64) :] == 0xC3).all()


def run(case: Case) -> tuple[DeviceFault | None, np.ndarray[Any, Any], int]:
    """Return the fault, the device's memory less the three allocations' fill, and the middle allocation's place."""
    device = Device(1 << 16)
    fill = np.full(SIZE, 0xA5, "u1")
    _, middle, _ = [device.put(fill) for _ in range(3)]
    out = device.put(np.zeros(4 * case.threads, "u1"))
    module = device.load(kernel(case))
    before, fault = device.space.views[DTYPES["u8"]].copy(), None
    try:
        device.launch(module, "k", 1, case.threads, middle, out)
    except DeviceFault as caught:
        fault = caught
    after = device.space.views[DTYPES["u8"]].copy()
    place, end = middle - device.space.base, out - device.space.base
    own = after[place : place + SIZE].copy()
    results = after[end : end + 4 * case.threads].copy()
    after[place : place + SIZE] = before[place : place + SIZE]
    after[end : end + 4 * case.threads] = before[end : end + 4 * case.threads]
    np.testing.assert_array_equal(after, before)
    return fault, np.concatenate([own, results]), middle


def check_fault(case: Case, fault: DeviceFault, begin: int) -> None:
    """The fault is one of those that the case has, and no thread before it in its warp has one of the same access."""
    match = re.match(r"(\w+ )?address (0x[0-9a-f]+), (\d+) bytes: (\w+)", fault.message)
    assert match, fault.message
    address, nbytes = int(match[2], 16), int(match[3])
    is_misaligned = match[4] == "misaligned"
    assert isinstance(fault, MisalignedAddress if is_misaligned else IllegalAddress)
    assert fault.block == (0, 0, 0)
    assert fault.thread is not None
    own = [(at, access.nbytes) for t, at, access in case.touched() if t == fault.thread[0]]
    limit = 1 << 64 if case.space.endswith("global") else 1 << 32
    assert ((address - begin) % limit, nbytes) in [(at % limit, n) for at, n in own], (fault, own)
    offset = (address - begin + (1 << 31)) % limit - (1 << 31)
    assert (not 0 <= offset <= SIZE - nbytes) or is_misaligned, fault
    assert not is_misaligned or offset % nbytes, fault


def check(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    bad = case.bad()
    memories = []
    for tier in TIER_NAMES:
        use_tier(monkeypatch, tier)
        guarded = Guarded()
        monkeypatch.setattr(compiled_batch, "allocate_aligned", guarded.allocate)
        fault, memory, middle = run(case)
        guarded.check()
        assert bool(guarded.slabs) == (tier == "compiled")
        assert (fault is not None) == bool(bad), (tier, fault, bad)
        if fault is not None:
            check_fault(case, fault, middle if case.space.endswith("global") else 0)
        memories.append(memory)
    if not bad and case.threads <= 32:  # two warps are at different rounds, and may write the same bytes
        np.testing.assert_array_equal(*memories)


SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(SETTINGS, max_examples=EXAMPLES // 4)
@given(case=cases())
def test_nothing_outside_is_touched(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    check(monkeypatch, case)


@pytest.mark.long("")
@settings(SETTINGS, max_examples=150 * EXAMPLES // 100)
@given(case=cases())
def test_nothing_outside_is_touched_by_many_kernels(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    check(monkeypatch, case)


@pytest.mark.long(but=["False-8-global", "True-16-generic shared", "False-32-local"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("is_uniform", [False, True])
def test_all_of_several_accesses_off_a_base_are_inside(
    monkeypatch: pytest.MonkeyPatch, space: str, bits: int, is_uniform: bool
) -> None:
    """The first or the last access of the first or the last thread is at the edge, or one element beyond it."""
    width = bits // 8
    for is_store in (False, True):
        some = tuple(Access(is_store, bits, 1, offset * width, "", None) for offset in (1, 0, 3))
        case = Case(space, 32, 0, width, is_uniform, 63, some)
        touched = [at for _, at, _ in case.touched()]
        for start in (-min(touched), SIZE - width - max(touched)):
            check(monkeypatch, evolve(case, start=start))
            check(monkeypatch, evolve(case, start=start + (width if start > 0 else -width)))


@pytest.mark.long(but=["False-narrow shared", "True-generic global"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("is_uniform", [False, True])
def test_each_of_several_accesses_off_a_base_is_aligned(
    monkeypatch: pytest.MonkeyPatch, space: str, is_uniform: bool
) -> None:
    """Where the base is aligned the second access is not, and the other way round."""
    some = tuple(Access(False, 32, 1, offset, "", None) for offset in (0, 6))
    for start in (16, 18, 20):
        check(monkeypatch, Case(space, 32, start, 4, is_uniform, 63, some))


FORMS = {
    "load": ("ld{w}.u32 %v, [%a];", 4),
    "store": ("st{w}.u32 [%a], %v;", 4),
    "guarded load": ("@%g ld{w}.u64 %d, [%a];", 8),
    "guarded store": ("@%g st{w}.u16 [%a], %h;", 2),
    "pair": ("ld{w}.v2.u32 {{%v, %u}}, [%a];", 8),
    "four": ("st{w}.v4.u32 [%a], {{%v, %u, %v, %u}};", 16),
    "volatile load": ("ld.volatile{w}.u32 %v, [%a];", 4),
    "second of a span": ("ld{w}.u32 %v, [%a+-4]; st{w}.u32 [%a], %v;", 4),
    "atomic": ("atom{w}.add.u32 %v, [%a], %u;", 4),
    "reduction": ("red{w}.max.u64 [%a], %d;", 8),
    "sum": ("red{w}.add.u32 [%a], %u;", 4),
    "swap": ("atom{w}.cas.b32 %v, [%a], %u, %v;", 4),
}


@pytest.mark.long(but=["False-global", "True-generic local"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("is_misaligned", [False, True])
def test_every_form_names_the_thread_that_faults(
    monkeypatch: pytest.MonkeyPatch, space: str, is_misaligned: bool
) -> None:
    """Thread 37 of block 1 leaves the memory, or is one byte off; both tiers use the same words."""
    generic, name, register = split(space)
    for form, (text, nbytes) in FORMS.items():
        if name == "local" and form in ("atomic", "reduction", "sum", "swap"):
            continue
        base = {"global": "ld.param.u64 %a, [p];", "shared": "mov.u64 %a, s;", "local": "mov.u64 %a, l;"}[name]
        base += f"cvta.{name}.u64 %a, %a;" if generic and name != "global" else ""
        access = text.format(w="" if generic else "." + name).replace("%a", register)
        wrong = 17 if is_misaligned else SIZE
        ptx = f"""{HEADER}.visible .entry k(.param .u64 p)
{{ .reg .b64 %a, %o, %d; .reg .b32 %v, %u, %i, %b, %n; .reg .b16 %h; .reg .pred %p, %q, %g;
.local .align 16 .b8 l[{SIZE}]; .shared .align 16 .b8 s[{SIZE}];
mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x; setp.eq.u32 %q, %b, 1; mov.u64 %d, 5;
setp.eq.and.u32 %p, %i, 37, %q; selp.b64 %o, {wrong}, 16, %p; setp.ge.u32 %g, %i, 3; mov.u32 %v, %i; mov.u32 %u, %i;
mov.u16 %h, 7; {base} add.s64 %a, %a, %o; cvt.u32.u64 %n, %a; {access} ret; }}"""
        texts = []
        for tier in TIER_NAMES:
            use_tier(monkeypatch, tier)
            device = Device(1 << 16)
            address = device.put(np.zeros(SIZE, "u1"))
            with pytest.raises(MisalignedAddress if is_misaligned else IllegalAddress) as caught:
                device.launch(device.load(ptx), "k", 2, 64, address)
            at = wrong + (address if name == "global" else 0)
            at -= 4 if is_misaligned and "[%a+-4]" in text else 0
            assert f"{at:#x}, {nbytes} bytes" in caught.value.message, (form, tier)
            assert (caught.value.block, caught.value.thread) == ((1, 0, 0), (37, 0, 0)), (form, tier)
            texts.append(str(caught.value))
        assert texts[0] == texts[1], form


VECTORS = {"v2.u8": 2, "v4.u8": 4, "v2.u16": 4, "v2.f32": 8, "v4.f32": 16, "v2.u64": 16}


@pytest.mark.parametrize("place", ["mov.u32 %n, %i;", "sub.u32 %n, 63, %i;", "xor.b32 %n, %i, 1;"])
@pytest.mark.parametrize("guard", ["", "@%g"])
@pytest.mark.parametrize("form", VECTORS)
def test_vectors_are_stored_next_to_each_other(
    monkeypatch: pytest.MonkeyPatch, form: str, guard: str, place: str
) -> None:
    """In the order of the lanes and in others, by all lanes or those whose number is not a multiple of three."""
    count, nbytes = int(form[1]), VECTORS[form]
    bits = 8 * nbytes // count
    letter = form.split(".")[1][0]
    names = {8: "h", 16: "h", 32: "f" if letter == "f" else "v", 64: "d"}[bits]
    values = ", ".join(f"%{names}{k}" for k in range(count))
    loads = f"ld.global.{form} {{{values}}}, [%a]; {guard} st.global.{form} [%a+4096], {{{values}}};"
    ptx = f"""{HEADER}.visible .entry k(.param .u64 p)
{{ .reg .b64 %a, %o, %d<4>; .reg .b32 %i, %n, %v<4>; .reg .f32 %f<4>; .reg .b16 %h<4>; .reg .pred %g;
ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; rem.u32 %n, %i, 3; setp.ne.u32 %g, %n, 0; {place}
mul.wide.u32 %o, %n, {nbytes}; add.s64 %a, %a, %o; {loads} ret; }}"""
    threads = np.arange(60) if not guard else np.flatnonzero(np.arange(60) % 3)
    elements = {"mov": threads, "sub": 63 - threads, "xor": threads ^ 1}[place[:3]]
    content = np.random.default_rng(1).integers(0, 256, 8192, np.uint8)
    expected = content.copy()
    for element in elements:
        expected[4096 + element * nbytes :][:nbytes] = content[element * nbytes :][:nbytes]
    for tier in TIER_NAMES:
        use_tier(monkeypatch, tier)
        device = Device(1 << 16)
        address = device.put(content)
        device.launch(device.load(ptx), "k", 1, 60, address)
        assert (device.get(address, content) == expected).all(), tier
