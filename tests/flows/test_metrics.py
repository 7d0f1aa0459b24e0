"""--metrics: OpenMetrics text at a socket or a port, which neither slow nor many scrapers can make a burden."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from attrs import evolve
from processes import SECONDS, ClientProcess, DaemonProcess, clients_of, kill_after, wait_until

from pympsd.devices.machine import parse_toml
from pympsd.service.metrics import CONNECTIONS, REQUEST_BYTES, REQUEST_SECONDS
from pympsd.service.metrics_text import metrics_text
from pympsd.state_machine.state import client as state_client
from pympsd.state_machine.state.client import Client, ReportedContext
from pympsd.state_machine.state.compound_commands import Configuration
from pympsd.state_machine.state.daemon import Count, Daemon
from pympsd.state_machine.state.drains import Drain, DrainTarget, RunningClient, TargetKind
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.queue import ClientQueue, QueueEntry
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.device_properties import DeviceUse
from pympsd.vocabulary.identities import DEFAULT, Peer
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import ALL_DEVICES, LimitsInForce, ThreadPercentage
from pympsd.vocabulary.shares import Shares

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana/pympsd.json"
MONITORING = DOCS / "monitoring.md"
MIB = 1 << 20
USER = 10001
SILENT_SCRAPERS = """
import socket, sys
silent = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
print("ready", flush=True)
sys.stdin.readline()
for each in silent:
    each.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""
