"""The fake server and client do as the recorded ones did (tests/data/driver-wire)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_mps import devices
from fake_mps.install import install
from fake_mps.minimal_daemon import MinimalDaemon
from fake_mps.peer import CONTEXT, DESCRIPTOR, INIT, receive, send_credentials
from fake_mps.programs import DriverClient, chain

DEVICE_0 = b"0".ljust(41, b"\0")
GIB = 1 << 30
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS"

# Recorded answers, of commands-and-users.txt and two-devices.txt; the PIDs and UUIDs of the test are put in.
PS = "e30100000100000000000000000000007edf33338e5d751900efffab511e57160200000000000000"
PS_OTHER_PRIORITY = "ee0100000100000000000000000000007edf33338e5d751900efffab511e57160300000001000000"
PS_OTHER_DEVICE = "c302000001000000000000000100000074047222e0da5fd008e3a8dc4857381d0300000000000000"
DEVICE_CLIENT = "c4020000010000000000000000000000000000000000000000000000000000000000000000000000"
DEVICE_CLIENT_SECOND = "c5020000020000000000000000000000000000000000000000000000000000000000000000000000"
DEVICE_HEAD = "00000000010000004e56494449412048323030" + "00" * 57
QUERY = "010000000000000007000000000000000000000000000000" + "74047222e0da5fd008e3a8dc4857381d"
QUERY += "4e56494449412048323030" + "00" * 121


def make_recorded(text: str, pid: int, device: int | None = None) -> bytes:
    """Return recorded bytes with this PID, and with this device's UUID."""
    record = bytearray.fromhex(text)
    record[0:4] = struct.pack("<i", pid)
    if device is not None:
        record[16:32] = devices.uuid(device)
    return bytes(record)


def test_the_server_introduces_itself_as_recorded(daemon: MinimalDaemon, launcher: Path) -> None:
    daemon.defaults = [struct.pack("<d", 60.0), struct.pack("<q", 1), DEVICE_0, struct.pack("<Q", 4 * GIB)]
    daemon.defaults.append(struct.pack("<i", 1))
    daemon.start(launcher, "-multiuser-server")
    assert daemon.process is not None
    name = f"mps.shm.{os.getuid()}.{daemon.process.pid}"
    assert daemon.ready == bytes(256) + name.encode().ljust(260, b"\0")
    assert daemon.number(17) == 1
    assert daemon.log() == [
        "Startup",
        f"Connecting to control daemon on socket: {daemon.directory}/control",
        "Initializing server process",
        "Creating server context on device 0 (NVIDIA H200)",
        f"Created anonymous shared memory region {name}",
        "CUDA MPS Server for Linux/Unix. Binary version: 13000",
        "Display Driver version: 580",
        "Active Threads Percentage set to 60.0",
        "Device pinned memory limit for device 0 set to 0x100000000 bytes",
        "Server Priority set to 1",
        "Server has started",
    ]


def test_a_client_in_the_log(daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]) -> None:
    daemon.start(launcher)
    daemon.number(17)
    daemon.log()
    client = start(0)
    assert client.call("launch") == "launch CUDA_SUCCESS"
    assert client.call("sync") == "sync CUDA_SUCCESS"
    client.end()
    assert daemon.number(6) == 0
    assert daemon.number(5) == 0
    assert daemon.hear() == b""
    assert daemon.await_end() == (0, "")
    pid = client.pid
    assert daemon.log() == [
        "Received new client request for {PID: -1333654781, Context ID: 0}",
        f"Client {{PID: {pid}, Context ID: 0}} connected",
        f"Creating worker thread for client {{PID: {pid}, Context ID: 0}}",
        f"Received new client request for {{PID: {pid}, Context ID: 0}}",
        f"Client {{PID: {pid}, Context ID: 1}} connected",
        f"Creating worker thread for client {{PID: {pid}, Context ID: 1}}",
        f"Device NVIDIA H200 (uuid {devices.uuid_text(0)}) is associated",
        f"Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE",
        f"Server failed to recevie command with status 806, assuming client {{PID: {pid}, Context ID: 1}} exit",
        f"Client {{PID: {pid}, Context ID: 1}} exiting. Number of active client contexts is 0.",
        f"Server failed to recevie command with status 806, assuming client {{PID: {pid}, Context ID: 0}} exit",
        f"Client process {pid} disconnected",
        "Server has been notified to shutdown",
        "Waiting for current clients to finish",
        "Exiting",
    ]


