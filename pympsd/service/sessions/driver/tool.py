"""Serve the vendor's nvidia-cuda-mps-control, which sends lines with their lengths, and prints the lines that it
gets.
"""

import trio
from attrs import define

from pympsd.channel.packet_channel import PacketChannel
from pympsd.errors import RemoteError
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.sessions.operator import LEAVING_SECONDS, LineSession
from pympsd.vocabulary.answers import Answer, clients_only
from pympsd.vocabulary.identities import Peer
from pympsd.wire.driver.handshake import END_OF_ANSWERS, LINE_BYTES, encode_printed, length_of


@define(eq=False)
class ToolSession(LineSession[PacketChannel]):
    """A connected tool."""

    def report_working(self) -> None:
        """Do nothing, because the tool waits without a time-out."""

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
        """Send the end of the answers, and wait until all are sent.

        Without it the tool would report a lost connection.
        """
        self.channel.send_raw(END_OF_ANSWERS)
        await super().drain()

    async def receive_line(self) -> tuple[bytes, None] | None:
        """Return the next line; None when the tool has sent the last one, or leaves."""
        line = await _next_line(self.channel)
        return None if line is None else (line, None)

    async def run(self, dispatcher: Dispatcher) -> None:
        """Answer lines until the tool has sent the last one, or leaves; then end the answers."""
        await super().run(dispatcher)
        self.channel.send_raw(END_OF_ANSWERS)


@define(eq=False)
class RefusedTool:
    """A tool at a socket for clients only, whose lines are all refused."""

    peer: Peer
    channel: PacketChannel
    server: str
    """The server to whose socket the tool connected; empty for the daemon's own."""

    async def run(self, dispatcher: Dispatcher) -> None:
        """Send a line that names the socket for commands, and refuse all lines."""
        dispatcher.budgets.log_refused_operator(self.peer)
        self.channel.send_raw(encode_printed(clients_only(self.server)))
        # Read its lines: the tool would not print the answer if the connection were closed with lines unread.
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
