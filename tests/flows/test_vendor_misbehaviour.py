"""Servers of the driver that crash, hang, close or say something wrong: bounded, said in words, and theirs alone."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import DaemonProcess, alive, wait_until
from vendor.install import install, misbehave
from vendor.programs import VendorClient

OTHER, WRONG = 1000, 65534
"""The user whose server behaves well, and the one whose server misbehaves."""
SUCCESS = "CUDA_SUCCESS"
LOST = "CUDA_ERROR_MPS_RPC_FAILURE"
REFUSED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
BOUND = 12.0
"""Seconds in which the daemon has to be done with a server that does not answer (5 s to leave, 2 s when forced)."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")


@pytest.fixture
def launcher(directory: Path) -> Path:
    """The made-up server."""
    return install(directory)


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess], launcher: Path) -> DaemonProcess:
    """A daemon whose users have servers at the same time."""
    running = make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher), PYMPSD_USERS="together")
    done = running.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return running


@pytest.fixture
def start(daemon: DaemonProcess) -> Iterator[Callable[[int], VendorClient]]:
    """Start programs of users, without a line; those left at the end are killed."""
    started: list[VendorClient] = []
    with ExitStack() as stack:

        def make(uid: int) -> VendorClient:
            client = stack.enter_context(VendorClient.start(daemon.directory / "pipe", uid=uid))
            started.append(client)
            return client

        yield make
        for client in started:
            client.kill()


def begun(client: VendorClient) -> VendorClient:
    """Make a context."""
    assert client.ask("init") == f"init {SUCCESS}"
    assert client.ask("ctx 0") == f"ctx {SUCCESS}"
    return client


@pytest.fixture
def bystander(start: Callable[[int], VendorClient]) -> Iterator[VendorClient]:
    """A client of the other user, whose work goes on whatever happens."""
    client = begun(start(OTHER))
    yield client
    assert client.ask("sync") == f"sync {SUCCESS}", "another user's client was affected"


def server_of(daemon: DaemonProcess, uid: int) -> int:
    """Return the PID of a user's newest server."""
    said = [line.split() for line in daemon.log() if line.startswith("Starting new server ")]
    return [int(words[3]) for words in said if words[-1] == str(uid)][-1]


def has_logged(daemon: DaemonProcess, pattern: str) -> Callable[[], bool]:
    """Return a condition: control.log has a line that matches."""
    return lambda: any(re.search(pattern, line) for line in daemon.log())


def works(daemon: DaemonProcess, start: Callable[[int], VendorClient], launcher: Path) -> None:
    """The next server of the same user serves a new client, and operators."""
    client = begun(start(WRONG))
    server = server_of(daemon, WRONG)
    assert daemon.say(f"get_server_status {server}") == "ACTIVE\n"
    assert str(client.pid) in daemon.say("ps")
    assert client.ask("sync") == f"sync {SUCCESS}"
    assert not any("internal error" in line for line in daemon.log())


# --- before it is ready


@pytest.mark.parametrize(
    ("keys", "logged"),
    [
        ({"crash": "before_hello"}, r"Server {pid} exited with status -9"),
        ({"crash": "before_role"}, r"Server {pid} exited with status -9"),
        ({"wrong_hello": True}, r"User did not send valid credentials"),
    ],
)
def test_a_server_that_fails_at_its_start_is_tried_again(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    keys: dict[str, object],
    logged: str,
) -> None:
    misbehave(launcher, **keys)
    client = start(WRONG)
    client.send("init")
    wait_until(has_logged(daemon, "trying again in"))
    assert has_logged(daemon, logged.format(pid=server_of(daemon, WRONG)))() or len(_starts(daemon)) > 1
    misbehave(launcher)
    assert client.answer() == f"init {SUCCESS}", "the client that waits gets the server that works"
    client.end()
    works(daemon, start, launcher)


def _starts(daemon: DaemonProcess) -> list[str]:
    return [line for line in daemon.log() if line.startswith("Starting new server ") and line.endswith(str(WRONG))]