SAMPLE = re.compile(r'(\w+)\{((?:[a-z_]+="(?:[^"\\]|\\[\\"n])*",?)*)\} (-?[0-9.e+-]+)')


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read a text as OpenMetrics says, strictly."""
    *lines, end = text.splitlines()
    assert (end, text[-1]) == ("# EOF", "\n")
    families: dict[str, list[tuple[dict[str, str], float]]] = {}
    family, kind = "", ""
    for line in lines:
        if line.startswith("# "):
            _, keyword, name, rest = line.split(" ", 3)
            if keyword == "TYPE":
                assert name not in families, "the lines of a family are together"
                family, kind = name, rest
                families[family] = []
            assert name == family
            assert keyword in ("TYPE", "HELP") or family.endswith(f"_{rest}")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == family + {"info": "_info", "counter": "_total"}.get(kind, "")
        labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2]))
        assert (kind != "stateset") or family in labels
        assert labels not in [earlier for earlier, _ in families[family]], "a sample is there once"
        families[family].append((labels, float(match[3])))
    return families


@pytest.fixture
def state() -> Daemon:
    """A server with a client of two contexts, and one who waits."""
    daemon = Daemon(
        DaemonOptions(0),
        parse_toml("[[device]]\n[[device]]\n"),
        queue=ClientQueue([QueueEntry(1, 1002), QueueEntry(2, 1002)]),
    )
    server = Server(1, 7, ThreadPercentage(12.5), pid=847, phase=Phase.FAULT, name='a "b"\\')
    contexts = {1: ReportedContext(1, 1, 0), 2: ReportedContext(2, 2, 1)}
    server.use = {1: DeviceUse({}, launches=42, utilization=25)}
    daemon.lifetime.counts[Count.FAULTS] = 3
    limits = LimitsInForce(50.0, 1, {0: 64 * MIB}, {0: 66, 1: 32}, {0: 50.0, 1: 25.0})
    server.clients = {
        5: Client(
            5,
            7,
            state_client.ClientProcess(Peer(907, 7, 7), "python", 0),
            contexts,
            {0: 3 * MIB, 1: 0},
            limits=limits,
        )
    }
    daemon.servers = {1: server}
    daemon.usage.shares = Shares({"connections": 50})
    daemon.usage.taken["connections"][1002] = 2
    daemon.usage.refusals[1002, "connections"] = 3
    return daemon


def test_the_text_contains_every_metric(state: Daemon) -> None:
    families = samples(metrics_text(state, "emulated"))
    assert [value for _, value in families["pympsd_waiting_clients"]] == [2]
    assert families["pympsd_server_active_thread_ratio"][0][1] == 0.125
    assert families["pympsd_server_clients"][0][0] == {"server": r"a \"b\"\\", "server_pid": "847", "uid": "7"}
    states = {labels["pympsd_server_status"]: value for labels, value in families["pympsd_server_status"]}
    assert states == {"INITIALIZING": 0, "ACTIVE": 0, "FAULT": 1}
    memory = {labels["device"]: value for labels, value in families["pympsd_client_memory_bytes"]}
    assert memory == {"0": 3 * MIB, "1": 0}
    assert [(labels["device"], value) for labels, value in families["pympsd_server_launches"]] == [("1", 42)]
    assert [(labels["device"], value) for labels, value in families["pympsd_server_utilization_ratio"]] == [
        ("1", 0.25)
    ]
    assert (families["pympsd_faults"], families["pympsd_refused_clients"]) == ([({}, 3)], [({}, 0)])
    assert ({"resource": "connections"}, 50) in families["pympsd_user_share"]
    of_user = {"uid": "1002", "resource": "connections"}
    assert (families["pympsd_user_used"], families["pympsd_user_refusals"]) == ([(of_user, 2)], [(of_user, 3)])
    assert [(labels["device"], value) for labels, value in families["pympsd_server_contexts"]] == [("0", 1), ("1", 1)]


def test_the_text_has_the_limits_of_clients(state: Daemon) -> None:
    def values(name: str) -> dict[str, float]:
        family = samples(metrics_text(state, "vendor"))[f"pympsd_{name}"]
        return {labels.get("device", ""): value for labels, value in family}

    assert values("client_active_thread_ratio") == {"0": 0.5, "1": 0.25}
    assert values("client_multiprocessors") == {"0": 66, "1": 32}
    assert values("client_memory_limit_bytes") == {"0": 64 * MIB}
    assert values("client_priority") == {"": 1}
    assert values("server_free_clients") == {"0": 59, "1": 59}
    state.servers[1].clients[5].limits = LimitsInForce(12.5, 0, {}, {})
    assert values("client_active_thread_ratio") == {"": 0.125}
    state.servers[1].clients[5].limits = None
    assert values("client_priority") == {}, "another server reports it soon"


def test_the_share_of_the_next_client_is_by_device_where_devices_differ(state: Daemon) -> None:
    def ratios() -> list[tuple[str, float]]:
        family = samples(metrics_text(state, "emulated"))["pympsd_server_active_thread_ratio"]
        return [(labels.get("device", ""), value) for labels, value in family]

    state.options = evolve(state.options, protocol=3)
    server = state.servers[1]
    named_server = NamedServer(server.name, 7)
    state.named_servers.add(named_server)
    assert ratios() == [("", 1.0)]
    named_server.namespaces[DEFAULT].limits = Limits({0: ThreadPercentage(50.0), 1: ThreadPercentage(25.0)})
    assert ratios() == [("0", 0.5), ("1", 0.25)]
    named_server.maximum = Limits({ALL_DEVICES: ThreadPercentage(20.0)})
    assert ratios() == [("", 0.2)]


def test_the_text_of_a_daemon_without_servers(state: Daemon) -> None:
    state.servers.clear()
    assert samples(metrics_text(state, "emulated"))["pympsd_server_clients"] == []


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_text_names_the_configuration(state: Daemon, protocol: int) -> None:
    state.options = evolve(state.options, protocol=protocol)
    state.configuration = Configuration(7, "/etc/mps.toml", text=b"rules = []")
    families = samples(metrics_text(state, "emulated"))
    assert families["pympsd_configuration_generation"] == [({}, 7)]
    ((labels, _),) = families["pympsd_configuration"]
    assert labels["source"] == "/etc/mps.toml"
    of_file = sha256(b"rules = []").hexdigest()
    assert (labels["hash"] == of_file) == (protocol == 3), "protocol 2 has that of its defaults"
    state.defaults.thread_percentage = ThreadPercentage(50.0)
    ((changed, _),) = samples(metrics_text(state, "emulated"))["pympsd_configuration"]
    assert (changed == labels) == (protocol == 3)


def test_drains_have_samples(state: Daemon) -> None:
    _drain_user(state)
    families = samples(metrics_text(state, "emulated"))
    assert families["pympsd_drain_clients"] == [({"target": "--user=1001"}, 1)]
    assert families["pympsd_drain_held_clients"] == [({"target": "--user=1001"}, 0)]


def _drain_user(state: Daemon) -> None:
    target = DrainTarget(TargetKind.USER, "1001")
    state.drains.by_target[target] = Drain(target, clients={1: RunningClient(907)})


def _names_of_samples(state: Daemon) -> set[str]:
    _drain_user(state)
    return set(re.findall(r"^(\w+)\{", metrics_text(state, "emulated"), re.M))


def test_the_documents_describe_every_metric(state: Daemon) -> None:
    table = MONITORING.read_text().partition("\n| metric | meaning |\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(pympsd_\w+)", table)) == _names_of_samples(state)


def test_the_dashboard_shows_what_there_is(state: Daemon) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    names = {
        name for expression in expressions for name in re.findall(r"pympsd_\w+", re.sub(r"\{.*?\}", "", expression))
    }
    assert names == _names_of_samples(state) - {"pympsd_device_multiprocessors"}


def connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if address.startswith("/") else socket.AF_INET)
    sock.connect(address if address.startswith("/") else ("127.0.0.1", int(address)))
    sock.settimeout(SECONDS)  # before, a full backlog would be an error
    return sock


def scrape(address: str, request: str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[str, str]:
    """Send a request; return the head and the body of the answer."""
    with connect(address) as sock:
        sock.sendall(request.encode())
        answer = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert f"Content-Length: {len(body)}" in head or request.startswith("HEAD")
    return head, body


@pytest.fixture
def address(directory: Path) -> str:
    return str(directory / "metrics")


@pytest.fixture
def serving(make_daemon: Callable[..., DaemonProcess], address: str) -> DaemonProcess:
    daemon = make_daemon()
    done = daemon.start("-d", "--metrics", address)
    assert (done.returncode, done.stderr) == (0, "")
    return daemon


@pytest.fixture
def make_client(serving: DaemonProcess) -> Iterator[Callable[..., ClientProcess]]:
    with clients_of(serving) as make:
        yield make


def test_a_scraper_is_answered(
    serving: DaemonProcess, address: str, make_client: Callable[..., ClientProcess]
) -> None:
    client = make_client().connect()
    assert client.call(f"alloc {64 * MIB}").startswith("CUDA_SUCCESS")

    def memory() -> float:
        head, body = scrape(address)
        assert head.startswith("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0")
        return sum(value for _, value in samples(body)["pympsd_client_memory_bytes"])

    wait_until(lambda: memory() >= 64 * MIB, "the memory")
    assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"

    def total(name: str) -> float:
        return sum(value for _, value in samples(scrape(address)[1])[f"pympsd_{name}"])

    wait_until(lambda: total("server_launches") >= 1, "the launches")
    (server,) = serving.servers()
    assert serving.run_command(f"terminate_client {server} {client.pid}") == "0\n"
    wait_until(lambda: total("terminated_clients") == 1, "the text after it")
    assert [total(name) for name in ("server_starts", "faults", "refused_clients")] == [1, 0, 0]
    assert scrape(address, "HEAD / HTTP/1.0\r\n\r\n")[1] == ""
    assert scrape(address, "GET /other HTTP/1.1\r\n\r\n")[0].startswith("HTTP/1.1 404 ")
    assert scrape(address, "POST /metrics HTTP/1.1\r\n\r\n")[0].startswith("HTTP/1.1 405 ")
    assert scrape(address, "x" * REQUEST_BYTES)[0].startswith("HTTP/1.1 400 ")
    assert Path(address).stat().st_mode & 0o777 == 0o600


def test_silent_scrapers_hurt_nobody(serving: DaemonProcess, address: str) -> None:
    with ExitStack() as held:
        silent = [held.enter_context(connect(address)) for _ in range(CONNECTIONS * 16)]
        for entry in silent[:-2]:
            with suppress(OSError):  # closed already
                entry.send(b"GET ")
        assert serving.run_command("get_default_active_thread_percentage") == "100.0\n"
        began = time.monotonic()
        assert samples(scrape(address)[1])
        assert time.monotonic() - began < 8 * REQUEST_SECONDS, "it does not wait for the end of the others"
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest made room"
        with suppress(ConnectionResetError):
            assert silent[-1].recv(1) == b"", "a request is not waited for"


def test_a_users_silent_scrapers_make_room_among_themselves(directory: Path) -> None:
    os.chown(directory / "pipe", USER, USER)
    os.chown(directory / "log", USER, USER)
    daemon = DaemonProcess(directory, uid=USER)
    address = str(directory / "pipe" / "metrics")
    assert daemon.start("-d", "--metrics", address).returncode == 0
    try:
        program = [sys.executable, "-c", SILENT_SCRAPERS, address, str(CONNECTIONS * 4)]
        with kill_after(
            subprocess.Popen(program, user=USER, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        ) as silent:
            assert silent.stdout is not None
            assert silent.stdin is not None
            assert silent.stdout.readline() == "ready\n"
            with connect(address) as roots:
                print("go", file=silent.stdin, flush=True)
                assert silent.stdout.readline() == "connected\n"
                roots.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                assert roots.recv(12) == b"HTTP/1.1 200"
    finally:
        daemon.stop()


@pytest.mark.parametrize("own", [True, False], ids=["its socket", "somebody's file"])
def test_at_the_end_only_its_own_socket_is_removed(make_daemon: Callable[..., DaemonProcess], own: bool) -> None:
    daemon = make_daemon()
    path = daemon.directory / "metrics"
    assert daemon.start("-d", "--metrics", str(path)).returncode == 0
    if not own:
        path.unlink()
        path.write_text("somebody's")
    daemon.stop()
    assert path.exists() != own


@pytest.mark.long(but=["pympsd.keeper"])
@pytest.mark.parametrize("name", ["control", "log", "pympsd.keeper", "pympsd.state", "nvidia-cuda-mps-control.pid"])
def test_a_name_of_the_daemons_own_is_refused(make_daemon: Callable[..., DaemonProcess], name: str) -> None:
    daemon = make_daemon()
    path = f"{daemon.directory}/pipe/./{name}"
    done = daemon.start("-d", "--metrics", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"--metrics {path}: the daemon itself has a file of that name in its pipe directory; choose another name\n"
    )


def test_a_file_at_the_address_stays(make_daemon: Callable[..., DaemonProcess], directory: Path) -> None:
    file = directory / "metrics"
    file.write_text("mine")
    done = make_daemon().start("-d", "--metrics", str(file))
    assert done.returncode == 1
    assert done.stderr == f"--metrics {file}: it is not a socket: remove it, or choose another path\n"
    assert file.read_text() == "mine"


def test_the_next_daemon_takes_the_address_and_the_last_one_removes_it(serving: DaemonProcess, address: str) -> None:
    serving.kill()
    assert serving.start("-d", "--metrics", address).stderr == ""
    assert samples(scrape(address)[1])
    done = serving.start("-d", "--replace", "--metrics", address)
    assert (done.returncode, done.stderr) == (0, "")
    assert samples(scrape(address)[1])
    serving.run_command("quit")
    serving.await_end()
    assert not Path(address).exists()


@pytest.mark.long
def test_a_port_of_the_loopback(make_daemon: Callable[..., DaemonProcess]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        taken.listen()
        daemon = make_daemon()
        done = daemon.start("-d", f"--metrics=127.0.0.1:{port}")
        text = f"--metrics 127.0.0.1:{port}: Address already in use"
        assert (done.returncode, done.stderr) == (1, f"{text}\n")
        assert daemon.start().returncode == 0
        done = daemon.start("-d", "--replace", "--metrics", f"127.0.0.1:{port}")
        assert (done.returncode, done.stderr) == (0, f"{text}; the daemon starts without metrics\n")
        daemon.run_command("quit")
        daemon.await_end()
    assert daemon.start("-d", "--metrics", port).returncode == 0
    assert samples(scrape(port)[1])
    daemon.kill()
    assert daemon.start("-d", "--metrics", port).stderr == ""
    assert samples(scrape(port)[1])


@pytest.mark.long(but=["99999"])
@pytest.mark.parametrize("address", ["0.0.0.0:9400", "host:9400", "99999", "0", "x", "/nowhere/metrics", "/dev/null"])
def test_other_addresses_are_refused(make_daemon: Callable[..., DaemonProcess], address: str) -> None:
    done = make_daemon().run(["-d", "--metrics", address])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"--metrics {address}: ")
