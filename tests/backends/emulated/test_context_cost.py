"""What contexts cost on the emulated device: near those recorded on a real one, and by the rules of the model."""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from processes import wait_until

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import TIER
from pympsd_server.backends.emulated.device import kept_programs
from pympsd_server.backends.emulated.device.context_memory import context_overhead
from pympsd_server.backends.emulated.device.device import EmulatedDevice
from pympsd_server.backends.interface import BackendError, Context, Launch, Status
from pympsd_server.ptx.loading.program import EAGER_BYTES
from tests.support.client_kernels import BASIC

MIB = 1 << 20
Open = Callable[..., EmulatedDevice]


@pytest.fixture
def open_model() -> Iterator[Open]:
    """Open devices of a model, with changes."""
    devices: list[EmulatedDevice] = []

    def begin(model: str = "H200", **changes: Any) -> EmulatedDevice:
        devices.append(EmulatedDevice(evolve(describe(model)[0], **changes), 0))
        return devices[-1]

    yield begin
    for device in devices:
        device.close()


def context(device: EmulatedDevice, client: int = 1, multiprocessors: int = 0, memory_bytes: int = 0) -> Context:
    """Make a context."""

    def ignore(status: Status) -> None:
        """Nothing faults here."""

    return device.create_context(client, Quota(multiprocessors, memory_bytes, 0), ignore)


MEASURED = [
    # Multiprocessors, limit in MiB, MiB left in pieces of 16 MiB: the vendor's MPS on an H200, driver 580.
    (132, 1024, 496),
    (98, 1024, 624),
    (66, 1024, 752),
    (32, 1024, 864),
    (16, 1024, 928),
    (10, 1024, 944),
    (132, 2048, 1520),
    (132, 600, 80),
]


