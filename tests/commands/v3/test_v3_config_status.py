"""``config status``: the file that was applied is compared with what is there, and named by generation and hash."""

from __future__ import annotations

from hashlib import sha256

import pytest

from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.state_machine import instructions as do
from pympsd.state_machine.decide import handle
from pympsd.state_machine.events import NamespaceOpened, OperatorLine
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase, Server
from pympsd.takeover.state.records import InitialDefaults, snapshot
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import ThreadPercentage

FILE = """schema_version = "1.0"
[servers.a]
uid = 7
[servers.a.namespaces.lo]
active_thread_percentage = "30"
"""
HASH = sha256(FILE.encode()).hexdigest()
IN_FORCE = f"generation=1 source=/f.toml applied=1970-01-01T00:00:01Z hash={HASH} pending=0 failed="


@pytest.fixture
def daemon() -> Daemon:
    """Root's daemon with server a of user 7, which FILE has set."""
    daemon = Daemon(DaemonOptions(0, protocol=3, max_servers=9, pipe_directory="/p"), describe("2xH200"))
    daemon.named_servers.add(NamedServer("a", 7))
    _ask(daemon, "config apply /f.toml", file=FILE)
    _open_sockets(daemon, "a", "lo")
    assert _ask(daemon, "config status").printed == f"{IN_FORCE}0\n"
    return daemon


def _ask(daemon: Daemon, line: str, uid: int = 0, file: str | None = None, **event: str) -> Answer:
    text = None if file is None else file.encode()
    request = OperatorLine(1, uid, parse(line.encode(), daemon.options.protocol), at=1.0, file=text, **event)
    instructions = handle(daemon, request, answer_line)
    answers = [instruction.answer for instruction in instructions if isinstance(instruction, do.Reply)]
    return answers[0] if answers else Answer()


def _open_sockets(daemon: Daemon, server: str, *namespaces: str) -> None:
    for name in namespaces:
        handle(daemon, NamespaceOpened(server, name), answer_line)


@pytest.mark.parametrize(
    ("command", "difference"),
    [
        ("namespace set lo --server=a --client-priority=1", ""),  # the file is silent about it
        (
            "namespace set lo --server=a --active-thread-percentage=40",
            "set namespace 'a/lo': active-thread-percentage 40.00 -> 30.00",
        ),
        ("namespace delete lo --server=a", "created namespace 'a/lo'"),
        ("server delete a", "created server 'a'"),
        ("server set a --uid=8", "server 'a' stays that of user 8: 'server set a --uid=7' changes it"),
    ],
)
def test_what_was_changed_after_the_file_is_not_in_force(daemon: Daemon, command: str, difference: str) -> None:
    assert not _ask(daemon, command).refused
    status = _ask(daemon, "config status")
    assert status.printed == f"{IN_FORCE}{1 if difference else 0}\n"
    assert status.refused == bool(difference)
    checked = _ask(daemon, "config apply /f.toml --check", file=FILE).printed
    assert checked == f"{difference or 'no change'}\n"
    expected = f"Not all of the file is in force. 'config apply /f.toml --check' prints:\n  {difference}"
    assert status.diagnostic == (expected if difference else "")


def test_a_server_that_is_being_deleted_is_not_in_force(daemon: Daemon) -> None:
    daemon.servers[1] = Server(1, 7, ThreadPercentage(), pid=847, phase=Phase.ACTIVE, name="a")
    daemon.servers[1].clients = {1: Client(1, 7, ClientProcess(Peer(3165259, 7, 7), "python", 0, namespace="lo"))}
    _ask(daemon, "server delete a --force")
    status = _ask(daemon, "config status")
    assert status.printed == f"{IN_FORCE}1\n"
    assert "server 'a' is being deleted: apply the file again when it is gone" in status.diagnostic


def test_differences_are_listed_up_to_a_limit(daemon: Daemon) -> None:
    tables = "".join(f"[servers.a.namespaces.n{number}]\n" for number in range(30))
    _ask(daemon, "config apply /f.toml", file=FILE + tables)
    for number in range(30):
        _open_sockets(daemon, "a", f"n{number}")
        _ask(daemon, f"namespace delete n{number} --server=a")
    status = _ask(daemon, "config status")
    assert status.printed.endswith("pending=0 failed=30\n")
    assert len(status.diagnostic.splitlines()) == 22
    assert status.diagnostic.endswith("  and 10 more")


@pytest.mark.parametrize(
    ("expected", "complaint"),
    [
        ("1", ""),
        (HASH, ""),
        (HASH.upper(), ""),
        (f"sha256:{HASH}", ""),
        (HASH[:12], ""),
        ("2", "Generation 1 is in force, not 2."),
        ("0", "Generation 1 is in force, not 0."),
        ("123456789012", f"The configuration in force has the hash {HASH}, not 123456789012."),
    ],
)
def test_another_configuration_than_expected_is_refused(daemon: Daemon, expected: str, complaint: str) -> None:
    status = _ask(daemon, f"config status --expect {expected}")
    assert (status.refused, status.diagnostic) == (bool(complaint), complaint)
    assert status.printed == f"{IN_FORCE}0\n"


@pytest.mark.parametrize("expected", ["", "abc", HASH[:11], "xyz", "-1", f"{HASH}0", "1 2", "٣"])
def test_what_can_be_expected_is_reported(daemon: Daemon, expected: str) -> None:
    status = _ask(daemon, f"config status --expect={expected}")
    assert status.refused
    assert status.printed == ""