def test_a_server_that_never_starts_is_given_up(
    daemon: DaemonProcess, bystander: VendorClient, start: Callable[[int], VendorClient], launcher: Path
) -> None:
    misbehave(launcher, crash="before_role")
    assert start(WRONG).ask("init") == f"init {REFUSED}"
    assert has_logged(daemon, f"No server could be started for user {WRONG} in 4 tries: ")()
    misbehave(launcher)
    works(daemon, start, launcher)


@pytest.mark.parametrize("moment", ["before_hello", "before_role"])
def test_while_a_server_hangs_at_its_start_all_else_goes_on(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    moment: str,
) -> None:
    """It would be killed after 60 s (tests/flows/test_hung_start.py waits for that); an operator does not wait."""
    misbehave(launcher, hang=moment)
    client = start(WRONG)
    client.send("init")
    wait_until(has_logged(daemon, f"Starting new server .* for user {WRONG}"))
    server = server_of(daemon, WRONG)
    assert daemon.say(f"get_server_status {server}") == "INITIALIZING\n"
    assert str(bystander.pid) in daemon.say("ps")
    assert bystander.ask("ctx 0") == f"ctx {SUCCESS}"
    assert client.waits()
    misbehave(launcher)
    began = time.monotonic()
    assert daemon.say(f"shutdown_server {server} -f") == ""
    assert client.answer() == f"init {SUCCESS}", "it gets the next one"
    assert time.monotonic() - began < BOUND
    wait_until(lambda: not alive(server), "the end of the one that hung")
    client.end()
    works(daemon, start, launcher)


@pytest.mark.parametrize(
    "line",
    [
        "set_active_thread_percentage {server} 40",
        "set_device_pinned_mem_limit {server} 0 2G",
        "terminate_client {server} 1",
        "get_client_list {server}",
        "get_device_client_list {server}",
        "ps -p {server}",
        "device_query {server}",
        "shutdown_server {server}",
    ],
)
def test_a_command_for_a_server_that_is_not_ready_is_answered(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    line: str,
) -> None:
    misbehave(launcher, hang="before_role")
    start(WRONG).send("init")
    wait_until(has_logged(daemon, f"Starting new server .* for user {WRONG}"))
    asked = daemon.begin(line.format(server=server_of(daemon, WRONG)))
    try:
        asked.communicate(timeout=20)
    finally:
        asked.kill()
        asked.communicate()
    assert asked.returncode == 0
    assert not has_logged(daemon, "internal error")()


# --- afterwards


def test_a_server_that_crashes_after_its_role(
    daemon: DaemonProcess, bystander: VendorClient, start: Callable[[int], VendorClient], launcher: Path
) -> None:
    misbehave(launcher, crash="after_role")
    client = start(WRONG)
    client.send("init")
    said = client.answer()
    # What it gets depends on whether it was handed over before the end was seen.
    assert said in (f"init {LOST}", f"init {REFUSED}")
    wait_until(has_logged(daemon, r"Server \d+ exited with status -9"))
    client.end()
    misbehave(launcher)
    works(daemon, start, launcher)


TOLD: dict[int, str] = {
    9: "set_active_thread_percentage {server} 40",
    13: "terminate_client {server} {client}",
    14: "ps",
    7: "get_device_client_list",
    20: "set_device_pinned_mem_limit {server} 0 2G",
    6: "shutdown_server {server}",
}
"""A line that makes the daemon give a command to the server."""


@pytest.mark.parametrize("command", TOLD)
def test_a_server_that_crashes_on_a_command(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    command: int,
) -> None:
    client, server = _with_its_own_server(daemon, start, launcher, crash=f"on_command:{command}")
    began = time.monotonic()
    _give(daemon, command, server, client)
    wait_until(has_logged(daemon, f"Server {server} exited with status -9"))
    assert time.monotonic() - began < BOUND
    assert client.ask("sync") == f"sync {LOST}"
    client.end()
    works(daemon, start, launcher)


