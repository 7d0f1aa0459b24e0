"""An executor without memory for a client's worker or context: the request fails and leaves nothing behind."""

from __future__ import annotations

import os
from ctypes import pointer
from typing import Any

import pytest
from attrs import define, field

from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import WORKER
from pympsd.wire.executor_messages import Attach, Attached, Detach, DropClient, ExecutorDone, ExecutorRefused
from pympsd_server.backends.interface import BackendError
from pympsd_server.executor import attachments
from pympsd_server.executor.attachments import Attachments
from pympsd_server.native.states import ContextState, DriverCalls, StreamState


def _fail(*_: object) -> None:
    raise BackendError(Result.ERROR_OUT_OF_MEMORY, "none is left")


@define(eq=False)
class FakeContext:
    """A context that records its destruction."""

    native_state: Any = None
    default_stream: Any = None
    destroyed: bool = False

    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes."""
        return 1 << 30, 1 << 30

    def abandon(self) -> None:
        """Take no more work."""

    def destroy(self) -> None:
        """Record the destruction."""
        self.destroyed = True


class FakeNative:
    """Native access to a device whose driver is never called."""

    def __init__(self) -> None:
        self.calls = DriverCalls()
        self.stream = StreamState()

    def context_state(self, context: object) -> ContextState:
        """Return a new state."""
        return ContextState(default_stream=pointer(self.stream))


@define(eq=False)
class FakeDevice:
    """A device that executes nothing."""

    native: Any = field(factory=lambda: FakeNative())
    stream_priorities: tuple[int, int] = (0, 0)
    unfinished: int = 0
    host_memory_base: int = 0
    contexts: list[FakeContext] = field(factory=list)

    def create_context(self, *_: object) -> FakeContext:
        """Return a new fake context."""
        self.contexts.append(FakeContext())
        return self.contexts[-1]


@define(eq=False)
class FakeOwner:
    """The attachments of a fake device and the owner that sends them requests."""

    device: FakeDevice = field(factory=FakeDevice)
    attachments: Attachments = field(init=False)
    sent: list[Any] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        device: Any = self.device
        self.attachments = Attachments(device, 7, self._send)

    def _send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        self.sent.append(message)
        for fd in fds:
            os.close(fd)

    def ask(self, message: object) -> Any:
        """Return the answer."""
        self.attachments.handle(message)
        return self.sent.pop()


def _attach(context: int, new_stream: bool) -> Attach:
    return Attach(1, 1, context, new_stream, Quota(0, 0, 0))


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch, fake_driver: object) -> FakeOwner:
    """Return an owner with native workers."""
    monkeypatch.setenv(WORKER, "native")
    return FakeOwner()


def test_no_memory_for_a_worker(owner: FakeOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(attachments, "native_worker", _fail)
        assert owner.ask(_attach(1, True)) == ExecutorRefused(1, Result.ERROR_OUT_OF_MEMORY, "none is left")
    assert owner.device.contexts[0].destroyed
    assert isinstance(owner.ask(_attach(1, True)), Attached), "the next attempt succeeds"
    assert isinstance(owner.ask(DropClient(2, 1)), ExecutorDone)


@pytest.mark.parametrize("new_stream", [True, False])
def test_no_memory_for_a_context(owner: FakeOwner, monkeypatch: pytest.MonkeyPatch, new_stream: bool) -> None:
    if not new_stream:
        assert isinstance(owner.ask(_attach(1, True)), Attached)

    with monkeypatch.context() as broken:
        broken.setattr("pympsd_server.executor.client.NativeMirror", _fail)
        assert isinstance(owner.ask(_attach(2, new_stream)), ExecutorRefused)
    assert owner.device.contexts[-1].destroyed
    if not new_stream:
        assert isinstance(owner.ask(_attach(2, False)), Attached), "the next attempt succeeds"
        assert isinstance(owner.ask(Detach(3, 2)), ExecutorDone)
    assert isinstance(owner.ask(DropClient(2, 1)), ExecutorDone)
