"""A command line after it arrived: its words, its command, and what the daemon has to find out first."""

from __future__ import annotations

import pytest

from pympsd.commands.grammar.line import MAX_LINE_BYTES, parse
from pympsd.commands.grammar.registry import COMMANDS
from pympsd.commands.operator_line import answer_line, servers_to_ask
from pympsd.devices.machine import describe
from pympsd.state_machine.events import OperatorLine
from pympsd.state_machine.instructions import Log
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.limits import ThreadPercentage


def queried_servers(line: str, protocol: int = 2) -> list[int]:
    """Return the PIDs of the servers that are asked before a line is carried out; there are 847 and 848."""
    daemon = Daemon(DaemonOptions(0, protocol=protocol), describe("H200"))
    for number, pid in ((1, 847), (2, 848)):
        daemon.servers[number] = Server(number, 0, ThreadPercentage(), pid=pid, phase=Phase.ACTIVE)
    return [server.pid for server in servers_to_ask(daemon, parse(line.encode(), protocol))]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (" ps  -p\t5\r\n", "ps"),
        ("server list --format=csv", "server list"),
        ("server", ""),
        ("server make", ""),
        ("PS", ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_command_of_either_protocol_is_found_in_one_table(line: str, command: str, protocol: int) -> None:
    parsed = parse(line.encode(), protocol)
    assert (parsed.command, parsed.protocol, parsed.is_whole) == (command, protocol, True)
    assert parsed.words == tuple(line.split())


def test_the_rest_of_the_line_is_the_path_of_a_trace() -> None:
    assert parse(b" trace  start /tmp/a  b.json \n", 2).words == ("trace", "start", "/tmp/a  b.json")
    assert parse(b"trace stop /tmp/a b", 2).words == ("trace", "stop", "/tmp/a", "b")


def test_a_line_that_is_too_long_keeps_its_text_and_is_not_whole() -> None:
    parsed = parse(b"ps " + b"x" * MAX_LINE_BYTES, 2)
    assert (parsed.is_whole, parsed.words[0]) == (False, "ps")
    assert len(parsed.text) == MAX_LINE_BYTES + 3
    assert parse(b"ps".ljust(MAX_LINE_BYTES), 2).is_whole


@pytest.mark.parametrize(
    ("line", "pids"),
    [
        ("ps", [847, 848]),
        ("ps -p 848", [848]),
        ("get_client_list 847", [847]),
        ("get_client_list", []),  # refused: no server has the PID 0
        ("get_client_list 847x", []),
        ("get_device_client_list x", [847, 848]),
        ("get_server_list", []),
        ("get_server_list --json", [847, 848]),
        ("shutdown_server 848 -f", [848]),
        ("server list", []),  # not a command of protocol 2
        ("frobnicate", []),
    ],
)
def test_servers_get_a_request_if_the_answer_depends_on_them(line: str, pids: list[int]) -> None:
    assert queried_servers(line) == pids


def test_a_daemon_of_protocol_3_asks_for_its_own_commands() -> None:
    assert queried_servers("server list", 3) == queried_servers("ps", 3) == [847, 848]
    assert queried_servers("namespace list", 3) == []


@pytest.mark.parametrize(
    ("line", "process"),
    [
        ("rules test 77", 77),
        ("rules test --namespace=a/b 77", 77),
        ("rules test x", None),
        ("client get 77 pid", None),
    ],
)
def test_the_process_that_rules_test_names_is_looked_at(line: str, process: int | None) -> None:
    assert parse(line.encode(), 3).process == process


def test_lines_that_read_cgroups_and_queries_are_recognised() -> None:
    assert [parse(line, 3).asks_cgroups for line in (b"memacct list", b"config show", b"ps")] == [True, True, False]
    changes = (b"quit", b"server create a", b"set_default_client_priority 1", b"nonsense")
    assert all(parse(line, 3).is_query for line in (b"ps --json", b"server list --json", b"ps", b"namespace list"))
    assert not any(parse(line, 3).is_query for line in changes)


@pytest.mark.parametrize(
    ("line", "is_logged"),
    [("ps --json", False), ("server list --json", False), ("quit --json", True), ("ps", True), ("none --json", True)],
)
def test_all_lines_but_queries_with_json_are_logged(line: str, is_logged: bool) -> None:
    daemon = Daemon(DaemonOptions(0, protocol=3), describe("H200"))
    instructions = list(answer_line(daemon, OperatorLine(1, 0, parse(line.encode(), 3))))
    assert (Log("command", {"line": line}) in instructions) == is_logged


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("ps", "ps [-p PID] [--limits] [--json]"),
        ("device_query", "device_query [PID] [--csv] [--json]"),
        ("start_server", "start_server -uid UID"),
        ("shutdown_server", "shutdown_server PID [-f]"),
        ("terminate_client", "terminate_client SERVER-PID CLIENT-PID"),
        ("quit", "quit [-t SECONDS]"),
        ("client get", "client get <pid> <field> [--json]"),
        ("server delete", "server delete <name> [--force]"),
    ],
)
def test_the_usage_follows_from_the_declaration(name: str, usage: str) -> None:
    assert COMMANDS[name].usage == usage
