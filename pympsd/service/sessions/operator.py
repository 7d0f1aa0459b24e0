"""Run an operator's session: receive command lines, and send the answers in the same order.

`apply_configuration` applies the configuration file of a daemon's start, as an operator would.
"""

import json
import os
import sys
from abc import abstractmethod
from typing import Final, Generic, TypeVar

import trio
from attrs import define, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.channel.send_queue import SendQueue
from pympsd.devices import machine, state_folder
from pympsd.errors import RemoteError
from pympsd.service.dispatcher import ConnectedOperator, Dispatcher
from pympsd.service.sessions.waiting import wait_first
from pympsd.vocabulary.answers import Answer, clients_only
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.variables import DRIVER_VARIABLE
from pympsd.wire import frames

LEAVING_SECONDS: Final = 10.0
"""The time that a refused operator has to read the answer and leave."""


Channel = TypeVar("Channel", bound=SendQueue)


@define(eq=False)
class LineSession(ConnectedOperator, Generic[Channel]):
    """An operator who sends lines, on pympsd's wire or the driver's; ``uid`` as the kernel reports it."""

    session: int
    uid: int
    channel: Channel
    place: tuple[str, str] = ("", "")
    """The server and the namespace of the socket to which the operator connected."""
    _answered: trio.Event = field(factory=trio.Event, init=False)

    @abstractmethod
    async def receive_line(self) -> tuple[bytes, bytes | None] | None:
        """Return the next line, and the text of the file that it names, if any; None at the end.

        Raise RemoteError for data that the protocol does not allow here.
        """

    async def run(self, dispatcher: Dispatcher) -> None:
        """Answer lines until the operator leaves, or has sent the last one."""
        if dispatcher.budgets.may_log(self.uid):
            dispatcher.log.info("ui_connected")
        dispatcher.sessions.operators[self.session] = self
        try:
            while (received := await self.receive_line()) is not None:
                line, file = received
                self._answered = trio.Event()
                await dispatcher.feed_line(self.session, self.uid, line, file, self.place)
                # Send each answer before reading the next line, so that a flood of lines stays in the sender's own
                # socket.
                if not self._answered.is_set():
                    await self._answered.wait()
                await self.channel.drain()
        finally:
            del dispatcher.sessions.operators[self.session]
            if not dispatcher.ending.done.is_set() and dispatcher.budgets.may_log(self.uid):
                dispatcher.log.info("ui_closed")

    async def drain(self) -> None:
        """Wait until the answers have been sent."""
        await self.channel.drain()


@define(eq=False)
class OperatorSession(LineSession[MessageChannel]):
    """A connected operator that uses pympsd's own tool or Python interface."""

    def report_working(self) -> None:
        """Report that the command takes some time."""
        self.channel.send_raw(frames.encode(frames.OPERATOR_WORKING))

    def note(self, text: str, is_output: bool) -> None:
        """Send a line for standard error, or for standard output if ``is_output``; the answer follows."""
        kind = frames.OPERATOR_STDOUT if is_output else frames.OPERATOR_STDERR
        self.channel.send_raw(b"".join(_text_frames(kind, f"{text}\n")))

    def answer(self, answer: Answer) -> None:
        """Send the answer: stdout, stderr, and whether the command was refused."""
        parts = _text_frames(frames.OPERATOR_STDOUT, answer.printed)
        if answer.diagnostic:
            # The answer may quote the command, whose bytes are returned unchanged.
            parts += _text_frames(frames.OPERATOR_STDERR, f"{answer.diagnostic}\n")
        # Send all in one call, because most answers are short, and a send costs more than the command.
        self.channel.send_raw(
            b"".join((*parts, frames.encode(frames.OPERATOR_DONE, b"\1" if answer.refused else b"\0")))
        )
        self._answered.set()

    def send_protocol(self, protocol: int) -> None:
        """Send the number of the daemon's protocol."""
        self.channel.send_raw(frames.encode(frames.OPERATOR_PROTOCOL, str(protocol).encode()))

    async def receive_line(self) -> tuple[bytes, bytes | None] | None:
        """Return the next line, and the text of the file that was sent before it, if any; None at the end."""
        file: bytes | None = None
        # If nobody reads the answers, the remaining lines are not carried out: there may be thousands.
        while (
            not self.channel.overflowed
            and (frame := await self.channel.receive(continues=file is not None)) is not None
        ):
            if frame.kind == frames.OPERATOR_LINE:
                return frame.body, file
            if frame.kind != frames.OPERATOR_FILE:
                raise RemoteError(f"a frame of kind {frame.kind} in an operator's conversation")
            file = frame.body
        return None


