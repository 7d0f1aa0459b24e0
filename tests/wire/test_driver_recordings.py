"""Every packet of the recorded conversations through our codec, and what any other packets do to it."""

from __future__ import annotations

import inspect
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from itertools import takewhile
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from driver_recordings import NAMES, Exchange, Recording, ToolSession, read, registration
from hypothesis import assume, given
from hypothesis import strategies as st

from pympsd.channel.packet_channel import PacketChannel
from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.errors import RemoteError
from pympsd.service.dispatcher import Dispatcher, Sessions
from pympsd.service.sessions.driver.server import DriverServerSession
from pympsd.service.sessions.driver.server_link import ServerLink
from pympsd.state_machine import events
from pympsd.state_machine.decide import handle
from pympsd.state_machine.instructions import AdmitClient, Reply, SpawnServer
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.vocabulary.device_properties import DeviceProperties, uuid_text
from pympsd.vocabulary.identities import Peer
from pympsd.wire.driver import handshake
from pympsd.wire.driver import server_commands as commands
from pympsd.wire.driver.server_commands import Question, Reader

RECORDINGS = {name: read(name) for name in NAMES}
NAMESPACE = 4026531836
"""Of all recorded clients; the server does not send it."""
SECONDS = 10.0


def one_number(command: int, layout: str, *more: bytes) -> Callable[[], Question[Any]]:
    """Make a question that is answered by a number."""

    def read() -> Reader[Any]:
        return number((yield struct.calcsize(layout)), layout)

    return lambda: Question((struct.pack("<i", command), *more), read)


QUESTIONS: dict[int, Callable[[], Question[Any]]] = {
    5: commands.shut_down_if_idle,
    6: commands.clients,
    7: commands.device_clients,
    # The daemon does not ask for limits: it knows what it has set.
    8: one_number(8, "<d"),
    19: one_number(19, "<Q", handshake.encode_device(0)),
    13: lambda: commands.terminate(1),
    14: commands.processes,
    17: commands.status,
    24: commands.devices,
}
each_recording = pytest.mark.parametrize("name", NAMES)
each_question = pytest.mark.parametrize("number", QUESTIONS)


def number(packet: bytes, layout: str = "<i") -> Any:
    """Return the number in a packet."""
    (value,) = struct.unpack(layout, packet)
    return value


def ordinal(packet: bytes) -> int:
    """Return the device in a packet of 41 bytes."""
    assert len(packet) == 41
    return int(packet.rstrip(b"\0"))


def encode(exchange: Exchange) -> tuple[bytes, ...]:
    """Return what our functions say for the recorded values."""
    _, *words = exchange.said
    match exchange.command:
        case 2:
            return commands.NEW_CLIENT
        case 9:
            return commands.set_percentage(number(words[0], "<d"))
        case 13:
            return commands.terminate(number(words[0])).packets
        case 15:
            return commands.set_priority(number(words[0]))
        case 19:
            return (*QUESTIONS[19]().packets[:1], handshake.encode_device(ordinal(words[0])))
        case 20:
            return commands.set_memory_limit(ordinal(words[0]), number(words[1], "<Q"))
    return QUESTIONS[exchange.command]().packets


def read_answer(question: Question[Any], packets: list[bytes]) -> Any:
    """Read an answer as ServerLink does; raise RemoteError, or AssertionError if it is longer or shorter than due."""
    reader = question.read()
    size = next(reader)
    for place, packet in enumerate(packets):
        if size not in (0, len(packet)):
            raise RemoteError(f"{len(packet)} bytes where {size} are due")
        try:
            size = reader.send(packet)
        except StopIteration as done:
            assert place == len(packets) - 1, "the answer is longer"
            return done.value
    raise AssertionError("the answer is shorter")


def value_of(exchange: Exchange) -> Any:
    """Return a recorded answer, read."""
    return read_answer(QUESTIONS[exchange.command](), exchange.answer)


# --- the recordings


