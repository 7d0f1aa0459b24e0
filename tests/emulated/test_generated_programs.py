"""Random integer programs, run here and by a plain interpreter of one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulated.harness import HEADER, Device

EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out

TIERS = ("numpy",)
REGISTERS, SLOTS, THREADS = 5, 4, 40
MASK = 0xFFFFFFFF


def sign(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.s32": lambda a, b: (sign(a) * sign(b)) >> 32,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "min.s32": lambda a, b: min(sign(a), sign(b)),
    "max.u32": max,
    "shl.b32": lambda a, b: a << b if b < 32 else 0,
    "shr.s32": lambda a, b: sign(a) >> min(b, 31),
    "div.u32": lambda a, b: a // (b | 1),
    "rem.u32": lambda a, b: a % (b | 1),
}
DIVISIONS = ("div.u32", "rem.u32")
"""Their divisors are made odd: PTX leaves the result of a division by zero open."""
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "lt.u32": lambda a, b: a < b,
    "ge.s32": lambda a, b: sign(a) >= sign(b),
    "eq.u32": lambda a, b: a == b,
    "ne.u32": lambda a, b: a != b,
}

Statement = tuple[Any, ...]
registers = st.integers(0, REGISTERS - 1)
operands = st.one_of(registers.map(lambda r: f"%r{r}"), st.sampled_from([0, 1, 2, 3, 17, 40, MASK]))
conditions = st.tuples(st.sampled_from(sorted(COMPARISONS)), registers, operands)
simple = st.one_of(
    st.tuples(st.just("op"), st.sampled_from(sorted(OPERATIONS)), registers, registers, operands),
    st.tuples(st.just("guarded"), conditions, st.sampled_from(sorted(OPERATIONS)), registers, registers, operands),
    st.tuples(st.just("store"), registers, registers),
    st.tuples(st.just("load"), registers, registers),
    st.tuples(st.just("guarded store"), conditions, registers, registers),
)


def make_nested(inner: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    block = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.tuples(st.just("if"), conditions, block, block),
        st.tuples(st.just("loop"), registers, conditions, block),
        st.tuples(st.just("leave"), conditions),
    )


programs = st.lists(st.recursive(simple, make_nested, max_leaves=12), min_size=2, max_size=7)


class Renderer:
    """PTX text of a program; register i is %ri, slots are a local array."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.labels = 0

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def condition(self, condition: Any, target: str = "%p") -> None:
        name, register, operand = condition
        self.lines.append(f"setp.{name} {target}, %r{register}, {operand};")

    def slot(self, register: int) -> None:
        self.lines.append(f"and.b32 %t, %r{register}, {SLOTS - 1}; mul.wide.u32 %a, %t, 4; add.s64 %a, %a, %base;")

    def block(self, statements: list[Statement]) -> None:
        for statement in statements:
            getattr(self, statement[0].replace(" ", "_"))(*statement[1:])

    def op(self, name: str, target: int, a: int, b: Any) -> None:
        self.lines.append(f"{name} %r{target}, %r{a}, {self.second(name, b)};")

    def second(self, name: str, operand: Any) -> Any:
        if name not in DIVISIONS:
            return operand
        if not isinstance(operand, str):
            return operand | 1
        self.lines.append(f"or.b32 %t, {operand}, 1;")
        return "%t"

    def guarded(self, condition: Any, name: str, target: int, a: int, b: Any) -> None:
        second = self.second(name, b)
        self.condition(condition)
        self.lines.append(f"@!%p {name} %r{target}, %r{a}, {second};")

    def store(self, where: int, value: int, guard: str = "") -> None:
        self.slot(where)
        self.lines.append(f"{guard} st.local.u32 [%a], %r{value};")

    def guarded_store(self, condition: Any, where: int, value: int) -> None:
        self.condition(condition)
        self.store(where, value, "@%p")

    def load(self, where: int, target: int) -> None:
        self.slot(where)
        self.lines.append(f"ld.local.u32 %r{target}, [%a];")

    def leave(self, condition: Any) -> None:
        self.condition(condition)
        self.lines.append("@%p bra OUT;")

    def if_(self, condition: Any, yes: list[Statement], no: list[Statement]) -> None:
        other, end = self.label(), self.label()
        self.condition(condition)
        self.lines.append(f"@!%p bra {other};")
        self.block(yes)
        self.lines.append(f"bra {end}; {other}:")
        self.block(no)
        self.lines.append(f"{end}:")

    def loop(self, counter: int, condition: Any, body: list[Statement]) -> None:
        """At most (counter & 7) + 1 rounds, left early when the condition holds at a round's end."""
        self.labels += 1
        number, top, end = self.labels, self.label(), self.label()
        self.lines.append(f".reg .b32 %n{number}; and.b32 %n{number}, %r{counter}, 7; {top}:")
        self.block(body)
        self.condition(condition)
        self.lines.append(f"@%p bra {end}; sub.u32 %n{number}, %n{number}, 1;")
        self.lines.append(f"setp.ge.s32 %q, %n{number}, 0; @%q bra {top}; {end}:")


