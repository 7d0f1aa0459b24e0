"""Servers of the driver that crash, hang, close or say something wrong: bounded, said in words, and theirs alone."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import define, field
from fake_mps.install import misbehave
from fake_mps.programs import DriverClient
from processes import SECONDS, DaemonProcess, alive, wait_until

OTHER, WRONG = 1000, 65534
"""The user whose server behaves well, and the one whose server misbehaves."""
SUCCESS = "CUDA_SUCCESS"
LOST = "CUDA_ERROR_MPS_RPC_FAILURE"
REFUSED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
BOUND = 12.0 * SECONDS / 30
"""Seconds in which the daemon has to be done with a server that does not answer (5 s to leave, 2 s when forced), more
under load."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")


@define
class TwoUsers:
    """A daemon in which each user has a server: the servers of one misbehave, and a client of the other continues."""

    daemon: DaemonProcess
    launcher: Path
    _ends: ExitStack
    bystander: DriverClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.bystander = self.start(OTHER).connect()

    def start(self, uid: int = WRONG) -> DriverClient:
        """Start a program, without a line; it is killed at the end."""
        client = self._ends.enter_context(DriverClient.start(self.daemon.directory / "pipe", uid=uid))
        self._ends.callback(client.kill)
        return client

    def misbehave(self, **keys: object) -> None:
        """Set how servers that start from now on behave."""
        misbehave(self.launcher, **keys)

    def request_server(self, **keys: object) -> DriverClient:
        """Return a program that requests a server, which misbehaves."""
        self.misbehave(**keys)
        client = self.start()
        client.send("init")
        return client

    def request_starting_server(self, **keys: object) -> tuple[DriverClient, int]:
        """Return a program that requests a server that misbehaves, and the server as soon as it is started."""
        client = self.request_server(**keys)
        wait_until(self.starts)
        return client, self.server()

    def request_ready_server(self, **keys: object) -> tuple[DriverClient, int]:
        """Return a program that requests a server that misbehaves, and the server when it is ready."""
        client, server = self.request_starting_server(**keys)
        wait_until(has_logged(self.daemon, f"NEW SERVER {server}: Ready"))
        return client, server

    def connected(self, **keys: object) -> tuple[DriverClient, int]:
        """Return a client whose server misbehaves, and the server; later ones behave well."""
        self.misbehave(**keys)
        client = self.start().connect()
        self.misbehave()
        return client, self.server()

    def starts(self) -> list[int]:
        """Return the PIDs of all servers that were started for the user whose servers misbehave."""
        return self._started(WRONG)

    def _started(self, uid: int) -> list[int]:
        lines = [line.split() for line in self.daemon.log() if line.startswith("Starting new server ")]
        return [int(words[3]) for words in lines if words[-1] == str(uid)]

    def bystanders_server(self) -> int:
        """Return the PID of the server that behaves well."""
        return self._started(OTHER)[-1]

    def server(self) -> int:
        """Return the PID of the newest."""
        return self.starts()[-1]

    def give(self, line: str) -> None:
        """Give the daemon a line; it answers within 20 s whatever the server does."""
        operator = self.daemon.start_command(line)
        try:
            operator.communicate(timeout=20)
        finally:
            operator.kill()
            operator.communicate()
        assert operator.returncode == 0

    def force(self, server: int) -> None:
        """Have a server ended by force."""
        self.daemon.run([], f"shutdown_server {server} -f\n")

    def next_one_works(self, before: DriverClient | None = None) -> None:
        """End a client; the next server of the same user serves a new one, and operators."""
        if before is not None:
            before.end()
        self.misbehave()
        client = self.start().connect()
        server = self.server()
        assert self.daemon.run_command(f"get_server_status {server}") == "ACTIVE\n"
        assert str(client.pid) in self.daemon.run_command("ps")
        assert client.call("sync") == f"sync {SUCCESS}"
        assert not [line for line in self.daemon.log() if "internal error" in line]


@pytest.fixture
def users(start_driver_daemon: Callable[..., DaemonProcess], launcher: Path) -> Iterator[TwoUsers]:
    """The two users; the work of the other one has gone on at the end."""
    with ExitStack() as ends:
        running = TwoUsers(start_driver_daemon(PYMPSD_USERS="together"), launcher, ends)
        yield running
        assert running.bystander.call("sync") == f"sync {SUCCESS}", "another user's client was affected"


def has_logged(daemon: DaemonProcess, pattern: str) -> Callable[[], bool]:
    """Return a condition: control.log has a line that matches."""
    return lambda: any(re.search(pattern, line) for line in daemon.log())


# --- before it is ready


@pytest.mark.long(but=["keys1-Server {pid} exited with status -9"])
@pytest.mark.parametrize(
    ("keys", "logged"),
    [
        ({"crash": "before_hello"}, r"Server {pid} exited with status -9"),
        ({"crash": "before_role"}, r"Server {pid} exited with status -9"),
        ({"wrong_hello": True}, r"User did not send valid credentials"),
    ],
)
def test_a_server_that_fails_at_its_start_is_tried_again(
    users: TwoUsers, keys: dict[str, object], logged: str
) -> None:
    client = users.request_server(**keys)
    wait_until(has_logged(users.daemon, "trying again in"))
    wait_until(has_logged(users.daemon, logged.format(pid=users.starts()[0])))
    users.misbehave()
    assert client.answer() == f"init {SUCCESS}", "the client that waits gets the server that works"
    users.next_one_works(client)


