"""An executor without memory: the call or the context that wanted it fails, its neighbours continue."""

from __future__ import annotations

import resource
import socket
import struct
import threading
from pathlib import Path

import pytest

from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import ExecutorDone
from pympsd_server.executor.requests.answers import AnswerWriter
from tests.executor.executor_owner import ExecutorOwner, readable
from tests.executor.raw_client import HEADER, STORE, RawClient

WIDE = (1024, 1, 1)
GREEDY = (
    HEADER
    + """
.visible .entry greedy(.param .u32 n) {
    .local .align 4 .b8 depot[65536];
    .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u32 %r1, [n];
    mov.u64 %rd1, depot;
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
    st.local.u32 [%rd3], %r1;
    ret;
}
"""
)
"""64 KiB for every thread."""
PART = 15 << 20


def no_more_memory(executor: ExecutorOwner, room: int = 0) -> None:
    """Let the executor map this number of bytes more, and none beyond."""
    pid = executor.process.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + room, resource.RLIM_INFINITY))


def memory_again(executor: ExecutorOwner) -> None:
    resource.prlimit(executor.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)


def computes(client: RawClient, module: int, address: int, value: int) -> bool:
    client.launch(module, STORE, struct.pack("=QI", address, value))
    return client.read(address, 4) == struct.pack("=I", value)


@pytest.fixture
def neighbour(executor: ExecutorOwner) -> tuple[RawClient, int, int]:
    """A client that computes, its module and an address."""
    client = executor.attach(client=2, context=2)
    module, _ = client.load()
    return client, module, client.allocate(4)


def test_a_kernel_without_host_memory_poisons_only_its_own_context(
    executor: ExecutorOwner, client: RawClient, neighbour: tuple[RawClient, int, int]
) -> None:
    module, _ = client.load(GREEDY)
    assert computes(*neighbour, 1)
    no_more_memory(executor, 16 << 20)
    client.send("LAUNCH", 0, module, 0, 64, 1, 1, *WIDE, 0, 4, tail=struct.pack("=I", 5).ljust(8, b"\0"))
    answer = client.call("SYNCHRONIZE_CONTEXT")
    assert answer.result == Result.ERROR_OUT_OF_MEMORY
    assert "no host memory left" in answer.reason
    assert computes(*neighbour, 2)
    memory_again(executor)
    # It is not reported to the server, which would fault the neighbours' contexts for it.
    assert not readable(executor.link, 0)
    assert isinstance(executor.drop(1), ExecutorDone)
    again = executor.attach(client=3, context=3)
    assert computes(again, again.load()[0], again.allocate(4), 3)


def test_a_call_without_memory_fails_alone_and_can_be_tried_again(
    executor: ExecutorOwner, client: RawClient, neighbour: tuple[RawClient, int, int]
) -> None:
    assert computes(*neighbour, 1)
    handle = client.handle()
    no_more_memory(executor, 16 << 20)
    answers = (client.call("IMAGE_PART", handle, 0, PART) for _ in range(8))
    refused = next(answer for answer in answers if answer.result)
    assert refused.result == Result.ERROR_OUT_OF_MEMORY
    assert "the executor has no memory left for this call" in refused.reason
    assert computes(*neighbour, 2)
    memory_again(executor)
    client.good("IMAGE_PART", handle, 0, PART)
    client.load()


def test_a_client_that_reads_late_is_cut_off_where_there_is_no_thread_to_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    own_end, peer_end = socket.socketpair()
    with own_end, peer_end:
        answers = AnswerWriter(own_end)
        for _ in range(64):
            answers.send(bytes(1 << 16))
        answers.send(b"nothing happens")
        answers.close()
        while data := peer_end.recv(1 << 20):
            assert not data.strip(b"\0")
