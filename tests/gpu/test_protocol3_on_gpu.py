"""Protocol 3 with the driver's own server: namespaces and servers with their limits, at the same time, and rules.

In a rehearsal, server and programs are fakes; tests that need real ones are left out (choice.toml).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import DaemonProcess
from protocol3 import ctl

from tests.gpu.cuda_programs import running
from tests.gpu.cuda_programs.running import client, connect, end_all

GIB = 1 << 30
MEMORY = {"n1": 1, "n2": 2, "n3": 4}
"""The limits of the namespaces in GiB; a context takes a part of them."""
PERCENTAGES = {"a/n1": 25, "a/n2": 50, "a/n3": 75, "a": 100, "b": 100}
EACH = 8
"""Clients of a namespace at the same time."""
ROUNDS = 5
"""The number of clients that follow each: 200 come in all, and leave while others come."""


@pytest.fixture
def named(make_daemon: Callable[..., DaemonProcess], directory: Path) -> Iterator[DaemonProcess]:
    """A daemon of protocol 3 with the servers a and b, of which a has namespaces with limits."""
    daemon = make_daemon(**running.settings(directory))
    done = daemon.start("-d", "-p", "3")
    assert (done.returncode, done.stderr) == (0, "")
    for name in "ab":
        ctl(daemon, f"server create {name}")
    for name, most in MEMORY.items():
        limits = f"--active-thread-percentage={PERCENTAGES[f'a/{name}']} --pinned-memory-limit={most}G"
        ctl(daemon, f"namespace create {name} --server=a {limits} --client-priority={most % 2}")
    yield daemon
    daemon.stop()
    end_all(daemon)


def at(daemon: DaemonProcess, place: str) -> dict[str, str]:
    """Return the settings of a client of a server or a namespace."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(running.pipe(daemon) / place)}


def test_simultaneous_clients_get_the_limits_of_their_namespaces(named: DaemonProcess) -> None:
    expected = [place for place in PERCENTAGES for _ in range(EACH)]

    def request_in(place: str) -> list[tuple[str, ...]]:
        requests = "sms", f"alloc {GIB // 2}", f"alloc {3 * GIB // 2}"
        answers = []
        for _ in range(ROUNDS):
            with client(named, settings=at(named, place)) as client_process:
                connect(client_process)
                answers.append(tuple(client_process.call(line).split()[-1] for line in requests))
        return answers

    with ThreadPoolExecutor(len(expected)) as pool:
        answers = list(pool.map(request_in, expected))
    for place, rounds in zip(expected, answers, strict=True):
        large = "CUDA_ERROR_OUT_OF_MEMORY" if place in ("a/n1", "a/n2") else "CUDA_SUCCESS"
        sms = str(running.multiprocessors(PERCENTAGES[place]))
        assert rounds == [(sms, "CUDA_SUCCESS", large)] * ROUNDS, place


def test_torch_runs_in_two_namespaces_and_two_servers_concurrently(named: DaemonProcess) -> None:
    places = ("a/n2", "a", "b")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                running.framework(
                    named,
                    "torch",
                    {**at(named, place), "EXPECTED_SMS": str(running.multiprocessors(PERCENTAGES[place]))},
                )
            )
            for place in places
        ]
        for client in clients:
            answer = client.answer(running.IMPORT_SECONDS)
            if answer.startswith("absent: "):
                for other in clients:
                    other.kill()
                pytest.skip(answer)
            assert answer == "connected"
        rows = ctl(named, "client list --all --format=csv,noheader").splitlines()
        shown = {(int(row.split(",")[0]), row.split(",")[3].split(" ")[0]) for row in rows}
        assert shown == {
            (clients[0].pid, "a/n2"), (clients[1].pid, "a/default"), (clients[2].pid, "b/default")
        }  # fmt: skip
        assert ctl(named, "namespace get n2 a active-thread-percentage") == "50.00"
        for client in clients:
            client.send("")
        assert [program.answer(running.IMPORT_SECONDS) for program in clients] == ["right"] * len(clients)


def test_a_rule_limits_the_clients_of_a_program(named: DaemonProcess) -> None:
    path = named.directory / "rules.toml"
    executable = Path(sys.executable).resolve()
    path.write_text(
        f'schema_version = "1.0"\n[[rules]]\nexecutable = "{executable}"\nactive_thread_percentage = 50\n'
    )
    ctl(named, f"config apply {path}")
    with client(named, settings=at(named, "b")) as client_process:
        connect(client_process)
        assert int(client_process.call("sms").split()[-1]) == running.multiprocessors(50)
        assert ctl(named, f"rules test {client_process.pid} --format=csv,noheader").startswith("1,-,true,")
