"""One record being executed: its operands, checked, and the way its answer goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd_server.backends.interface import BackendError, Completion, Outcome

if TYPE_CHECKING:
    from pympsd_server.executor.client import Client
    from pympsd_server.executor.client_context import ClientContext

_REASON_BYTES: Final = 1 << 16


class Call:
    """``answered``: the operation has an answer; ``waited``: and its sender waits for it (FLAG_QUIET is not set).

    Exactly one of ``succeed``, ``fail`` and ``complete`` is called, once, from any thread.
    """

    __slots__ = ("_opcode", "_sequence", "answered", "client", "context", "flags", "operands", "tail", "waited")

    def __init__(self, client: Client, context: ClientContext, record: records.Record, answered: bool) -> None:
        self.client = client
        self.context = context
        self.flags = record.flags
        self.answered = answered
        self.waited = answered and not record.flags & records.FLAG_QUIET
        self.operands: tuple[int, ...] = ()
        self.tail = b""
        self._opcode = record.opcode
        self._sequence = record.sequence

    def succeed(self, operands: bytes = b"", tail: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Answer success; ``operands`` packed as the operation's answer layout says. ``fds`` stay the caller's."""
        if self.answered:
            answer = records.pack_answer(self._opcode, self._sequence, Result.SUCCESS, operands, tail)
            self.client.answers.send(answer, fds)

    def fail(self, outcome: Outcome) -> None:
        """Answer an error, and keep it for the next waiting call when nobody waits for this one."""
        ruined = self.context.backend.outcome.code is not Result.SUCCESS
        if not self.waited and not ruined and outcome.code is not Result.ERROR_NOT_READY:
            self.context.defer(outcome)
        if self.answered:
            self.client.refuse(self._opcode, self._sequence, outcome, records.FLAG_POISONED if ruined else 0)

    def complete(self, outcome: Outcome) -> None:
        """Answer once the work before this call is done (a Completion of the port)."""
        if outcome.code is Result.SUCCESS:
            self.succeed()
        else:
            self.fail(outcome)

    def waits_for(self, begin: Callable[[Completion], None]) -> None:
        """Begin something that completes later, and answer then; until then it counts as the client's work."""
        limit = self.client.work_limit
        limit.enter_answered()

        def done(outcome: Outcome) -> None:
            limit.leave_answered()
            self.complete(outcome)

        try:
            begin(done)
        except BaseException:
            limit.leave_answered()
            raise

    def shared(self, offset: int, count: int) -> memoryview:
        """Return bytes of the client's shared memory; BackendError INVALID_VALUE outside of it."""
        memory = self.client.shared
        if offset > memory.nbytes or count > memory.nbytes - offset:
            reason = f"{count} bytes at offset {offset} of a shared memory of {memory.nbytes}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        return memory[offset : offset + count]


def reason_bytes(outcome: Outcome) -> bytes:
    """Return the sentence of an error as an answer's tail holds it."""
    return outcome.reason.encode(errors="replace")[:_REASON_BYTES]