def test_lists_of_clients(daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]) -> None:
    daemon.start(launcher)
    start(0).end()
    first, second = start(0), start(0, settings={"CUDA_MPS_CLIENT_PRIORITY": "1"})
    start()
    assert daemon.number(6) == 2, "one that has only done cuInit is not listed"
    assert [daemon.hear(), daemon.hear()] == [struct.pack("<i", pid) for pid in (first.pid, second.pid)]
    assert daemon.number(14) == 2
    assert daemon.hear() == make_recorded(PS, first.pid, 0)
    assert daemon.hear() == make_recorded(PS_OTHER_PRIORITY, second.pid, 0)
    daemon.send(0)
    assert daemon.number(5) == 5, "but its connection is counted"
    assert daemon.log()[-1] == "Server was unable to shutdown due to 5 active clients"


def test_the_fake_server_serves_two_devices(
    daemon: MinimalDaemon, tmp_path: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(install(tmp_path, devices=2))
    clients = [start(0), start(0), start(1)]
    assert daemon.serve(clients[1], "ctx 1") == "ctx CUDA_SUCCESS"
    pids = [client.pid for client in clients]
    assert daemon.number(14) == 3, "of each process the first context"
    records = [daemon.hear() for _ in pids]
    assert records[2] == make_recorded(PS_OTHER_DEVICE, pids[2], 1)
    assert [struct.unpack_from("<i", record, 32)[0] for record in records] == [1, 2, 3]
    daemon.send(0)
    assert daemon.number(7) == 2
    answer = [daemon.hear() for _ in range(10)]
    head = bytes.fromhex(DEVICE_HEAD)
    here = [make_recorded(DEVICE_CLIENT, pid) for pid in pids]
    two = struct.pack("<i", 2)
    assert answer[:5] == [devices.uuid(0), bytes(8) + head[8:], two, here[0], here[1]]
    assert answer[5:] == [devices.uuid(1), head, two, here[2], make_recorded(DEVICE_CLIENT_SECOND, pids[1])]
    assert daemon.number(24, struct.pack("<q", 11024)) == 2
    daemon.hear()
    query = bytearray.fromhex(QUERY)
    query[24:40] = devices.uuid(1)
    assert daemon.hear() == bytes(query)
    assert daemon.log()[-1] == "Received device query command. There are 2 devices"


def test_the_slot_freed_last_is_listed_first(
    daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]
) -> None:
    """As recorded in faults-and-shutdown.txt, F2: 2123 before 2122, which came before it."""
    daemon.start(launcher)
    gone = [start(0), start(0)]
    for client in gone:
        client.end()
        assert daemon.number(17) == 1  # it has seen that end now, and frees the slots in this order
    clients = [start(0), start(0)]
    assert daemon.number(6) == 2
    assert [daemon.hear(), daemon.hear()] == [struct.pack("<i", client.pid) for client in reversed(clients)]