@each_recording
def test_a_recording_is_taken_apart_whole(name: str) -> None:
    """The reader of the recordings passes nothing over."""
    recording = RECORDINGS[name]
    output = sum(len(exchange.said) + len(exchange.answer) for exchange in recording.exchanges)
    servers = recording.servers()
    begun = sum(2 + len(registration(server)[1]) for server in servers)
    assert output + begun == sum(bool(packet.data) for server in servers for packet in server.packets)
    assert servers
    assert {server.program for server in servers} == {"nvidia-cuda-mps"}


@each_recording
def test_recorded_roles_are_recognised(name: str) -> None:
    roles = {"server": handshake.Role.SERVER, "client": handshake.Role.CLIENT, "tool": handshake.Role.TOOL}
    seen = set()
    for conversation in RECORDINGS[name].conversations.values():
        first = conversation.packets[0].data
        if first:  # libcuda's first look has no role
            assert handshake.role_of(first) is roles[conversation.role]
            assert handshake.encode_role(roles[conversation.role]) == first
            seen.add(conversation.role)
    assert seen == set(roles)


@each_recording
def test_registrations_and_the_defaults_that_answer_them(name: str) -> None:
    for server in RECORDINGS[name].servers():
        ready, defaults = registration(server)
        assert handshake.shared_memory_of(ready) in {f"mps.shm.{uid}.{server.pid}" for uid in (0, 65534)}
        percentage, _, *limits, priority = defaults
        pairs = zip(limits[::2], limits[1::2], strict=True)
        decoded = {ordinal(device): number(count, "<Q") for device, count in pairs}
        again = handshake.encode_defaults(number(percentage, "<d"), decoded, number(priority))
        assert list(again) == defaults


@each_recording
def test_a_clients_conversation(name: str) -> None:
    clients = [
        conversation for conversation in RECORDINGS[name].conversations.values() if conversation.role == "client"
    ]
    assert clients
    for client in clients:
        packets = [(packet.from_daemon, packet.data, packet.has_descriptor) for packet in client.packets[1:]]
        assert packets in (
            [(True, handshake.DESCRIPTOR, True), (False, bytes(4), False), (False, b"", False)],
            [(False, b"", False)],
        )


@each_recording
def test_commands_are_encoded_as_recorded(name: str) -> None:
    for exchange in RECORDINGS[name].exchanges:
        assert list(encode(exchange)) == exchange.said


@each_recording
def test_every_answer_is_read(name: str) -> None:
    for exchange in RECORDINGS[name].exchanges:
        if exchange.command in QUESTIONS:
            value_of(exchange)
        else:
            assert exchange.answer == []


def test_all_commands_were_recorded() -> None:
    recorded = {exchange.command for recording in RECORDINGS.values() for exchange in recording.exchanges}
    assert recorded == {*QUESTIONS, 2, 9, 15, 20}


@each_recording
def test_the_tools_packets(name: str) -> None:
    """Line by line what tool_lines makes of it, and the printed text too."""
    recording = RECORDINGS[name]
    for conversation in recording.conversations.values():
        if conversation.role != "tool":
            continue
        mine = [packet.data for packet in conversation.packets[1:] if not packet.from_daemon and packet.data]
        lines = [packet[:-2] for packet in mine[1::2]]
        ended = len(mine) % 2
        assert mine == [
            *(packet for line in lines for packet in handshake.encode_line(line)),
            *handshake.encode_line(None) * ended,
        ]
        assert [handshake.length_of(packet) for packet in mine[::2]] == [len(line) + 2 for line in lines] + [
            0
        ] * ended
        theirs = [packet.data for packet in conversation.packets if packet.from_daemon and packet.data]
        for packet in theirs:
            if packet != handshake.END_OF_ANSWERS:
                assert handshake.encode_printed(handshake.decode_printed(packet).decode()) == packet
        # The end comes once, and last; a daemon that ends closes without it.
        assert handshake.END_OF_ANSWERS not in theirs[:-1]


# --- what was printed follows from what the server said


def tool_sessions(command: int) -> list[tuple[str, ToolSession]]:
    """Return the sessions of one line during which servers were asked with a command."""
    return [
        (name, tool)
        for name, recording in RECORDINGS.items()
        for tool in recording.tools
        if len(tool.lines) == 1 and command in [exchange.command for exchange in tool.exchanges]
    ]