@pytest.mark.parametrize(("multiprocessors", "limit_mib", "left_mib"), MEASURED)
def test_an_h200_leaves_what_was_measured_of_a_limit(
    open_model: Open, multiprocessors: int, limit_mib: int, left_mib: int
) -> None:
    created = context(open_model(), multiprocessors=multiprocessors, memory_bytes=limit_mib << 20)
    for _ in range(left_mib // 16):
        created.allocate(16 * MIB)
    with pytest.raises(BackendError) as caught:
        created.allocate(16 * MIB)
    assert caught.value.code == Result.ERROR_OUT_OF_MEMORY


def test_a_limit_below_a_contexts_own_cost_leaves_no_context(open_model: Open) -> None:
    """512M on an H200, measured likewise."""
    with pytest.raises(BackendError) as caught:
        context(open_model(), memory_bytes=512 * MIB)
    assert caught.value.code == Result.ERROR_OUT_OF_MEMORY


def test_the_cost_grows_with_the_multiprocessors() -> None:
    properties = describe("H200")[0]
    costs = [context_overhead(properties, count) for count in range(1, 133)]
    assert {after - before for before, after in pairwise(costs)} == {7537 * 512}
    assert 512 * MIB < costs[-1] <= 528 * MIB
    assert 28 * MIB < costs[0] < 32 * MIB


def test_the_refusal_of_a_context_names_its_cost(open_model: Open) -> None:
    device = open_model(memory_bytes=1 << 30)
    whole, few = (context_overhead(describe("H200")[0], count) for count in (132, 4))
    with pytest.raises(BackendError) as caught:
        context(device, memory_bytes=512 * MIB)
    assert caught.value.code == Result.ERROR_OUT_OF_MEMORY
    assert f"132 multiprocessors takes {whole} bytes" in caught.value.reason
    assert f"limit is {512 * MIB} bytes" in caught.value.reason
    context(device)
    with pytest.raises(BackendError) as caught:
        context(device, client=2)
    assert f"takes {whole} bytes; the device has {(1 << 30) - whole} of {1 << 30} left" in caught.value.reason
    assert context(device, client=2, multiprocessors=4).memory_info()[0] == (1 << 30) - whole - few


def test_a_refused_context_leaves_its_multiprocessors_free(open_model: Open) -> None:
    device = open_model()
    for _ in range(3):
        with pytest.raises(BackendError):
            context(device, multiprocessors=100, memory_bytes=MIB)
    context(device, multiprocessors=4)
    assert device.context_traces[0].multiprocessors == (0, 1, 2, 3)


def test_a_destroyed_context_frees_its_multiprocessors(open_model: Open) -> None:
    device = open_model()
    first, _ = context(device, multiprocessors=100), context(device, multiprocessors=20)
    first.destroy()
    context(device, multiprocessors=112)
    assert [len(traced.multiprocessors) for traced in device.context_traces] == [20, 112]
    assert not set(device.context_traces[0].multiprocessors) & set(device.context_traces[1].multiprocessors)


def test_contexts_before_volta_are_small_and_have_no_limits(open_model: Open) -> None:
    device = open_model("P100")
    total = describe("P100")[0].memory_bytes
    contexts = [context(device, client=number, multiprocessors=1, memory_bytes=MIB) for number in (1, 2)]
    assert contexts[0].memory_info() == (total - 16 * MIB, total)
    assert {len(traced.multiprocessors) for traced in device.context_traces} == {56}


def test_a_cooperative_launch_is_refused_if_the_attribute_is_0(open_model: Open) -> None:
    attributes = {**describe("H200")[0].attributes, "COOPERATIVE_LAUNCH": 0}
    created = context(open_model(attributes=attributes))
    module = created.load_module(b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n")
    with pytest.raises(BackendError) as caught:
        created.default_stream.launch(Launch(module, 0, (1, 1, 1), (1, 1, 1), 0, b"", cooperative=True))
    assert caught.value.code == Result.ERROR_NOT_SUPPORTED
    assert describe("P100")[0].attributes["COOPERATIVE_LAUNCH"] == 1


def test_a_block_that_no_multiprocessor_holds_is_refused(open_model: Open) -> None:
    attributes = {**describe("H200")[0].attributes, "MAX_THREADS_PER_MULTIPROCESSOR": 512}
    created = context(open_model(attributes=attributes))
    module = created.load_module(b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n")
    with pytest.raises(BackendError) as caught:
        created.default_stream.launch(Launch(module, 0, (1, 1, 1), (1024, 1, 1), 0, b""))
    assert caught.value.code == Result.ERROR_LAUNCH_OUT_OF_RESOURCES


def count_windows() -> int:
    """Return the number of mappings of this process that are as large as a client's memory on an H200."""
    bounds = (line.split(maxsplit=1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return sum(int(end, 16) - int(start, 16) >= 64 << 30 for start, end in bounds)


@pytest.mark.parametrize("tier", ["numpy", "compiled"])
@pytest.mark.parametrize("ends", ["finished", "faulted"])
def test_nothing_stays_mapped_of_a_client_that_is_gone(
    ends: str, tier: str, open_model: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tier == "compiled":
        pytest.importorskip("llvmlite")
    monkeypatch.setenv(TIER, tier)
    device, before = open_model(), count_windows()
    gc.disable()  # when that runs in an executor is not known
    try:
        for client in (1, 2, 3):
            created, done = context(device, client), threading.Event()
            address = created.allocate(4096) if ends == "finished" else 64
            launch = Launch(created.load_module(BASIC), 0, (1, 1, 1), (32, 1, 1), 0, struct.pack("<QI", address, 32))
            created.default_stream.launch(launch)
            created.notify(lambda status, done=done: done.set())  # type: ignore[misc]
            assert done.wait(60)
            assert count_windows() > before
            created.destroy()
            del created, launch
        wait_until(lambda: count_windows() == before, "the end of what is mapped")
    finally:
        gc.enable()


def test_kernels_of_a_user_with_too_many_are_neither_loaded_nor_translated(
    open_model: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_model()
    context = device.create_context(1, Quota(0, 0, 0, user=7), lambda status: None)
    header = ".version 8.0\n.target sm_80\n.address_size 64\n"
    lazy = context.load_module(f"{header}.visible .entry k() {{ ret; }}\n//{' ' * EAGER_BYTES}".encode())
    eager = f"{header}.visible .entry eager() {{ ret; }}".encode()
    assert context.load_module(eager).kernel(0).name == "eager"
    monkeypatch.setattr(kept_programs, "MAX_USER_BYTES", 1)
    for refused in (lambda: lazy.kernel(0), lambda: context.load_module(eager)):
        with pytest.raises(BackendError, match="user 7's modules take") as caught:
            refused()
        assert caught.value.code is Result.ERROR_OUT_OF_MEMORY
    monkeypatch.undo()
    assert lazy.kernel(0).name == "k"