def test_limits_of_each_client(daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]) -> None:
    daemon.start(launcher)
    clients = []
    for percentage, expected, limit in (
        (25.0, 32, GIB),
        (50.0, 66, 2 * GIB),
        (75.0, 98, 3 * GIB),
        (10.0, 12, 4 * GIB),
    ):
        daemon.send(9, struct.pack("<d", percentage), 20, DEVICE_0, struct.pack("<Q", limit))
        client = start(0)
        clients.append((client, f"sms {expected}"))
        assert client.call(f"alloc {limit - 1}") == "alloc CUDA_SUCCESS"
        assert client.call("alloc 2") == "alloc CUDA_ERROR_OUT_OF_MEMORY"
        assert client.call("alloc 1") == "alloc CUDA_SUCCESS"
    for client, sms in clients:
        assert client.call("sms") == sms, "what was in force when it was handed over stays"
        assert client.call("alloc 1") == "alloc CUDA_ERROR_OUT_OF_MEMORY"
    daemon.send(8)
    assert daemon.hear() == struct.pack("<d", 10.0)
    daemon.send(19, DEVICE_0)
    assert daemon.hear() == struct.pack("<Q", 4 * GIB)
    daemon.send(15, struct.pack("<i", 1))
    assert daemon.number(17) == 1
    assert daemon.log()[-1] == "Client Priority set to 1"
    assert start(0, settings={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "5"}).call("sms") == "sms 6"


def test_the_fake_server_terminates_a_client(
    daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(launcher)
    client, other = start(0), start(0)
    daemon.number(17)
    daemon.log()
    assert daemon.number(13, 1) == 201
    assert daemon.number(13, client.pid) == 0
    assert client.call("sync") == "sync CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert other.call("sync") == "sync CUDA_SUCCESS"
    assert daemon.log() == [
        "Client termination request failed: There is no active client context found for process 1.",
        "Client termination failed with invalid device context.",
        f"MPS server requesting client {{PID: {client.pid}, Context ID: 1}} to exit",
        "Client termination succeeded.",
    ]
    assert daemon.number(6) == 2, "it is listed until it leaves"
    assert [daemon.hear(), daemon.hear()] == [struct.pack("<i", pid) for pid in (client.pid, other.pid)]
    assert daemon.serve(client, "ctx 0") == "ctx CUDA_SUCCESS"
    assert client.call("destroy 0") == "destroy CUDA_SUCCESS"
    assert client.call("sync") == "sync CUDA_SUCCESS"
    assert daemon.number(13, client.pid) == 0
    daemon.log()
    daemon.send(13, struct.pack("<i", client.pid))
    # The server sees the ends of clients before what the daemon sent: it has to have heard this command.
    daemon.await_line(f"MPS server requesting client {{PID: {client.pid}, Context ID: 2}} to exit")
    assert other.call("sync") == "sync CUDA_SUCCESS"
    client.end()
    assert daemon.hear() == struct.pack("<i", 0), "the answer comes when the process has ended"


def test_a_fault_and_the_recovery(daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]) -> None:
    daemon.start(launcher)
    culprit, victim = start(0), start(0)
    daemon.number(17)
    daemon.log()
    assert culprit.call("fault") == f"fault {ILLEGAL}"
    assert daemon.number(17) == 0
    assert victim.call("alloc 1") == f"alloc {ILLEGAL}"
    pids = (culprit.pid, victim.pid)
    names = [f"{{PID: {pid}, Context ID: 1}}" for pid in pids]
    assert daemon.log() == [
        f"Client {{PID: {pids[0]}, Context: 1}} encountered a fatal GPU error.",
        "Server is handling a fatal GPU error.",
        *(f"Client {name} on device 0 to be torn down" for name in names),
        f"All clients belonging to error trigging process {pids[0]} will be torn down",
        f"Client {names[0]} on the error-trigging process {pids[0]} to be torn down",
        f"All clients belonging to error trigging process {pids[1]} will be torn down",
        f"Client {names[1]} on the error-trigging process {pids[1]} to be torn down",
        "The following devices will be reset:",
        "0",
        "The following client process have a sticky error set:",
        str(pids[0]),
        str(pids[1]),
    ]
    with DriverClient.start(daemon.directory) as new_client:
        assert daemon.serve(new_client, "init") == "init CUDA_ERROR_MPS_SERVER_NOT_READY"
        refused = f"{{PID: {new_client.pid}, Context ID: 0}}"
    assert daemon.log()[-2:] == [
        f"Server teardown in progress. Refusing to accept new client {refused}",
        f"Failed to accept client {refused} with status 807",
    ]
    culprit.end()
    assert daemon.number(17) == 0
    victim.end()
    assert daemon.number(17) == 1
    assert "Destroy server context on device 0 (NVIDIA H200)" in daemon.log()
    assert start(0).call("sync") == "sync CUDA_SUCCESS"
    assert daemon.log()[1] == "Creating server context on device 0 (NVIDIA H200)"


