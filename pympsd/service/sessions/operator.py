"""One operator's session: command lines in, answers out, in order."""

from __future__ import annotations

import json
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.devices import machine, state_folder
from pympsd.errors import RemoteError
from pympsd.service.dispatcher import Dispatcher
from pympsd.vocabulary.answers import Answer, clients_only
from pympsd.vocabulary.identities import Peer
from pympsd.wire import frames

LEAVING_SECONDS: Final = 10.0
"""Time for a refused operator to read the answer and leave."""


@define
class OperatorSession:
    """A connected user interface; ``uid`` as the kernel reports it."""

    session: int
    uid: int
    channel: MessageChannel
    place: tuple[str, str] = ("", "")
    """The server and namespace whose socket it came by."""
    _answered: trio.Event = field(factory=trio.Event, init=False)

    def working(self) -> None:
        """Report that the command takes some time."""
        self.channel.send_raw(frames.encode(frames.OPERATOR_WORKING))

    def note(self, text: str, is_output: bool) -> None:
        """Send a line for standard error, or for standard output; the answer follows."""
        kind = frames.OPERATOR_STDOUT if is_output else frames.OPERATOR_STDERR
        self.channel.send_raw(b"".join(_text_frames(kind, f"{text}\n")))

    def answer(self, answer: Answer) -> None:
        """Send the answer: stdout, stderr, and whether the command was refused."""
        parts = _text_frames(frames.OPERATOR_STDOUT, answer.printed)
        if answer.diagnostic:
            # It may quote the command, whose bytes are returned unchanged.
            parts += _text_frames(frames.OPERATOR_STDERR, f"{answer.diagnostic}\n")
        # In one send: most answers are short, and a send costs more than the command.
        self.channel.send_raw(
            b"".join((*parts, frames.encode(frames.OPERATOR_DONE, b"\1" if answer.refused else b"\0")))
        )
        self._answered.set()

    def send_protocol(self, protocol: int) -> None:
        """Send which protocol the daemon has."""
        self.channel.send_raw(frames.encode(frames.OPERATOR_PROTOCOL, str(protocol).encode()))

    async def drain(self) -> None:
        """Wait until what was answered is sent."""
        await self.channel.drain()

    async def run(self, dispatcher: Dispatcher) -> None:
        """Answer commands until the operator leaves."""
        if dispatcher.may_log(self.uid):
            dispatcher.log.info("ui_connected")
        dispatcher.operators[self.session] = self
        try:
            file: bytes | None = None
            # Without anybody who reads the answers the rest is not done: it may be thousands of commands.
            while (
                not self.channel.overflowed
                and (frame := await self.channel.receive(continues=file is not None)) is not None
            ):
                if frame.kind == frames.OPERATOR_FILE:
                    file = frame.body
                    continue
                if frame.kind != frames.OPERATOR_LINE:
                    raise RemoteError(f"a frame of kind {frame.kind} in an operator's conversation")
                self._answered = trio.Event()
                await dispatcher.feed_line(self.session, self.uid, frame.body, file, self.place)
                file = None
                # One answer is read before the next line is: a flood stays in the flooder's own socket.
                if not self._answered.is_set():
                    await self._answered.wait()
                await self.channel.drain()
        finally:
            del dispatcher.operators[self.session]
            if not dispatcher.done.is_set() and dispatcher.may_log(self.uid):
                dispatcher.log.info("ui_closed")


@define
class RefusedOperator:
    """An operator at a socket for clients only: every command is refused."""

    peer: Peer
    channel: MessageChannel
    server: str
    """The server whose socket it came by; empty: the daemon's own."""

    async def run(self, dispatcher: Dispatcher) -> None:
        """Send where commands are taken, and refuse each line."""
        dispatcher.log_refused_operator(self.peer)
        # Before the first line: an operator that asks for the protocol gets this instead.
        self.channel.send_raw(b"".join(_text_frames(frames.OPERATOR_STDERR, f"{clients_only(self.server)}\n")))
        # It would not get the answer if the connection were closed with its commands unread.
        with trio.move_on_after(LEAVING_SECONDS):
            while (frame := await self.channel.receive()) is not None:
                if frame.kind == frames.OPERATOR_LINE:
                    self.channel.send_raw(frames.encode(frames.OPERATOR_DONE, b"\1"))
                    await self.channel.drain()


@define
class MachineSession:
    """A pympsd-smi, which shows this daemon's devices and the processes on them: it asks nothing else."""

    channel: MessageChannel

    async def run(self, dispatcher: Dispatcher) -> None:
        """Send which machine the daemon has, and where its state is."""
        settings = dispatcher.settings
        answer = {
            "backend": settings.backend,
            machine.VARIABLE: settings.emulated_devices,
            state_folder.DIRECTORY: state_folder.directory(),
        }
        self.channel.send_raw(frames.encode(frames.OPERATOR_MACHINE, json.dumps(answer).encode()))
        await self.channel.drain()


def _text_frames(kind: int, text: str) -> list[bytes]:
    """Return the frames that hold a text; none for an empty one."""
    data = text.encode("utf-8", "surrogateescape")
    bodies = (data[start : start + frames.BODY_LIMIT] for start in range(0, len(data), frames.BODY_LIMIT))
    return [frames.encode(kind, body) for body in bodies]