setattr(Renderer, "if", Renderer.if_)


class Left(Exception):
    """The thread took the early exit."""


class Thread:
    """The interpreter: one thread's registers and slots."""

    def __init__(self, number: int) -> None:
        self.registers = [(number * (i + 3) * 2654435761 + i) & MASK if i else number for i in range(REGISTERS)]
        self.slots = [0] * SLOTS

    def value(self, operand: Any) -> int:
        return self.registers[int(operand[2:])] if isinstance(operand, str) else int(operand)

    def holds(self, condition: Any) -> bool:
        name, register, operand = condition
        return COMPARISONS[name](self.registers[register], self.value(operand))

    def run(self, statements: list[Statement]) -> None:
        for kind, *rest in statements:
            if kind == "op":
                self.operate(*rest)
            elif kind == "guarded":
                if not self.holds(rest[0]):
                    self.operate(*rest[1:])
            elif kind == "load":
                self.registers[rest[1]] = self.slots[self.registers[rest[0]] % SLOTS]
            elif kind in ("store", "guarded store"):
                if kind == "store" or self.holds(rest[0]):
                    self.slots[self.registers[rest[-2]] % SLOTS] = self.registers[rest[-1]]
            elif kind == "if":
                self.run(rest[1] if self.holds(rest[0]) else rest[2])
            elif kind == "leave":
                if self.holds(rest[0]):
                    raise Left
            else:
                self.loop(*rest)

    def operate(self, name: str, target: int, a: int, b: Any) -> None:
        self.registers[target] = OPERATIONS[name](self.registers[a], self.value(b)) & MASK

    def loop(self, counter: int, condition: Any, body: list[Statement]) -> None:
        for _ in range((self.registers[counter] & 7) + 1):
            self.run(body)
            if self.holds(condition):
                return


def interpret(program: list[Statement]) -> np.ndarray[Any, Any]:
    results = []
    for number in range(THREADS):
        thread = Thread(number)
        path = 0
        try:
            thread.run(program)
        except Left:
            path = 1
        results.append([*thread.registers, *thread.slots, path])
    return np.array(results, "u4")


WORDS = REGISTERS + SLOTS + 1
"""Return the results of each thread: its registers, its slots, and whether it took the early exit."""


def kernel(program: list[Statement], name: str = "k") -> str:
    """Return a program as a kernel, without a module's header; its parameter is the address of the results."""
    renderer = Renderer()
    renderer.block(program)
    start = "".join(
        f"mul.lo.u32 %r{i}, %r0, {(i + 3) * 2654435761 & MASK}; add.u32 %r{i}, %r{i}, {i};"
        for i in range(1, REGISTERS)
    )
    start += "".join(f"st.local.u32 [%base+{4 * i}], 0; " for i in range(SLOTS))
    stores = [f"st.global.u32 [%out+{4 * i}], %r{i};" for i in range(REGISTERS)]
    stores += [
        f"ld.local.u32 %t, [%base+{4 * i}]; st.global.u32 [%out+{4 * (REGISTERS + i)}], %t;" for i in range(SLOTS)
    ]
    body = "\n".join(renderer.lines)
    return f""".visible .entry {name}(.param .u64 p)
{{ .reg .b32 %r<{REGISTERS}>, %t, %left; .reg .b64 %a, %base, %out; .reg .pred %p, %q; .local .b32 slots[{SLOTS}];
mov.u64 %base, slots; mov.u32 %r0, %tid.x; {start} mov.u32 %left, 1;
{body}
mov.u32 %left, 0;
OUT: ld.param.u64 %out, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %a, %t, {4 * WORDS}; add.s64 %out, %out, %a;
{chr(10).join(stores)}
st.global.u32 [%out+{4 * (WORDS - 1)}], %left; ret; }}
"""


def translate(program: list[Statement]) -> np.ndarray[Any, Any]:
    device = Device(1 << 20)
    out = np.zeros((THREADS, WORDS), "u4")
    address = device.put(out)
    device.launch(device.load(HEADER + kernel(program)), "k", 1, THREADS, address)
    return device.get(address, out)


@settings(max_examples=150 * EXAMPLES // 100, deadline=None)
@given(programs)
def test_same_as_interpreted(program: list[Statement]) -> None:
    np.testing.assert_array_equal(translate(program), interpret(program))
