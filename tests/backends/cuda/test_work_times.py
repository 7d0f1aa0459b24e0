"""What a timeline receives of a GPU's work: when each piece began and ended, and nothing of what was not timed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import BackendError
from tests.backends.contract.port_user import copy_on_device, fill
from tests.backends.cuda.fake_driver import FakeDriver

MakeContext = Callable[..., CudaContext]


@frozen
class Report:
    """A reported piece of work."""

    stream: int
    name: str
    submitted: int
    began: int
    ended: int


@define
class Timeline:
    """Keeps what it receives."""

    work: list[Report] = field(factory=list)

    def ran(self, context: int, name: str, began: int, ended: int) -> None:
        raise AssertionError("a GPU does not tell of slices")

    def note_finished(self, context: int, stream: int, name: str, submitted: int, began: int, ended: int) -> None:
        self.work.append(Report(stream, name, submitted, began, ended))


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


def test_work_is_reported_with_its_times(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext, timeline: Timeline
) -> None:
    context = make_context(1)
    address, stream = context.allocate(4096), context.create_stream(True, 0)
    start = time.perf_counter_ns()
    device.set_timeline(timeline)
    driver.stall(stream.handle)
    stream.fill(fill(address, 7, 1, 64))
    stream.copy(copy_on_device(address + 1024, address, 64))
    submitted = time.perf_counter_ns()
    driver.run(stream.handle)
    driver.until(lambda: len(timeline.work) == 2)
    end = time.perf_counter_ns()
    assert [(entry.stream, entry.name) for entry in timeline.work] == [(1, "fill"), (1, "copy")]
    first, second = timeline.work
    assert start <= first.submitted <= second.submitted <= submitted
    slack = 250_000_000  # between the time of an event and that of the look at it, on a machine with other work
    assert submitted - slack <= first.began <= first.ended <= second.began <= second.ended <= end + slack


def test_native_workers_leave_work_to_python_meanwhile(
    device: CudaDevice, make_context: MakeContext, timeline: Timeline
) -> None:
    context = make_context(1)
    assert not context.queue.native_state.held
    device.set_timeline(timeline)
    assert context.queue.native_state.held
    assert make_context(2).queue.native_state.held
    device.set_timeline(None)
    assert not context.queue.native_state.held


def test_nothing_is_reported_before_and_after(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext, timeline: Timeline
) -> None:
    context = make_context(1)
    address, stream = context.allocate(4096), context.default_stream
    stream.fill(fill(address, 1, 1, 64))
    device.set_timeline(timeline)
    driver.stall(stream.handle)
    stream.fill(fill(address, 2, 1, 64))
    device.set_timeline(None)
    driver.run(stream.handle)
    stream.fill(fill(address, 3, 1, 64))
    later = Timeline()
    device.set_timeline(later)
    began = time.perf_counter_ns()
    stream.fill(fill(address, 4, 1, 32))
    driver.until(lambda: bool(later.work))
    (report,) = later.work
    assert not timeline.work
    assert (report.stream, report.name) == (0, "fill")
    assert report.submitted >= began
    assert driver.bytes_at(address, 64) == bytes([4]) * 32 + bytes([3]) * 32


def test_a_device_that_is_stuck_is_refused(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext, timeline: Timeline
) -> None:
    context = make_context(1)
    driver.hooks["cuStreamCreate"] = lambda *_: driver.codes.update(cuEventQuery=600)
    with pytest.raises(BackendError, check=lambda error: error.code is Result.ERROR_NOT_READY):
        device.set_timeline(timeline)
    driver.codes.clear()
    assert not context.queue.native_state.held
