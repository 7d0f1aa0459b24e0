"""Clients of the driver's server in other containers: no PID here, or a user without a number."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_mps.programs import DriverClient
from processes import PYMPSD, ClientProcess, DaemonProcess, kill_after, wait_until

INSIDE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
USER, NOBODY = 1000, 65534

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces"), pytest.mark.long]


@pytest.fixture
def start(make_daemon: Callable[..., DaemonProcess], launcher: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons under a command, in the foreground; they are ended after the test."""
    ends = ExitStack()

    def start(*prefix: str, **settings: str) -> DaemonProcess:
        chosen = {"PYMPSD_BACKEND": "vendor", "PYMPSD_VENDOR_SERVER": str(launcher), **settings}
        daemon = make_daemon(**chosen)
        process = subprocess.Popen(
            [*prefix, PYMPSD, "-f"],
            env={**daemon.environment, "PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=ends.enter_context((daemon.directory / "log" / "control.log").open("wb")),
        )
        ends.callback(process.wait)
        ends.callback(process.kill)
        ends.callback(lambda: daemon.run([], "quit -t 0\n"))
        assert process.stdin is not None
        if "--user" in prefix:
            # Root and nobody have a number in it, and no other user.
            wait_until(lambda: os.readlink(f"/proc/{process.pid}/ns/user") != os.readlink("/proc/self/ns/user"))
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
        process.stdin.close()
        wait_until(lambda: daemon.run([], "get_server_list\n").returncode == 0, "the daemon's sockets")
        return daemon

    with ends:
        yield start


def pipe(daemon: DaemonProcess) -> Path:
    return daemon.directory / "pipe"


def namespace(kind: str) -> int:
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def test_clients_without_a_pid_are_shown_by_what_is_known_of_them(start: Callable[..., DaemonProcess]) -> None:
    daemon = start(*INSIDE)
    with DriverClient.start(pipe(daemon)) as first, DriverClient.start(pipe(daemon)) as second:
        for client in (first, second):
            client.connect()
        rows = [line.split(maxsplit=5) for line in daemon.run_command("ps").splitlines()[1:]]
        assert {(row[0], row[4]) for row in rows} == {("0", str(namespace("pid")))}
        text = f"[user 0, user namespace {namespace('user')}, cgroup namespace {namespace('cgroup')}]"
        assert {row[5] for row in rows} == {text}
        (server,) = daemon.servers()
        done = daemon.run([], f"terminate_client {server} 0\n")
        assert (done.stdout, "2 clients have PIDs that are not visible here" in done.stderr) == ("201\n", True)
        assert [client.call("sync") for client in (first, second)] == ["sync CUDA_SUCCESS"] * 2


@pytest.mark.parametrize("rule", ["refuse", "nobody"])
def test_users_without_a_number(start: Callable[..., DaemonProcess], rule: str) -> None:
    daemon = start("unshare", "--user", "sh", "-c", 'read _; exec "$@"', "sh", PYMPSD_UNMAPPED_USERS=rule)
    with DriverClient.start(pipe(daemon), uid=USER) as client:
        if rule == "refuse":
            assert client.call("init") == "init CUDA_ERROR_MPS_CONNECTION_FAILED"
            assert any("PYMPSD_UNMAPPED_USERS=nobody" in line for line in daemon.log())
        else:
            client.connect()
            (server,) = daemon.servers()
            assert os.stat(f"/proc/{server}").st_uid == NOBODY
        # Whatever it is served as, it is not an operator.
        output = daemon.run([], "set_default_active_thread_percentage 10\n", uid=USER).stdout
        assert output.startswith("Insufficient privileges")


@pytest.mark.parametrize("rule", ["refuse", "nobody"])
def test_users_without_a_number_at_own_servers(start: Callable[..., DaemonProcess], rule: str) -> None:
    inside = ("unshare", "--user", "sh", "-c", 'read _; exec "$@"', "sh")
    daemon = start(*inside, PYMPSD_BACKEND="emulated", PYMPSD_UNMAPPED_USERS=rule)
    with kill_after(daemon.client(uid=USER).process) as process:
        client = ClientProcess(process)
        if rule == "refuse":
            assert client.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
            assert "PYMPSD_UNMAPPED_USERS=nobody" in client.call("error")
        else:
            assert client.connect().call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
            (server,) = daemon.servers()
            assert os.stat(f"/proc/{server}").st_uid == NOBODY


def test_a_real_nobody_without_a_pid_is_served(start: Callable[..., DaemonProcess]) -> None:
    daemon = start(*INSIDE)
    with DriverClient.start(pipe(daemon), uid=NOBODY) as client:
        client.connect()


def test_a_rule_that_there_is_not_is_refused(make_daemon: Callable[..., DaemonProcess]) -> None:
    done = make_daemon(PYMPSD_UNMAPPED_USERS="all").run(["-d"])
    assert (done.returncode, done.stderr) == (1, "PYMPSD_UNMAPPED_USERS must be one of refuse, nobody, not 'all'\n")
