"""One client context on the device's one context: its streams, its order, its end, and who waits for its work."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from threading import Lock, RLock
from typing import TYPE_CHECKING, Final, TypeVar

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.event import CudaEvent
from pympsd_server.backends.cuda.objects.green_contexts import Share
from pympsd_server.backends.cuda.objects.module import CudaModule
from pympsd_server.backends.cuda.objects.stream import CudaStream
from pympsd_server.backends.cuda.reclaim.context_resources import Holdings
from pympsd_server.backends.cuda.submission.completions import Countdown, Promises
from pympsd_server.backends.cuda.submission.submission_order import Order, Step
from pympsd_server.backends.interface import BackendError, Completion, Outcome
from pympsd_server.native.states import ContextState

if TYPE_CHECKING:
    from pympsd_server.backends.cuda.objects.device import CudaDevice

CONTEXT_BYTES: Final = 10 << 20
"""What a context is charged for itself: its first streams, by the 0.55 MiB of device memory that one takes."""
STREAM_BYTES: Final = 576 << 10
_STREAMS_INCLUDED: Final = 16
PATIENCE_SECONDS: Final = 2.0
"""How long ending a context waits for its kernels; they cannot be stopped."""
_LOOK_SECONDS: Final = 0.0005
_DESTROYED: Final = Outcome(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class CudaContext:
    """Made by CudaDevice. Its work is issued under ``lock``; completions come from the device's watch."""

    def __init__(
        self,
        device: CudaDevice,
        space: ClientSpace,
        share: Share,
        level: int,
        serial: int,
        on_fault: Callable[[Outcome], None],
    ) -> None:
        self.device = device
        self.space = space
        self.share = share
        self.serial = serial
        self.charged = 0
        """What it was charged for itself."""
        self.lock = RLock()
        self.promises = Promises()
        self.order = Order(self._refused_late)
        self.streams: dict[CudaStream, None] = {}
        self._level = level
        self._on_fault = on_fault
        self._outcome = Outcome()
        self._ruining = Lock()
        self._patience_ends: float | None = None
        """Until when its end waits for its kernels, once it has been abandoned."""
        self._is_ending = False
        self._holdings = Holdings(self)
        self._default = self._stream(blocking=True, priority=0)
        self._default.native_state.is_default = 1
        self.order.default = self._default
        self.native_state = ContextState(default_stream=ctypes.pointer(self._default.native_state))
        """What a native worker may do here."""

    # --- memory and modules

    def allocate(self, count: int) -> int:
        """Return the address of new memory, all zero."""
        return self._holdings.allocate(count)

    def free(self, address: int, done: Completion) -> None:
        """Take memory back once the work so far is done; a ruined context's goes when it is destroyed."""
        self._holdings.free(address, done)

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        with self.space.lock:
            return self.space.budget.free, self.space.budget.total

    def load_module(self, image: bytes) -> CudaModule:
        """Load PTX, a cubin or a fatbin; this waits for every kernel that runs on the device."""
        return self._holdings.load(image)

    def unload(self, module: CudaModule) -> None:
        """Let a module go after the work so far; a ruined context's goes when it is destroyed."""
        self._holdings.unload(module)

    def enter(self, table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        """Enter what was just made; BackendError when the context has ended meanwhile, and its maker lets it go."""
        with self.lock:
            if self.is_destroyed:
                raise BackendError(_DESTROYED.code, _DESTROYED.reason)
            table[key] = value

    # --- streams and events

    @property
    def default_stream(self) -> CudaStream:
        """The legacy default stream."""
        return self._default

    def create_stream(self, non_blocking: bool, priority: int) -> CudaStream:
        """Return a new stream."""
        self.check()
        charge = STREAM_BYTES if len(self.streams) >= _STREAMS_INCLUDED else 0
        self.space.take(charge, "a stream")
        try:
            return self._stream(not non_blocking, priority, charge)
        except BaseException:
            self.space.give(charge)
            raise

    def _stream(self, blocking: bool, priority: int, charge: int = 0) -> CudaStream:
        stream = CudaStream(self, self._level, priority, blocking, charge)
        try:
            self.enter(self.streams, stream, None)
        except BackendError:
            stream.give_back()
            raise
        return stream

    def create_event(self, timing: bool) -> CudaEvent:
        """Return a new event."""
        self.check()
        return CudaEvent(self, timing)

    def note_unseen(self, stream: CudaStream) -> None:
        """A blocking stream has work that the default stream was not made to wait for."""
        if not stream.native_state.unseen:
            stream.native_state.unseen = 1
            self.native_state.unseen += 1

    def take_unseen(self) -> list[CudaStream]:
        """Return the streams that have such work; it is the default stream's now to wait for it."""
        if not self.native_state.unseen:
            return []
        unseen = [stream for stream in self.streams if stream.native_state.unseen]
        for stream in unseen:
            stream.native_state.unseen = 0
        self.native_state.unseen = 0
        return unseen

    def notify(self, done: Completion) -> None:
        """Call back when all work so far in all streams is done."""
        self.put_told(None, done, self._watch_all)

    def after_work(self, act: Callable[[], None]) -> None:
        """Call ``act`` when the device is done with all work so far, whatever becomes of the context."""

        def done(outcome: Outcome) -> None:
            if outcome.code is Result.SUCCESS:
                act()
            else:  # told by its end, which stops no kernel
                self.device.janitor.add(self.is_quiet, act)

        self.notify(done)

    def _watch_all(self, tell: Completion) -> None:
        busy = [stream for stream in self.streams if not stream.is_settled()]
        if not busy:
            tell(Outcome())
            return
        left = Countdown(len(busy), lambda: tell(Outcome()))
        for stream in busy:
            stream.watch(stream.point(), left.one_less)

    # --- issuing work

    def put(
        self,
        stream: CudaStream | None,
        issue: Callable[[], None],
        after: Iterable[Step] = (),
        on_ruined: Completion | None = None,
        held: bool = False,
        alone: bool = False,
    ) -> Step:
        """Issue something in a stream, now or once what holds it is passed; BackendError on a ruined context.

        With ``on_ruined`` the sticky error is told instead of raised. ``held`` and ``alone``: see order.py.
        """
        step = Step(stream, issue, held)
        with self.lock:
            try:
                self.check()
                self.order.submit(step, after, alone)
            except BackendError:
                if on_ruined is None or self._outcome.code is Result.SUCCESS:
                    raise
                on_ruined(self._outcome)
            self.native_state.held = self.order.holds
        return step

    def put_told(
        self,
        stream: CudaStream | None,
        done: Completion,
        issue: Callable[[Completion], None],
        after: Iterable[Step] = (),
        alone: bool = False,
    ) -> None:
        """Put something that tells ``done``, which is told of the context's end too; not when it is refused."""
        tell = self.promises.make(done)
        try:
            self.put(stream, lambda: issue(tell), after, on_ruined=tell, alone=alone)
        except BaseException:
            if self.promises.take(tell):  # else it was told of the context's end
                raise

    def release_step(self, step: Step) -> None:
        """A held step is passed. The lock is held."""
        self.order.release(step)
        self.native_state.held = self.order.holds

    def _refused_late(self, error: BackendError) -> None:
        self.ruin(Outcome(error.code, f"refused after a function of the client's had held it: {error.reason}"))

    # --- its end

    @property
    def outcome(self) -> Outcome:
        """SUCCESS, or what ruined it."""
        return self._outcome

    def check(self) -> None:
        """Raise BackendError with the sticky error of a ruined or destroyed context."""
        if self._outcome.code is not Result.SUCCESS:
            raise BackendError(self._outcome.code, self._outcome.reason)

    def ruin(self, outcome: Outcome) -> None:
        """Keep the error (the first), take no more work, tell all who wait. Takes no lock that work is under."""
        with self._ruining:
            if self._outcome.code is not Result.SUCCESS:
                return
            self._outcome = outcome
        self.native_state.closed = 1
        self._on_fault(outcome)
        self.promises.end(outcome)

    def suspects(self) -> list[str]:
        """Return the kernels launched last in streams that may have unfinished work."""
        names = {int(each.handle): each.layout.name for module in self._holdings.modules for each in module.kernels}
        busy = [stream.native_state.last_function for stream in tuple(self.streams) if not stream.known_settled]
        return [names[function] for function in busy if function in names]

    def terminate(self, outcome: Outcome) -> None:
        """Take no more work; BackendError LAUNCH_TIMEOUT when kernels still run after PATIENCE_SECONDS."""
        if self._outcome.code is Result.SUCCESS:
            self._outcome = outcome
            self.native_state.closed = 1
            self.promises.end(outcome)
        if not self._becomes_quiet(time.monotonic() + PATIENCE_SECONDS):
            reason = f"kernels of the context still run after {PATIENCE_SECONDS} s; this device cannot stop them"
            raise BackendError(Result.ERROR_LAUNCH_TIMEOUT, reason)

    def abandon(self) -> None:
        """Take no more work, and wait for none: ``destroy``, which is to follow, then waits so much less."""
        if self._patience_ends is None:
            self._patience_ends = time.monotonic() + PATIENCE_SECONDS
        self._outcome = _DESTROYED
        self.native_state.closed = 1
        self.promises.end(_DESTROYED)

    def destroy(self) -> None:
        """Take no more work and free everything once it has ended; waits for that PATIENCE_SECONDS at most."""
        if self._is_ending:
            return
        self._is_ending = True
        self.abandon()
        assert self._patience_ends is not None
        if self._becomes_quiet(self._patience_ends):
            self.release()
        else:
            self.device.janitor.add(self.is_quiet, self.release)

    @property
    def is_destroyed(self) -> bool:
        """Whether it was destroyed: the device knows it only until nothing of it runs."""
        return self._patience_ends is not None

    def is_quiet(self) -> bool:
        """Whether nothing of it is under way; also when the device is ruined, for then nothing runs any more."""
        # A worker may be in the midst of a call, which is not counted yet; and no stream goes while it is asked for.
        if self.native_state.active or not self.lock.acquire(blocking=False):
            return False
        try:
            return all([stream.is_settled() for stream in tuple(self.streams)])  # noqa: C419 - each counts its kernels
        except BackendError as error:
            outcome = Outcome(error.code, error.reason)
        finally:
            self.lock.release()
        self.device.ruin(outcome)
        return True

    def is_through(self) -> bool:
        """Whether nothing of what it was given is left, be it under way or held."""
        holds = self.order.holds and self._outcome.code is Result.SUCCESS  # of an ended one nothing is issued
        return not holds and self.is_quiet()

    def _becomes_quiet(self, deadline: float) -> bool:
        while not self.is_quiet():
            if time.monotonic() > deadline or self.device.closed:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def release(self) -> None:
        """Free all it holds; nothing of it is under way. A ruined device lets go of everything with its process."""
        if self.device.ruined:
            self.device.forget(self)
            return
        for stream in tuple(self.streams):
            stream.discard()
        self.order.drop()
        self._holdings.give_all_back()
        self.device.forget(self)

    def forget_stream(self, stream: CudaStream, charge: int) -> bool:
        """A stream's handle is about to be given back; return whether it was not before."""
        if stream not in self.streams:
            return False
        del self.streams[stream]
        self.space.give(charge)
        return True
