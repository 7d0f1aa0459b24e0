"""Limits of clients on a GPU: what they see, and what their kernels and allocations meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cgroups import Cgroups
from processes import ClientProcess, DaemonProcess, wait_until
from tested_machine import gpu

from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.partitions import chunk_count, chunk_size
from pympsd.vocabulary.sm_rounding import count_multiprocessors

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
Start = Callable[..., ClientProcess]


def places(client: ClientProcess) -> set[int]:
    """Return the multiprocessors that a grid ran on whose blocks stay until there is no room for more."""
    code, _, numbers = client.call(f"stay {16 * gpu().multiprocessors}").partition(" ")
    assert code == "CUDA_SUCCESS", client.call("error")
    return set(map(int, numbers.split(",")))


@pytest.mark.parametrize("percentage", ["10", "50", "100"])
def test_a_percentage_is_seen_and_kept_to(start: Start, percentage: str) -> None:
    client = start(**{PERCENTAGE: percentage})
    share = count_multiprocessors(ThreadPercentage(float(percentage)), gpu())
    assert client.call("sm") == str(share)
    assert len(places(client)) == share
    assert client.call("add") == RIGHT


def test_clients_with_half_each_run_on_disjoint_multiprocessors(start: Start) -> None:
    first, second = (start(**{PERCENTAGE: "50"}) for _ in range(2))
    for client in (first, second):
        client.send(f"stay {16 * gpu().multiprocessors}")
    seen = [set(client.result().partition(" ")[2].split(",")) for client in (first, second)]
    half = count_multiprocessors(ThreadPercentage(50.0), gpu())
    assert [len(sms) for sms in seen] == [half, half]
    assert not seen[0] & seen[1]


def test_the_daemons_percentage_holds_and_can_be_changed_for_later_clients(
    daemon: DaemonProcess, start: Start
) -> None:
    assert daemon.run_command("set_default_active_thread_percentage 25") == "25.0\n"
    first = start()
    quarter = count_multiprocessors(ThreadPercentage(25.0), gpu())
    assert (first.call("sm"), len(places(first))) == (str(quarter), quarter)
    (server,) = daemon.servers()
    assert daemon.run_command(f"set_active_thread_percentage {server} 100") == "100.0\n"
    second = start()
    assert (second.call("sm"), len(places(second))) == (str(gpu().multiprocessors), gpu().multiprocessors)
    assert first.call("sm") == str(quarter)


def test_a_context_with_multiprocessors_of_its_own(start: Start) -> None:
    client = start()
    for requested in (16, 40):
        assert client.call(f"ctxaff 0 {requested}") == f"CUDA_SUCCESS {requested}"
        assert len(places(client)) == requested


def test_a_memory_limit_is_seen_and_kept_to(daemon: DaemonProcess, start: Start) -> None:
    assert daemon.run_command("set_default_device_pinned_mem_limit 0 4G") == ""
    client = start()
    free, total = map(int, client.call("mem").split())
    assert total == 4 << 10
    assert free < total, "the context is counted"
    assert client.call(f"alloc {6 << 30}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert client.call(f"alloc {2 << 30}").split()[0] == "CUDA_SUCCESS"
    assert client.call(f"alloc {2 << 30}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert client.call("add") == RIGHT, "less still fits"
    raised = start(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=8G")
    assert raised.call("mem").split()[1] == "4096", "a client's own limit cannot raise it"
    lowered = start(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G")
    assert lowered.call("mem").split()[1] == "2048"


def test_all_of_the_memory_but_what_others_have(start: Start) -> None:
    first, second = start(), start()
    free, total = map(int, first.call("mem").split())
    assert total == gpu().memory_bytes >> 20
    assert first.call(f"alloc {8 << 30}").split()[0] == "CUDA_SUCCESS"
    assert int(second.call("mem").split()[0]) <= free - (8 << 10)
    assert second.call(f"alloc {(free - (4 << 10)) << 20}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert second.call("add") == RIGHT


def test_priorities_are_accepted(daemon: DaemonProcess, start: Start) -> None:
    normal, below = start(), start(CUDA_MPS_CLIENT_PRIORITY="1")
    assert daemon.run_command("set_default_client_priority 1\nget_default_client_priority") == "1\n"
    late = start()
    wait_until(lambda: "Client Priority set to 1" in daemon.log("server.log"), "the line in server.log")
    assert [client.call("prio").split()[0] for client in (normal, below, late)] == ["CUDA_SUCCESS"] * 3
    assert below.call("endless") == "CUDA_SUCCESS"
    assert [client.call("add") for client in (normal, late)] == [RIGHT] * 2


def test_clients_of_static_partitions_have_their_chunks_alone(
    make_daemon: Callable[..., DaemonProcess], start_of: Start
) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "-p", "3").returncode == 0
    daemon.run(["server", "create", "a"])
    rest = gpu().multiprocessors - chunk_size(gpu()) * chunk_count(gpu())
    counts = {"small": 2 * chunk_size(gpu()), "large": 5 * chunk_size(gpu()) + rest}
    for name, chunks, remainder in (("small", 2, "false"), ("large", 5, "true")):
        options = ["--server=a", "--device=0", f"--chunks={chunks}", f"--include-remainder={remainder}"]
        creation = daemon.run(["sm-partition", "create", name, *options])
        assert f"(sm-count={counts[name]})" in creation.stdout, creation
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.directory / "pipe" / "a")}
    clients = {name: start_of(daemon, **pipe, CUDA_MPS_SM_PARTITION=name) for name in counts}
    assert {name: int(client.call("sm")) for name, client in clients.items()} == counts
    seen = {name: places(client) for name, client in clients.items()}
    assert {name: len(sms) for name, sms in seen.items()} == counts
    assert not seen["small"] & seen["large"]
    outside = daemon.client(**pipe)
    assert (outside.call("init"), outside.call("ctx 0")) == (
        "CUDA_SUCCESS",
        "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
    )
    outside.end()


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    """Cgroups, which are removed after their processes."""
    cgroups = Cgroups()
    yield cgroups
    cgroups.remove()


def test_a_client_within_its_soft_limit_gets_the_memory_of_one_beyond(
    cgroups: Cgroups, make_daemon: Callable[..., DaemonProcess]
) -> None:
    daemon = make_daemon()
    done = daemon.start("-d", "-p", "3")
    assert (done.returncode, done.stderr) == (0, "")
    soft = f"memacct limit {cgroups.path}/owner --soft-limit=32G"
    for line in ("server create a", soft, "memacct set --audit-log=true"):
        done = daemon.run(line.split())
        assert done.returncode == 0, done
    at = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.directory / "pipe" / "a")}
    guest, owner = daemon.client(**at), daemon.client(**at)
    try:
        cgroups.move(owner.pid, "owner")
        for client in (guest, owner):
            client.connect()
        # Other tests use the GPU: there is some room for them, and too little for the owner.
        while int(guest.call("mem").split()[0]) > 12 << 10:
            assert guest.call(f"alloc {2 << 30}").split()[0] == "CUDA_SUCCESS"
        assert owner.call(f"alloc {24 << 30}").split()[0] == "CUDA_SUCCESS", owner.call("error")
        assert guest.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
        assert owner.call("add") == RIGHT
        wait_until(lambda: _has_line(daemon, f"Evicted client {guest.pid} "), "the line of the eviction")
        wait_until(lambda: _has_line(daemon, f"memacct: client {owner.pid} "), "the line of the allocation")
    finally:
        for client in (guest, owner):
            client.end()


def _has_line(daemon: DaemonProcess, part: str) -> bool:
    return any(part in line for line in daemon.log("a/server.log"))