def test_a_server_that_never_starts_is_given_up(users: TwoUsers) -> None:
    users.misbehave(crash="before_role")
    assert users.start().call("init") == f"init {REFUSED}"
    assert has_logged(users.daemon, f"Giving up after 4 attempts to start a server for user {WRONG}: ")()
    users.next_one_works()


@pytest.mark.parametrize("moment", ["before_hello", "before_role"])
def test_everything_else_continues_while_a_server_hangs_at_its_start(users: TwoUsers, moment: str) -> None:
    """It would be killed after 60 s (tests/flows/test_hung_start.py waits for that); an operator does not wait."""
    client, server = users.request_starting_server(hang=moment)
    assert users.daemon.run_command(f"get_server_status {server}") == "INITIALIZING\n"
    assert str(users.bystander.pid) in users.daemon.run_command("ps")
    assert users.bystander.call("ctx 0") == f"ctx {SUCCESS}"
    assert client.is_waiting()
    users.misbehave()
    began = time.monotonic()
    assert users.daemon.run_command(f"shutdown_server {server} -f") == ""
    assert client.answer() == f"init {SUCCESS}", "it gets the next one"
    assert time.monotonic() - began < BOUND
    wait_until(lambda: not alive(server), "the end of the one that hung")
    users.next_one_works(client)


@pytest.mark.long(but=["set_active_thread_percentage {server} 40"])
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
def test_a_command_for_a_server_that_is_not_ready_is_answered(users: TwoUsers, line: str) -> None:
    _, server = users.request_starting_server(hang="before_role")
    users.give(line.format(server=server))
    assert not has_logged(users.daemon, "internal error")()


# --- afterwards


def test_a_server_that_crashes_after_its_role(users: TwoUsers) -> None:
    client = users.request_server(crash="after_role")
    wait_until(has_logged(users.daemon, r"Server \d+ exited with status -9"))
    # After the fourth such server new clients would be refused for some seconds.
    users.misbehave()
    # If it was not handed over before the end was seen, another server has it.
    assert client.answer() in (f"init {LOST}", f"init {SUCCESS}")
    users.next_one_works(client)


COMMANDS: dict[int, str] = {
    9: "set_active_thread_percentage {server} 40",
    13: "terminate_client {server} {client}",
    14: "ps",
    7: "get_device_client_list",
    20: "set_device_pinned_mem_limit {server} 0 2G",
    6: "shutdown_server {server}",
}
"""A line that makes the daemon give a command to the server."""