def last(tool: ToolSession, command: int) -> Any:
    """Return the last answer to a command during a session, read."""
    return value_of([exchange for exchange in tool.exchanges if exchange.command == command][-1])


def test_printed_statuses_match_the_recorded_packets() -> None:
    shown = {commands.STATUS_ACTIVE: b"ACTIVE", commands.STATUS_FAULT: b"FAULT"}
    tools = [tool for _, tool in tool_sessions(17) if tool.lines[0].startswith(b"get_server_status")]
    for tool in tools:
        assert tool.printed == [shown[last(tool, 17)]]
    assert {tool.printed[0] for tool in tools} == set(shown.values())


def test_printed_client_lists() -> None:
    sessions = tool_sessions(6)
    assert len(sessions) == 4
    for _, tool in sessions:
        assert tool.printed == [str(pid).encode() for pid in last(tool, 6)]


def test_printed_percentages_match_the_recorded_packets() -> None:
    sessions = tool_sessions(8)
    assert [tool.lines[0].split()[0] for _, tool in sessions] == [
        b"set_active_thread_percentage",
        b"get_active_thread_percentage",
    ]
    for _, tool in sessions:
        assert tool.printed == [str(last(tool, 8)).encode()] == [b"40.0"]


def test_printed_memory_limits() -> None:
    count = 0
    for recording in RECORDINGS.values():
        for tool in recording.tools:
            values = [value_of(exchange) for exchange in tool.exchanges if exchange.command == 19]
            shown = [line for line in tool.printed if line.endswith(b"G")]
            if values:
                assert shown == [b"%dG" % (value >> 30) for value in values]
                count += len(values)
    assert count == 5


def test_printed_terminations_match_the_recorded_packets() -> None:
    ((_, tool),) = tool_sessions(13)
    assert tool.printed == [str(last(tool, 13)).encode()] == [b"0"]


def test_printed_devices_match_the_recorded_packets() -> None:
    sessions = tool_sessions(24)
    assert len(sessions) == 4
    for _, tool in sessions:
        devices = last(tool, 24)
        rows = [line.split() for line in tool.printed if line[:1].isdigit()]
        expected = [
            [
                str(device.ordinal).encode(),
                device.pci.encode(),
                device.uuid.encode(),
                *device.name.encode().split(),
                b"N/A",
            ]
            for device in devices
        ]
        assert rows == expected * 2, "those of the daemon, and those of the server"


def test_the_recorded_device_record_has_its_uuid_at_24_and_its_name_at_40() -> None:
    exchanges = [
        exchange for recording in RECORDINGS.values() for exchange in recording.exchanges if exchange.command == 24
    ]
    assert exchanges
    for exchange in exchanges:
        for record, device in zip(exchange.answer[1:], value_of(exchange), strict=True):
            assert len(record) == 172
            assert uuid_text(record[24:40]) == device.uuid
            assert record[40:].rstrip(b"\0").decode() == device.name == "NVIDIA H200"


def test_the_last_number_of_a_ps_record_is_the_clients_priority() -> None:
    """Inferred: 0 for a client with a priority of its own or the first default, 1 after the default was set to 1."""
    priorities = {
        name: {number(record[:4]): number(record[36:40]) for record in value.answer[1:]}
        for name, recording in RECORDINGS.items()
        for value in recording.exchanges
        if value.command == 14
    }
    assert priorities == {
        "commands-and-users": {483: 0, 494: 1},
        "limits-and-ends": {473: 1},
        "multiuser": {644: 1},
        "two-devices": {707: 0, 708: 0, 709: 0},
    }


# --- the same through session and state machine


