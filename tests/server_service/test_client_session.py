"""What a session requests of executors: the quota of each context, whatever the client asks for."""

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

from pympsd.channel.allowance import FRAME_SECONDS
from pympsd.channel.message_channel import MessageChannel
from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING, ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire import messages
from pympsd.wire.executor_messages import Attach, Attached, Detach, DropClient
from pympsd.wire.link_messages import AdmitClient
from pympsd.wire.messages import CloseContext, ContextClosed, ContextOpened, OpenContext, RequestRefused
from pympsd_server.service.client_session import ClientSession
from pympsd_server.service.executor import ExecutorError, ExecutorGone
from pympsd_server.service.server import DELETED, Server
from pympsd_server.state_machine.client_table import ContextRecord
from pympsd_server.state_machine.executor_slots import ALL_USERS, ExecutorSlot

SECONDS = 30
GIB = 1 << 30
SLOT = ExecutorSlot(0)


@define
class FakeExecutor:
    """Answers immediately and records attachments. Also stands for the table of executors."""

    generation: int = 1
    slot: ExecutorSlot = SLOT
    attached: list[Attach] = field(factory=list)
    refuses: bool = False
    ends: int = 0
    """The number of further requests that fail because it ends."""
    requests: int = 0
    checked: list[ExecutorSlot] = field(factory=list)
    """The slot of each check for abandonment."""
    expected_frees: int = 0
    """No request to free is answered before this number has arrived."""
    frees: int = 0
    unfinished: int = 0
    all_arrived: trio.Event = field(factory=trio.Event)

    def next_request(self) -> int:
        self.requests += 1
        return self.requests

    async def wait_until_ended(self, slot: ExecutorSlot) -> None:
        pass

    async def get_or_start(self, slot: ExecutorSlot) -> FakeExecutor:
        return self.find(slot)

    def find(self, slot: ExecutorSlot) -> FakeExecutor:
        self.slot = slot
        return self

    def executor_of(self, context: ContextRecord) -> FakeExecutor:
        return self.find(context.slot)

    async def free(self, message: Detach | DropClient) -> None:
        assert isinstance(message, Detach | DropClient)
        self.frees += 1
        if self.frees >= self.expected_frees:
            self.all_arrived.set()
        await self.all_arrived.wait()

    async def end_if_abandoned(self, executor: FakeExecutor) -> None:
        self.checked.append(executor.slot)

    async def ask(self, request: int, message: object) -> tuple[Any, tuple[int, ...]]:
        assert isinstance(message, Attach)
        if self.ends:
            self.ends -= 1
            raise ExecutorGone(Result.ERROR_MPS_RPC_FAILURE, "the executor of device 0 has ended")
        if self.refuses:
            raise ExecutorError(Result.ERROR_OUT_OF_MEMORY, "no room")
        self.attached.append(message)
        ends = tuple(end.detach() for end in socket.socketpair()) if message.new_stream else ()
        return Attached(request, 4096, message.quota.memory_bytes, (0, -5)), ends


