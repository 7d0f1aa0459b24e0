"""What the server asks the executor for: the quota of each context, whatever the client says."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from attrs import define, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING, ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Attach, Attached, Detach, DropClient
from pympsd.wire.link_messages import AdmitClient
from pympsd.wire.messages import CloseContext, ContextClosed, ContextOpened, OpenContext, RequestRefused
from pympsd_server.service.client_session import ClientSession
from pympsd_server.service.executors import ExecutorError, ExecutorGone
from pympsd_server.service.server import Server
from pympsd_server.state_machine.executor_slots import EVERYBODY, Place
from pympsd_server.state_machine.roster import Context

SECONDS = 30
GIB = 1 << 30
HERE = Place(0)


@define
class FakeExecutor:
    """Answers at once; keeps what it was attached. Also the table it is found in, and the log."""

    generation: int = 1
    place: Place = HERE
    attached: list[Attach] = field(factory=list)
    refuses: bool = False
    ends: int = 0
    """So many more requests meet its end."""
    requests: int = 0
    left: list[Place] = field(factory=list)
    """Where somebody left, once for each."""
    slow: int = 0
    """Nothing is freed before so many are asked for it."""
    asked_to_free: int = 0
    unfinished: int = 0
    all_asked: trio.Event = field(factory=trio.Event)

    def next_request(self) -> int:
        self.requests += 1
        return self.requests

    async def of(self, place: Place) -> FakeExecutor:
        return self.running(place)

    def running(self, place: Place) -> FakeExecutor:
        self.place = place
        return self

    def that_runs(self, context: Context) -> FakeExecutor:
        return self.running(context.place)

    async def free(self, message: Detach | DropClient) -> None:
        assert isinstance(message, Detach | DropClient)
        self.asked_to_free += 1
        if self.asked_to_free >= self.slow:
            self.all_asked.set()
        await self.all_asked.wait()

    async def end_if_forsaken(self, executor: FakeExecutor) -> None:
        self.left.append(executor.place)

    async def ask(self, request: int, message: object) -> tuple[Any, tuple[int, ...]]:
        assert isinstance(message, Attach)
        if self.ends:
            self.ends -= 1
            raise ExecutorGone(Result.ERROR_MPS_RPC_FAILURE, "the executor of device 0 has ended")
        if self.refuses:
            raise ExecutorError(Result.ERROR_OUT_OF_MEMORY, "no room")
        self.attached.append(message)
        ends = tuple(end.detach() for end in socket.socketpair()) if message.new_stream else ()
        return Attached(request, 4096, message.memory_bytes, (0, -5)), ends


class Silent:
    """A log and a link to the daemon that take whatever is said."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **fields: None


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@asynccontextmanager
async def session(
    executor: FakeExecutor, environment: dict[str, str], *, priority: int = 0, machine: str = "2xH200"
) -> AsyncIterator[MessageChannel]:
    """Run a session with a client whose end is given; the server has 80 % and 2G on device 0."""
    silent: Any = Silent()
    server = Server(silent, silent, describe(machine), ThreadPercentage(80), {0: 2 * GIB})
    server.executors = executor  # type: ignore[assignment]
    server.containment = SimpleNamespace(  # type: ignore[assignment]
        refuses=lambda _: False,
        refusal=lambda *_: None,
        context_left=lambda _: None,
        context_never_was=lambda _: None,
        client_left=lambda _: None,
    )
    ours, theirs = socket.socketpair()
    admitted = AdmitClient(7, 100, 0, 0, "test", priority, environment)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ClientSession.of(server, admitted, (theirs.detach(),)).run)
            channel = MessageChannel(trio.socket.from_stdlib_socket(ours), fds_allowed=2)
            nursery.start_soon(channel.run_sender)
            assert await channel.receive_message() is not None
            yield channel
            nursery.cancel_scope.cancel()
        channel.close()


async def asked(channel: MessageChannel, message: object) -> Any:
    channel.send(message)
    received = await channel.receive_message()
    assert received is not None
    for fd in received[1]:
        socket.close(fd)
    return received[0]


@pytest.mark.parametrize(
    ("default", "environment", "level"),
    [
        (0, {}, 0),
        (1, {}, 1),
        (1, {"CUDA_MPS_CLIENT_PRIORITY": "0"}, 0),
        (0, {"CUDA_MPS_CLIENT_PRIORITY": "1"}, 1),
        (1, {"CUDA_MPS_CLIENT_PRIORITY": "2"}, 1),
    ],
)
async def test_each_context_has_its_clients_priority(
    executor: FakeExecutor, default: int, environment: dict[str, str], level: int
) -> None:
    async with session(executor, environment, priority=default) as channel:
        for request in (1, 2):
            assert isinstance(await asked(channel, OpenContext(request, 0)), ContextOpened)
    assert [attach.priority for attach in executor.attached] == [level, level]


async def test_each_context_has_the_limit_of_its_process(executor: FakeExecutor) -> None:
    environment = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=3G", "CUDA_VISIBLE_DEVICES": "1,0"}
    async with session(executor, environment) as channel:
        for request, device in enumerate((0, 1, 1), 1):
            assert isinstance(await asked(channel, OpenContext(request, device)), ContextOpened)
    assert [attach.memory_bytes for attach in executor.attached] == [GIB, 2 * GIB, 2 * GIB]
    assert len({attach.client for attach in executor.attached}) == 1


