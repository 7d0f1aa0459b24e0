"""Kernels that cannot be stopped: a client that left holds its memory until they end; the owner is notified."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest
from attrs import evolve

from pympsd.devices.machine import describe
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import ExecutorDone, ExecutorRefused, Terminate
from tests.executor.executor_owner import SECONDS, ExecutorOwner
from tests.executor.raw_client import ENDLESS, HEADER, STORE, RawClient

Start = Callable[..., ExecutorOwner]
UNTIL = (
    HEADER
    + """
.visible .entry until(.param .u64 where, .param .u32 value) {
    .reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r1, [value];
AGAIN:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.ne.u32 %p1, %r2, %r1;
    @%p1 bra AGAIN;
    ret;
}
"""
)


def like_a_gpu(start: Start) -> ExecutorOwner:
    """An executor of a device that stops no kernels, and whose clients share an address space."""
    return start().ready(evolve(describe("H200")[0], stops_kernels=False, isolates_address_spaces=False))


def busy(owner: ExecutorOwner, client: RawClient, ptx: str | None = None, parameters: bytes = b"") -> None:
    """Have a client run a kernel that does not end by itself; return when it runs."""
    module, _ = client.load(ptx) if ptx else client.load()
    before = owner.trace().counters.get("kernels_started", 0)
    client.launch(module, 0 if ptx else ENDLESS, parameters)
    give_up = time.monotonic() + SECONDS
    while owner.trace().counters.get("kernels_started", 0) == before:
        assert time.monotonic() < give_up


def test_a_client_that_was_dropped_holds_its_memory_until_its_kernel_has_ended(start: Start) -> None:
    owner = like_a_gpu(start)
    stays, goes = owner.attach(client=2, context=2), owner.attach(client=1, context=1)
    gate, (module, _) = stays.allocate(4), stays.load()
    goes.allocate(1 << 30)
    busy(owner, goes, UNTIL, struct.pack("=QI", gate, 1))
    (before, _), unrelated = stays.memory_info(), owner.attach(client=3, context=3)
    assert owner.drop(1) == ExecutorDone(owner._request, unfinished=1)
    assert owner.detach(3) == ExecutorDone(owner._request, unfinished=1), "reported at every detach"
    assert stays.memory_info()[0] == before
    stays.launch(module, STORE, struct.pack("=QI", gate, 1))
    give_up = time.monotonic() + SECONDS
    while stays.memory_info()[0] < before + (1 << 30):
        assert time.monotonic() < give_up, "the memory does not come back"
    while owner.drop(3) != ExecutorDone(owner._request):  # the context is forgotten after its memory
        assert time.monotonic() < give_up, "it is unfinished for ever"
    assert unrelated


@pytest.mark.long
def test_a_termination_reports_that_a_kernel_runs_and_drops_what_waits(start: Start) -> None:
    owner = like_a_gpu(start)
    client = owner.attach(client=1, context=1)
    busy(owner, client)
    waiting = client.send("SYNCHRONIZE_CONTEXT")
    owner.send(Terminate(100, context=1))
    notice, _ = owner.receive()
    assert notice.code == Result.ERROR_MPS_CLIENT_TERMINATED
    refused = [owner.receive()[0], owner.ask(Terminate, context=1)[0]]
    assert all(isinstance(answer, ExecutorRefused) for answer in refused)
    assert [entry.code for entry in refused] == [Result.ERROR_LAUNCH_TIMEOUT] * 2
    assert client.answer(waiting).result == Result.ERROR_MPS_CLIENT_TERMINATED
    assert client.call("ALLOCATE", 4).result == Result.ERROR_MPS_CLIENT_TERMINATED
    assert owner.detach(1) == ExecutorDone(owner._request, unfinished=1)


def test_where_kernels_can_be_stopped_nothing_is_unfinished(executor: ExecutorOwner, client: RawClient) -> None:
    busy(executor, client)
    assert executor.drop(1) == ExecutorDone(executor._request)
