"""Arguments that are numbers, and options without effect: a command reaches only the process or user it names."""

from __future__ import annotations

import pytest

from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.state_machine import instructions as do
from pympsd.state_machine.decide import handle
from pympsd.state_machine.events import OperatorLine
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import ThreadPercentage

INT_MAX = (1 << 31) - 1
MISREAD = ("{}x", "{}.5", "{}e0", "{}_0", "00000000000000000000{}9999999999", "+{}x")
"""Texts that C's atoi misreads as a number, or clamps."""


@pytest.fixture
def daemon() -> Daemon:
    """A daemon with a server 847 of user 7, which has a client 907; and one that a clamped number would name."""
    daemon = Daemon(DaemonOptions(0, max_servers=9), describe("2xH200"))
    for id_, pid in ((1, 847), (2, INT_MAX)):
        server = daemon.servers[id_] = Server(id_, 7, ThreadPercentage(), pid=pid, phase=Phase.ACTIVE)
        server.clients = {id_: Client(id_, 7, ClientProcess(Peer(907, 7, 7), "python", 0))}
    return daemon


def _give(daemon: Daemon, line: str) -> tuple[str, str, list[do.Instruction]]:
    """Return what a command prints, its line on standard error, and what is done otherwise."""
    done = handle(daemon, OperatorLine(1, 0, parse(line.encode(), 2)), answer_line)
    answers = [client.answer for client in done if isinstance(client, do.Reply)]
    notes = [entry.text for entry in done if isinstance(entry, do.Note)]
    others = [
        instruction for instruction in done if not isinstance(instruction, do.Reply | do.Note | do.Log | do.SetTimer)
    ]
    printed = "".join(answer.printed for answer in answers)
    return printed, "\n".join([*notes, *(answer.diagnostic for answer in answers if answer.diagnostic)]), others


@pytest.mark.parametrize(
    "command",
    [
        *("shutdown_server {}", "shutdown_server {} -f", "terminate_client {} 907", "terminate_client 847 {}"),
        *("set_active_thread_percentage {} 50", "set_device_pinned_mem_limit {} 0 1G", "get_server_status {}"),
        *("get_client_list {}", "get_device_client_list {}", "ps -p {}", "device_query {}"),
        *("get_active_thread_percentage {}", "get_device_pinned_mem_limit {} 0"),
    ],
)
@pytest.mark.parametrize("form", MISREAD)
def test_a_misread_pid_is_refused(daemon: Daemon, command: str, form: str) -> None:
    word = form.format(907 if command == "terminate_client 847 {}" else 847)
    printed, output, others = _give(daemon, command.format(word))
    assert (printed, others) == ("", [])
    assert "is not a PID" in output


@pytest.mark.parametrize("word", ["847", "00847"])
def test_a_pid_is_read_as_c_reads_it(daemon: Daemon, word: str) -> None:
    assert _give(daemon, f"get_server_status {word}")[0] == "ACTIVE\n"


@pytest.mark.parametrize("word", ["0x34f", "abc", "", "-", "²"])
def test_what_begins_with_no_number_is_0(daemon: Daemon, word: str) -> None:
    assert _give(daemon, f"shutdown_server {word}")[0] == "Server 0 not found\n"


@pytest.mark.parametrize(
    "word",
    ["99999999999", "4294967295", "2147483647x", "-1", "-0", "+5", "0x10", "1e3", "0.5", "5x", "5,6", "9" * 5000],
)
def test_a_server_is_not_started_for_another_user(daemon: Daemon, word: str) -> None:
    printed, output, others = _give(daemon, f"start_server -uid {word}")
    assert (printed, others, daemon.queue.entries) == ("", [], [])
    assert output.endswith(" is not a user id; a number from 0 to 4294967294 is")


@pytest.mark.parametrize("uid", [0, 2147483647, 2147483648, 4294967294])
def test_every_user_can_have_a_server(daemon: Daemon, uid: int) -> None:
    (spawned,) = _give(daemon, f"start_server -uid {uid:012}" if uid else "start_server -uid 0")[2]
    assert isinstance(spawned, do.SpawnServer)
    assert spawned.uid == uid


@pytest.mark.parametrize("word", ["1x", "0x1", "01", "+1", "1.0", "-0"])
def test_a_priority_that_is_misread_is_refused(daemon: Daemon, word: str) -> None:
    printed, output, _ = _give(daemon, f"set_default_client_priority {word}")
    assert printed == ""
    assert output == f"a client priority must be 0 (normal) or 1 (below normal), not {word!r}"
    assert daemon.defaults.client_priority.level == 0


NO_DOMAINS = "-mlopart is left out: no device of this machine has locality domains"


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("start_server -uid 5 -mlopart", f"start_server: {NO_DOMAINS}"),
        ("start_server -uid 5 -mlopar", "start_server: -mlopar is ignored"),
        ("start_server -uid 5 -mlopart --force", f"start_server: {NO_DOMAINS}; --force is ignored"),
        ("shutdown_server 847 -F", "shutdown_server: -F is ignored (did you mean -f?)"),
        ("terminate_client 847 907 --force", "terminate_client: --force is ignored"),
        ("set_default_active_thread_percentage 50 --all", "set_default_active_thread_percentage: --all is ignored"),
        ("set_default_device_pinned_mem_limit 0 1G -x", "set_default_device_pinned_mem_limit: -x is ignored"),
        ("set_default_client_priority 1 -x", "set_default_client_priority: -x is ignored"),
        ("start_server -uid 5", ""),
        ("start_server - uid 5", ""),
        ("shutdown_server 847 -f", ""),
        ("quit -t 5", ""),
    ],
)
def test_an_option_that_does_nothing_is_reported(daemon: Daemon, line: str, note: str) -> None:
    assert _give(daemon, line)[1] == note


def test_a_refused_command_has_its_own_reason(daemon: Daemon) -> None:
    assert _give(daemon, "start_server -uid x -mlopart") == (
        "A user id (UID) is required to start a new server\n",
        "",
        [],
    )


@pytest.mark.parametrize(
    ("line", "meant"),
    [("ps --jsn", "--json"), ("device_query --cvs", "--csv"), ("get_server_list --JSON", "--json"), ("ps --zzz", "")],
)
def test_the_option_of_a_query_that_was_meant_is_suggested(daemon: Daemon, line: str, meant: str) -> None:
    output = _give(daemon, line)[1]
    assert (f" is not understood (did you mean {meant}?); usage: " in output) == bool(meant)
    assert "is not understood" in output