def test_a_fault_spreads_over_the_devices_of_its_processes(
    daemon: MinimalDaemon, tmp_path: Path, start: Callable[..., DriverClient]
) -> None:
    """As recorded in several-gpus.txt."""
    daemon.start(install(tmp_path, devices=3))
    culprit, between, other, untouched = start(0), start(0, 1), start(1), start(2)
    culprit.call("fault")
    assert [client.call("sync") for client in (between, other, untouched)] == [
        f"sync {ILLEGAL}",
        f"sync {ILLEGAL}",
        "sync CUDA_SUCCESS",
    ]
    lines = daemon.log()
    reset = lines[lines.index("The following devices will be reset:") + 1 :]
    assert reset[:3] == ["0", "1", "The following client process have a sticky error set:"]
    assert reset[3:] == [str(client.pid) for client in (culprit, between, other)]


def test_a_killed_client_and_one_whose_child_holds_its_sockets(
    daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(launcher)
    killed, forked = start(0), start(0)
    killed.kill()
    name = f"{{PID: {killed.pid}, Context ID: 0}}"
    assert daemon.number(6) == 1
    assert daemon.hear() == struct.pack("<i", forked.pid)
    assert daemon.log()[-3:] == [
        f"Client {{PID: {killed.pid}, Context ID: 1}} exiting. Number of active client contexts is 1.",
        f"Server failed to recevie command with status 806, assuming client {name} exit",
        f"Client process {killed.pid} disconnected",
    ]
    assert forked.call("fork").startswith("fork ")
    forked.exit()
    assert daemon.number(6) == 1
    assert daemon.hear() == struct.pack("<i", forked.pid)


def test_the_server_goes(daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]) -> None:
    daemon.start(launcher)
    client = start(0)
    assert daemon.server is not None
    daemon.server.close()
    assert daemon.await_end() == (0, "")
    assert client.call("sync") == "sync CUDA_ERROR_MPS_RPC_FAILURE"


def test_the_chain_continues_while_another_holds_the_connection(daemon: MinimalDaemon, launcher: Path) -> None:
    daemon.start(launcher)
    assert daemon.server is not None
    with DriverClient.start(daemon.directory, "--loop") as client:
        assert daemon.accept()[0] == 0
        for request in ("init", "ctx"):
            daemon.hand_over(daemon.accept()[1])
            assert client.answer() == f"{request} CUDA_SUCCESS"
        client.call("steps 3")
        held = daemon.server.dup()
        daemon.server.close()
        daemon.server = held
        client.call("steps 3")
        assert daemon.number(17) == 1
        name, result, steps, value = client.call("stop").split()
    assert (name, result, int(value)) == ("loop", "CUDA_SUCCESS", chain(int(steps)))
    assert int(steps) >= 6


def test_a_client_waits_for_the_daemon_and_sees_that_it_closes(daemon: MinimalDaemon) -> None:
    with DriverClient.start(daemon.directory) as client:
        client.send("init")
        assert daemon.accept()[0] == 0
        role, connection = daemon.accept()
        assert role == 2
        assert client.is_waiting()
        connection.close()
        assert client.answer() == "init CUDA_ERROR_MPS_CONNECTION_FAILED"


