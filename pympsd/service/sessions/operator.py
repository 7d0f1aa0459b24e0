"""One operator's conversation: lines in, answers out, in order."""

from __future__ import annotations

import trio
from attrs import define, field

from pympsd.channel.awaited import MessageChannel
from pympsd.service.dispatcher import Hub
from pympsd.state_machine.events import OperatorLine
from pympsd.vocabulary.answers import Answer
from pympsd.wire import frames
from pympsd.wire.errors import RemoteError


@define
class OperatorSession:
    """A user interface that is connected; ``uid`` as the kernel said."""

    session: int
    uid: int
    channel: MessageChannel
    _answered: trio.Event = field(factory=trio.Event, init=False)

    def working(self) -> None:
        """The command takes its time."""
        self.channel.send_raw(frames.encode(frames.OPERATOR_WORKING))

    def answer(self, answer: Answer) -> None:
        """Send a whole answer: stdout, stderr, and whether it was refused."""
        parts = _pieces(frames.OPERATOR_STDOUT, answer.printed)
        if answer.diagnostic:
            # It may quote the command, whose bytes go back as they came.
            parts += _pieces(frames.OPERATOR_STDERR, f"{answer.diagnostic}\n")
        # In one piece: short answers are the rule, and each send costs more than the command.
        self.channel.send_raw(
            b"".join((*parts, frames.encode(frames.OPERATOR_DONE, b"\1" if answer.refused else b"\0")))
        )
        self._answered.set()

    async def run(self, hub: Hub) -> None:
        """Talk until the operator leaves."""
        if hub.may_log(self.uid):
            hub.log.info("ui_connected")
        hub.operators[self.session] = self
        try:
            while (frame := await self.channel.receive()) is not None:
                if frame.kind != frames.OPERATOR_LINE:
                    raise RemoteError(f"a frame of kind {frame.kind} in an operator's conversation")
                self._answered = trio.Event()
                hub.feed(OperatorLine(self.session, self.uid, frame.body))
                # One answer before the next line is read: a flood stays in the flooder's own socket.
                if not self._answered.is_set():
                    await self._answered.wait()
        finally:
            del hub.operators[self.session]
            if not hub.done.is_set() and hub.may_log(self.uid):
                hub.log.info("ui_closed")


def _pieces(kind: int, text: str) -> list[bytes]:
    """Return a text in as many frames as it needs, none for no text."""
    data = text.encode("utf-8", "surrogateescape")
    bodies = (data[start : start + frames.BODY_LIMIT] for start in range(0, len(data), frames.BODY_LIMIT))
    return [frames.encode(kind, body) for body in bodies]