class Replay:
    """A state machine and the session of one recorded server, which answers what it answered."""

    def __init__(self, recording: Recording, server: int) -> None:
        self.recording = recording
        self.pid = server
        self.daemon = Daemon(DaemonOptions(0), self._devices())
        for tool in takewhile(lambda tool: not tool.exchanges, recording.tools):
            for line in tool.lines:
                if line.startswith(b"set_default_"):
                    self._feed(events.OperatorLine(1, 0, parse(line, 2)))
        spawned = self._feed(events.OperatorLine(1, 0, parse(b"start_server -uid 0", 2)))
        (spawn,) = [spawn_server for spawn_server in spawned if isinstance(spawn_server, SpawnServer)]
        self.server_id = spawn.server
        self._feed(events.ServerSpawned(self.server_id, server))

    def _devices(self) -> tuple[DeviceProperties, ...]:
        (exchange, *_) = [exchange for exchange in self.recording.exchanges if exchange.command == 24]
        return tuple(
            DeviceProperties(entry.name, entry.uuid, entry.pci, (9, 0), 0, 0, {}) for entry in value_of(exchange)
        )

    def _feed(self, event: events.Event) -> list[Any]:
        return list(handle(self.daemon, event, answer_line))

    def _connect_clients(self) -> None:
        """Let the recorded clients connect, each once for each connection."""
        for client, pid in enumerate(self.recording.admitted[self.pid], 1):
            peer = Peer(pid, 0, 0, (0,))
            done = self._feed(events.ClientConnected(client, ClientProcess(peer, "python3", NAMESPACE), joins=True))
            assert any(isinstance(admit_client, AdmitClient) for admit_client in done)

    def command(self, line: str) -> list[str]:
        """Carry out a command, and return the printed lines."""
        (reply,) = [
            instruction
            for instruction in self._feed(events.OperatorLine(2, 0, parse(line.encode(), 2)))
            if isinstance(instruction, Reply)
        ]
        return [part.text for part in reply.answer.parts if part.printed]

    async def report(self, answers: dict[int, list[bytes]]) -> None:
        """Let the session ask a server that registers and answers as recorded, and feed what it makes of that."""
        (conversation,) = [server for server in self.recording.servers() if server.pid == self.pid]
        ready, defaults = registration(conversation)
        dispatcher = cast(
            Dispatcher, SimpleNamespace(state=self.daemon, feed=self._feed, log=None, sessions=Sessions(print))
        )
        session = DriverServerSession(dispatcher, self.server_id, 0, self.pid, kill=lambda: None)
        own_end, peer_end = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = PacketChannel(own_end)
        with peer_end, closing(channel), trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_serve, session, channel)
                await peer_end.send(ready)
                assert [await peer_end.recv(4096) for _ in defaults] == defaults
                nursery.start_soon(_answer, peer_end, answers)
                await session.registered.wait()
                self._connect_clients()
                assert await session.refresh()
                nursery.cancel_scope.cancel()


async def _serve(session: DriverServerSession, channel: PacketChannel) -> None:
    """Run a session; its conversation reads the registration for it where ``serve`` takes that."""
    takes_registration = len(inspect.signature(session.serve).parameters) > 1
    more: tuple[bytes, ...] = (await channel.receive(4096),) if takes_registration else ()
    await session.serve(channel, *more)


async def _answer(server: trio.socket.SocketType, answers: dict[int, list[bytes]]) -> None:
    while packet := await server.recv(4096):
        if packet != bytes(4):  # the confirmation of 14
            for part in answers[number(packet)]:
                await server.send(part)


async def replayed(name: str, tool: ToolSession, command: int) -> Replay:
    """Return the state after the servers' answers around a tool's session, with the clients of that time."""
    recording = RECORDINGS[name]
    (exchange,) = [exchange for exchange in tool.exchanges if exchange.command == command]
    around = {other.command: other.answer for other in recording.exchanges if other.server == exchange.server}
    answers = {17: around[17], 14: around[14], 7: around[7], command: exchange.answer}
    replay = Replay(recording, exchange.server)
    await replay.report({17: [struct.pack("<i", 1)], **answers})
    return replay


def load_recorded(tool: ToolSession) -> list[str]:
    """Return the printed lines."""
    return [line.decode() for line in tool.printed]