def test_a_client_whose_socket_does_not_show_who_it_is_hears_nothing(
    daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(launcher)
    with DriverClient.start(daemon.directory) as client:
        client.send("init")
        daemon.accept()
        daemon.hand_over(daemon.accept()[1], passes_credentials=False)
        start(0)
        assert client.is_waiting()
        client.kill()
    assert daemon.number(5) == 2


# --- the first words of server and client, as measured at driver 580


@contextlib.contextmanager
def greet(daemon: MinimalDaemon) -> Iterator[socket.socket]:
    """A client's end of a new connection on which the server has spoken."""
    with daemon.connect() as client:
        output = []
        for _ in range(5):
            message, fds, _ = receive(client)
            output.append((message, len(fds)))
            for fd in fds:
                os.close(fd)
        assert output == [(DESCRIPTOR, 1)] * 4 + [(b"\0", 0)]
        yield client


@pytest.mark.parametrize("words", [INIT, CONTEXT])
def test_the_server_speaks_first_and_hears_no_command_until_the_client_has_answered(
    daemon: MinimalDaemon, launcher: Path, words: tuple[int, int]
) -> None:
    daemon.start(launcher)
    with greet(daemon) as client:
        daemon.send(17)
        send_credentials(client)
        for word in words:
            assert daemon.is_silent()
            client.send(struct.pack("<i", word))
        assert client.recv(64) == bytes(4)
        assert daemon.is_silent()
        client.send(json.dumps({"device": 0} if words == CONTEXT else {}).encode())
        assert json.loads(client.recv(64)) == {"result": "CUDA_SUCCESS"}
        assert daemon.hear() == struct.pack("<i", 1)
        assert daemon.number(6) == (words == CONTEXT)


def test_a_client_that_leaves_without_a_word_blocks_the_server_for_ever(
    daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(launcher)
    other = start(0)
    with greet(daemon):
        pass
    daemon.await_line("User did not send valid credentials")
    daemon.send(17, 17)
    assert other.call("sync") == "sync CUDA_SUCCESS", "its other clients continue"
    assert daemon.is_silent()


@pytest.mark.parametrize("has_listened", [False, True])
@pytest.mark.parametrize("word", [b"\0", b"OUTBCRED\0", b"{}"])
def test_a_client_that_leaves_after_any_word_does_not(
    daemon: MinimalDaemon, launcher: Path, word: bytes, has_listened: bool
) -> None:
    daemon.start(launcher)
    daemon.number(17)
    daemon.log()
    with greet(daemon) if has_listened else daemon.connect() as client:
        client.send(word)
        if has_listened:
            client.shutdown(socket.SHUT_RDWR)  # as the daemon's copy does while the client still has its own
            assert daemon.number(17) == 1
    assert daemon.number(17) == 1
    assert daemon.number(5) == 0
    name = f"{{PID: {os.getpid()}, Context ID: 0}}"
    assert daemon.log()[1:5] == [
        f"Client {name} connected",
        f"Creating worker thread for client {name}",
        f"Server failed to recevie command with status 806, assuming client {name} exit",
        f"Client process {os.getpid()} disconnected",
    ]
    assert daemon.await_end() == (0, "")


def test_a_client_that_sends_what_is_not_a_request_is_taken_for_gone(daemon: MinimalDaemon, launcher: Path) -> None:
    daemon.start(launcher)
    with greet(daemon) as client:
        for _ in range(4):
            client.send(b"\0")
        assert client.recv(64) == bytes(4)
        assert client.recv(64) == b""
    assert daemon.number(5) == 0
    assert daemon.await_end() == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and users need root")
def test_clients_that_the_server_cannot_see_are_one(
    daemon: MinimalDaemon, launcher: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.spawn(launcher, prefix=("unshare", "--pid", "--fork", "--kill-child"))
    daemon.take_server()
    clients = [start(0), start(0)]
    assert daemon.number(6) == 1
    assert daemon.hear() == bytes(4)
    for client in clients:
        client.end()
    assert daemon.number(5) == 0
    daemon.await_end()