class Silent:
    """A log and a link to the daemon that ignore every call."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **fields: None


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


async def _holds_nobody(_: object) -> None:
    pass


@asynccontextmanager
async def session(
    executor: FakeExecutor,
    environment: dict[str, str],
    *,
    priority: int = 0,
    machine: str = "2xH200",
    welcomed: bool = True,
) -> AsyncIterator[MessageChannel]:
    """Run a session and yield the client's end; the server's limits are 80 % and 2G on device 0."""
    silent: Any = Silent()
    server = Server(silent, silent, describe(machine), ThreadPercentage(80), {0: 2 * GIB})
    containment: Any = SimpleNamespace(
        server=server,
        executors=executor,
        refuses=lambda _: False,
        refusal=lambda *_: None,
        context_not_opened=lambda _: None,
        pidfds={},
        hold=_holds_nobody,
    )
    own_end, peer_end = socket.socketpair()
    admitted = AdmitClient(7, 100, 0, "test", 0, 0, priority, environment)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ClientSession.of(containment, admitted, (peer_end.detach(),)).run)
            channel = MessageChannel(trio.socket.from_stdlib_socket(own_end), fds_allowed=2)
            nursery.start_soon(channel.run_sender)
            if welcomed:
                assert await channel.receive_message() is not None
            yield channel
            nursery.cancel_scope.cancel()
        channel.close()


async def exchange(channel: MessageChannel, message: object) -> Any:
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
async def test_each_context_has_the_priority_of_its_client(
    executor: FakeExecutor, default: int, environment: dict[str, str], level: int
) -> None:
    async with session(executor, environment, priority=default) as channel:
        for request in (1, 2):
            assert isinstance(await exchange(channel, OpenContext(request, 0)), ContextOpened)
    assert [attach.quota.priority for attach in executor.attached] == [level, level]


async def test_each_context_has_the_limit_of_its_process(executor: FakeExecutor) -> None:
    environment = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=3G", "CUDA_VISIBLE_DEVICES": "1,0"}
    async with session(executor, environment) as channel:
        for request, device in enumerate((0, 1, 1), 1):
            assert isinstance(await exchange(channel, OpenContext(request, device)), ContextOpened)
    assert [attach.quota.memory_bytes for attach in executor.attached] == [GIB, 2 * GIB, 2 * GIB]
    assert len({attach.client for attach in executor.attached}) == 1


@pytest.mark.parametrize(
    ("text", "limits"),
    [("512", [GIB // 2, GIB // 2]), ("1536", [3 * GIB // 2, GIB]), ("", [0, GIB]), ("0", [0, GIB])],
)
async def test_a_containers_limit_lowers_that_of_each_device(
    executor: FakeExecutor, text: str, limits: list[int]
) -> None:
    environment = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=1G", "NVIDIA_GPU_MEMORY_LIMIT": text}
    environment["CUDA_VISIBLE_DEVICES"] = "1,0"
    async with session(executor, environment) as channel:
        for request, device in enumerate((0, 1), 1):
            assert isinstance(await exchange(channel, OpenContext(request, device)), ContextOpened)
    assert [attach.quota.memory_bytes for attach in executor.attached] == limits


async def test_a_containers_limit_that_is_not_a_number_is_refused_or_ignored(executor: FakeExecutor) -> None:
    environment = {"NVIDIA_GPU_MEMORY_LIMIT": "2G"}
    async with session(executor, environment, welcomed=False) as channel:
        received = await channel.receive_message()
        assert received is not None
        refused, _ = received
        assert refused.code == Result.ERROR_INVALID_VALUE
        assert refused.reason.startswith(
            "NVIDIA_GPU_MEMORY_LIMIT: '2G': it must be a whole number of MiB, such as 2048"
        )
    async with session(executor, environment | {"PYMPSD_LENIENT_LIMITS": "1"}) as channel:
        assert isinstance(await exchange(channel, OpenContext(1, 0)), ContextOpened)
    assert [attach.quota.memory_bytes for attach in executor.attached] == [2 * GIB]


@pytest.mark.parametrize("percentage", [90.0, 100.0, 1e300, -1.0, 0.0])
async def test_a_client_cannot_raise_its_multiprocessors(executor: FakeExecutor, percentage: float) -> None:
    """80 % of 132 SMs: nor by speaking the protocol itself."""
    environment = {PER_CONTEXT_PARTITIONING: "1"}
    async with session(executor, environment) as channel:
        answer = await exchange(channel, OpenContext(1, 0, 0, percentage))
        assert answer.multiprocessors == 104
        for affinity in (105, 132, 1 << 40, 0, -1):
            answer = await exchange(channel, OpenContext(2, 0, 0, percentage, affinity))
            assert isinstance(answer, RequestRefused)
            assert answer.code == Result.ERROR_UNSUPPORTED_EXEC_AFFINITY
        assert (await exchange(channel, OpenContext(3, 0, 0, percentage, 103))).multiprocessors == 104
    assert [attach.quota.multiprocessors for attach in executor.attached] == [104, 104]
    assert [attach.context for attach in executor.attached] == [1, 2], "refused contexts take no id"


async def test_without_per_context_partitioning_a_contexts_percentage_is_ignored(executor: FakeExecutor) -> None:
    async with session(executor, {}) as channel:
        assert (await exchange(channel, OpenContext(1, 0, 0, 20.0))).multiprocessors == 104


async def test_the_connections_of_a_refused_context_are_freed(executor: FakeExecutor) -> None:
    async with session(executor, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}) as channel:
        executor.refuses = True
        for request in range(1, 8):
            answer = await exchange(channel, OpenContext(request, 0))
            assert answer.code == Result.ERROR_OUT_OF_MEMORY
        executor.refuses = False
        contexts = [(await exchange(channel, OpenContext(request, 0))).context for request in (8, 9, 10)]
        assert (await exchange(channel, OpenContext(11, 0))).code == Result.ERROR_MPS_MAX_CLIENTS_REACHED
        assert isinstance(await exchange(channel, OpenContext(12, 1)), ContextOpened)
        assert isinstance(await exchange(channel, CloseContext(13, contexts[1])), ContextClosed)
        assert isinstance(await exchange(channel, OpenContext(14, 0)), ContextOpened)


@pytest.mark.parametrize(("ends", "code"), [(1, 0), (2, Result.ERROR_MPS_SERVER_NOT_READY)])
async def test_the_end_of_an_executor_is_never_reported_as_the_servers_end(
    executor: FakeExecutor, ends: int, code: int
) -> None:
    executor.ends = ends
    async with session(executor, {}) as channel:
        answer = await exchange(channel, OpenContext(1, 0, 0))
        assert isinstance(answer, RequestRefused if code else ContextOpened)
        assert getattr(answer, "code", 0) == code
        assert isinstance(await exchange(channel, OpenContext(2, 0, 0)), ContextOpened)


async def test_a_clients_resources_are_freed_on_all_devices_concurrently(executor: FakeExecutor) -> None:
    """Several stopped executors take the time of one."""
    executor.expected_frees = 3
    async with session(executor, {}, machine="4xH200") as channel:
        for device in range(3):
            assert isinstance(await exchange(channel, OpenContext(1 + device, device)), ContextOpened)
    assert (executor.frees, executor.unfinished) == (3, 0)
    assert len(executor.checked) == 3


@pytest.mark.parametrize(("machine", "user"), [("H200", ALL_USERS), ("shared", 0)])
async def test_a_context_runs_in_a_slot_that_shares_no_memory_between_users(
    executor: FakeExecutor, tmp_path: Path, machine: str, user: int
) -> None:
    shared = tmp_path / "shared.toml"
    shared.write_text("isolates_address_spaces = false\n[[device]]\n")
    async with session(executor, {}, machine=str(shared) if machine == "shared" else machine) as channel:
        opened = await exchange(channel, OpenContext(1, 0))
        assert executor.slot == ExecutorSlot(0, user)
        assert isinstance(await exchange(channel, CloseContext(2, opened.context)), ContextClosed)
        assert executor.checked == [ExecutorSlot(0, user)]
    assert executor.checked == [ExecutorSlot(0, user)] * 2, "checked once for the context, once for the client"


@pytest.mark.parametrize("forced", [True, False])
async def test_clients_see_the_end_of_the_server_before_the_end_of_the_executors(forced: bool) -> None:
    """Otherwise the end of an executor would look like a fatal fault of its device."""
    silent: Any = Silent()
    server = Server(silent, silent, describe("1xH200"), ThreadPercentage(100), {})
    server.start_serving()
    server.client_table.add_client(7, 100, 0, {})
    own_end, peer_end = socket.socketpair()
    server.channels[7] = MessageChannel(trio.socket.from_stdlib_socket(own_end))
    if forced:
        server.leave(forced=True, is_deletion=True)
    else:
        server.end_without_daemon()
    assert server.done.is_set()  # only now executors are ended
    client = MessageChannel(trio.socket.from_stdlib_socket(peer_end))
    with trio.fail_after(SECONDS):
        if forced:
            assert await client.receive_message() == (DELETED, ())
        assert await client.receive_message() is None
    client.close()
    server.channels[7].close()


@define
class Recorder:
    """A log and a link to the daemon that record calls in order."""

    events: list[str] = field(factory=list)

    def info(self, name: str, **_: object) -> None:
        """Record a log line."""
        self.events.append(name)

    def client_left(self, _: int) -> None:
        """Record the report to the daemon."""
        self.events.append("reported to the daemon")


def test_the_daemon_receives_the_end_of_a_client_before_the_log_line() -> None:
    recorder: Any = Recorder()
    server = Server(recorder, recorder, describe("1xH200"), ThreadPercentage(100), {})
    server.client_left(server.client_table.add_client(7, 100, 0, {}), connected=True)
    assert recorder.events == ["reported to the daemon", "client_receive_failed", "client_disconnected"]


async def test_half_a_message_of_a_client_ends_its_session_at_the_deadline(
    executor: FakeExecutor, autojump_clock: object
) -> None:
    async with session(executor, {}) as channel:
        channel.send_raw(messages.encode(OpenContext(1, 0))[:-1])
        with trio.fail_after(2 * FRAME_SECONDS):
            assert await channel.receive() is None


async def test_answers_that_a_client_does_not_read_end_its_session(
    executor: FakeExecutor, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pympsd.channel.allowance.UNREAD_SECONDS", 5.0)
    async with session(executor, {}) as channel:
        # One answer is read before the next request is: the rest stays in the client's own socket.
        channel.send_raw(b"".join(messages.encode(CloseContext(number, 1)) for number in range(100_000)))
        with trio.fail_after(10):
            await channel.drain()
        assert channel.overflowed
