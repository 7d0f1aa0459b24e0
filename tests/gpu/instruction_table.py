"""The instructions of the random straight-line programs, and the registers they work on.

Only instructions with one right answer: every rounding is stated (others may be contracted), divisors are not
zero, fields of bits have positions and lengths that PTX allows, absolute values fit their types, and nothing
looks at the bits of a NaN, of which any is as good as another. The reasons are in
docs/decisions/008-where-emulation-differs.md.
"""

from __future__ import annotations

import itertools
import re

from attrs import frozen


@frozen
class Kind:
    """Registers of one type: ``letter`` names them, ``dtype`` says how what they hold is compared."""

    letter: str
    register: str
    count: int
    bits: int
    dtype: str

    @property
    def names(self) -> list[str]:
        """The registers."""
        return [f"{self.letter}{number}" for number in range(self.count)]


KINDS = {
    kind.letter: kind
    for kind in (
        Kind("h", "b16", 3, 16, "uint16"),
        Kind("w", "b32", 5, 32, "uint32"),
        Kind("d", "b64", 4, 64, "uint64"),
        Kind("e", "b16", 3, 16, "float16"),
        Kind("y", "b16", 3, 16, "bfloat16"),
        Kind("f", "f32", 5, 32, "float32"),
        Kind("g", "f64", 4, 64, "float64"),
    )
}
PREDICATES = 3

