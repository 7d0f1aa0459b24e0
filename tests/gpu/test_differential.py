"""The translator of PTX against the GPU: the recorded corpus and generated programs, on both devices of one process.

A difference is a bug of the translator, or documented; the corpus's rules state which functions are approximate.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from recorded_corpus import KERNELS, failures, is_recorded, load_recorded

from tests.emulated import test_generated_programs as branching
from tests.gpu import straight_line
from tests.gpu.corpus import differences, outputs_on
from tests.gpu.devices import DEVICES, OneDevice
from tests.gpu.straight_line import Program

BATCH = 25
"""The number of programs in one module; loading a module for each would take most of the time."""
BATCHES = 12
SEED = 20260
SHOWN = 3
LINKED_OTHERWISE = frozenset({"initial_addresses"})
"""Kernels of which the driver's linker (cuLinkAddData, by which pympsd's servers load code) makes something else than
cuModuleLoadData, by which they were recorded: it leaves out the first masked constant of an initialiser."""
Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_of_the_corpus_gives_the_same_on_both(name: str) -> None:
    if {"objects", "maps"}.intersection(KERNELS[name]) and DEVICES.last.backend != "emulated":
        pytest.skip(
            "the GPU has no textures, no tensor maps here; emulated/test_corpus.py compares the recorded answers"
        )
    if name in failures():
        pytest.skip("a GPU refuses it; emulated/test_corpus.py sees to it that the emulated device does too")
    if name in LINKED_OTHERWISE and DEVICES.last.backend != "emulated":
        pytest.skip("the driver links it otherwise; emulated/test_corpus.py compares the recorded answers")
    emulated, tested = (outputs_on(device, name) for device in (DEVICES[0], DEVICES.last))
    text = differences(name, ("emulated", emulated), (DEVICES.last.backend, tested))
    if is_recorded(name):
        of_recording = {output: load_recorded()[f"{name}/{output}"] for output in tested}
        text += differences(name, ("recorded", of_recording), (DEVICES.last.backend, tested))
    assert not text, "\n".join(text)


# --- generated programs


@cache
def branching_programs() -> tuple[list[branching.Statement], ...]:
    """Return programs with branches and loops, of the strategy that the emulated device's own tests draw from."""
    drawn: list[list[branching.Statement]] = []

    @seed(SEED)
    @settings(
        max_examples=BATCH * BATCHES, phases=(Phase.generate,), database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(branching.programs)
    def draw(program: list[branching.Statement]) -> None:
        drawn.append(program)

    draw()
    return tuple(drawn)


def outputs_of(device: OneDevice, kernels: list[str], inputs: list[list[Array]], like: Array) -> list[Array]:
    """Run kernels k0, k1 ... of one module, each on its inputs, and return each one's last parameter."""
    device.fresh()
    module = device.load((straight_line.HEADER + "\n".join(kernels)).encode())
    outputs = []
    for number, arrays in enumerate(inputs):
        addresses = [device.put(array) for array in (*arrays, np.zeros_like(like))]
        device.launch(module, f"k{number}", (1, 1, 1), (_threads(like), 1, 1), 0, addresses)
        outputs.append(np.frombuffer(device.read(addresses[-1], like.nbytes), like.dtype).reshape(like.shape))
    return outputs


def _threads(like: Array) -> int:
    return branching.THREADS if like.dtype == np.uint32 else straight_line.THREADS


@pytest.mark.parametrize("batch", range(BATCHES))
def test_programs_with_branches_give_the_same_on_both(batch: int) -> None:
    programs = branching_programs()[batch * BATCH : (batch + 1) * BATCH]
    kernels = [branching.kernel(program, f"k{number}") for number, program in enumerate(programs)]
    like = np.zeros((branching.THREADS, branching.WORDS), np.uint32)
    emulated, tested = (
        outputs_of(device, kernels, [[]] * len(programs), like) for device in (DEVICES[0], DEVICES.last)
    )
    for program, text, first, second in zip(programs, kernels, emulated, tested, strict=True):
        if (first == second).all():
            continue
        thread = int(np.flatnonzero((first != second).any(axis=1))[0])
        pytest.fail(
            f"thread {thread}: emulated {first[thread]}, {DEVICES.last.backend} {second[thread]}, "
            f"interpreted {branching.interpreted(program)[thread]}\n{text}"
        )


@pytest.mark.parametrize("batch", range(BATCHES))
def test_straight_lines_over_all_types_give_the_same_on_both(batch: int) -> None:
    rng = np.random.default_rng(SEED + batch)
    programs = [straight_line.program(f"k{number}", rng) for number in range(BATCH)]
    kernels, inputs = [program.ptx for program in programs], [[program.inputs] for program in programs]
    like = np.zeros((straight_line.ROWS, straight_line.THREADS), np.uint64)
    emulated, tested = (outputs_of(device, kernels, inputs, like) for device in (DEVICES[0], DEVICES.last))
    wrong = [
        _get_texts(program, one, other)
        for program, one, other in zip(programs, emulated, tested, strict=True)
        if straight_line.differing(one, other)
    ]
    assert not wrong, f"{len(wrong)} of {BATCH} programs differ\n" + "\n\n".join(wrong[:SHOWN])


def _get_texts(program: Program, one: Array, other: Array) -> str:
    output = []
    for register, thread in straight_line.differing(one, other)[:SHOWN]:
        row = straight_line.row_of(register)
        inputs = {name: hex(program.inputs[at, thread]) for at, (name, _) in enumerate(straight_line.REGISTERS)}
        output.append(
            f"%{register} of thread {thread}: emulated {one[row, thread]:#x}, {DEVICES.last.backend} "
            f"{other[row, thread]:#x}; it began with {inputs}"
        )
    return "\n".join([*output, program.ptx])
