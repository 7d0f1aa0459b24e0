"""Random programs with floats, all kinds of memory, and what threads do together: both tiers give the same bits.

A program runs three times: in NumPy, as machine code, and as machine code in which each kind of instruction is
executed by NumPy's functions a few times. Threads share counters, on which each operation that commutes has its own,
and exchange values at the top level, where no lane is elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pympsd_server.backends.emulated.ptx.compiled_tier.batch import CompiledBatch
from tests.emulated.conftest import use_tier
from tests.emulated.harness import HEADER, Device, Never, batches
from tests.emulated.test_generated_programs import OPERATIONS, REGISTERS, Renderer, Statement, conditions, nested
from tests.emulated.test_generated_programs import operands as values
from tests.emulated.test_generated_programs import registers as registers

TIERS = ()
BLOCKS, THREADS, SLOTS = 2, 80, 4
FLOATS = 3
TWO = (
    *(f"{name}.f32" for name in ("add.rn", "sub.rz", "mul.rn", "mul.rp", "div.rn", "min", "max.NaN", "add.rm.ftz")),
    *("copysign.f32", "mul.rn.ftz.sat.f32"),
)
ONE = (
    *(f"{name}.f32" for name in ("sqrt.rn", "rcp.rn", "neg", "abs", "ex2.approx", "lg2.approx.ftz", "sin.approx")),
    *("tanh.approx.f32", "cvt.rni.f32.f32", "cvt.sat.f32.f32", "rsqrt.approx.f32"),
)
THREE = ("fma.rn.f32", "fma.rz.f32", "fma.rn.ftz.f32")
HALVES = ("add.f16", "sub.ftz.f16", "mul.sat.f16", "fma.rn.f16", "min.f16", "fma.rn.sat.f16")
DOUBLES = ("add.f64", "sub.f64", "mul.f64", "div.rn.f64", "min.f64", "max.f64")
FLOAT_COMPARISONS = ("lt", "equ", "ne", "num", "nan", "geu")
WIDE = ("mul.wide.u32", "mul.wide.s32", "mad.wide.u32")
BITS = ("popc.b32", "clz.b32", "brev.b32", "bfind.u32", "bfind.shiftamt.s32", "cnot.b32", "not.b32", "abs.s32")
SPACES = ("global", "shared", "local", "generic global", "generic shared", "generic local")
ATOMICS = ("add.u32", "min.s32", "max.u32", "xor.b32", "or.b32", "and.b32", "inc.u32")
VOTES = ("ballot.sync.b32", "any.sync.pred", "all.sync.pred", "uni.sync.pred")
REDUCTIONS = ("add.u32", "min.s32", "max.u32", "xor.b32")

floats = st.integers(0, FLOATS - 1)
spaces, widths = st.sampled_from(SPACES), st.sampled_from(("u8", "s16", "u32", "v2.u32", "volatile u32"))
simple = st.one_of(
    st.tuples(st.just("op"), st.sampled_from(sorted(OPERATIONS)), registers, registers, values),
    st.tuples(st.just("guarded"), conditions, st.sampled_from(sorted(OPERATIONS)), registers, registers, values),
    st.tuples(st.just("bits"), st.sampled_from(BITS), registers, registers),
    st.tuples(st.just("wide"), st.sampled_from(WIDE), registers, registers, registers),
    st.tuples(st.just("float"), st.sampled_from(ONE + TWO + THREE), floats, floats, floats, floats),
    st.tuples(st.just("half"), st.sampled_from(HALVES), floats, floats, floats, floats),
    st.tuples(st.just("double"), st.sampled_from(DOUBLES), floats, floats, floats),
    st.tuples(st.just("to float"), floats, registers, st.booleans()),
    st.tuples(st.just("from float"), registers, floats, st.booleans()),
    st.tuples(st.just("compare"), st.sampled_from(FLOAT_COMPARISONS), registers, floats, floats),
    st.tuples(st.just("write"), spaces, widths, registers, registers, st.none() | conditions),
    st.tuples(st.just("read"), spaces, widths, registers, registers, st.none() | conditions),
    st.tuples(st.just("table"), registers, registers),
    st.tuples(
        st.just("count"), st.sampled_from(("shared", "global")), st.sampled_from(ATOMICS), registers, conditions
    ),
)
together = st.one_of(
    st.tuples(st.just("shuffle"), st.sampled_from(("up", "down", "bfly", "idx")), registers, registers, values),
    st.tuples(st.just("vote"), st.sampled_from(VOTES), registers, conditions),
    st.tuples(st.just("reduce"), st.sampled_from(REDUCTIONS), registers, registers),
    st.tuples(st.just("exchange"), registers, registers, st.integers(1, THREADS - 1)),
    st.tuples(st.just("barrier vote"), st.sampled_from(("popc.u32", "and.pred", "or.pred")), registers, conditions),
)
inner = st.recursive(simple, nested, max_leaves=8).filter(lambda statement: "leave" not in repr(statement))
programs = st.lists(st.one_of(inner, inner, together), min_size=2, max_size=6)


class WideRenderer(Renderer):
    """As Renderer, with %f0 to %f2, and areas of each thread in the memory of all spaces."""

    def bits(self, name: str, target: int, a: int) -> None:
        self.lines.append(f"{name} %r{target}, %r{a};")

    def wide(self, name: str, target: int, a: int, b: int) -> None:
        third = ", %w" if name.startswith("mad") else ""
        self.lines.append(f"cvt.u64.u32 %w, %r{target}; {name} %w, %r{a}, %r{b}{third}; shr.u64 %w, %w, 9;")
        self.lines.append(f"cvt.u32.u64 %r{target}, %w;")

    def float(self, name: str, target: int, *sources: int) -> None:
        count = 1 if name in ONE else 2 if name in TWO else 3
        self.lines.append(f"{name} %f{target}, {', '.join(f'%f{s}' for s in sources[:count])};")

    def half(self, name: str, target: int, *sources: int) -> None:
        count = 3 if name.startswith("fma") else 2
        self.lines += [f"cvt.rn.f16.f32 %h{i}, %f{s};" for i, s in enumerate(sources[:count])]
        self.lines.append(f"{name} %h3, {', '.join(f'%h{i}' for i in range(count))}; cvt.f32.f16 %f{target}, %h3;")

    def double(self, name: str, target: int, a: int, b: int) -> None:
        self.lines.append(f"cvt.f64.f32 %d0, %f{a}; cvt.f64.f32 %d1, %f{b}; fma.rn.f64 %d1, %d0, %d0, %d1;")
        self.lines.append(f"{name} %d0, %d0, %d1; cvt.rn.f32.f64 %f{target}, %d0;")

    def to_float(self, target: int, source: int, signed: bool) -> None:
        self.lines.append(f"cvt.rn.f32.{'s32' if signed else 'u32'} %f{target}, %r{source};")

    def from_float(self, target: int, source: int, signed: bool) -> None:
        self.lines.append(f"cvt.{'rni.s32' if signed else 'rzi.u32'}.f32 %r{target}, %f{source};")

    def compare(self, relation: str, target: int, a: int, b: int) -> None:
        self.lines.append(f"setp.{relation}.f32 %p, %f{a}, %f{b}; selp.b32 %r{target}, %r{target}, 77, %p;")

    def area(self, space: str, width: str, where: int) -> tuple[str, str]:
        """Compute the address of one of the thread's elements; return the words of space and type."""
        generic, _, name = space.rpartition(" ")
        size = {"u8": 1, "s16": 2, "v2.u32": 8}.get(width, 4)
        base = f"%g_{name}" if generic else f"%a_{name}"
        self.lines.append(f"and.b32 %t, %r{where}, {SLOTS * 4 // size - 1}; mul.wide.u32 %a, %t, {size};")
        self.lines.append(f"add.s64 %a, %a, {base};")
        order, _, type_name = width.rpartition(" ")
        return f"{'.' + order if order else ''}{'' if generic else '.' + name}", type_name

    def guard(self, condition: Any) -> str:
        if condition is None:
            return ""
        self.condition(condition)
        return "@%p "

    def write(self, space: str, width: str, where: int, value: int, condition: Any) -> None:
        words, type_name = self.area(space, width, where)
        source = f"{{%r{value}, %r{where}}}" if "v2" in width else f"%r{value}"
        self.lines.append(f"{self.guard(condition)}st{words}.{type_name} [%a], {source};")

    def read(self, space: str, width: str, where: int, target: int, condition: Any) -> None:
        words, type_name = self.area(space, width, where)
        result = f"{{%r{target}, %t}}" if "v2" in width else f"%r{target}"
        self.lines.append(f"{self.guard(condition)}ld{words}.{type_name} {result}, [%a];")

    def table(self, where: int, target: int) -> None:
        self.lines.append(f"and.b32 %t, %r{where}, 7; mul.wide.u32 %a, %t, 4; mov.u64 %w, numbers;")
        self.lines.append(f"add.s64 %a, %a, %w; ld.const.u32 %r{target}, [%a];")

    def count(self, space: str, name: str, value: int, condition: Any) -> None:
        self.condition(condition)
        place = f"{'shared_counters' if space == 'shared' else 'counters'}+{4 * ATOMICS.index(name)}"
        value_text = "0x7FFFFFFF" if name.startswith("inc") else f"%r{value}"
        self.lines.append(f"@%p red.{space}.{name} [{place}], {value_text};")

    def shuffle(self, mode: str, target: int, source: int, amount: Any) -> None:
        clamp = 0 if mode == "up" else 31
        self.lines.append(f"shfl.sync.{mode}.b32 %r{target}|%p, %r{source}, {amount}, {clamp}, -1;")
        self.lines.append(f"@!%p add.u32 %r{target}, %r{target}, 1;")

    def vote(self, mode: str, target: int, condition: Any) -> None:
        self.condition(condition)
        if "ballot" in mode:
            self.lines.append(f"vote.{mode} %r{target}, %p, -1;")
        else:
            self.lines.append(f"vote.{mode} %q, %p, -1; selp.b32 %r{target}, 5, %r{target}, %q;")

    def reduce(self, name: str, target: int, source: int) -> None:
        mode, type_name = name.split(".")
        self.lines.append(f"redux.sync.{mode}.{type_name} %r{target}, %r{source}, -1;")

    def exchange(self, target: int, source: int, by: int) -> None:
        self.lines.append("mov.u32 %t, %tid.x; mul.wide.u32 %a, %t, 4; mov.u64 %w, exchanged; add.s64 %a, %a, %w;")
        self.lines.append(f"st.shared.u32 [%a], %r{source}; bar.sync 0; add.u32 %t, %t, {by};")
        self.lines.append(f"rem.u32 %t, %t, {THREADS}; mul.wide.u32 %a, %t, 4; add.s64 %a, %a, %w;")
        self.lines.append(f"ld.shared.u32 %r{target}, [%a]; bar.sync 0;")

    def barrier_vote(self, mode: str, target: int, condition: Any) -> None:
        self.condition(condition)
        if "popc" in mode:
            self.lines.append(f"bar.red.{mode} %r{target}, 1, %p;")
        else:
            self.lines.append(f"bar.red.{mode} %q, 1, %p; selp.b32 %r{target}, 5, %r{target}, %q;")