def test_the_expected_configuration_must_be_in_force_as_a_whole(daemon: Daemon) -> None:
    _ask(daemon, "namespace delete lo --server=a")
    assert _ask(daemon, f"config status --expect={HASH}").refused


def test_without_a_file_no_hash_is_the_expected_one() -> None:
    daemon = Daemon(DaemonOptions(0, protocol=3), describe("H200"))
    assert not _ask(daemon, "config status --expect=0").refused
    assert _ask(daemon, f"config status --expect={HASH}").diagnostic.startswith(
        "The configuration in force has no hash, not "
    )


def test_a_tenant_of_a_namespace_does_not_learn_the_file(daemon: Daemon) -> None:
    _ask(daemon, "namespace set lo --server=a --active-thread-percentage=40")
    status = _ask(daemon, "config status", 1000, server="a", namespace="lo")
    assert status.printed == f"{IN_FORCE.replace(HASH, '-')}0\n"
    assert status.diagnostic == ""


def test_the_file_of_an_earlier_version_is_not_known(daemon: Daemon) -> None:
    configuration = snapshot(daemon, InitialDefaults.of(daemon)).configuration
    assert configuration is not None
    assert configuration.text == FILE.encode()
    # The state file of an earlier version has no text.
    daemon.configuration = type(daemon.configuration)(1, "/f.toml", "2026-01-01T00:00:00Z")
    status = _ask(daemon, "config status")
    assert not status.refused
    assert "hash=- " in status.printed
    assert status.diagnostic.startswith("An earlier version applied this file;")
    assert _ask(daemon, f"config status --expect={HASH}").refused


@pytest.mark.parametrize("uid", [None, 7, 8])
def test_the_server_of_another_user_is_taken_only_if_the_file_names_the_user(uid: int | None) -> None:
    daemon = Daemon(DaemonOptions(0, protocol=3, max_servers=9, pipe_directory="/p"), describe("H200"))
    daemon.named_servers.add(NamedServer("a", 7))
    text = FILE.replace("uid = 7\n", "" if uid is None else f"uid = {uid}\n")
    answer = _ask(daemon, "config apply /f.toml --prune --force", file=text)
    is_made = "lo" in daemon.named_servers["a"].namespaces
    if uid != 7:
        assert answer.refused
        assert answer.printed == (
            "server 'a' belongs to user 7, and the file does not name that user: write uid = 7 into [servers.a] "
            "to take it as it is, or delete the server\n"
            if uid is None
            else "server 'a' stays that of user 7: 'server set a --uid=8' changes it\n"
        )
        assert not is_made
        assert _ask(daemon, "config status").printed.endswith("pending=0 failed=1\n")
    else:
        assert is_made


def test_a_foreign_server_keeps_its_namespaces() -> None:
    daemon = Daemon(DaemonOptions(0, protocol=3, max_servers=9, pipe_directory="/p"), describe("H200"))
    daemon.named_servers.add(NamedServer("a", 7))
    _ask(daemon, "namespace create own --server=a", 7)
    _open_sockets(daemon, "a", "own")
    text = 'schema_version = "1.0"\n[servers.a]\nactive_thread_percentage = "10"\n'
    assert _ask(daemon, "config apply /f.toml --prune --force", file=text).refused
    assert "own" in daemon.named_servers["a"].namespaces
    assert _ask(daemon, "namespace get default a active-thread-percentage").printed == "100.00\n"


def test_in_protocol_2_the_hash_is_that_of_the_defaults() -> None:
    daemon = Daemon(DaemonOptions(0), describe("2xH200"))
    hashes = set()
    for generation, command in enumerate(
        (
            "get_default_active_thread_percentage",
            "set_default_active_thread_percentage 50",
            "set_default_client_priority 1",
            "set_default_device_pinned_mem_limit 1 4G",
            "set_default_device_pinned_mem_limit 1 0",
        )
    ):
        _ask(daemon, command)
        _ask(daemon, "set_default_active_thread_percentage 0")  # refused
        printed = _ask(daemon, "config show").printed
        digest = sha256(printed.encode()).hexdigest()
        status = f"generation={generation} source=- applied=- hash={digest} pending=0 failed=0\n"
        assert _ask(daemon, "config status").printed == status
        assert not _ask(daemon, f"config status --expect={digest}").refused
        assert not _ask(daemon, f"config status --expect={generation}").refused
        hashes.add(digest)
    assert len(hashes) == 4, "each default counts, and the last command restored a state of before"
    assert "# set_default_active_thread_percentage 50.0\n# set_default_client_priority 1\n" in printed


def test_in_protocol_2_the_hash_of_a_file_of_rules_is_expected_too() -> None:
    daemon = Daemon(DaemonOptions(0), describe("H200"))
    text = 'schema_version = "1.0"\n[[rules]]\nuser = "7"\nactive_thread_percentage = "30"\n'
    assert not _ask(daemon, "config apply /f.toml", file=text).refused
    assert not _ask(daemon, f"config status --expect={sha256(text.encode()).hexdigest()}").refused
    daemon.process_limits.rules = ()
    assert _ask(daemon, f"config status --expect={sha256(text.encode()).hexdigest()}").refused
