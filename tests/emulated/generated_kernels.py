"""Random kernels for the comparison of the tiers: instructions, memory, control flow, threads together.

A kernel is a sequence of *programs*, because the parser's and LLVM's cost of beginning is larger than that of a
short program. Each program begins with registers of its own, which it loads from its row of the kernel's memory,
and ends by storing them there. So a wrong value names its program, and later programs do not inherit ruined values:

    row of a program      r0 to r3 and u0 u1 (32 bits), f0 to f3 (f32), l0 l1 (64 bits), d0 d1 (f64), s0 s1
                          (16 bits), h0 h1 (f16)
    area of a thread      in global, shared and local memory: 8 words, 4 f32, 2 f64, which all programs share
    columns               in global and shared memory: elements of 1 to 16 bytes, each next to those of the threads
                          before and after (all other addresses are far apart), in two lines
    counters              of each block (shared) and of the grid: one for each operation that commutes

Rows begin with special values (infinities, NaNs, subnormal numbers, extreme integers). The registers u0 and u1
begin as the same in all threads of a block, so that compiled kernels have scalars.

A *form* is an instruction with alternatives, `{a|b}`, and letters for operands: R L S are registers of 32, 64 and
16 bits, I is R or a constant, F D H are floats of 32, 64 and 16 bits, P and Q are different predicates. The bits of
a NaN are not defined, so floats become integers by conversions only, and are stored as floats.

`TOGETHER` has what threads of a warp or of a block do together. It comes only where all lanes are, outside of
branches and in loops whose rounds are the same for the block. `AMONG` has what the lanes of a branch do together,
whose mask is M. `RARE` has what the compiled tier leaves to the NumPy tier. It comes outside of loops, because a
kernel with such an instruction in a loop stays in NumPy.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tests.emulated.harness import HEADER

ROW: Final = np.dtype(
    [("r", "u4", 4), ("f", "f4", 4), ("l", "u8", 2), ("d", "f8", 2), ("s", "u2", 2), ("h", "f2", 2), ("u", "u4", 2)]
)
AREA: Final = np.dtype([("words", "u4", 8), ("f", "f4", 4), ("d", "f8", 2)])
COUNTED: Final = ("add.u32", "min.s32", "max.u32", "xor.b32", "or.b32", "and.b32", "inc.u32", "add.u64")
COUNTERS: Final = np.dtype("u8")
COLUMN_SIZES: Final = (1, 2, 4, 8, 16)
COLUMN_LINES: Final = 2
SHAPES: Final = (
    *((80, 1, 1), (64, 1, 1), (16, 5, 1), (32, 2, 1), (16, 2, 2)),
    *((33, 1, 1), (7, 1, 1), (96, 1, 1), (8, 5, 1), (32, 1, 3), (5, 3, 3)),
)
NOWHERE: Final = (
    "0",
    "-16",
    "0x1",
    "0x6000000000000",
    "0x10000000000",
    "0x1FFFFFFFFFF",
    "0x20000000003",
    "0xFFFFFF00",
)
"""Addresses that no memory has, for lanes that make no access."""
BLOCKS: Final = 2

_INTEGERS = "{eq|ne|lt|le|gt|ge}"
_FLOATS = "{eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan}"
FORMS: Final = (
    # 32 bits
    "{add|sub|mul.lo|mul.hi|min|max}.{s32|u32} R, R, I", "{and|or|xor}.b32 R, R, I",
    "{shl.b32|shr.u32|shr.s32} R, R, {R|0|5|31|32|40}", "mad.{lo|hi}.{s32|u32} R, R, I, R",
    "or.b32 %t, R, 1; {div|rem}.{u32|s32} R, R, %t", "{div|rem}.{u32|s32} R, R, {3|7|10|16|0x80000001}",
    "{not.b32|cnot.b32|neg.s32|abs.s32|popc.b32|clz.b32|brev.b32|bfind.u32|bfind.s32|bfind.shiftamt.u32} R, R",
    "bfe.{u32|s32} R, R, {0|3|31}, {0|1|9|32}", "bfi.b32 R, R, R, {R|2|30}, {R|0|7|33}",
    "lop3.b32 R, R, R, I, {0x1B|0xE8|0x96|0x80|0x00|0xFF|0x3C}", "prmt.b32 R, R, R, {0x5410|0x9F02|0x3210|0xBA98}",
    "shf.{l|r}.{wrap|clamp}.b32 R, R, R, {R|0|13|32|40}", "sad.{u32|s32} R, R, R, R",
    "add.cc.u32 R, R, I; addc{|.cc}.u32 R, R, R", "sub.cc.u32 R, R, I; subc.u32 R, R, R",
    "mad.lo.cc.u32 R, R, R, R; madc.hi.u32 R, R, R, R", "mul.wide.{u32|s32} L, R, R",
    "mad.wide.{u32|s32} L, R, R, L",
    # 64 and 16 bits
    "{add|sub|mul.lo|mul.hi|min|max}.{s64|u64} L, L, L", "{and|or|xor}.b64 L, L, L", "mad.lo.u64 L, L, L, L",
    "{shl.b64|shr.u64|shr.s64} L, L, {R|0|33|63|64}", "{not.b64|neg.s64|abs.s64|brev.b64|cnot.b64} L, L",
    "{popc|clz}.b64 R, L", "bfind.{u64|s64} R, L", "bfe.{u64|s64} L, L, {5|60}, {0|40}",
    "or.b64 %w, L, 1; {div|rem}.{u64|s64} L, L, %w", "add.cc.u64 L, L, L; addc.u64 L, L, L", "sad.u64 L, L, L, L",
    "{add|sub|mul.lo|mul.hi|min|max}.{s16|u16} S, S, S", "{and|or|xor}.b16 S, S, S",
    "{not.b16|neg.s16|abs.s16} S, S", "{shl.b16|shr.u16|shr.s16} S, S, {R|3|15|16}", "mad.lo.u16 S, S, S, S",
    "mul.wide.{u16|s16} R, S, S", "mad.wide.{u16|s16} R, S, S, R", "or.b16 %m, S, 1; {div|rem}.{u16|s16} S, S, %m",
    "mov.b32 {%m, %n}, R; xor.b16 S, %m, %n", "mov.b32 R, {S, S}", "mov.b64 {%t, %v}, L; xor.b32 R, %t, %v",
    "mov.b64 L, {R, R}",
    # comparisons and selections
    f"setp.{_INTEGERS}.{{s32|u32}} P, R, I", f"setp.{_INTEGERS}.{{and|or|xor}}.{{s32|u32}} P|Q, R, I, {{P|!Q}}",
    f"setp.{_INTEGERS}.{{s64|u64}} P, L, L", f"setp.{_INTEGERS}.{{s16|u16}} P, S, S",
    "setp.{lo|ls|hi|hs}.u32 P, R, I", f"setp.{_FLOATS}{{|.ftz}}.f32 P, F, F", f"setp.{_FLOATS}.f64 P, D, D",
    f"setp.{_FLOATS}.{{and|or}}.f32 P, F, F, Q", f"setp.{_FLOATS}.f16 P, H, H",
    f"set.{_INTEGERS}.{{u32|s32}}.{{s32|u32}} R, R, I", f"set.{_FLOATS}.f32.f32 F, F, F",
    f"set.{_FLOATS}.u32.f32 R, F, F", "{and|or|xor}.pred P, P, Q", "not.pred P, Q", "selp.b32 R, R, I, P",
    "selp.{b64|u64} L, L, L, P", "selp.b16 S, S, S, Q", "selp.f32 F, F, F, P", "selp.f64 D, D, D, Q",
    "slct.{b32|s32|u32}.s32 R, R, I, R", "slct.f32.s32 F, F, F, R", "slct.b32.f32 R, R, R, F",
    "slct.b64.s32 L, L, L, R",
    # floats
    "{add|sub|mul}{|.rn|.rz|.rm|.rp}{|.ftz}{|.sat}.f32 F, F, F", "fma.{rn|rz|rm|rp}{|.ftz}{|.sat}.f32 F, F, F, F",
    "{min|max}{|.ftz}{|.NaN}.f32 F, F, F", "div.rn{|.ftz}.f32 F, F, F", "div.{full|approx}{|.ftz}.f32 F, F, F",
    "{rcp|sqrt}.rn{|.ftz}.f32 F, F", "{rcp|sqrt|rsqrt|ex2|lg2|sin|cos}.approx{|.ftz}.f32 F, F",
    "tanh.approx.f32 F, F", "{neg|abs}{|.ftz}.f32 F, F", "copysign.f32 F, {0f3F000000|0f80000000|0f7F800000}, F",
    "testp.{finite|infinite|number|notanumber|normal|subnormal}.f32 P, F",
    "add.f32 F, F, {0f3F800000|0f00000001|0fFF800000}", "{add|sub|mul}{|.rn}.f64 D, D, D", "fma.rn.f64 D, D, D, D",
    "{min|max}.f64 D, D, D", "div.rn.f64 D, D, D", "{rcp|sqrt}.rn.f64 D, D", "{neg|abs}.f64 D, D",
    "testp.{finite|normal}.f64 P, D", "{add|sub|mul}{|.rn}{|.ftz}{|.sat}.f16 H, H, H",
    "fma.rn{|.ftz}{|.sat}.f16 H, H, H, H", "{min|max}{|.ftz}{|.NaN}.f16 H, H, H", "{neg|abs}.f16 H, H",
    # conversions
    "cvt.{rni|rzi|rmi|rpi}{|.ftz}.{s32|u32}.f32 R, F", "cvt.{rni|rzi|rmi|rpi}.{s64|u64}.f32 L, F",
    "cvt.{rni|rzi|rmi|rpi}.{s32|u32}.f64 R, D", "cvt.{rni|rzi|rmi|rpi}.{s64|u64}.f64 L, D",
    "cvt.{rni|rzi}.{s16|u16}.f32 S, F", "cvt.{rni|rzi|rmi|rpi}.{s8|u8}.f32 S, F",
    "cvt.rn{|.sat}.f32.{s32|u32} F, R", "cvt.rn.f32.{s64|u64} F, L", "cvt.rn.f64.{s32|u32} D, R",
    "cvt.rn.f64.{s64|u64} D, L", "cvt.rn.f32.{s16|u16|s8|u8} F, S", "cvt.rn{|.ftz}{|.sat}.f32.f64 F, D",
    "cvt{|.ftz}.f64.f32 D, F", "cvt.{rni|rzi|rmi|rpi}{|.ftz}{|.sat}.f32.f32 F, F",
    "cvt.{rni|rzi|rmi|rpi}.f64.f64 D, D", "cvt.sat.f32.f32 F, F", "cvt.sat.f64.f64 D, D", "cvt.rn.f16.f32 H, F",
    "cvt.f32.f16 F, H", "cvt.{rni|rzi}.{s32|u32|s16}.f16 %t, H; xor.b32 R, R, %t",
    "cvt.{s8|u8|s16|u16}.{s32|u32} S, R", "cvt.{s32|u32}.{s8|u8|s16|u16} R, S", "cvt.{s64|u64}.{s32|u32} L, R",
    "cvt.{s32|u32}.{s64|u64} R, L", "cvt.{s8|u8}.s64 S, L", "cvt.s32.s8 R, R",
)  # fmt: skip
RARE: Final = (
    "{add|sub}.sat.s32 R, R, I", "mad.hi.sat.s32 R, R, R, R", "bfe.{u32|s32} R, R, {R|200}, {R|255}",
    "prmt.b32 R, R, R, R", "bfe.{u64|s64} L, L, R, R", "bfi.b64 L, L, L, {R|9}, R", "mul24.lo.{u32|s32} R, R, R",
    "mad24.lo.{u32|s32} R, R, R, R", "div.{rz|rm|rp}{|.ftz}.f32 F, F, F", "{rcp|sqrt}.{rz|rm|rp}{|.ftz}.f32 F, F",
    "{add|sub|mul|div}.{rz|rm|rp}.f64 D, D, D", "fma.{rz|rm|rp}.f64 D, D, D, D", "{rcp|sqrt}.{rz|rm|rp}.f64 D, D",
    "cvt.{rz|rm|rp}{|.sat}.f32.{s32|u32} F, R", "cvt.{rz|rm|rp}.f32.{s64|u64} F, L",
    "cvt.{rz|rm|rp}.f64.{s64|u64} D, L", "cvt.{rz|rm|rp}{|.ftz}{|.sat}.f32.f64 F, D", "cvt.rz.f16.f32 H, F",
    "cvt.rn.f16.{s32|u32} H, R", "cvt.sat.{s8|u8|s16|u16}.{s32|u32} S, R", "cvt.sat.{s32|u32}.{s64|u64} R, L",
    "cvt.sat.u32.s32 R, R", "cvt.sat.{s8|u8}.s64 S, L", "dp4a.{u32|s32}.{u32|s32} R, R, R, R",
    "dp2a.{lo|hi}.{u32|s32}.s32 R, R, R, R", "fns.b32 R, R, {0|3}, {1|-1|2}",
    "bmsk.{clamp|wrap}.b32 R, {R|7}, {R|30}", "szext.{clamp|wrap}.{s32|u32} R, R, {R|12}", "mul24.hi.u32 R, R, R",
    "prmt.b32.{f4e|b4e|rc8|ecl|ecr|rc16} R, R, R, R", "cvt.pack.sat.u8.s32.b32 R, R, R, R",
    "vadd{|2|4}.s32.u32.s32{|.sat} R, R, R, R", "vabsdiff4.u32.u32.u32.add R, R, R, R",
    "{min|max}{|.ftz}.xorsign.abs.f32 F, F, F", "{add|min|max}.{s16x2|u16x2} R, R, R",
    "{ex2.approx|tanh.approx}.f16 H, H",
    "cvt.rn{|.relu}.f16x2.f32 %t, 0f3FC00000, {0fC0000000|0f42280000}; xor.b32 R, R, %t",
)  # fmt: skip
TOGETHER: Final = (
    "shfl.sync.{down|bfly|idx}.b32 R|P, R, {R|1|3|16}, {31|0x1C1F|0x180F}, -1",
    "shfl.sync.up.b32 R|P, R, {R|1|2}, {0|0x1800}, -1", "vote.sync.{any|all|uni}.pred P, {Q|!Q}, -1",
    "vote.sync.ballot.b32 R, {P|!P}, -1", "redux.sync.{add|min|max}.{u32|s32} R, R, -1",
    "redux.sync.{and|or|xor}.b32 R, R, -1", "bar.red.popc.u32 R, {0|3}, {P|!P}", "bar.red.{and|or}.pred P, 1, Q",
    "bar.warp.sync -1", "barrier.sync {0|2}",
)  # fmt: skip
AMONG: Final = (
    "vote.sync.{any|all|uni}.pred P, {Q|!Q}, M", "vote.sync.ballot.b32 R, {P|!P}, M", "bar.warp.sync M",
    "redux.sync.{add|min|max}.{u32|s32} R, R, M", "redux.sync.{and|or|xor}.b32 R, R, M",
    "match.any.sync.b32 R, R, M",
)  # fmt: skip
RARE_TOGETHER: Final = ("match.any.sync.{b32 R, R|b64 R, L}, -1", "match.all.sync.b32 R|P, R, -1")
CONSTANTS: Final = ("0", "1", "-1", "2", "17", "40", "0x7FFFFFFF", "0x80000000", "0xFFFF", "0x12345678")
_REGISTERS: Final = {"R": ("%r", 4), "L": ("%l", 2), "S": ("%s", 2), "F": ("%f", 4), "D": ("%d", 2), "H": ("%h", 2)}
_ALTERNATIVES: Final = re.compile(r"\{([^{}]*\|[^{}]*)\}")
_OPERAND: Final = re.compile(r"(?<![\w.%])([RLSIFDHPQ])(?!\w)")
_WIDTHS: Final = {
    "b8 u8 s8": 1, "b16 u16 s16": 2, "b32 u32 s32": 4, "b64 u64 s64": 8, "v2.u8": 2, "v2.b16": 4, "v2.u32 v2.s32": 8,
    "v4.u8": 4, "v4.u32 v4.b32": 16, "v2.u64": 16,
}  # fmt: skip


class Kernel:
    """A random kernel of some programs; the same for the same seed."""

    def __init__(self, seed: int, programs: int) -> None:
        self.source = random.Random(seed)
        self.programs = programs
        self.lines: list[str] = []
        self.shape = self.source.choice(SHAPES)
        self.labels = 0
        self.ends: list[str] = []
        """Where a lane goes that leaves, behind the innermost statement in which all lanes are."""
        self.is_uniform = False
        self.has_generic_locals = self.source.random() < 0.5
        """Whether local memory is accessed by generic addresses, too; otherwise machine code may interleave it."""
        self.has_warps = self.source.random() < 0.6
        """Whether instructions need the lanes of a warp; otherwise the vectors of some shapes have 8 or 16 lanes."""
        for number in range(programs):
            self._program(number)
        self.rows = _special_rows(np.random.default_rng(seed), programs * self.threads)

    @property
    def threads(self) -> int:
        """The threads of the grid."""
        return BLOCKS * int(np.prod(self.shape))

    # --- statements

    def _program(self, number: int) -> None:
        at = ROW.itemsize * number
        fields = (("v4.b32", "%r0, %r1, %r2, %r3"), ("v4.f32", "%f0, %f1, %f2, %f3"), ("v2.b64", "%l0, %l1"))
        fields += (("v2.f64", "%d0, %d1"), ("v4.b16", "%s0, %s1, %h0, %h1"), ("v2.b32", "%u0, %u1"))
        places = [(at + offset, *field) for offset, field in zip((0, 16, 32, 48, 64, 72), fields, strict=True)]
        self.lines += [f"ld.global.{kind} {{{names}}}, [%row+{place}];" for place, kind, names in places]
        self._uniform("mov.u32 %u0, %ctaid.x; add.u32 %u1, %u0, {7|-3|0x7FFFFFFF}")
        self.lines.append("setp.lt.s32 %p0, %r0, %r1; setp.gtu.f32 %p1, %f0, %f1;")
        choices = (self._statement, self._statement, self._statement, self._rare, self._together, self._loop_together)
        for _ in range(self.source.randint(3, 7)):
            self._region(self.source.choice(choices))
        self.lines += [f"st.global.{kind} [%row+{place}], {{{names}}};" for place, kind, names in places]

    def _region(self, write: Callable[[], None]) -> None:
        """Write a statement behind which all lanes are together again."""
        self.ends.append(self._label())
        write()
        self.lines.append(f"{self.ends.pop()}:")

    def _statement(self, depth: int = 0) -> None:
        nested = (self._if, self._loop, self._switch, self._if, self._loop) if depth < 2 else ()
        common = (self._form, self._form, self._form, self._guarded, self._guarded)
        common += (self._memory, self._column, self._atomic)
        chosen = self.source.choice((*common, *nested))
        if chosen in nested:
            chosen(depth + 1)
        else:
            chosen()

    def _form(self) -> None:
        self.is_uniform = self.source.random() < 0.15
        self._write(self.source.choice(FORMS))
        self.is_uniform = False

    def _guarded(self) -> None:
        self.lines.append(f"@{self._condition()} {self._fill(self._without_helpers())};")

    def _rare(self) -> None:
        self._write(self.source.choice(RARE))

    def _together(self) -> None:
        kind = self.source.randrange(7)
        if kind == 0:
            self._exchange()
        elif kind == 2 and self.has_warps:
            self._among()
        elif kind == 1 and self.has_warps:
            self._write(self.source.choice(RARE_TOGETHER))
        else:
            self._write_form_together()

    def _write_form_together(self) -> None:
        self._write(self.source.choice(TOGETHER) if self.has_warps else "barrier.sync {0|2}")

    def _loop_together(self) -> None:
        """Some rounds of which each has what threads do together: the same number for all threads of a block."""
        number, top = self._label(), self._label()
        self.lines.append(f".reg .b32 %n{number}; mov.u32 %n{number}, %ctaid.x;")
        self.lines.append(f"add.u32 %n{number}, %n{number}, 1; {top}:")
        self._region(self._statement)
        self._region(self._write_together)
        self.lines.append(f"sub.u32 %n{number}, %n{number}, 1; setp.gt.s32 %p2, %n{number}, 0; @%p2 bra {top};")

    def _write_together(self) -> None:
        if self.source.random() < 0.3:
            self._exchange()
        else:
            self._write_form_together()

    def _among(self) -> None:
        """Write two branches, in each of which lanes that may have diverged meet."""
        other, end, condition = self._label(), self._label(), self._condition()
        opposite = _opposite(condition)
        self.lines.append(f"vote.sync.ballot.b32 %m0, {condition}, -1; vote.sync.ballot.b32 %m1, {opposite}, -1;")
        self.lines.append(f"@{opposite} bra {other};")
        for index, ending in enumerate((f"bra {end}; {other}:", f"{end}:")):
            for _ in range(self.source.randint(0, 2)):
                self._region(self._statement)
            for _ in range(self.source.randint(1, 2)):
                self._write(re.sub(r"\bM\b", f"%m{index}", self.source.choice(AMONG)))
            self.lines.append(ending)

    def _exchange(self) -> None:
        """Exchange values with another thread of the block through shared memory."""
        by, target, value = self.source.randint(1, 15), *self._distinct("R", 2)
        threads = self.threads // BLOCKS
        self.lines.append(f"add.u32 %t, %thread, {by}; rem.u32 %t, %t, {threads}; mad.lo.u32 %t, %t, 4, %exchanged;")
        self.lines.append(f"mad.lo.u32 %v, %thread, 4, %exchanged; st.shared.b32 [%v], {value}; bar.sync 0;")
        self.lines.append(f"ld.shared.b32 {target}, [%t]; bar.sync 0;")

    def _body(self, depth: int) -> None:
        for _ in range(self.source.randint(1, 3)):
            self._statement(depth)
        if self.source.random() < 0.15:
            self.lines.append(f"@{self._condition()} bra {self.ends[-1]};")

    def _if(self, depth: int) -> None:
        other, end = self._label(), self._label()
        self.lines.append(f"@{self._condition()} bra {other};")
        self._body(depth)
        self.lines.append(f"bra {end}; {other}:")
        if self.source.random() < 0.6:
            self._body(depth)
        self.lines.append(f"{end}:")

    def _loop(self, depth: int) -> None:
        """At most eight rounds, left early when a condition holds at the end of one."""
        top, end = self._label(), self._label()
        counter = f"%n{top}"
        self.lines.append(f".reg .b32 {counter}; and.b32 {counter}, {self._operand('R')}, 7; {top}:")
        self._body(depth)
        if self.source.random() < 0.5:
            self.lines.append(f"@{self._condition()} bra {end};")
        self.lines.append(f"sub.u32 {counter}, {counter}, 1; setp.ge.s32 %p2, {counter}, 0; @%p2 bra {top}; {end}:")

    def _switch(self, depth: int) -> None:
        arms, end = [self._label() for _ in range(self.source.randint(2, 4))], self._label()
        self.lines.append(f"rem.u32 %t, {self._operand('R')}, {len(arms)}; T{end}: .branchtargets {', '.join(arms)};")
        self.lines.append(f"brx.idx %t, T{end};")
        for arm in arms:
            self.lines.append(f"{arm}:")
            self._body(depth + 1)
            if self.source.random() < 0.8:  # else it falls through
                self.lines.append(f"bra {end};")
        self.lines.append(f"{end}:")

    def _memory(self) -> None:
        """Load or store in the thread's own area of a memory."""
        is_store, guard = self.source.random() < 0.5, self._guard()
        order = self.source.choice(("", "", "", ".volatile"))
        names = self.source.choice((*_WIDTHS, "f32", "f64", "const"))
        if names == "const":
            self.lines.append("and.b32 %t, %r0, 7; mul.wide.u32 %a, %t, 4; mov.u64 %w, numbers; add.s64 %a, %a, %w;")
            self.lines.append(f"{guard}ld.const.u32 {self._operand('R')}, [%a];")
            return
        kind = self.source.choice(names.split())
        words, address = self._address(kind, _WIDTHS.get(names, 8 if kind == "f64" else 4))
        self._access(kind, words, address, guard, order, is_store=is_store)

    def _access(self, kind: str, words: str, address: str, guard: str, order: str, *, is_store: bool) -> None:
        count = int(kind[1]) if kind.startswith("v") else 1
        letters = {"2": "F", "4": "D"} if kind[0] == "f" else {"8": "R", "6": "S", "2": "R", "4": "L"}
        letter = letters[kind[-1]]
        if is_store:
            values = [self._operand(letter) for _ in range(count)]
        else:
            values = [*self._distinct(letter, min(count, _REGISTERS[letter][1])), "%t", "%v"][:count]
        text = values[0] if count == 1 else f"{{{', '.join(values)}}}"
        if is_store:
            self.lines.append(f"{guard}st{order}{words}.{kind} [{address}], {text};")
        else:
            self.lines.append(f"{guard}ld{order}{words}.{kind} {text}, [{address}];")

    def _address(self, kind: str, size: int) -> tuple[str, str]:
        """Return the space's words and the address of an element of that size in the thread's area."""
        space = self.source.choice(("global", "shared", "local"))
        is_generic = self.source.random() < 0.3 and (space != "local" or self.has_generic_locals)
        base, words = (f"%g_{space}", "") if is_generic else (f"%a_{space}", f".{space}")
        first, length = {"f32": (32, 16), "f64": (48, 16)}.get(kind, (0, 32))
        if self.source.random() < 0.4:
            return words, f"{base}+{first + size * self.source.randrange(length // size)}"
        self.lines.append(f"and.b32 %t, {self._operand('R')}, {length // size - 1}; mul.wide.u32 %a, %t, {size};")
        self.lines.append(f"add.s64 %a, %a, {base};")
        return words, f"%a+{first}"

    def _column(self) -> None:
        """Load or store the thread's element of a column. Lanes that the guard excludes may have other addresses."""
        names = self.source.choice(tuple(_WIDTHS))
        size, kind = _WIDTHS[names], self.source.choice(names.split())
        space, is_generic = self.source.choice(("global", "shared")), self.source.random() < 0.3
        register, words = "%a", "" if is_generic else f".{space}"
        line = self.source.randrange(COLUMN_LINES) * size * self._column_threads(space)
        way = self.source.randrange(3)
        if way == 0 or is_generic:
            register = f"%k{size}_{'g' if is_generic else ''}{space}"
        elif way == 1 or space == "global":
            self.lines.append(f"add.s64 %w, %k_{space}, {self._column_offset(space, size)};")
            self.lines.append(f"mad.wide.u32 %a, %in_{space}, {size}, %w;")
        else:
            self.lines.append(f"cvt.u32.u64 %v, %k_shared; mad.lo.u32 %v, %thread, {size}, %v;")
            self.lines.append(f"add.u32 %v, %v, {self._column_offset(space, size)};")
            register = "%v"
        guard = ""
        if self.source.random() < 0.4:
            condition = self._condition()
            guard = f"@{condition} "
            if register != "%v" and self.source.random() < 0.5:
                self.lines.append(f"mov.u64 %a, {register};")
                self.lines.append(f"@{_opposite(condition)} mov.u64 %a, {self.source.choice(NOWHERE)};")
                register = "%a"
        order = self.source.choice(("", "", "", ".volatile"))
        is_store = self.source.random() < 0.5
        self._access(kind, words, f"{register}+{line}", guard, order, is_store=is_store)

    def _column_threads(self, space: str) -> int:
        return self.threads if space == "global" else self.threads // BLOCKS

    def _column_offset(self, space: str, size: int) -> int:
        """Return the offset of the column of elements of a size, in bytes."""
        return COLUMN_LINES * self._padded(space) * sum(s for s in COLUMN_SIZES if s < size)

    def _padded(self, space: str) -> int:
        """Return the number of elements of a line, with some that nobody uses so that the next column is aligned."""
        return -(-self._column_threads(space) // 16) * 16

    def _column_bytes(self, space: str) -> int:
        return COLUMN_LINES * self._padded(space) * sum(COLUMN_SIZES)

    def _atomic(self) -> None:
        """Count in a shared counter, or change a word of the thread's own with its old value as the result."""
        guard = self._guard()
        if self.source.random() < 0.5:
            space, name = self.source.choice(("shared", "global")), self.source.choice(COUNTED)
            value = "0x7FFFFFFF" if name.startswith("inc") else self._operand("L" if "64" in name else "R")
            self.lines.append(f"{guard}red.{space}.{name} [%c_{space}+{8 * COUNTED.index(name)}], {value};")
            return
        form, kind = self.source.choice((
            ("{add.u32|min.u32|max.u32|exch.b32} R, [A], R", "u32"), ("{and|or|xor}.b32 R, [A], R", "u32"),
            ("cas.b32 R, [A], R, R", "u32"),
            ("{inc|dec}.u32 R, [A], R", "u32"), ("{add|max}.u64 L, [A], L", "u64"), ("add.f32 F, [A], F", "f32"),
            ("add.f64 D, [A], D", "f64"), ("{min|max}.s32 R, [A], R", "u32"), ("exch.b64 L, [A], L", "u64"),
        ))  # fmt: skip
        words, address = self._address(kind, 8 if kind[1:] == "64" else 4)
        if "local" in address:
            words, address = ".global", "%a_global+" + ("32" if kind == "f32" else "48" if kind == "f64" else "8")
        elif address.startswith("%a+") and ("_local" in self.lines[-1]):
            words, address = ".shared", "%a_shared+" + ("36" if kind == "f32" else "56" if kind == "f64" else "16")
        self.lines.append(f"{guard}atom{words}.{self._fill(form.replace('[A]', f'[{address}]'))};")

    # --- operands

    def _write(self, form: str) -> None:
        self.lines.append(f"{self._fill(form)};")

    def _uniform(self, form: str) -> None:
        self.is_uniform = True
        self._write(form)
        self.is_uniform = False

    def _without_helpers(self) -> str:
        """Return a form of one instruction, which a guard can go before."""
        while ";" in (form := self.source.choice(FORMS)):
            pass
        return form

    def _fill(self, form: str) -> str:
        """Choose among a form's alternatives, and its operands."""
        while match := _ALTERNATIVES.search(form):
            form = form[: match.start()] + self.source.choice(match[1].split("|")) + form[match.end() :]
        swapped = self.source.random() < 0.5
        return _OPERAND.sub(lambda match: self._operand(match[1], swapped=swapped), form)

    def _operand(self, letter: str, *, swapped: bool = False) -> str:
        if letter in "PQ":
            return f"%p{int((letter == 'Q') != swapped)}"
        if letter == "I" and self.source.random() < 0.4:
            return self.source.choice(CONSTANTS)
        if letter in "RI":
            if self.is_uniform or self.source.random() < 0.1:
                return f"%u{self.source.randrange(2)}" if self.is_uniform else f"%r{self.source.randrange(4)}"
            letter = "R"
        name, count = _REGISTERS[letter]
        return f"{name}{self.source.randrange(count)}"

    def _distinct(self, letter: str, count: int) -> list[str]:
        name, number = _REGISTERS[letter]
        return [f"{name}{i}" for i in self.source.sample(range(number), count)]

    def _condition(self) -> str:
        """Return a guard's predicate; half of the time one that has just been computed."""
        if self.source.random() < 0.5:
            forms = ("setp.{lt|ge}.s32 P, R, I", "setp.{eq|ne}.u32 P, R, I", "setp.lt.f32 P, F, F")
            self._write(self.source.choice(forms))
        return self.source.choice(("%p0", "%p1", "!%p0", "!%p1"))

    def _guard(self) -> str:
        return f"@{self._condition()} " if self.source.random() < 0.3 else ""

    def _label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    # --- the kernel

    @property
    def text(self) -> str:
        """The module: the parameter of its kernel `k` is the address of the rows; areas and counters follow."""
        threads = self.threads // BLOCKS
        x, y, _ = self.shape
        row_bytes, area = ROW.itemsize * self.programs, AREA.itemsize
        starts = [f"st.shared.b64 [%c_shared+{8 * i}], 0;" for i in range(len(COUNTED))]
        for place in range(0, area, 16):
            starts += [f"st.{space}.v2.b64 [%a_{space}+{place}], {{0, 0}};" for space in ("shared", "local")]
        for place in range(0, self._column_bytes("shared") // 16, threads):
            starts.append(f"add.u32 %t, %thread, {place}; setp.lt.u32 %p0, %t, {self._column_bytes('shared') // 16};")
            starts.append("mul.wide.u32 %a, %t, 16; add.s64 %a, %a, %k_shared; @%p0 st.shared.v2.b64 [%a], {0, 0};")
        for space, register in (("global", "%r1"), ("shared", "%thread")):
            starts.append(f"mov.u32 %in_{space}, {register};")
            for size in COLUMN_SIZES:
                starts.append(f"mul.wide.u32 %a, {register}, {size}; add.s64 %a, %a, %k_{space};")
                starts.append(f"add.s64 %k{size}_{space}, %a, {self._column_offset(space, size)};")
                cast = f"cvta.{space}.u64" if space == "shared" else "mov.u64"
                starts.append(f"{cast} %k{size}_g{space}, %k{size}_{space};")
        ends = []
        for index, space in enumerate(("shared", "local"), 1):
            for place in range(0, area, 16):
                ends.append(f"ld.{space}.v2.b64 {{%l0, %l1}}, [%a_{space}+{place}];")
                ends.append(f"st.global.v2.b64 [%a_global+{index * area * self.threads + place}], {{%l0, %l1}};")
        ends.append("bar.sync 0;")
        for i in range(len(COUNTED)):
            ends.append(f"ld.shared.b64 %l0, [%c_shared+{8 * i}]; st.global.b64 [%own_counters+{8 * i}], %l0;")
        ends.append(f"mov.u32 %t, %ctaid.x; mad.wide.u32 %w, %t, {self._column_bytes('shared')}, %k_global;")
        for place in range(0, self._column_bytes("shared") // 16, threads):
            ends.append(f"add.u32 %t, %thread, {place}; setp.lt.u32 %p0, %t, {self._column_bytes('shared') // 16};")
            ends.append("mul.wide.u32 %a, %t, 16; add.s64 %a, %a, %k_shared; @%p0 ld.shared.v2.b64 {%l0, %l1}, [%a];")
            ends.append("sub.s64 %a, %a, %k_shared; add.s64 %a, %a, %w;")
            ends.append(f"@%p0 st.global.v2.b64 [%a+{self._column_bytes('global')}], {{%l0, %l1}};")
        columns = [
            f"%k{size}_{g}{space}" for size in COLUMN_SIZES for g in ("", "g") for space in ("global", "shared")
        ]
        body = "\n".join([*starts, "bar.sync 0;", *self.lines, *ends])
        return f"""{HEADER}.const .b32 numbers[8] = {{7, 1, 0x80000000, 65535, 3, 0xFFFFFFFF, 40, 2}};
.visible .entry k(.param .u64 p)
{{ .reg .b32 %r<4>, %u<2>, %m<2>, %t, %v, %thread, %exchanged;
.reg .b64 %l<2>, %w, %a, %row, %own_counters; .reg .b16 %s<2>, %h<2>, %m, %n;
.reg .f32 %f<4>; .reg .f64 %d<2>; .reg .pred %p<3>;
.reg .b64 %a_global, %a_shared, %a_local, %g_global, %g_shared, %g_local, %c_shared, %c_global;
.reg .b64 %k_global, %k_shared, {", ".join(columns)}; .reg .b32 %in_global, %in_shared;
.shared .align 16 .b8 columns[{self._column_bytes("shared")}];
.local .align 16 .b8 own[{area}]; .shared .align 16 .b8 areas[{area * threads}]; .shared .b32 values[{threads}];
.shared .align 8 .b64 counters[{len(COUNTED)}];
mov.u32 %thread, %tid.z; mad.lo.u32 %thread, %thread, {y}, %tid.y; mad.lo.u32 %thread, %thread, {x}, %tid.x;
mov.u32 %r0, %ctaid.x; mad.lo.u32 %r1, %r0, {threads}, %thread; ld.param.u64 %w, [p];
mul.wide.u32 %row, %r1, {row_bytes}; add.s64 %row, %row, %w; add.s64 %w, %w, {row_bytes * self.threads};
mul.wide.u32 %a_global, %r1, {area}; add.s64 %a_global, %a_global, %w; mov.u64 %g_global, %a_global;
add.s64 %c_global, %w, {3 * area * self.threads}; mul.wide.u32 %own_counters, %r0, {8 * len(COUNTED)};
add.s64 %own_counters, %own_counters, %c_global; add.s64 %own_counters, %own_counters, {8 * len(COUNTED)};
add.s64 %k_global, %c_global, {8 * len(COUNTED) * (1 + BLOCKS)}; mov.u64 %k_shared, columns;
mov.u64 %a_shared, areas; mul.wide.u32 %a, %thread, {area}; add.s64 %a_shared, %a_shared, %a;
cvta.shared.u64 %g_shared, %a_shared;
mov.u64 %a_local, own; mov.u64 %c_shared, counters; mov.u32 %exchanged, values;
{"cvta.local.u64 %g_local, %a_local;" * self.has_generic_locals}
{body}
ret; }}
"""

    def memory(self) -> np.ndarray[Any, Any]:
        """Return the memory with which the kernel begins, as bytes."""
        count = AREA.itemsize * 3 * self.threads + 8 * len(COUNTED) * (1 + BLOCKS)
        count += self._column_bytes("global") + BLOCKS * self._column_bytes("shared")
        return np.concatenate([self.rows.view("u1"), np.zeros(count, "u1")])

    def split(self, memory: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the values in what a kernel leaves, by name, with one bit pattern for all NaNs."""
        rows = memory[: self.rows.nbytes].view(ROW).reshape(self.threads, self.programs)
        areas = memory[self.rows.nbytes :][: 3 * AREA.itemsize * self.threads].view(AREA)
        parts = {name: rows[name] for name in rows.dtype.names}
        parts |= {f"memory {name}": areas[name] for name in areas.dtype.names}
        rest = memory[self.rows.nbytes + areas.nbytes :]
        parts["counters"] = rest[: 8 * len(COUNTED) * (1 + BLOCKS)].view(COUNTERS)
        parts["columns"] = rest[parts["counters"].nbytes :]
        return {name: _bits(part) for name, part in parts.items()}


def _opposite(condition: str) -> str:
    return condition[1:] if condition[0] == "!" else f"!{condition}"


def _bits(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if part.dtype.kind != "f":
        return part
    bits = np.ascontiguousarray(part).view(f"u{part.itemsize}").copy()
    bits[np.isnan(part)] = 0x7FFF
    return bits


def _special_rows(source: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Return rows of random and special values."""
    rows = np.zeros(count, ROW)
    for name in ROW.names:
        part = rows[name]
        size = part.dtype.itemsize
        part[...] = source.integers(0, 256, (*part.shape, size), "u1").view(part.dtype)[..., 0]
        if part.dtype.kind == "f":
            limits = np.finfo(part.dtype)
            special = [0.0, -0.0, 1.0, -1.5, 0.5, 2.5, np.inf, -np.inf, np.nan]
            special += [limits.max, limits.tiny, limits.smallest_subnormal]
            special += [2.0**e for e in (15, 31, 32, 63) if 2.0**e < float(limits.max)] + [-3e4, 1e-4]
            ordinary = source.normal(0, 50, part.shape).astype(part.dtype)
            part[...] = np.where(source.random(part.shape) < 0.5, ordinary, part)
            part[np.isnan(part)] = np.nan
        else:
            top = 1 << (8 * size - 1)
            special = [0, 1, 2, 3, 31, 32, 64, 255, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]
            part[...] = np.where(source.random(part.shape) < 0.3, part % 40, part)
        chosen = source.choice(np.array(special, part.dtype), part.shape)
        part[...] = np.where(source.random(part.shape) < 0.3, chosen, part)
    return rows