@pytest.mark.parametrize("percentage", [90.0, 100.0, 1e300, -1.0, 0.0])
async def test_a_client_cannot_raise_its_share(executor: FakeExecutor, percentage: float) -> None:
    """80 % of 132 SMs: a client that speaks the protocol itself gets no more."""
    environment = {PER_CONTEXT_PARTITIONING: "1"}
    async with session(executor, environment) as channel:
        answer = await asked(channel, OpenContext(1, 0, 0, percentage))
        assert answer.multiprocessors == 104
        for affinity in (105, 132, 1 << 40, 0, -1):
            answer = await asked(channel, OpenContext(2, 0, 0, percentage, affinity))
            assert isinstance(answer, RequestRefused)
            assert answer.code == Result.ERROR_UNSUPPORTED_EXEC_AFFINITY
        assert (await asked(channel, OpenContext(3, 0, 0, percentage, 103))).multiprocessors == 104
    assert [attach.multiprocessors for attach in executor.attached] == [104, 104]
    assert [attach.context for attach in executor.attached] == [1, 2], "refused contexts take no serial"


async def test_without_partitioning_of_each_a_contexts_percentage_does_not_count(executor: FakeExecutor) -> None:
    async with session(executor, {}) as channel:
        assert (await asked(channel, OpenContext(1, 0, 0, 20.0))).multiprocessors == 104


async def test_connections_of_a_refused_context_are_given_back(executor: FakeExecutor) -> None:
    async with session(executor, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}) as channel:
        executor.refuses = True
        for request in range(1, 8):
            answer = await asked(channel, OpenContext(request, 0))
            assert answer.code == Result.ERROR_OUT_OF_MEMORY
        executor.refuses = False
        contexts = [(await asked(channel, OpenContext(request, 0))).context for request in (8, 9, 10)]
        assert (await asked(channel, OpenContext(11, 0))).code == Result.ERROR_MPS_MAX_CLIENTS_REACHED
        assert isinstance(await asked(channel, OpenContext(12, 1)), ContextOpened)
        assert isinstance(await asked(channel, CloseContext(13, contexts[1])), ContextClosed)
        assert isinstance(await asked(channel, OpenContext(14, 0)), ContextOpened)


@pytest.mark.parametrize(("ends", "code"), [(1, 0), (2, Result.ERROR_MPS_SERVER_NOT_READY)])
async def test_an_executor_that_ends_at_once_is_never_told_as_the_servers_end(
    executor: FakeExecutor, ends: int, code: int
) -> None:
    executor.ends = ends
    async with session(executor, {}) as channel:
        answer = await asked(channel, OpenContext(1, 0, 0))
        assert isinstance(answer, RequestRefused if code else ContextOpened)
        assert getattr(answer, "code", 0) == code
        assert isinstance(await asked(channel, OpenContext(2, 0, 0)), ContextOpened)


async def test_what_a_client_held_is_freed_on_all_devices_at_once(executor: FakeExecutor) -> None:
    """Several that are stopped cost the time of one."""
    executor.slow = 3
    async with session(executor, {}, machine="4xH200") as channel:
        for device in range(3):
            assert isinstance(await asked(channel, OpenContext(1 + device, device)), ContextOpened)
    assert (executor.asked_to_free, executor.unfinished) == (3, 0)
    assert len(executor.left) == 3


@pytest.mark.parametrize(("machine", "user"), [("H200", EVERYBODY), ("shared", 0)])
async def test_a_context_runs_where_its_user_shares_no_memory_with_another(
    executor: FakeExecutor, tmp_path: Path, machine: str, user: int
) -> None:
    shared = tmp_path / "shared.toml"
    shared.write_text("isolates_address_spaces = false\n[[device]]\n")
    async with session(executor, {}, machine=str(shared) if machine == "shared" else machine) as channel:
        opened = await asked(channel, OpenContext(1, 0))
        assert executor.place == Place(0, user)
        assert isinstance(await asked(channel, CloseContext(2, opened.context)), ContextClosed)
        assert executor.left == [Place(0, user)]
    assert executor.left == [Place(0, user)] * 2, "left once by the context, once by the client"


@define
class Recorder:
    """A log and a link to the daemon that note what is said, in order."""

    said: list[str] = field(factory=list)

    def info(self, name: str, **_: object) -> None:
        """Note a line."""
        self.said.append(name)

    def client_gone(self, _: int) -> None:
        """Note what the daemon is told."""
        self.said.append("the daemon knows")


def test_the_daemon_is_told_of_a_clients_end_before_it_is_logged() -> None:
    recorder: Any = Recorder()
    server = Server(recorder, recorder, describe("1xH200"), ThreadPercentage(100), {})
    server.containment = SimpleNamespace(client_left=lambda _: None)  # type: ignore[assignment]
    server.lost_client(server.roster.arrive(7, 100, 0, {}), met=True)
    assert recorder.said == ["the daemon knows", "client_receive_failed", "client_disconnected"]