@pytest.mark.long(but=["6"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_crashes_on_a_command(users: TwoUsers, command: int) -> None:
    client, server = users.connected(crash=f"on_command:{command}")
    began = time.monotonic()
    users.give(COMMANDS[command].format(server=server, client=client.pid))
    wait_until(has_logged(users.daemon, f"Server {server} exited with status -9"))
    assert time.monotonic() - began < BOUND
    assert client.call("sync") == f"sync {LOST}"
    users.next_one_works(client)


@pytest.mark.long(but=["13"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_hangs_on_a_command(users: TwoUsers, command: int) -> None:
    """Its clients continue, operators are answered, and it can be ended by force."""
    client, server = users.connected(hang=f"on_command:{command}")
    began = time.monotonic()
    if command == 13:
        operator = users.daemon.start_command(COMMANDS[13].format(server=server, client=client.pid))
        wait_until(has_logged(users.daemon, "Cmd:terminate_client"))
        users.force(server)
        assert operator.wait(timeout=20) == 0
        operator.communicate()
    else:
        users.give(COMMANDS[command].format(server=server, client=client.pid))
        done = users.daemon.run([], "ps\n")
        assert str(users.bystander.pid) in done.stdout
        assert f"server {server} did not respond" in done.stderr
        assert client.call("sync") == f"sync {SUCCESS}"
        users.force(server)
    wait_until(has_logged(users.daemon, f"Server {server} exited with status -9"))
    assert has_logged(users.daemon, f"Server {server} does not respond; killing it")()
    assert time.monotonic() - began < BOUND
    client.call("sync")
    users.next_one_works(client)


@pytest.mark.long(but=["ps -p {0}"])
@pytest.mark.parametrize("line", ["get_client_list {0}", "ps -p {0}", "get_device_client_list {0}"])
def test_a_command_for_one_server_does_not_ask_another(users: TwoUsers, line: str) -> None:
    client, silent = users.connected(hang="on_command:14")
    assert f"server {silent} did not respond" in users.daemon.run([], "ps\n").stderr
    done = users.daemon.run([], line.format(users.bystanders_server()) + "\n")
    assert str(users.bystander.pid) in done.stdout
    assert done.stderr == ""
    users.force(silent)
    client.kill()


@pytest.mark.long(but=["14"])
@pytest.mark.parametrize("command", [6, 7, 13, 14])
def test_a_server_that_answers_with_a_wrong_size(users: TwoUsers, command: int) -> None:
    client, server = users.connected(wrong_size=command)
    users.give(COMMANDS[command].format(server=server, client=client.pid))
    wait_until(
        has_logged(
            users.daemon, f"Protocol violation by server {server}: a packet of [0-9]+ bytes where [0-9]+ are due"
        )
    )
    wait_until(lambda: not alive(server))
    assert client.call("sync") == f"sync {LOST}"
    users.next_one_works(client)


@pytest.mark.parametrize("command", [7, 14])
def test_a_server_that_closes_half_way(users: TwoUsers, command: int) -> None:
    client, server = users.connected(close=f"half_way:{command}")
    users.give(COMMANDS[command].format(server=server, client=client.pid))
    wait_until(has_logged(users.daemon, f"Server {server} exited with status 0"))
    assert client.call("sync") == f"sync {LOST}"
    users.next_one_works(client)


@pytest.mark.long(but=["14"])
@pytest.mark.parametrize("command", [7, 14])
def test_a_server_that_gives_no_answer_to_a_question(users: TwoUsers, command: int) -> None:
    """The answer to a later question is a violation of the protocol; without any, the command is not answered."""
    client, server = users.connected(no_answer=command)
    done = users.daemon.run([], "ps\n")
    assert str(users.bystander.pid) in done.stdout
    for _ in range(3):
        users.daemon.run([], "ps\n")
    assert has_logged(users.daemon, f"Protocol violation by server {server}")() or done.stderr
    users.force(server)
    wait_until(lambda: not alive(server))
    client.call("sync")
    users.next_one_works(client)


# --- the moments of handover and turn


@pytest.mark.long(but=["keys1"])
@pytest.mark.parametrize(
    "keys", [{"crash": "on_command:2"}, {"crash": "on_command:17"}, {"wrong_size": 17}, {"close": "half_way:17"}]
)
def test_a_server_that_ends_when_it_gets_a_client_or_a_status_request(
    users: TwoUsers, keys: dict[str, object]
) -> None:
    """The daemon may ask for the status with each client."""
    client, server = users.request_ready_server(**keys)
    assert str(users.bystander.pid) in users.daemon.run([], "ps\n").stdout
    wait_until(has_logged(users.daemon, f"Server {server} exited with status"))
    assert client.answer() in (f"init {LOST}", f"init {REFUSED}", f"init {SUCCESS}")
    users.next_one_works(client)


@pytest.mark.long(but=["keys0"])
@pytest.mark.parametrize("keys", [{"hang": "after_role"}, {"hang": "on_command:2"}, {"hang": "on_command:17"}])
def test_a_server_that_never_takes_its_clients_can_be_ended(users: TwoUsers, keys: dict[str, object]) -> None:
    client, server = users.request_ready_server(**keys)
    users.misbehave()
    done = users.daemon.run([], "ps\n")
    assert str(users.bystander.pid) in done.stdout
    assert f"server {server} did not respond" in done.stderr
    users.force(server)
    wait_until(has_logged(users.daemon, f"Server {server} exited with status"))
    assert client.answer() in (f"init {LOST}", f"init {REFUSED}", f"init {SUCCESS}")
    users.next_one_works(client)


@pytest.mark.long(but=["keys0"])
@pytest.mark.parametrize("keys", [{"wrong_size": 24}, {"close": "half_way:24"}, {"crash": "on_command:24"}])
def test_a_server_that_reports_its_devices_wrong(
    start_driver_daemon: Callable[..., DaemonProcess], launcher: Path, directory: Path, keys: dict[str, object]
) -> None:
    """The first server is asked for the devices, as there is no driver here."""
    misbehave(launcher, **keys)
    daemon = start_driver_daemon()
    with DriverClient.start(directory / "pipe", uid=WRONG) as client:
        output = client.call("init")
        assert output in (f"init {LOST}", f"init {REFUSED}", f"init {SUCCESS}")
        wait_until(has_logged(daemon, r"Server \d+ exited with status"))
        client.kill()
    misbehave(launcher)
    with DriverClient.start(directory / "pipe", uid=WRONG) as client:
        client.connect()
        assert "NVIDIA H200" in daemon.run_command("device_query")


@pytest.mark.long(but=["keys0"])
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
    start_driver_daemon: Callable[..., DaemonProcess], launcher: Path, directory: Path, keys: dict[str, object]
) -> None:
    """In turns: all clients of the first user have ended, so nothing is lost by whatever is done to its server."""
    daemon = start_driver_daemon()
    misbehave(launcher, **keys)
    with (
        DriverClient.start(directory / "pipe", uid=WRONG) as first,
        DriverClient.start(directory / "pipe", uid=OTHER) as second,
    ):
        first.connect()
        misbehave(launcher)
        second.send("init")
        wait_until(has_logged(daemon, "is waiting for its turn"))
        first.kill()
        began = time.monotonic()
        assert second.answer() == f"init {SUCCESS}"
        assert time.monotonic() - began < 2 * BOUND
    assert not has_logged(daemon, "internal error")()