@pytest.mark.parametrize("place", range(5))
async def test_ps_shows_the_recorded_rows(place: int) -> None:
    """All columns are equal: COMMAND and NAMESPACE, which the server does not send, are the test's own."""
    sessions = [tool_session for tool_session in tool_sessions(14) if tool_session[1].lines == [b"ps"]]
    assert len(sessions) == 5
    name, tool = sessions[place]
    replay = await replayed(name, tool, 14)
    heading, *rows = load_recorded(tool)
    shown_heading, *shown = replay.command("ps")
    assert shown_heading == heading
    assert [row.split() for row in shown] == [row.split() for row in rows]


@pytest.mark.parametrize("place", range(4))
async def test_get_device_client_list_shows_the_recorded_lines(place: int) -> None:
    """In another order: ours begins with device 0 (the recorded one began with the last), by client as in ps."""
    sessions = tool_sessions(7)
    assert len(sessions) == 4
    name, tool = sessions[place]
    replay = await replayed(name, tool, 7)
    assert _by_device(replay.command(tool.lines[0].decode())) == _by_device(load_recorded(tool))


def _by_device(lines: list[str]) -> dict[str, set[str]]:
    shown: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("["):
            heading = line
            shown[heading] = set()
        else:
            shown[heading].add(line)
    return shown


@pytest.mark.parametrize("name", ["commands-and-users", "limits-and-ends", "multiuser", "two-devices"])
async def test_get_client_list_and_device_query(name: str) -> None:
    recording = RECORDINGS[name]
    (query, *_) = [tool for tool in recording.tools if tool.lines[0].startswith(b"device_query")]
    (ps, *_) = [tool for tool in recording.tools if tool.lines == [b"ps"]]
    replay = await replayed(name, ps, 14)
    assert replay.command(query.lines[0].decode()) == load_recorded(query)
    lists = [tool for tool in recording.tools if tool.lines[0].startswith(b"get_client_list") and tool.printed]
    for tool in lists:
        listed = replay.command(tool.lines[0].decode())
        # Those the server lists come first, in its order; clients without a context, or that left, come after them.
        assert listed[: len(tool.printed)] == load_recorded(tool)


# --- any packets

PIDS = st.integers(-(2**31), 2**31 - 1)
UUIDS = st.binary(min_size=16, max_size=16)
NAMES_OF_DEVICES = st.text("NVIDIA H200-abc", max_size=60)


def pad(text: str, size: int) -> bytes:
    """Return text, padded with zeros."""
    return text.encode().ljust(size, b"\0")


@st.composite
def answers_of(draw: st.DrawFn, number: int) -> tuple[list[bytes], Any]:
    """Draw a right answer and what it means, made by struct alone."""
    count = st.integers(0, 4)
    match number:
        case 5 | 13:
            value = draw(PIDS)
            return [struct.pack("<i", value)], value
        case 17:
            value = draw(st.sampled_from([0, 1]))
            return [struct.pack("<i", value)], value
        case 8:
            percentage = draw(st.floats(allow_nan=False))
            return [struct.pack("<d", percentage)], percentage
        case 19:
            limit = draw(st.integers(0, 2**64 - 1))
            return [struct.pack("<Q", limit)], limit
        case 6:
            pids = draw(st.lists(PIDS, max_size=5))
            return [struct.pack("<i", word) for word in (len(pids), *pids)], tuple(pids)
        case 14:
            rows = draw(st.lists(st.tuples(PIDS, PIDS, PIDS, UUIDS, PIDS, PIDS), max_size=4))
            packets = [struct.pack("<ii4xi16sii", *row) for row in rows]
            processes = [
                commands.ListedProcess(pid, context, device, uuid_text(uuid), identity)
                for pid, context, device, uuid, identity, _ in rows
            ]
            return [struct.pack("<i", len(rows)), *packets], tuple(processes)
        case 24:
            packets, devices = [struct.pack("<i", listed := draw(count))], []
            for place in range(listed):
                uuid, name = draw(UUIDS), draw(NAMES_OF_DEVICES)
                packets.append(struct.pack("<6i", place, 1, 2, 3, 0, 0) + uuid + pad(name, 132))
                devices.append(commands.ServerDevice(place, "0003:01.02.00", uuid_text(uuid), name))
            return packets, tuple(devices)
    packets, devices = [struct.pack("<i", listed := draw(count))], []
    for place in range(listed):
        uuid, name = draw(UUIDS), draw(NAMES_OF_DEVICES)
        contexts = draw(st.lists(st.tuples(PIDS, PIDS), max_size=3))
        packets += [uuid, struct.pack("<ii", 0, place) + pad(name, 68), struct.pack("<i", len(contexts))]
        packets += [struct.pack("<ii32x", *context) for context in contexts]
        expected = tuple(commands.DriverContext(*context) for context in contexts)
        devices.append(commands.DeviceClients(uuid_text(uuid), name, expected))
    return packets, tuple(devices)


