"""The end of a context whose kernel still runs, as the device's capabilities say: stopped, or waited for."""

from __future__ import annotations

import threading

import pytest
from processes import wait_until

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError, Context, Status
from tests.backends.contract.port_user import SECONDS, PortUser
from tests.backends.contract.test_memory import expect_refusal

ENDED = Status(Result.ERROR_MPS_CLIENT_TERMINATED, "an operator's wish")
MIB = 1 << 20


class RunningKernel:
    """A context with a kernel that runs until another context of its client lets it end; memory of both counts."""

    def __init__(self, device: Device) -> None:
        self.user, self.same = PortUser.on(device, client=1), PortUser.on(device, client=1)
        self.result = self.same.words(2)
        self.gate = self.same.words()
        self.user.launch("until", self.gate, 1)
        self.user.launch("store", self.result, 7)
        self.user.context.allocate(64 * MIB)
        # It has begun when another kernel of this context, launched later, has ended.
        self.user.launch("store", self.result + 4, 9, stream=self.user.context.create_stream(True, 0))
        while self.same.word(self.result + 4) != 9:
            pass

    def let_end(self) -> None:
        """Let the kernel end."""
        self.same.put(self.gate, 1)


def wait_for_unfinished(device: Device, count: int) -> None:
    """Wait until this number of contexts are unfinished."""
    changed = threading.Event()
    device.watch_memory(changed.set)
    while device.unfinished != count:
        assert changed.wait(SECONDS), f"{device.unfinished} contexts are unfinished, not {count}"
        changed.clear()


def is_stopped(context: Context) -> bool:
    """Terminate it; return whether nothing of it runs."""
    try:
        context.terminate(ENDED)
    except BackendError:
        return False
    return True


@pytest.mark.long(but=["emulated-H200", "emulated-P100"])
def test_terminating_stops_the_kernel_or_reports_that_it_runs(any_device: Device) -> None:
    running = RunningKernel(any_device)
    if any_device.capabilities.stops_kernels:
        running.user.context.terminate(ENDED)
    else:
        for _ in range(2):
            with pytest.raises(BackendError) as caught:
                running.user.context.terminate(ENDED)
            assert caught.value.code == Result.ERROR_LAUNCH_TIMEOUT
    with expect_refusal(Result.ERROR_MPS_CLIENT_TERMINATED):
        running.user.launch("empty")
    running.let_end()
    # Now, or in a moment, nothing of it runs.
    wait_until(lambda: is_stopped(running.user.context), "the kernel's end")
    assert running.user.synchronize() == Result.ERROR_MPS_CLIENT_TERMINATED
    if any_device.capabilities.sees_blocks:  # a driver runs all that it was given
        assert running.same.word(running.result) == 0, "what waited behind it was dropped"


def test_a_destroyed_context_keeps_its_memory_until_its_kernel_has_ended(any_device: Device) -> None:
    running, other = RunningKernel(any_device), PortUser.on(any_device, client=2)
    other.words()  # its first allocation takes additional memory
    (free, _), used = other.context.memory_info(), any_device.memory_used[1]
    running.user.context.destroy()
    if not any_device.capabilities.stops_kernels:
        assert any_device.unfinished == 1
        assert (other.context.memory_info()[0], any_device.memory_used[1]) == (free, used)
        running.user.context.destroy()
        assert any_device.unfinished == 1
        running.let_end()
    wait_for_unfinished(any_device, 0)
    # Its client's other context may still have the work of let_end to be seen as done.
    wait_until(lambda: other.context.memory_info()[0] > free + 64 * MIB, "its memory")
    assert any_device.memory_used[1] < used - 64 * MIB
    if any_device.capabilities.sees_blocks:  # a driver runs all that it was given
        assert running.same.word(running.result) == 0, "what waited behind it was dropped"


@pytest.mark.long(but=["emulated-H200", "emulated-P100"])
def test_memory_of_an_exited_client_is_kept_until_its_kernel_has_ended(any_device: Device) -> None:
    port_user = PortUser.on(any_device, client=2)
    assert port_user.module  # loaded before: loading may wait for running kernels
    running = RunningKernel(any_device)
    running.user.context.destroy()
    running.same.context.destroy()
    assert (1 in any_device.memory_used) is not any_device.capabilities.stops_kernels
    assert any_device.unfinished == (not any_device.capabilities.stops_kernels)
    port_user.launch("empty")
    assert port_user.synchronize() == Result.SUCCESS


@pytest.mark.long(but=["emulated-H200", "emulated-P100"])
def test_a_device_closes_while_destroyed_contexts_are_unfinished(any_device: Device) -> None:
    running = RunningKernel(any_device)
    running.user.context.destroy()
    any_device.close()
    with expect_refusal(Result.ERROR_DEINITIALIZED):
        PortUser.on(any_device)
