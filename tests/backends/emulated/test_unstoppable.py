"""An emulated device that cannot stop kernels, as a real one: begun kernels run to their end, others are dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from attrs import evolve

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import STRICT_BOUNDS
from pympsd_server.backends.emulated.device import context as contexts
from pympsd_server.backends.emulated.device.device import EmulatedDevice
from pympsd_server.backends.emulated.scheduling.kernel_run import KernelRun
from pympsd_server.backends.interface import Status
from tests.backends.contract.port_user import SECONDS, Notified, PortUser

ENDED = Status(Result.ERROR_MPS_CLIENT_TERMINATED, "an operator's command")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDevice]:
    """A device whose contexts do not wait at their end, so that tests see what still runs."""
    monkeypatch.setattr(contexts, "STOP_TIMEOUT_SECONDS", 0.0)
    opened = EmulatedDevice(evolve(describe("H200")[0], stops_kernels=False), 0)
    yield opened
    opened.close()


def quiet(device: EmulatedDevice) -> None:
    """Wait until no destroyed context is unfinished."""
    changed = threading.Event()
    device.watch_memory(changed.set)
    while device.unfinished:
        assert changed.wait(SECONDS)
        changed.clear()


def wait_for_begun(device: EmulatedDevice, kernels: int, blocks: int = 1) -> None:
    """Wait until a number of kernels and of blocks have begun."""
    give_up = time.monotonic() + SECONDS
    while device.trace.get("kernels_started", 0) < kernels or blocks_of(device) < blocks:
        assert time.monotonic() < give_up, "the kernels do not begin"


def blocks_of(device: EmulatedDevice) -> int:
    """Return the number of blocks that have begun."""
    return sum(batch.blocks for batch in device.batch_traces)


def test_the_capabilities_report_unstoppable_kernels(device: EmulatedDevice) -> None:
    assert not device.capabilities.stops_kernels


def test_a_grid_that_has_begun_runs_all_its_blocks(device: EmulatedDevice) -> None:
    ends, stays = PortUser.on(device, client=1, multiprocessors=2), PortUser.on(device, client=1)
    gate, word = stays.words(), stays.words()
    # Two multiprocessors hold 64 blocks at the same time; the rest begin after the context is gone.
    ends.launch("until", gate, 1, grid=(1000, 1, 1), block=(32, 1, 1))
    ends.launch("store", word, 5)
    wait_for_begun(device, 1)
    ends.context.destroy()
    assert blocks_of(device) <= 64
    stays.put(gate, 1)
    quiet(device)
    assert blocks_of(device) == 1000
    assert stays.word(word) == 0, "the kernel behind it was dropped"


@pytest.mark.parametrize("blocks", [1, 1000], ids=["ends in the slice", "continues"])
def test_a_kernel_that_begins_as_its_context_ends_runs_to_its_end(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    ends, stays = PortUser.on(device, client=1, multiprocessors=2), PortUser.on(device, client=1)
    word, opens = stays.words(), KernelRun._open

    def end_first(run: KernelRun) -> None:
        if run.owner is ends.context:
            ends.context.scheduler.fault(ends.context, ENDED)
        opens(run)

    monkeypatch.setattr(KernelRun, "_open", end_first)
    ends.launch("store", word, 5, grid=(blocks, 1, 1))
    assert ends.context.scheduler.wait_until_at_rest(ends.context, SECONDS)
    assert stays.word(word) == 5
    ends.context.destroy()
    assert device.unfinished == 0


def test_a_kernel_that_waits_for_room_has_not_begun(device: EmulatedDevice) -> None:
    ends, stays = PortUser.on(device, client=1, multiprocessors=2), PortUser.on(device, client=1)
    gate, word = stays.words(), stays.words()
    # Four blocks of 1,024 threads fill two multiprocessors.
    ends.launch("until", gate, 1, grid=(4, 1, 1), block=(1024, 1, 1))
    wait_for_begun(device, 1, blocks=4)
    ends.launch("store", word, 5, stream=ends.context.create_stream(True, 0), block=(1024, 1, 1))
    ends.context.destroy()
    assert device.unfinished == 1
    stays.put(gate, 1)
    quiet(device)
    assert stays.word(word) == 0


def test_a_kernel_behind_another_contexts_event_does_not_begin(device: EmulatedDevice) -> None:
    """The kernel waits for another context's event, which waits for work of the kernel's own context, which ends."""
    ends, other, stays = (PortUser.on(device, client=number) for number in (1, 2, 1))
    word = stays.words(2)
    first, second = (ends.context.create_stream(True, 0) for _ in range(2))
    before, after = ends.context.create_event(False), other.context.create_event(False)
    first.launch_host_function(Notified())
    first.record(before)
    other.default.wait(other.context.open_event(before))
    other.default.record(after)
    second.wait(ends.context.open_event(after))
    ends.launch("store", word, 5, stream=second)
    ends.context.destroy()
    assert other.synchronize() == Result.SUCCESS, "its event has passed"
    stays.launch("store", word + 4, 7)
    assert stays.word(word + 4) == 7
    assert stays.word(word) == 0
    assert device.trace["kernels_started"] == 1


def test_a_fault_ends_a_kernel_that_still_runs(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_BOUNDS, "1")  # freed memory is not reached, though its page has other memory
    ends, stays = PortUser.on(device, client=1), PortUser.on(device, client=1)
    word = stays.words()
    ends.launch("until", word, 1)
    ends.launch("endless", stream=ends.context.create_stream(True, 0))
    wait_for_begun(device, 2)
    ends.context.destroy()
    assert device.unfinished == 1
    # The word it reads is freed: it reads an unallocated address next.
    assert stays.free(word).wait() == Result.SUCCESS
    quiet(device)
    assert stays.synchronize() == Result.SUCCESS
    assert not ends.fault.called, "the context is destroyed already"


def test_multiprocessors_of_a_begun_kernel_are_used_until_its_end(device: EmulatedDevice) -> None:
    ends, stays = (PortUser.on(device, client=1, multiprocessors=100) for _ in range(2))
    gate = stays.words()
    multiprocessors = device.context_traces[0].multiprocessors
    ends.launch("until", gate, 1)
    wait_for_begun(device, 1)
    ends.context.destroy()
    assert device.context_traces[0].multiprocessors == multiprocessors
    stays.put(gate, 1)
    quiet(device)
    assert len(device.context_traces) == 1


def test_completions_are_called_immediately_and_a_neighbour_continues(device: EmulatedDevice) -> None:
    ends, other = PortUser.on(device, client=1), PortUser.on(device, client=2)
    ends.launch("endless")
    wait_for_begun(device, 1)
    waits = Notified()
    ends.default.notify(waits)
    ends.context.destroy()
    assert waits.wait() == Result.ERROR_CONTEXT_IS_DESTROYED
    word = other.words()
    for value in range(3):
        other.launch("store", word, value)
    assert other.word(word) == 2
    assert device.unfinished == 1


def test_a_limit_counts_unfinished_contexts(device: EmulatedDevice) -> None:
    client = Quota(0, 2 << 30, 0)
    first = PortUser(device, device.create_context(1, client, Notified()), Notified())
    first.launch("endless")
    wait_for_begun(device, 1)
    before = device.memory_used[1]
    first.context.destroy()
    second = device.create_context(1, client, Notified())
    assert device.memory_used[1] > before
    assert second.memory_info()[0] < (2 << 30) - before
