"""A running executor, as its server sees it: send it numbered requests, and pass its answers on."""

from typing import Any

import trio
from attrs import define, field

from pympsd.channel.descriptors import close_all
from pympsd.channel.message_channel import MessageChannel
from pympsd.errors import ProcessError
from pympsd.vocabulary.results import Result
from pympsd.wire import executor_messages
from pympsd_server.state_machine.executor_slots import ExecutorSlot

Answer = tuple[Any, tuple[int, ...]]
"""The answer to a request, and the answer's descriptors."""


class ExecutorError(ProcessError):
    """Raised when a request failed, with a CUresult and a sentence; ``short`` is as in ExecutorRefused."""

    def __init__(self, code: int, reason: str, short: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.short = short


@define
class Executor:
    """A running executor; ``generation`` counts the executors of its device from 1, for all users together."""

    slot: ExecutorSlot
    generation: int
    process: trio.Process
    channel: MessageChannel
    gone: trio.Event = field(factory=trio.Event, init=False)
    """An event that is set when the process has ended and is reaped."""
    end_expected: bool = field(default=False, init=False)
    """Whether the end was requested, so that it does not count as a fault."""
    is_killed: bool = field(default=False, init=False)
    """Whether this server has killed the executor because it was silent or violated the protocol."""
    unfinished: int = field(default=0, init=False)
    """The last reported number of destroyed contexts whose kernels still run."""
    has_ended: bool = field(default=False, init=False)
    """Whether the link is closed; the process may still exist (``gone``)."""
    _answers: dict[int, tuple[trio.Event, list[Answer]]] = field(factory=dict, init=False)

    @property
    def device(self) -> int:
        """The ordinal of the executor's device."""
        return self.slot.device

    def kill(self) -> None:
        """Kill a process that does not respond, or has violated the protocol."""
        self.is_killed = True
        self.process.kill()

    async def free(self, request: executor_messages.Detach | executor_messages.DropClient) -> None:
        """Free a context or a client in the executor, and keep the reported number of unfinished contexts.

        Raise ExecutorError.
        """
        answer, _ = await self.ask(request.request, request)
        self.unfinished = answer.unfinished

    async def ask(self, request: int, message: object, descriptors: tuple[int, ...] = ()) -> Answer:
        """Send a request; return its answer and the answer's descriptors.

        ``descriptors`` are sent with the request and closed. Raise ExecutorError if the request fails or the executor
        ends.
        """
        if self.has_ended:
            close_all(descriptors)
            raise ended_error(self.device)
        event, answers = self._answers[request] = (trio.Event(), [])
        self.channel.send(message, descriptors)
        try:
            await event.wait()
        except BaseException:
            # The task was cancelled just as the answer was received, so the descriptors are not used.
            close_all(fd for _, fds in answers for fd in fds)
            raise
        finally:
            del self._answers[request]
        if not answers:
            raise ended_error(self.device)
        answer, fds = answers[0]
        if isinstance(answer, executor_messages.ExecutorRefused):
            raise ExecutorError(answer.code, answer.reason, answer.short)
        return answer, fds

    def deliver(self, message: Any, fds: tuple[int, ...]) -> None:
        """Pass an answer to the task that waits for it."""
        waiting = self._answers.get(getattr(message, "request", 0))
        if waiting is None:
            close_all(fds)
            return
        waiting[1].append((message, fds))
        waiting[0].set()

    def end(self) -> None:
        """Fail all pending requests, because the executor has ended."""
        self.has_ended = True
        for event, _ in self._answers.values():
            event.set()


class ExecutorGone(ExecutorError):
    """Raised when the executor has ended, before or during the request."""


def ended_error(device: int) -> ExecutorGone:
    """Return the error of a request to an executor that has ended."""
    return ExecutorGone(Result.ERROR_MPS_RPC_FAILURE, f"the executor of device {device} has ended")
