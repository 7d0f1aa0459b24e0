"""Send the driver's server commands without waiting, and receive its answers, which come in the order of the
questions.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import trio
from attrs import define, field

from pympsd.channel.packet_channel import PacketChannel
from pympsd.errors import RemoteError
from pympsd.wire.driver.handshake import PACKET_BYTES
from pympsd.wire.driver.server_commands import Question, Reader

T = TypeVar("T")


@define
class _Pending:
    """A question that was sent: the reader of its answer, and the expected size in bytes of the next
    packet (0 means any).
    """

    reader: Reader[Any]
    size: int
    answered: Callable[[Any], None]


@define
class ServerLink:
    """Sends commands and questions to a registered server."""

    channel: PacketChannel
    _pending: deque[_Pending] = field(factory=deque, init=False)

    def send(self, packets: tuple[bytes, ...], fd: int = -1) -> None:
        """Send a command; a descriptor (not -1) is sent with the last packet, and closed here."""
        for packet in packets[:-1]:
            self.channel.send_raw(packet)
        self.channel.send_raw(packets[-1], () if fd < 0 else (fd,))

    def ask(self, question: Question[T], answered: Callable[[T], None]) -> None:
        """Send a question; ``answered`` is called with its answer."""
        reader = question.read()
        self._pending.append(_Pending(reader, next(reader), answered))
        self.send(question.packets)

    async def answer(self, question: Question[T]) -> T:
        """Return the answer to a question."""
        answers: list[T] = []
        answered = trio.Event()

        def take(answer: T) -> None:
            answers.append(answer)
            answered.set()

        self.ask(question, take)
        await answered.wait()
        return answers[0]

    async def run(self) -> RemoteError | None:
        """Send and receive until the server closes the connection.

        Return the error if the server gives a wrong answer.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.channel.run_sender)
            wrong: RemoteError | None = None
            try:
                while packet := await self.channel.receive(PACKET_BYTES):
                    self._take(packet)
            except RemoteError as error:
                wrong = error
            nursery.cancel_scope.cancel()
        return wrong

    def _take(self, packet: bytes) -> None:
        if not self._pending:
            raise RemoteError(f"a packet of {len(packet)} bytes that nobody asked for")
        pending = self._pending[0]
        if pending.size not in (0, len(packet)):
            raise RemoteError(f"a packet of {len(packet)} bytes where {pending.size} are due")
        try:
            pending.size = pending.reader.send(packet)
        except StopIteration as done:
            self._pending.popleft()
            pending.answered(done.value)