@pytest.mark.parametrize("command", TOLD)
def test_a_server_that_hangs_on_a_command(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    command: int,
) -> None:
    """Its clients go on, operators are answered, and it can be ended by force."""
    client, server = _with_its_own_server(daemon, start, launcher, hang=f"on_command:{command}")
    began = time.monotonic()
    if command == 13:
        asked = daemon.begin(TOLD[13].format(server=server, client=client.pid))
        wait_until(has_logged(daemon, "Cmd:terminate_client"))
        _force(daemon, server)
        assert asked.wait(timeout=20) == 0
        asked.communicate()
    else:
        _give(daemon, command, server, client)
        done = daemon.run([], "ps\n")
        assert str(bystander.pid) in done.stdout
        assert f"server {server} does not answer" in done.stderr
        assert client.ask("sync") == f"sync {SUCCESS}"
        _force(daemon, server)
    wait_until(has_logged(daemon, f"Server {server} exited with status -9"))
    assert has_logged(daemon, f"Server {server} does not answer: killing it")()
    assert time.monotonic() - began < BOUND
    client.ask("sync")
    client.end()
    works(daemon, start, launcher)


@pytest.mark.parametrize("command", [6, 7, 13, 14])
def test_a_server_that_answers_with_a_wrong_size(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    command: int,
) -> None:
    client, server = _with_its_own_server(daemon, start, launcher, wrong_size=command)
    _give(daemon, command, server, client)
    wait_until(
        has_logged(daemon, f"Protocol violation by server {server}: a packet of [0-9]+ bytes where [0-9]+ are due")
    )
    wait_until(lambda: not alive(server))
    assert client.ask("sync") == f"sync {LOST}"
    client.end()
    works(daemon, start, launcher)


@pytest.mark.parametrize("command", [7, 14])
def test_a_server_that_closes_half_way(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    command: int,
) -> None:
    client, server = _with_its_own_server(daemon, start, launcher, close=f"half_way:{command}")
    _give(daemon, command, server, client)
    wait_until(has_logged(daemon, f"Server {server} exited with status 0"))
    assert client.ask("sync") == f"sync {LOST}"
    client.end()
    works(daemon, start, launcher)


@pytest.mark.parametrize("command", [7, 14])
def test_a_server_that_gives_no_answer_to_a_question(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    command: int,
) -> None:
    """The answer to a later question is not taken for it: that is a violation, or it does not answer at all."""
    client, server = _with_its_own_server(daemon, start, launcher, no_answer=command)
    done = daemon.run([], "ps\n")
    assert str(bystander.pid) in done.stdout
    for _ in range(3):
        daemon.run([], "ps\n")
    assert has_logged(daemon, f"Protocol violation by server {server}")() or done.stderr
    _force(daemon, server)
    wait_until(lambda: not alive(server))
    client.ask("sync")
    client.end()
    works(daemon, start, launcher)


def _with_its_own_server(
    daemon: DaemonProcess, start: Callable[[int], VendorClient], launcher: Path, **keys: object
) -> tuple[VendorClient, int]:
    """Return a client whose server misbehaves, and the server; later ones behave well."""
    misbehave(launcher, **keys)
    client = begun(start(WRONG))
    misbehave(launcher)
    return client, server_of(daemon, WRONG)


def _give(daemon: DaemonProcess, command: int, server: int, client: VendorClient) -> None:
    """Have the daemon give a command; its own answer comes within 20 s whatever the server does."""
    asked = daemon.begin(TOLD[command].format(server=server, client=client.pid))
    try:
        asked.communicate(timeout=20)
    finally:
        asked.kill()
        asked.communicate()
    assert asked.returncode == 0


def _force(daemon: DaemonProcess, server: int) -> None:
    daemon.run([], f"shutdown_server {server} -f\n")


# --- the moments of handover and turn


