"""Registers of 128 bits, and the exchanges, swaps, loads and stores that they are for."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import InvalidPtx, MisalignedAddress
from pympsd_server.ptx.loading.program import load_program
from tests.emulated.fragments import Array
from tests.emulated.harness import HEADER, Device

HOPPER = HEADER.replace("8.0", "8.4").replace("sm_80", "sm_90")
THREADS = 40
FRAME = """
.visible .entry k(.param .u64 memory, .param .u64 first, .param .u64 second, .param .u64 out)
{ .reg .b32 %r<8>; .reg .b64 %d<16>; .reg .b128 %q<6>; .reg .pred %p, %z;
  .shared .b128 shared[40]; .local .b128 own[2];
  ld.param.u64 %d0, [memory]; ld.param.u64 %d1, [first]; ld.param.u64 %d2, [second]; ld.param.u64 %d3, [out];
  mov.u32 %r0, %tid.x; mul.wide.u32 %d4, %r0, 16;
  add.s64 %d5, %d0, %d4; add.s64 %d1, %d1, %d4; add.s64 %d2, %d2, %d4; add.s64 %d3, %d3, %d4;
  ld.global.b128 %q0, [%d1]; ld.b128 %q1, [%d2]; mov.b128 %q2, 5;
  @BODY@
  st.global.b128 [%d3], %q2; ret; }
"""
RNG = np.random.default_rng(12)
MEMORY, FIRST, SECOND = (RNG.integers(0, 2**63, (THREADS, 2), dtype="u8") * np.uint64(2) for _ in range(3))


def run(body: str, memory: Array = MEMORY, first: Array = FIRST, second: Array = SECOND) -> tuple[Array, Array]:
    """Run `body`, with %q0 and %q1 of the inputs and %d5 the thread's element; return the memory and %q2."""
    device = Device(1 << 20)
    addresses = [device.put(x) for x in (memory, first, second, np.zeros_like(first))]
    device.launch(device.load(HOPPER + FRAME.replace("@BODY@", body)), "k", 1, THREADS, *addresses)
    return device.get(addresses[0], memory), device.get(addresses[3], first)


@pytest.mark.parametrize("space", [".global", "", ".acq_rel.gpu.global", ".relaxed.cluster"])
def test_a_wide_exchange_returns_the_old_value(space: str) -> None:
    memory, old = run(f"atom{space}.exch.b128 %q2, [%d5], %q0;")
    np.testing.assert_array_equal(old, MEMORY)
    np.testing.assert_array_equal(memory, FIRST)


@pytest.mark.parametrize("space", [".global", "", ".release.sys.global"])
def test_compare_and_swap(space: str) -> None:
    """Both halves are compared: a value of which one half differs is not replaced."""
    expected = MEMORY.copy()
    expected[1::4, 0] += np.uint64(1)
    expected[2::4, 1] += np.uint64(1)
    expected[3::4] += np.uint64(1)
    memory, old = run(f"atom{space}.cas.b128 %q2, [%d5], %q0, %q1;", first=expected)
    np.testing.assert_array_equal(old, MEMORY)
    reference = MEMORY.copy()
    reference[::4] = SECOND[::4]
    np.testing.assert_array_equal(memory, reference)


ADD = """
  mov.u64 %d8, {number};
  ld.{space}.b128 %q2, [{place}];
again: mov.b128 {{%d6, %d7}}, %q2; add.cc.u64 %d9, %d6, %d8; addc.u64 %d10, %d7, 0; mov.b128 %q3, {{%d9, %d10}};
  atom.{space}.cas.b128 %q4, [{place}], %q2, %q3;
  mov.b128 {{%d11, %d12}}, %q4; mov.b128 %q2, %q4;
  setp.eq.u64 %p, %d6, %d11; setp.eq.and.u64 %p, %d7, %d12, %p; @!%p bra again;
"""


def test_all_threads_add_to_one_number() -> None:
    start = np.array([[2**64 - 3, 7]] + [[0, 0]] * (THREADS - 1), "u8")
    number = 2**62 + 5
    memory, _ = run(ADD.format(number=number, space="global", place="%d0"), memory=start)
    total = (7 << 64 | 2**64 - 3) + THREADS * number
    assert memory[0].tolist() == [total % 2**64, total >> 64]


def test_wide_registers_are_kept_in_shared_memory() -> None:
    number = 2**63 + 1
    body = (
        "setp.ne.u32 %z, %r0, 0; mov.u32 %r1, shared; @%z bra start; mov.b128 %q3, 0; st.shared.b128 [%r1], %q3;"
        "start: bar.sync 0;"
        + ADD.format(number=number, space="shared", place="%r1")
        + "bar.sync 0; ld.shared.b128 %q2, [shared];"
    )
    _, out = run(body)
    total = THREADS * number
    np.testing.assert_array_equal(out, [[total % 2**64, total >> 64]] * THREADS)


