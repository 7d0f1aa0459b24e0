"""The recorded conversations of the vendor's daemon (tests/data/driver-wire), read without our codec."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field, frozen

FOLDER = Path(__file__).parents[1] / "data" / "driver-wire"
NAMES = ("commands-and-users", "limits-and-ends", "multiuser", "two-devices", "descriptors")
ROLES = {1: "server", 2: "client", 4: "tool"}
FOLLOWS = {2: 1, 9: 1, 13: 1, 15: 1, 19: 1, 20: 2, 24: 1}
"""The number of packets that the daemon sends after a command's number; 0 for commands that are not listed."""
DEFAULTS_AFTER_LIMITS = 1


@frozen
class Packet:
    """A packet, or the end of one side (empty)."""

    connection: int
    from_daemon: bool
    data: bytes
    has_descriptor: bool = False


@define
class Exchange:
    """One command of the daemon's and the answer; ``said``: the daemon's packets, in their order."""

    server: int
    """The server's PID."""
    command: int
    said: list[bytes]
    answer: list[bytes] = field(factory=list)


@define
class Conversation:
    """A connection, from the packet with its role on."""

    number: int
    pid: int
    program: str
    role: str = ""
    packets: list[Packet] = field(factory=list)
    """The packets from the role on, without hello and credentials."""


@define
class ToolSession:
    """A tool's lines, the printed text, and the daemon's requests to the servers."""

    lines: list[bytes] = field(factory=list)
    printed: list[bytes] = field(factory=list)
    exchanges: list[Exchange] = field(factory=list)


@frozen
class Recording:
    """All conversations, by number, and the tool's sessions."""

    conversations: dict[int, Conversation]
    tools: list[ToolSession]
    exchanges: list[Exchange]
    admitted: dict[int, list[int]]
    """By server: the PIDs of the clients that were handed to it, once for each connection."""

    def servers(self) -> list[Conversation]:
        """Return the conversations of servers."""
        return [conversation for conversation in self.conversations.values() if conversation.role == "server"]

    def session_of(self, line: str) -> ToolSession:
        """Return the session that consists of this line only."""
        (session,) = (tool for tool in self.tools if tool.lines == [line.encode()])
        return session


def registration(server: Conversation) -> tuple[bytes, list[bytes]]:
    """Return a server's 516 bytes, and the packets that answer them."""
    _, ready, *later = server.packets
    (count,) = struct.unpack("<q", later[1].data)
    return ready.data, [packet.data for packet in later[: 2 + 2 * count + DEFAULTS_AFTER_LIMITS]]


def read(name: str) -> Recording:
    """Return a recording."""
    conversations: dict[int, Conversation] = {}
    recording = Recording(conversations, [], [], {})
    commands: dict[int, Iterator[None]] = {}
    tools: dict[int, ToolSession] = {}
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        number, side, words = int(line.split()[0]), line.split()[2], line.split()[3:]
        if side == "by":
            conversations[number] = Conversation(number, int(words[0]), words[1])
            continue
        packet = Packet(number, side == "<", _bytes(words[0]), words[-1] == "fd")
        conversation = conversations[number]
        if packet.data.startswith((b"OUTBHELL", b"OUTBCRED")):
            continue
        conversation.packets.append(packet)
        if not conversation.role and packet.data:
            conversation.role = ROLES[struct.unpack("<i", packet.data)[0]]
            if conversation.role == "tool":
                tools[number] = ToolSession()
                recording.tools.append(tools[number])
        elif conversation.role == "tool":
            _take_tool(tools[number], packet)
            if not packet.data:
                del tools[number]
        elif conversation.role == "server" and packet.data:
            if number not in commands:
                commands[number] = _commands(conversation, recording, tools)
            next(commands[number])
        elif conversation.role == "client" and packet.has_descriptor:
            (server,) = [
                conversation
                for conversation in conversations.values()
                if conversation.role == "server" and not _has_ended(conversation)
            ][-1:]
            recording.admitted.setdefault(server.pid, []).append(conversation.pid)
    return recording


def _bytes(text: str) -> bytes:
    if text == "end":
        return b""
    kept, _, zeros = text.partition("+")
    return bytes.fromhex(kept) + bytes(int(zeros or 0))


def _has_ended(conversation: Conversation) -> bool:
    return bool(conversation.packets) and not conversation.packets[-1].data


def _take_tool(session: ToolSession, packet: Packet) -> None:
    if packet.from_daemon and packet.data[:4] == bytes(4):
        session.printed.append(packet.data[4:])
    elif not packet.from_daemon and packet.data.endswith(b"\n\0"):
        session.lines.append(packet.data[:-2])


def _commands(server: Conversation, recording: Recording, tools: dict[int, ToolSession]) -> Iterator[None]:
    """Split a server's packets, one for each step."""
    yield  # the 516 bytes
    while len(server.packets) < 4:
        yield
    limits = struct.unpack("<q", server.packets[3].data)[0]
    expected = 2 + 2 + 2 * limits + DEFAULTS_AFTER_LIMITS
    while len(server.packets) < expected:
        yield
    yield
    follows = 0
    while True:
        packet = server.packets[-1]
        if not packet.from_daemon:
            recording.exchanges[-1].answer.append(packet.data)
        elif follows or _is_confirmation(recording, packet):
            recording.exchanges[-1].said.append(packet.data)
            follows = max(0, follows - 1)
        else:
            (command,) = struct.unpack("<i", packet.data)
            exchange = Exchange(server.pid, command, [packet.data])
            recording.exchanges.append(exchange)
            follows = FOLLOWS.get(command, 0)
            for tool in tools.values():
                tool.exchanges.append(exchange)
        yield


def _is_confirmation(recording: Recording, packet: Packet) -> bool:
    """Whether it is the int32 0 after the answer to command 14."""
    last = recording.exchanges[-1] if recording.exchanges else None
    return last is not None and last.command == 14 and len(last.said) == 1 and packet.data == bytes(4)