@pytest.mark.parametrize(
    "keys", [{"crash": "on_command:2"}, {"crash": "on_command:17"}, {"wrong_size": 17}, {"close": "half_way:17"}]
)
def test_a_server_that_ends_when_it_is_given_a_client_or_asked_for_its_status(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    keys: dict[str, object],
) -> None:
    """The daemon may ask for the status with each client."""
    misbehave(launcher, **keys)
    client = start(WRONG)
    client.send("init")
    wait_until(lambda: _starts(daemon))
    server = server_of(daemon, WRONG)
    wait_until(has_logged(daemon, f"NEW SERVER {server}: Ready"))
    assert str(bystander.pid) in daemon.run([], "ps\n").stdout
    wait_until(has_logged(daemon, f"Server {server} exited with status"))
    assert client.answer() in (f"init {LOST}", f"init {REFUSED}", f"init {SUCCESS}")
    client.end()
    misbehave(launcher)
    works(daemon, start, launcher)


@pytest.mark.parametrize("keys", [{"hang": "after_role"}, {"hang": "on_command:2"}, {"hang": "on_command:17"}])
def test_a_server_that_never_takes_its_clients_can_be_ended(
    daemon: DaemonProcess,
    bystander: VendorClient,
    start: Callable[[int], VendorClient],
    launcher: Path,
    keys: dict[str, object],
) -> None:
    misbehave(launcher, **keys)
    client = start(WRONG)
    client.send("init")
    wait_until(lambda: _starts(daemon))
    server = server_of(daemon, WRONG)
    wait_until(has_logged(daemon, f"NEW SERVER {server}: Ready"))
    misbehave(launcher)
    done = daemon.run([], "ps\n")
    assert str(bystander.pid) in done.stdout
    assert f"server {server} does not answer" in done.stderr
    _force(daemon, server)
    wait_until(has_logged(daemon, f"Server {server} exited with status"))
    assert client.answer() in (f"init {LOST}", f"init {REFUSED}", f"init {SUCCESS}")
    client.end()
    works(daemon, start, launcher)


@pytest.mark.parametrize("keys", [{"wrong_size": 24}, {"close": "half_way:24"}, {"crash": "on_command:24"}])
def test_a_server_that_tells_its_devices_wrong(
    make_daemon: Callable[..., DaemonProcess], launcher: Path, directory: Path, keys: dict[str, object]
) -> None:
    """The first server is asked for the devices, as there is no driver here."""
    misbehave(launcher, **keys)
    daemon = make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher))
    assert daemon.start().returncode == 0
    with VendorClient.start(directory / "pipe", uid=WRONG) as client:
        said = client.ask("init")
        assert said in (f"init {LOST}", f"init {REFUSED}", f"init {SUCCESS}")
        wait_until(has_logged(daemon, r"Server \d+ exited with status"))
        client.kill()
    misbehave(launcher)
    with VendorClient.start(directory / "pipe", uid=WRONG) as client:
        begun(client)
        assert "NVIDIA H200" in daemon.say("device_query")


@pytest.mark.parametrize(
    "keys",
    [
        {"hang": "on_command:6"},
        {"hang": "on_command:5"},
        {"no_answer": 6},
        {"no_answer": 5},
        {"wrong_size": 6},
        {"wrong_size": 5},
        {"crash": "on_command:6"},
        {"crash": "on_command:5"},
        {"close": "half_way:6"},
    ],
)
def test_the_turn_passes_on_from_a_server_that_does_not_say_that_it_is_idle(
    make_daemon: Callable[..., DaemonProcess], launcher: Path, directory: Path, keys: dict[str, object]
) -> None:
    """In turns: all clients of the first user have ended, so nothing is lost by whatever is done to its server."""
    daemon = make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher))
    assert daemon.start().returncode == 0
    misbehave(launcher, **keys)
    with (
        VendorClient.start(directory / "pipe", uid=WRONG) as first,
        VendorClient.start(directory / "pipe", uid=OTHER) as second,
    ):
        begun(first)
        misbehave(launcher)
        second.send("init")
        wait_until(has_logged(daemon, "waits for its turn"))
        first.kill()
        began = time.monotonic()
        assert second.answer() == f"init {SUCCESS}"
        assert time.monotonic() - began < 2 * BOUND
    assert not has_logged(daemon, "internal error")()