def test_exchanges_of_one_place_follow_each_other() -> None:
    memory, old = run("atom.global.exch.b128 %q2, [%d0], %q0;")
    np.testing.assert_array_equal(
        np.sort(np.vstack([old, memory[:1]]).view("u8,u8").ravel()),
        np.sort(np.vstack([FIRST, MEMORY[:1]]).view("u8,u8").ravel()),
    )


def test_a_guard_keeps_memory_and_the_register() -> None:
    memory, old = run("setp.lt.u32 %p, %r0, 7; @%p atom.global.exch.b128 %q2, [%d5], %q0;")
    np.testing.assert_array_equal(memory[:7], FIRST[:7])
    np.testing.assert_array_equal(memory[7:], MEMORY[7:])
    np.testing.assert_array_equal(old[:7], MEMORY[:7])
    np.testing.assert_array_equal(old[7:], [[5, 0]] * (THREADS - 7))
    memory, old = run("setp.gt.u32 %p, %r0, 100; @%p atom.global.exch.b128 %q2, [%d5], %q0;")
    np.testing.assert_array_equal(memory, MEMORY)
    np.testing.assert_array_equal(old, [[5, 0]] * THREADS)


def test_parts_of_registers() -> None:
    """A register is made of, and split into, two of 64 bits or four of 32."""
    _, out = run("mov.b128 {%r1, %r2, %r3, %r4}, %q0; mov.b128 %q2, {%r4, %r3, %r2, %r1};")
    np.testing.assert_array_equal(out, FIRST.view("u4")[:, ::-1].copy().view("u8"))
    _, out = run("mov.b128 {%d6, _}, %q0; mov.b128 {_, %d7}, %q1; mov.b128 %q2, {%d7, %d6};")
    np.testing.assert_array_equal(out, np.stack([SECOND[:, 1], FIRST[:, 0]], axis=1))
    _, out = run("mov.b128 %q2, -2;")
    np.testing.assert_array_equal(out, [[2**64 - 2, 0]] * THREADS)


def test_local_memory_and_orders_of_loads() -> None:
    body = (
        "mov.u32 %r1, own; st.local.b128 [%r1+16], %q1; st.release.sys.global.b128 [%d5], %q0;"
        "ld.acquire.gpu.global.b128 %q3, [%d5]; atom.global.exch.b128 %q3, [%d5], %q3; ld.local.b128 %q2, [%r1+16];"
    )
    memory, out = run(body)
    np.testing.assert_array_equal(memory, FIRST)
    np.testing.assert_array_equal(out, SECOND)


@pytest.mark.parametrize("text", ["atom.global.exch.b128 %q2, [%d0+8], %q0;", "ld.global.b128 %q2, [%d0+8];"])
def test_addresses_are_multiples_of_16(text: str) -> None:
    with pytest.raises(MisalignedAddress):
        run(text)


@pytest.mark.parametrize(
    ("version", "target", "text", "words"),
    [
        (
            "8.2",
            "sm_90",
            "mov.b128 %q0, 0;",
            r"needs PTX 8\.3 and a target of sm_70 or newer, not PTX 8\.2 for sm_90",
        ),
        ("8.3", "sm_60", "mov.b128 %q0, 0;", "not PTX 8.3 for sm_60"),
        ("8.3", "sm_80", "atom.global.exch.b128 %q0, [%d0], %q1;", "sm_90 or newer, not PTX 8.3 for sm_80"),
        ("8.4", "sm_90", "atom.global.add.b128 %q0, [%d0], %q1;", "atom"),
        ("8.4", "sm_90", "red.global.exch.b128 [%d0], %q1;", "red"),
        ("8.4", "sm_90", "ld.global.v2.b128 {%q0, %q1}, [%d0];", "ld.global.v2"),
        ("8.4", "sm_90", "add.b128 %q0, %q1, %q1;", "only mov, ld, ldu, st, atom"),
        ("8.4", "sm_90", "mov.b128 %q0, %d0;", "other than 128 bits"),
        ("8.4", "sm_90", "{ .shared .b128 x = 5; }", "initial values of type .b128"),
        ("8.4", "sm_90", "add.u64 %d0, %q1, %q1;", "operand"),
        ("8.4", "sm_90", "atom.global.exch.b128 %q0, [%d0], %d1;", "vector of the wrong length"),
    ],
)
def test_impossible_wide_instructions_are_refused(version: str, target: str, text: str, words: str) -> None:
    header = f".version {version}\n.target {target}\n.address_size 64\n"
    body = f".visible .entry k() {{ .reg .b64 %d<2>; .reg .b128 %q<3>;\n{text} ret; }}"
    with pytest.raises(InvalidPtx, match=words):
        load_program((header + body).encode())
