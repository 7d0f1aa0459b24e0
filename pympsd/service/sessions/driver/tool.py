"""The vendor's nvidia-cuda-mps-control as an operator: lines with their lengths in, printed lines out."""

from __future__ import annotations

import trio
from attrs import define, field

from pympsd.channel.packet_channel import PacketChannel
from pympsd.errors import RemoteError
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.sessions.operator import LEAVING_SECONDS
from pympsd.vocabulary.answers import Answer, clients_only
from pympsd.vocabulary.identities import Peer
from pympsd.wire.driver.tool_lines import END_OF_ANSWERS, LINE_BYTES, encode_printed, length_of


@define(eq=False)
class ToolSession:
    """A connected tool; ``uid`` as the kernel reports it."""

    session: int
    uid: int
    channel: PacketChannel
    place: tuple[str, str] = ("", "")
    """The server and namespace whose socket it came by."""
    _answered: trio.Event = field(factory=trio.Event, init=False)

    def working(self) -> None:
        """Do nothing: the tool waits without a limit."""

    def note(self, text: str, is_output: bool) -> None:
        """Send a line of output; the protocol has no place for diagnostics."""
        if is_output:
            self.channel.send_raw(encode_printed(text))

    def answer(self, answer: Answer) -> None:
        """Send the printed lines; the protocol has no place for diagnostics."""
        for part in answer.parts:
            if part.printed:
                self.channel.send_raw(encode_printed(part.text))
        self._answered.set()

    async def drain(self) -> None:
        """End the answers, and wait until they are sent: the tool would report a connection that just ends."""
        self.channel.send_raw(END_OF_ANSWERS)
        await self.channel.drain()

    async def run(self, dispatcher: Dispatcher) -> None:
        """Answer lines until the tool has sent the last one, or leaves."""
        if dispatcher.may_log(self.uid):
            dispatcher.log.info("ui_connected")
        dispatcher.operators[self.session] = self
        try:
            while (line := await _next_line(self.channel)) is not None:
                self._answered = trio.Event()
                await dispatcher.feed_line(self.session, self.uid, line, place=self.place)
                if not self._answered.is_set():
                    await self._answered.wait()
                await self.channel.drain()
            self.channel.send_raw(END_OF_ANSWERS)
        finally:
            del dispatcher.operators[self.session]
            if not dispatcher.done.is_set() and dispatcher.may_log(self.uid):
                dispatcher.log.info("ui_closed")


@define(eq=False)
class RefusedTool:
    """A tool at a socket for clients only: every line is refused."""

    peer: Peer
    channel: PacketChannel
    server: str
    """The server whose socket it came by; empty: the daemon's own."""

    async def run(self, dispatcher: Dispatcher) -> None:
        """Let it print where commands are taken, and take none."""
        dispatcher.log_refused_operator(self.peer)
        self.channel.send_raw(encode_printed(clients_only(self.server)))
        # It would not print that if the connection were closed with its lines unread.
        with trio.move_on_after(LEAVING_SECONDS):
            while await _next_line(self.channel) is not None:
                pass
            self.channel.send_raw(END_OF_ANSWERS)


async def _next_line(channel: PacketChannel) -> bytes | None:
    """Return a tool's next line without its newline and NUL; None at the end."""
    packet = await channel.receive(LINE_BYTES)
    if not packet:
        return None
    length = length_of(packet)
    if not length:
        return None
    line = await channel.receive(LINE_BYTES, continues=True)
    if not line:
        raise RemoteError("a length without its line")
    return line.rstrip(b"\0").removesuffix(b"\n")
