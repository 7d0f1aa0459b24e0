"""The lists of servers, clients and contexts, and the privileges of users."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from pympsd.commands.grammar.line import parse
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import COMMANDS, Decision
from pympsd.commands.operator_line import decide_line
from pympsd.devices.machine import parse_toml
from pympsd.state_machine.state.client import Client, ClientProcess, ReportedContext
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.queue import QueueEntry
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import LimitsInForce, ThreadPercentage

UUIDS = ("GPU-7685caad-23a2-2403-a46b-a1dfeabe3819", "GPU-c194f552-d094-dc8e-63fd-a74b1b2f9eeb")


def _decide(daemon: Daemon, caller: Caller, line: bytes) -> Decision:
    return decide_line(daemon, caller, parse(line, daemon.options.protocol))


@pytest.fixture
def daemon() -> Daemon:
    """Two devices; a server 847 with a client of two contexts, one of one on the second device, one of none."""
    daemon = Daemon(
        DaemonOptions(0, static=True), parse_toml("\n".join(f'[[device]]\nuuid = "{uuid}"' for uuid in UUIDS))
    )
    server = Server(1, 0, ThreadPercentage(), pid=847, phase=Phase.ACTIVE)
    server.clients = {
        1: Client(
            1,
            0,
            ClientProcess(Peer(907, 0, 0), "python a.py", 4026531836),
            {1: ReportedContext(1, 1, 0), 3: ReportedContext(3, 2, 0)},
        ),
        2: Client(2, 0, ClientProcess(Peer(920, 0, 0), "python b.py", 4026531836), {2: ReportedContext(2, 1, 1)}),
        3: Client(3, 0, ClientProcess(Peer(930, 0, 0), "python c.py", 4026531836)),
    }
    daemon.servers = {1: server}
    return daemon


def _get_printed(daemon: Daemon, line: bytes, uid: int = 0) -> str:
    answer = _decide(daemon, Caller(1, uid), line).answer
    assert answer is not None
    return answer.printed


def test_ps_shows_one_row_a_process_that_has_a_context(daemon: Daemon) -> None:
    assert _get_printed(daemon, b"ps").splitlines() == [
        "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        ",
        "907       1         847            GPU-7685caad-23a2-2403    4026531836     python a.py",
        "920       2         847            GPU-c194f552-d094-dc8e    4026531836     python b.py",
    ]
    assert _get_printed(daemon, b"ps -p 847") == _get_printed(daemon, b"ps")


def test_ps_of_a_server_without_clients_prints_nothing(daemon: Daemon) -> None:
    daemon.servers[1].clients.clear()
    assert _get_printed(daemon, b"ps") == _get_printed(daemon, b"ps -p 847") == ""


def test_the_lists_of_servers_and_clients(daemon: Daemon) -> None:
    assert _get_printed(daemon, b"get_server_list") == "847\n"
    assert _get_printed(daemon, b"get_client_list 847") == "907\n920\n930\n"
    assert _get_printed(daemon, b"get_client_list 848") == "Server 848 not found\n"


def test_contexts_are_listed_under_their_devices(daemon: Daemon) -> None:
    expected = "[0] 00:00.0, NVIDIA H200\n907.1\n907.2\n[1] 00:01.0, NVIDIA H200\n920.1\n"
    assert _get_printed(daemon, b"get_device_client_list") == expected
    assert _get_printed(daemon, b"get_device_client_list 847") == expected


@pytest.mark.parametrize(
    ("phase", "status"),
    [
        (Phase.INITIALIZING, "INITIALIZING"),
        (Phase.ACTIVE, "ACTIVE"),
        (Phase.FAULT, "FAULT"),
        (Phase.LEAVING, "ACTIVE"),
    ],
)
def test_a_servers_status(daemon: Daemon, phase: Phase, status: str) -> None:
    daemon.servers[1].phase = phase
    assert _get_printed(daemon, b"get_server_status 847") == f"{status}\n"


def test_a_server_without_a_process_is_not_shown(daemon: Daemon) -> None:
    daemon.servers[1].pid = 0
    daemon.servers[1].phase = Phase.SPAWNING
    assert _get_printed(daemon, b"get_server_list") == ""
    assert _get_printed(daemon, b"get_server_status 0") == "Server 0 not found\n"


def test_device_query_shows_the_daemons_devices_then_the_servers(daemon: Daemon) -> None:
    rows = [
        f"Device Ordinal  PCI IDs        {'UUID':<42}{'Name':<34}Attributes",
        f"0               0000:00.06.00  {UUIDS[0]}  NVIDIA H200                       N/A",
        f"1               0000:00.07.00  {UUIDS[1]}  NVIDIA H200                       N/A",
    ]
    for line in (b"device_query", b"device_query 847"):
        assert _get_printed(daemon, line).splitlines() == ["Default", *rows, "", "Server 847", *rows]
    assert _get_printed(daemon, b"device_query --csv 847").splitlines()[:2] == [
        "Default",
        "Device Ordinal,PCI IDs,UUID,Name,Attributes",
    ]


@pytest.mark.parametrize(
    "line",
    [
        *("ps nonsense", "ps -p 847 more", "get_server_list x", "get_client_list 847 x", "get_waiting_list x"),
        *("get_device_client_list abc", "get_server_status 847 x", "device_query x", "device_query --csv --csv"),
        *("get_active_thread_percentage 847 x", "get_device_pinned_mem_limit 847 0 x", "ps nonsense --json"),
        *("get_default_client_priority x", "get_default_device_pinned_mem_limit 0 x"),
    ],
)
def test_a_query_with_unknown_arguments_is_refused(daemon: Daemon, line: str) -> None:
    answer = _decide(daemon, Caller(1, 0), line.encode()).answer
    assert answer is not None
    assert answer.refused
    assert (answer.printed, "is not understood" in answer.diagnostic) == ("", True)


@pytest.mark.parametrize(("line", "printed"), [("x", "100.0\n"), ("x --json", "")])
def test_unknown_arguments_are_refused_although_driver_580_answers_them(
    daemon: Daemon, line: str, printed: str
) -> None:
    """Recorded (grammar.jsonl): it prints the percentage."""
    answer = _decide(daemon, Caller(1, 0), f"get_default_active_thread_percentage {line}".encode()).answer
    assert answer is not None
    assert (answer.printed, answer.refused) == (printed, True)
    name = "get_default_active_thread_percentage"
    assert answer.diagnostic == f"{name}: 'x' is not understood; usage: {name} [--json]"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trace", "'trace' needs a verb. Verbs: start, stop."),
        ("trace go", "Unknown verb 'go' of module 'trace'. Verbs: start, stop."),
        ("rules", "'rules' needs a verb. Verbs: list, test."),
    ],
)
def test_modules_of_both_protocols_say_what_they_take(daemon: Daemon, protocol: int, line: str, message: str) -> None:
    daemon.options = evolve(daemon.options, protocol=protocol)
    answer = _decide(daemon, Caller(1, 0), line.encode()).answer
    assert answer is not None
    assert (answer.printed, answer.diagnostic, answer.refused) == ("", message, True)


def test_the_list_of_commands_has_the_modules_of_both_protocols(daemon: Daemon) -> None:
    answer = _decide(daemon, Caller(1, 0), b"trac").answer
    assert answer is not None
    expected, commands = answer.diagnostic.split("the commands are ")
    assert expected == "did you mean trace? "
    assert {"trace", "rules", "config"} <= {*commands.split(", ")}
    assert "namespace" not in answer.diagnostic


def test_json_of_servers_has_their_clients_and_contexts(daemon: Daemon) -> None:
    (server,) = json.loads(_get_printed(daemon, b"get_server_list --json"))
    assert (server["pid"], server["uid"], server["status"]) == (847, 0, "ACTIVE")
    assert server["clients"] == json.loads(_get_printed(daemon, b"get_client_list 847 --json"))
    assert server["clients"][0] == {
        "pid": 907,
        "uid": 0,
        "command": "python a.py",
        "pid_namespace": 4026531836,
        "namespace": None,
        "draining": None,
        "active_thread_percentage": None,
        "multiprocessors": {},
        "memory_limits": {},
        "priority": None,
        "memory_bytes": {},
        "contexts": [{"id": 1, "number": 1, "device": 0}, {"id": 3, "number": 2, "device": 0}],
    }
    assert json.loads(_get_printed(daemon, b"get_server_status --json 847")) == server


@pytest.mark.parametrize(
    "name",
    sorted(name for name, entry in COMMANDS.items() if entry.is_query and 2 in entry.protocols and not entry.verb),
)
def test_every_query_prints_json_that_is_not_logged(daemon: Daemon, name: str) -> None:
    arguments = {"get_device_pinned_mem_limit": "847 0", "get_default_device_pinned_mem_limit": "0"}.get(name, "")
    line = f"{name} {arguments or ('847' if COMMANDS[name].names_server and name != 'ps' else '')} --json"
    answer = _decide(daemon, Caller(1, 0), line.encode()).answer
    assert answer is not None
    assert not answer.refused
    assert json.loads(answer.printed) is not None
    assert not any(part.logged for part in answer.parts)


def test_json_of_ps_reports_what_the_table_cuts(daemon: Daemon) -> None:
    assert [row["device"] for row in json.loads(_get_printed(daemon, b"ps --json"))] == list(UUIDS)
    daemon.servers.clear()
    assert _get_printed(daemon, b"ps --json") == "[]\n"
    assert _get_printed(daemon, b"ps -p 847 --json").startswith("Server 847 not found\n")


def _limit(client: Client) -> None:
    client.limits = LimitsInForce(50.0, 1, {0: 3 << 29, 1: 4 << 30}, {0: 66, 1: 32}, {0: 50.0, 1: 25.0})
    client.memory = {0: 96 << 20}


def test_ps_shows_limits_on_request(daemon: Daemon) -> None:
    plain = _get_printed(daemon, b"ps")
    for client in daemon.servers[1].clients.values():
        _limit(client)
    assert _get_printed(daemon, b"ps") == plain, "the recorded columns"
    heading, first, second = _get_printed(daemon, b"ps --limits -p 847").splitlines()
    assert heading.split()[5:] == ["SM", "%", "SMS", "MEMORY", "LIMIT", "PRIORITY", "COMMAND"]
    assert first.split()[5:] == ["50.0", "66", "96.0M", "1536M", "1", "python", "a.py"]
    assert second.split()[5:] == ["25.0", "32", "0.0M", "4G", "1", "python", "b.py"]
    assert {line.index("python") for line in (first, second)} == {heading.index("COMMAND")}
    assert json.loads(_get_printed(daemon, b"ps --json"))[0] == {
        "pid": 907,
        "id": 1,
        "server": 847,
        "device": UUIDS[0],
        "pid_namespace": 4026531836,
        "command": "python a.py",
        "active_thread_percentage": 50.0,
        "multiprocessors": 66,
        "memory_limit": 3 << 29,
        "memory_bytes": 96 << 20,
        "priority": 1,
        "draining": None,
    }


def test_ps_shows_what_is_not_known_as_a_dash(daemon: Daemon) -> None:
    daemon.options = evolve(daemon.options, has_own_servers=False)
    _, first, _ = _get_printed(daemon, b"ps --limits").splitlines()
    assert first.split()[5:-2] == ["-"] * 5


def test_json_of_devices_has_how_many_more_clients_fit(daemon: Daemon) -> None:
    daemon.devices = parse_toml("[[device]]\n[[device]]\n[[device]]\ncompute_capability = '6.0'\n")
    clients = daemon.servers[1].clients
    clients[2].limits = LimitsInForce(100.0, 0, {}, {}, connections=16)
    document = json.loads(_get_printed(daemon, b"get_device_client_list --json"))
    assert [(row["server"], row["ordinal"], len(row["contexts"])) for row in document] == [
        (847, 0, 2),
        (847, 1, 1),
        (847, 2, 0),
    ]
    assert [(row["max_clients"], row["free_clients"]) for row in document] == [(60, 58), (60, 44), (16, 16)]
    assert _get_printed(daemon, b"get_device_client_list").count("[") == 2, "the devices in use"


def test_waiting_clients_are_listed(daemon: Daemon) -> None:
    daemon.queue.entries = [
        QueueEntry(1, 1001, 5, ClientProcess(Peer(77, 1001, 1001), "python d.py")),
        QueueEntry(2, 1002),
    ]
    assert _get_printed(daemon, b"get_waiting_list") == "77 1001\n0 1002\n"
    waiting = json.loads(_get_printed(daemon, b"get_waiting_list --json"))
    assert waiting[0] == {"pid": 77, "uid": 1001, "server": "uid_1001", "command": "python d.py", "held_by": None}


def test_every_user_may_query(daemon: Daemon) -> None:
    for line in (b"ps", b"get_server_list", b"get_client_list 847", b"get_server_status 847", b"device_query"):
        assert _get_printed(daemon, line, uid=12345) == _get_printed(daemon, line)


def test_another_user_may_not_start_or_quit(daemon: Daemon) -> None:
    assert _get_printed(daemon, b"start_server -uid 1000", uid=1000) == (
        "Insufficient privileges for UID 1000. Control deamon settings can only be modified by the user who started "
        "it or by the root user.\n"
    )
    assert _get_printed(daemon, b"quit -t 1", uid=1000) == "Not enough privilege to execute quit command\n"
    assert daemon.quitting is None
    assert daemon.queue.entries == []


def test_a_users_own_daemon_starts_servers_for_that_user_only() -> None:
    own = Daemon(DaemonOptions(1000), parse_toml("[[device]]"))
    refused = _decide(own, Caller(1, 1000), b"start_server -uid 1001")
    assert refused.answer is not None
    assert refused.answer.refused
    assert "can serve only that user" in refused.answer.diagnostic
    assert _decide(own, Caller(1, 1000), b"start_server -uid 1000").instructions