@given(st.data())
@each_question
def test_any_right_answer_is_read(number: int, data: st.DataObject) -> None:
    packets, value = data.draw(answers_of(number))
    assert read_answer(QUESTIONS[number](), packets) == value


def link_of(question: Question[Any], packets: list[bytes]) -> list[Any]:
    """Feed packets to a ServerLink's reader that was asked once; return the answers; raise RemoteError."""
    answers: list[Any] = []
    link = ServerLink(cast(PacketChannel, SimpleNamespace(send_raw=lambda packet, fds=(): None)))
    link.ask(question, answers.append)
    for packet in packets:
        link._take(packet)
    return answers


@given(st.data())
@each_question
def test_a_packet_of_another_size_is_refused(number: int, data: st.DataObject) -> None:
    packets, _ = data.draw(answers_of(number))
    place = data.draw(st.integers(0, len(packets) - 1))
    whole = packets[place]
    size = data.draw(st.integers(1, 200).filter(lambda size: size != len(whole)))
    packets[place] = (whole + bytes(200))[:size]
    with pytest.raises(RemoteError, match=rf"a packet of {size} bytes where {len(whole)} are due"):
        link_of(QUESTIONS[number](), packets)


@given(st.data())
@pytest.mark.parametrize("number", [6, 7, 14, 24])
def test_a_count_that_is_negative_or_huge_is_refused(number: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(-(2**31), -1) | st.integers((1 << 16) + 1, 2**31 - 1))
    with pytest.raises(RemoteError, match=rf"the server announced {count} records"):
        link_of(QUESTIONS[number](), [struct.pack("<i", count)])


@given(st.integers(-(2**31), 2**31 - 1).filter(lambda one: one not in (0, 1)))
def test_another_status_is_refused(status: int) -> None:
    with pytest.raises(RemoteError, match=f"there is no server status {status}"):
        link_of(commands.status(), [struct.pack("<i", status)])


@given(st.data())
@each_question
def test_bytes_after_an_answer_are_refused(number: int, data: st.DataObject) -> None:
    packets, _ = data.draw(answers_of(number))
    with pytest.raises(RemoteError, match="4 bytes that nobody asked for"):
        link_of(QUESTIONS[number](), [*packets, bytes(4)])


@given(st.sampled_from(sorted(QUESTIONS)), st.lists(st.binary(min_size=1, max_size=180), max_size=12))
def test_any_packets_are_read_or_refused(number: int, packets: list[bytes]) -> None:
    try:
        answers = link_of(QUESTIONS[number](), packets)
    except RemoteError as error:
        assert str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert len(answers) <= 1


@given(st.sampled_from(sorted(QUESTIONS)), st.data())
def test_packets_of_right_sizes_with_any_content_are_read_or_refused(number: int, data: st.DataObject) -> None:
    """As above, but such packets get further."""
    question = QUESTIONS[number]()
    reader = question.read()
    size = next(reader)
    for _ in range(20):
        try:
            size = reader.send(
                data.draw(st.binary(min_size=size, max_size=size) | st.just(bytes([1] + [0] * (size - 1))))
            )
        except (StopIteration, RemoteError):
            return


@given(st.binary(max_size=600))
def test_any_first_packets_are_read_or_refused(packet: bytes) -> None:
    for read_packet in (
        handshake.role_of,
        handshake.shared_memory_of,
        handshake.length_of,
        handshake.decode_printed,
    ):
        try:
            read_packet(packet)
        except RemoteError as error:
            assert str(error)  # noqa: PT017 - raising and not raising are both right here


