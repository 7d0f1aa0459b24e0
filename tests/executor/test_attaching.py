"""Set-up, attaching and detaching, as the owner sees them."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from pympsd.devices.machine import describe
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import (
    Attach,
    Attached,
    ExecutorDone,
    ExecutorFailed,
    ExecutorReady,
    ExecutorRefused,
)
from tests.executor.executor_owner import SECONDS, ExecutorOwner, readable
from tests.executor.raw_client import ENDLESS

Start = Callable[..., ExecutorOwner]


@pytest.fixture
def executor(start: Callable[..., ExecutorOwner]) -> ExecutorOwner:
    """An executor of each test's own: these tests are about its process."""
    return start().ready()


def test_ready_names_the_process(start: Start) -> None:
    owner = start()
    assert owner.set_up() == ExecutorReady(owner.process.pid)


def test_another_build_is_refused_and_the_executor_leaves(start: Start) -> None:
    owner = start()
    answer = owner.set_up(build="0.0+000000000000")
    assert isinstance(answer, ExecutorFailed)
    assert "0.0+000000000000" in answer.reason
    assert owner.wait_for_exit() == 1


def test_an_unknown_backend_is_refused_by_name(start: Start) -> None:
    owner = start()
    answer = owner.set_up(backend="abacus")
    assert isinstance(answer, ExecutorFailed)
    assert answer.code == Result.ERROR_NOT_SUPPORTED
    assert "'abacus'" in answer.reason
    assert owner.wait_for_exit() == 1


def test_an_owner_that_breaks_the_rules_is_left(start: Start) -> None:
    owner = start(stderr=-3)
    owner.link.sendall(b"\xff" * 64)
    assert owner.wait_for_exit() == 1


def test_an_executor_exits_when_its_owner_leaves_without_a_message(start: Start) -> None:
    owner = start()
    owner.link.close()
    assert owner.wait_for_exit() == 0