_TABLE = """
add|sub.u16 %H, %h, %h; mul.lo|hi.u16|s16 %H, %h, %h; min|max.u16|s16 %H, %h, %h; and|or|xor.b16 %H, %h, %h
not.b16 %H, %h; neg.s16 %H, %h; abs.s16 %H, %h[max.s16 -32767]; shl.b16 %H, %h, %w
shr.u16|s16 %H, %h, %w; mul.wide.u16|s16 %W, %h, %h
mad.lo.u16|s16 %H, %h, %h, %h; selp.b16 %H, %h, %h, %p; setp.lt|le|eq|ne.u16|s16 %P, %h, %h
sad.u16|s16 %H, %h, %h, %h
add|sub.u32 %W, %w, %w; mul.lo|hi.u32|s32 %W, %w, %w; min|max.u32|s32 %W, %w, %w; and|or|xor.b32 %W, %w, %w
not|cnot.b32 %W, %w; neg.s32 %W, %w; abs.s32 %W, %w[max.s32 -2147483647]; shl.b32 %W, %w, %w
shr.u32|s32 %W, %w, %w; mul.wide.u32|s32 %D, %w, %w
mad.lo|hi.u32|s32 %W, %w, %w, %w; mad.wide.u32|s32 %D, %w, %w, %d; add|sub.sat.s32 %W, %w, %w
mul24.lo|hi.u32|s32 %W, %w, %w; mad24.lo|hi.u32|s32 %W, %w, %w, %w; sad.u32|s32 %W, %w, %w, %w
popc|clz|brev.b32 %W, %w; bfind.u32|s32 %W, %w; bfind.shiftamt.u32|s32 %W, %w; bfe.u32|s32 %W, %w, BYTE, BYTE
bfi.b32 %W, %w, %w, BYTE, BYTE; lop3.b32 %W, %w, %w, %w, @table; prmt.b32 %W, %w, %w, %w
prmt.b32.f4e|b4e|rc8|ecl|ecr|rc16 %W, %w, %w, %w; shf.l|r.wrap|clamp.b32 %W, %w, %w, %w
dp4a.u32.u32|s32 %W, %w, %w, %w; dp4a.s32.u32|s32 %W, %w, %w, %w; dp2a.lo|hi.u32|s32.u32|s32 %W, %w, %w, %w
selp.b32 %W, %w, %w, %p; slct.u32.s32 %W, %w, %w, %w; set.lt|ge|eq.u32.s32 %W, %w, %w
setp.lt|le|gt|ge|eq|ne.u32|s32 %P, %w, %w; setp.lo|ls|hi|hs.u32 %P, %w, %w; setp.lt.and|or|xor.s32 %P, %w, %w, %p
or.b32 %t, %w, 1! div|rem.u32|s32 %W, %w, %t; or.b64 %u, %d, 1! div|rem.u64|s64 %D, %d, %u
or.b16 %v, %h, 1! div|rem.u16|s16 %H, %h, %v; add.cc.u32 %W, %w, %w! addc.u32 %W, %w, %w
sub.cc.u32 %W, %w, %w! subc.u32 %W, %w, %w; add.cc.u64 %D, %d, %d! addc.u64 %D, %d, %d
mad.lo.cc.u32 %W, %w, %w, %w! madc.hi.u32 %W, %w, %w, %w
sub.cc.u32 %W, %w, %w! addc.u32 %W, %w, %w; add.cc.u32 %W, %w, %w! subc.u32 %W, %w, %w
sub.cc.u64 %D, %d, %d! addc|subc.u64 %D, %d, %d; sub.cc.s32 %W, %w, %w! madc.lo|hi.s32 %W, %w, %w, %w
mad.hi.cc.u64 %D, %d, %d, %d! subc.u64 %D, %d, %d; sub.cc.u32 %W, %w, %w! subc.cc.u32 %W, %w, %w! addc.u32 %W, %w, %w
vadd2|vsub2|vavrg2|vabsdiff4|vmin4|vmax4.u32|s32.s32.u32|s32 %W, %w, %w, %w; vset2|vset4.u32.s32.lt|ge %W, %w, %w, %w
vadd4|vsub4.u32|s32.u32.s32.sat %W, %w, %w, %w; vavrg4|vabsdiff2.u32.u32.s32.add %W, %w, %w, %w
vadd|vsub|vabsdiff|vmin|vmax.s32.u32.s32.sat %W, %w, %w; vshl|vshr.u32.s32.u32.clamp|wrap %W, %w, %w
vmad.s32|u32.s32.u32.sat.shr7|shr15 %W, %w, %w, %w
add|sub.u64 %D, %d, %d; mul.lo|hi.u64|s64 %D, %d, %d; min|max.u64|s64 %D, %d, %d; and|or|xor.b64 %D, %d, %d
not.b64 %D, %d; neg.s64 %D, %d; abs.s64 %D, %d[max.s64 -9223372036854775807]; shl.b64 %D, %d, %w
shr.u64|s64 %D, %d, %w; mad.lo|hi.u64|s64 %D, %d, %d, %d
popc|clz.b64 %W, %d; brev.b64 %D, %d; bfind.u64|s64 %W, %d; bfe.u64|s64 %D, %d, BYTE, BYTE
bfi.b64 %D, %d, %d, BYTE, BYTE
selp.b64 %D, %d, %d, %p; setp.lt|ge|eq|ne.u64|s64 %P, %d, %d; mov.b64 %D, {%w, %w}; mov.b64 {%W, %W}, %d
mov.b32 %W, {%h, %h}; mov.b32 {%H, %H}, %w; and|or|xor.pred %P, %p, %p; not.pred %P, %p
cvt.u32|s32.u16|s16 %W, %h; cvt.u16|s16.u32|s32 %H, %w; cvt.sat.u16|s16.u32|s32 %H, %w; cvt.u64|s64.u32|s32 %D, %w
cvt.u32|s32.u64|s64 %W, %d; cvt.sat.u32|s32.u64|s64 %W, %d; cvt.s32.s8|u8 %W, %w; cvt.sat.s8|u8.s32|u32 %W, %w
add|sub|mul.ROUND.f32 %F, %f, %f; add|sub|mul.ROUND.ftz.f32 %F, %f, %f; add|mul.ROUND.sat.f32 %F, %f, %f
fma.ROUND.f32 %F, %f, %f, %f; fma.ROUND.ftz.f32 %F, %f, %f, %f; fma.ROUND.sat.f32 %F, %f, %f, %f
div.ROUND.f32 %F, %f, %f; rcp|sqrt.ROUND.f32 %F, %f; min|max.f32 %F, %f, %f; min|max.ftz.f32 %F, %f, %f
min|max.NaN.f32 %F, %f, %f; neg|abs.f32 %F, %f; neg|abs.ftz.f32 %F, %f; cvt.rni|rzi|rmi|rpi.f32.f32 %F, %f
selp.f32 %F, %f, %f, %p; slct.f32.s32 %F, %f, %f, %w; set.lt|geu.u32.f32 %W, %f, %f
setp.eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan.f32 %P, %f, %f
testp.finite|infinite|number|notanumber|normal|subnormal.f32 %P, %f
add|sub|mul.ROUND.f64 %G, %g, %g; fma.ROUND.f64 %G, %g, %g, %g; div.ROUND.f64 %G, %g, %g; rcp|sqrt.ROUND.f64 %G, %g
min|max.f64 %G, %g, %g; neg|abs.f64 %G, %g; selp.f64 %G, %g, %g, %p; cvt.rni|rzi|rmi|rpi.f64.f64 %G, %g
setp.eq|ne|lt|le|gt|ge|equ|ltu|geu|num|nan.f64 %P, %g, %g; testp.finite|normal|subnormal.f64 %P, %g
cvt.f64.f32 %G, %f; cvt.ROUND.f32.f64 %F, %g; cvt.ROUND.f32.u32|s32 %F, %w; cvt.ROUND.f32.u64|s64 %F, %d
cvt.rn.f64.u32|s32 %G, %w; cvt.ROUND.f64.u64|s64 %G, %d; cvt.rni|rzi|rmi|rpi.u32|s32.f32 %W, %f
cvt.rni|rzi|rmi|rpi.u64|s64.f32 %D, %f; cvt.rni|rzi|rmi|rpi.u32|s32.f64 %W, %g
cvt.rni|rzi|rmi|rpi.u64|s64.f64 %D, %g; cvt.rzi.u16|s16.f32 %H, %f; cvt.rn.f32.u16|s16 %F, %h
add|sub|mul.rn.f16 %E, %e, %e; fma.rn.f16 %E, %e, %e, %e; add|mul.rn.sat.f16 %E, %e, %e; neg|abs.f16 %E, %e
min|max.f16 %E, %e, %e; min|max.NaN.f16 %E, %e, %e; setp.eq|ne|lt|le|gt|ge|ltu|nan.f16 %P, %e, %e
cvt.f32.f16 %F, %e; cvt.rn|rz.f16.f32 %E, %f; cvt.f64.f16 %G, %e; cvt.rn.f16.f64 %E, %g; cvt.rn.f16.u32|s32 %E, %w
cvt.rni|rzi.u32|s32.f16 %W, %e; selp.b16 %E, %e, %e, %p; selp.b16 %Y, %y, %y, %p
fma.rn.bf16 %Y, %y, %y, %y; min|max.bf16 %Y, %y, %y; neg|abs.bf16 %Y, %y; cvt.rn.bf16.f32 %Y, %f
"""


def _write_out(entry: str) -> list[str]:
    """Return an entry of the table for each of its choices; of several instructions the last one has them."""
    before, several, last = entry.rpartition("! ")
    name, _, operands = last.partition(" %")
    parts = [part.split("|") for part in name.split(".")]
    return [f"{before}{several}{'.'.join(chosen)} %{operands}" for chosen in itertools.product(*parts)]


_ENTRIES = re.split("[;\\n]", _TABLE.strip().replace("ROUND", "rn|rz|rm|rp").replace("BYTE", "%w[and.b32 255]"))
INSTRUCTIONS = tuple(each for entry in _ENTRIES for each in _write_out(entry.strip()))
"""Upper case: a register that is written, lower case: one that is read; ``!`` separates instructions.

What stands in brackets behind a register is done to what is read of it: an instruction and its other operand.
"""
NEVER_GUARDED = ("testp",)
"""Under a predicate, the driver's compiler (580.159) leaves the predicate out."""