WORDS = REGISTERS + FLOATS + 3 * SLOTS + len(ATOMICS)
"""The results of each thread: registers, floats, its areas of memory, and the counters of its block."""


def kernel(program: list[Statement]) -> str:
    """Return a module: its parameter is the address of the threads' areas, behind which are the results."""
    renderer = WideRenderer()
    renderer.block(program)
    registers = "".join(
        f"mul.lo.u32 %r{i}, %r0, {(i + 3) * 2654435761 & 0xFFFFFFFF}; add.u32 %r{i}, %r{i}, {i};"
        for i in range(1, REGISTERS)
    )
    floats = "".join(
        f"mad.lo.u32 %t, %r0, {0x1234567 * (i + 1)}, {0x3F000000 * (i % 2)}; mov.b32 %f{i}, %t;"
        for i in range(FLOATS)
    )
    stores = [f"st.global.u32 [%out+{4 * i}], %r{i};" for i in range(REGISTERS)]
    stores += [f"st.global.f32 [%out+{4 * (REGISTERS + i)}], %f{i};" for i in range(FLOATS)]
    offset = 4 * (REGISTERS + FLOATS)
    for space in ("global", "shared", "local"):
        for i in range(SLOTS):
            stores.append(f"ld.{space}.u32 %t, [%a_{space}+{4 * i}]; st.global.u32 [%out+{offset}], %t;")
            offset += 4
    stores.append("bar.sync 0;")
    for i in range(len(ATOMICS)):
        stores.append(f"ld.shared.u32 %t, [shared_counters+{4 * i}]; st.global.u32 [%out+{offset}], %t;")
        offset += 4
    lines = "\n".join([*renderer.lines, *stores])
    return f"""{HEADER}.const .b32 numbers[8] = {{7, 1, 0x80000000, 65535, 3, 0xFFFFFFFF, 40, 2}};
.global .b32 counters[{len(ATOMICS)}];
.visible .entry k(.param .u64 p)
{{ .reg .b32 %r<{REGISTERS}>, %t, %u; .reg .f32 %f<{FLOATS}>; .reg .f64 %d<2>; .reg .b16 %h<4>; .reg .pred %p, %q;
.reg .b64 %a, %w, %out, %a_global, %a_shared, %a_local, %g_global, %g_shared, %g_local;
.local .align 8 .b32 own[{SLOTS}]; .shared .align 8 .b32 areas[{SLOTS * THREADS}]; .shared .b32 exchanged[{THREADS}];
.shared .b32 shared_counters[{len(ATOMICS)}];
mov.u32 %r0, %tid.x; mov.u32 %t, %ctaid.x; mad.lo.u32 %r0, %t, {THREADS}, %r0; ld.param.u64 %a_global, [p];
mul.wide.u32 %w, %r0, {4 * SLOTS}; add.s64 %a_global, %a_global, %w; mov.u32 %t, %tid.x; mov.u64 %a_shared, areas;
mul.wide.u32 %w, %t, {4 * SLOTS}; add.s64 %a_shared, %a_shared, %w; mov.u64 %a_local, own;
mov.u64 %g_global, %a_global; cvta.shared.u64 %g_shared, %a_shared; cvta.local.u64 %g_local, %a_local;
ld.param.u64 %out, [p]; mul.wide.u32 %w, %r0, {4 * WORDS}; add.s64 %out, %out, %w;
add.s64 %out, %out, {4 * SLOTS * THREADS * BLOCKS}; {registers}{floats}
{lines}
ret; }}
"""