@pytest.mark.parametrize(
    "packet", [struct.pack("<i", 3), struct.pack("<q", 2), b"", b"\2\0\0", struct.pack("<i", -1)]
)
def test_a_number_that_is_not_a_role_is_refused(packet: bytes) -> None:
    with pytest.raises(RemoteError):
        handshake.role_of(packet)


@given(st.floats(0, 100), st.dictionaries(st.integers(0, 63), st.integers(0, 2**64 - 1)), st.integers(0, 1))
def test_any_defaults_mean_what_they_were_made_of(percentage: float, limits: dict[int, int], priority: int) -> None:
    first, count, *pairs, last_packet = handshake.encode_defaults(percentage, limits, priority)
    assert (number(first, "<d"), number(count, "<q"), number(last_packet)) == (percentage, len(limits), priority)
    decoded = {ordinal(device): number(size, "<Q") for device, size in zip(pairs[::2], pairs[1::2], strict=True)}
    assert decoded == limits


@given(st.binary(max_size=300))
def test_any_line_comes_back(line: bytes) -> None:
    length, packet = handshake.encode_line(line)
    assert handshake.length_of(length) == len(packet)
    assert packet == line + b"\n\0"


# --- a daemon that takes a server over

OWN = 12345 / 1024
"""The percentage that a resuming daemon sets, and no other daemon."""
PERCENTAGES = st.integers(1, 100 << 10).map(lambda number: number / 1024).filter(lambda one: one != OWN)
QUERIES = (5, 6, 7, 13, 14, 17, 24)
"""The questions that a daemon asks a server. Only a daemon that resumes asks for the percentage."""


def resume(packets: list[bytes]) -> Any:
    """Feed the rest of earlier answers, the answer that ends them, and the next answer; return the last as read."""
    answers: list[Any] = []
    link = ServerLink(cast(PacketChannel, SimpleNamespace(send_raw=lambda packet, fds=(): None)))
    link.ask(commands.resume(OWN), lambda nothing: None)
    link.ask(commands.clients(), answers.append)
    for packet in (*packets, struct.pack("<d", OWN), *(struct.pack("<i", word) for word in (2, 7, 8))):
        link._take(packet)
    (answer,) = answers
    return answer


def test_resume_sets_what_it_waits_for() -> None:
    assert commands.resume(OWN).packets == (*commands.set_percentage(OWN), struct.pack("<i", 8))


@given(st.data())
@each_question
def test_resume_finds_its_place_after_any_part_of_an_answer(number: int, data: st.DataObject) -> None:
    packets, _ = data.draw(answers_of(number))
    assume(struct.pack("<d", OWN) not in packets)
    for cut in range(len(packets) + 1):
        assert resume(packets[cut:]) == (7, 8)


@st.composite
def daemons_questions(draw: st.DrawFn) -> list[bytes]:
    """Draw the answers to all that a daemon asks, the resuming of its own first unless it started the server."""
    packets = [struct.pack("<d", percentage) for percentage in draw(st.lists(PERCENTAGES, max_size=1))]
    for number in draw(st.lists(st.sampled_from(QUERIES), max_size=4)):
        packets += draw(answers_of(number))[0]
    return packets


@given(st.lists(daemons_questions(), max_size=4), st.data())
def test_resume_finds_its_place_after_all_requests_of_earlier_daemons(
    earlier: list[list[bytes]], data: st.DataObject
) -> None:
    """Several daemons died one after another, and the server's answers are cut anywhere."""
    packets = [packet for earlier_daemon in earlier for packet in earlier_daemon]
    cut = data.draw(st.integers(0, len(packets)))
    assert resume(packets[cut:]) == (7, 8)


@given(st.lists(PERCENTAGES, min_size=1, max_size=5), st.data())
def test_resume_finds_its_place_after_earlier_resumes(earlier: list[float], data: st.DataObject) -> None:
    """Each earlier daemon died before it received the server's answer to its resume."""
    packets = [struct.pack("<d", percentage) for percentage in earlier]
    assert resume(packets[data.draw(st.integers(0, len(packets))) :]) == (7, 8)