def test_the_shared_memory_cannot_be_cut(executor: ExecutorOwner) -> None:
    answer, fds = executor.ask(Attach, **executor.request(1, 1, True))
    try:
        assert isinstance(answer, Attached)
        assert answer.shared_bytes == 16 << 20
        assert os.fstat(fds[1]).st_size == answer.shared_bytes + answer.ring_bytes
        with pytest.raises(PermissionError):
            os.ftruncate(fds[1], 4096)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fds[1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        for fd in fds:
            os.close(fd)


def test_attached_contains_the_limits_of_the_context(executor: ExecutorOwner) -> None:
    limited = executor.attach(memory_bytes=1 << 30).attached
    assert limited.memory_bytes == 1 << 30
    assert limited.stream_priorities == (0, -5)
    second, fds = executor.ask(Attach, **executor.request(1, 2, False, multiprocessors=8))
    assert fds == ()
    assert second.memory_bytes == 1 << 30
    unlimited = executor.attach(client=2, context=3).attached
    assert unlimited.memory_bytes == describe("H200")[0].memory_bytes


@pytest.mark.parametrize(("client", "context", "new_stream"), [(1, 2, True), (2, 2, False), (1, 1, False)])
def test_what_does_not_fit_is_refused(executor: ExecutorOwner, client: int, context: int, new_stream: bool) -> None:
    executor.attach(client=1, context=1)
    answer, fds = executor.ask(Attach, **executor.request(client, context, new_stream))
    assert isinstance(answer, ExecutorRefused)
    assert (answer.code, fds) == (Result.ERROR_INVALID_VALUE, ())


def test_a_limit_below_the_cost_of_a_context_is_refused(executor: ExecutorOwner) -> None:
    answer, _ = executor.ask(Attach, **executor.request(1, 1, True, memory_bytes=1 << 20))
    assert isinstance(answer, ExecutorRefused)
    assert answer.code == Result.ERROR_OUT_OF_MEMORY
    overhead = sum(describe("H200")[0].memory_bytes - free for free, _ in [executor.attach().memory_info()])
    assert f"takes {overhead} bytes" in answer.reason
    assert f"limit is {1 << 20} bytes" in answer.reason


def test_detached_contexts_free_their_memory_and_their_id(executor: ExecutorOwner) -> None:
    client = executor.attach(context=1)
    executor.ask(Attach, **executor.request(1, 2, False))
    before, _ = client.memory_info()
    client.good("ALLOCATE", 1 << 30, context=2)
    assert client.memory_info()[0] == before - (1 << 30)
    assert isinstance(executor.detach(2), ExecutorDone)
    assert client.memory_info()[0] > before  # the context's own cost came back too
    # What was on its way, and what never was one.
    assert client.call("ALLOCATE", 512, context=2).result == Result.ERROR_CONTEXT_IS_DESTROYED
    assert client.call("ALLOCATE", 512, context=3).result == Result.ERROR_INVALID_CONTEXT
    assert executor.detach(2).code == Result.ERROR_INVALID_CONTEXT


def test_dropping_a_client_stops_its_kernel_frees_its_memory_and_ends_its_stream(executor: ExecutorOwner) -> None:
    raw_client = executor.attach(client=2, context=2)
    before, _ = raw_client.memory_info()
    executor.drop(99)  # by its answer the sender has closed what it passed on
    fds = executor.fd_count()
    client = executor.attach(client=1, context=1)
    client.allocate(1 << 30)
    module, _ = client.load()
    client.launch(module, ENDLESS)
    waiting = client.send("SYNCHRONIZE_CONTEXT")
    assert isinstance(executor.drop(1), ExecutorDone)
    with pytest.raises((EOFError, ConnectionResetError)):
        client.answer(waiting)
    assert raw_client.memory_info()[0] == before
    limit = time.monotonic() + SECONDS
    while executor.fd_count() != fds:  # the shared memory goes with the last reference to it
        assert time.monotonic() < limit
        assert isinstance(executor.drop(1), ExecutorDone)


def test_a_dropped_client_can_come_again(executor: ExecutorOwner) -> None:
    executor.attach(client=1, context=1)
    executor.drop(1)
    again = executor.attach(client=1, context=1)
    assert again.allocate(512)


def test_an_executor_exits_at_the_end_of_its_link_whatever_runs(executor: ExecutorOwner) -> None:
    client = executor.attach()
    module, _ = client.load()
    client.launch(module, ENDLESS)
    assert client.call("QUERY_STREAM", 0).result == Result.ERROR_NOT_READY
    executor.link.close()
    assert executor.wait_for_exit() == 0


def test_an_executor_ignores_an_interrupt_from_the_terminal(executor: ExecutorOwner) -> None:
    client = executor.attach()
    os.kill(executor.process.pid, signal.SIGINT)
    assert client.allocate(512)
    assert executor.alive


def test_the_command_line_of_an_executor_is_not_a_servers(executor: ExecutorOwner) -> None:
    assert Path(f"/proc/{executor.process.pid}/cmdline").read_bytes() == b"pympsd-executor\0"


def test_the_out_of_memory_killer_prefers_an_executor(executor: ExecutorOwner) -> None:
    assert Path(f"/proc/{executor.process.pid}/oom_score_adj").read_text() == "1000\n"


def test_a_faulted_context_is_reported_once(executor: ExecutorOwner) -> None:
    client = executor.attach(context=4)
    module, layout = client.load()
    names = [function.name for function in layout.functions]
    client.launch(module, names.index("trapped"))
    fault, _ = executor.receive()
    assert (fault.context, fault.code) == (4, Result.ERROR_LAUNCH_FAILED)
    assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_LAUNCH_FAILED
    assert not readable(executor.link, 0)


def test_a_small_device_runs_out_across_its_clients(start: Start) -> None:
    device = evolve(describe("H200")[0], memory_bytes=2 << 30)
    owner = start().ready(device)
    first, second = owner.attach(client=1, context=1), owner.attach(client=2, context=2)
    first.allocate(900 << 20)
    assert second.call("ALLOCATE", 200 << 20).result == Result.ERROR_OUT_OF_MEMORY
    assert second.allocate(50 << 20)