def results(program: list[Statement]) -> tuple[np.ndarray[Any, Any], bool]:
    """Return what a program leaves in memory in the present tier, and whether it ran as machine code."""
    device = Device(1 << 20)
    module = device.load(kernel(program))
    memory = np.zeros(BLOCKS * THREADS * (SLOTS + WORDS), "u4")
    address = device.put(memory)
    running = batches(module, "k", (BLOCKS, 1, 1), (THREADS, 1, 1), (address,))
    for batch in running:
        assert batch.step(60.0, Never())
    counters = device.get(module.address_of("counters"), np.zeros(len(ATOMICS), "u4"))
    memory = np.concatenate([device.get(address, memory), counters])
    start = BLOCKS * THREADS * SLOTS
    rows = memory[start : start + BLOCKS * THREADS * WORDS].reshape(-1, WORDS)
    numbers = rows[:, REGISTERS : REGISTERS + FLOATS]
    numbers[np.isnan(numbers.view("f4"))] = 0x7FFFFFFF  # the bits of a NaN are nobody's promise
    return memory, all(isinstance(batch, CompiledBatch) for batch in running)


def check(monkeypatch: pytest.MonkeyPatch, program: list[Statement]) -> None:
    use_tier(monkeypatch, "numpy")
    expected, _ = results(program)
    for tier in ("compiled", "escaping"):
        use_tier(monkeypatch, tier, max_escapes=3)
        got, is_compiled = results(program)
        assert is_compiled, tier
        np.testing.assert_array_equal(got, expected, err_msg=tier)


SETTINGS = settings(
    deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""Without shrinking, which takes minutes."""


@settings(SETTINGS, max_examples=15)
@given(program=programs)
def test_both_tiers_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, program: list[Statement]) -> None:
    check(monkeypatch, program)


@pytest.mark.long("")
@settings(SETTINGS, max_examples=400)
@given(program=programs)
def test_many_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, program: list[Statement]) -> None:
    check(monkeypatch, program)