@define
class RefusedOperator:
    """An operator at a socket for clients only, whose commands are all refused."""

    peer: Peer
    channel: MessageChannel
    server: str
    """The server to whose socket the operator connected; empty for the daemon's own."""

    async def run(self, dispatcher: Dispatcher) -> None:
        """Send a line that names the socket for commands, and refuse each line."""
        dispatcher.budgets.log_refused_operator(self.peer)
        # Send this before the first line: an operator that requests the protocol gets it instead.
        self.channel.send_raw(b"".join(_text_frames(frames.OPERATOR_STDERR, f"{clients_only(self.server)}\n")))
        # Read its commands: the operator would not get the answer if the connection were closed with commands unread.
        with trio.move_on_after(LEAVING_SECONDS):
            while (frame := await self.channel.receive()) is not None:
                if frame.kind == frames.OPERATOR_LINE:
                    self.channel.send_raw(frames.encode(frames.OPERATOR_DONE, b"\1"))
                    await self.channel.drain()


@define
class MachineSession:
    """A connected pympsd-smi, which shows this daemon's devices and the processes on them, and requests
    nothing else.
    """

    channel: MessageChannel

    async def run(self, dispatcher: Dispatcher) -> None:
        """Send the daemon's backend, the description of its machine, its driver branch and its state directory."""
        settings = dispatcher.settings
        answer = {
            "backend": settings.backend,
            machine.VARIABLE: settings.emulated_devices,
            DRIVER_VARIABLE: str(dispatcher.state.options.driver),
            state_folder.DIRECTORY: state_folder.directory(),
        }
        self.channel.send_raw(frames.encode(frames.OPERATOR_MACHINE, json.dumps(answer).encode()))
        await self.channel.drain()


def _text_frames(kind: int, text: str) -> list[bytes]:
    """Return the frames that hold a text; none for an empty one."""
    data = text.encode("utf-8", "surrogateescape")
    bodies = (data[start : start + frames.MAX_BODY] for start in range(0, len(data), frames.MAX_BODY))
    return [frames.encode(kind, body) for body in bodies]


@define
class _StartingOperator:
    """The operator session that applies the configuration file of the start; no operator is connected."""

    answers: list[Answer] = field(factory=list)
    answered: trio.Event = field(factory=trio.Event)

    def report_working(self) -> None:
        """Do nothing, because no operator waits."""

    def note(self, text: str, is_output: bool) -> None:
        """Do nothing: notes are about words that a command leaves out, and a configuration file leaves none out."""

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.answered.set()

    async def drain(self) -> None:
        """Do nothing, because nothing is sent."""


async def apply_configuration(dispatcher: Dispatcher, path: str, text: bytes) -> None:
    """Apply a file as `config apply` does, and wait for the answer. Write failures to standard error."""
    operator = _StartingOperator()
    session = dispatcher.sessions.ids.take()
    dispatcher.sessions.operators[session] = operator
    try:
        await dispatcher.feed_line(session, os.geteuid(), os.fsencode(f"config apply {path}"), text)
        await wait_first(operator.answered.wait, dispatcher.ending.done.wait)
    finally:
        del dispatcher.sessions.operators[session]
    for answer in operator.answers:
        if answer.refused:
            sys.stderr.write(f"{answer.printed}{answer.diagnostic}\n")
