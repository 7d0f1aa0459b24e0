"""The commands of protocol 3 on the daemon's state: what they print, change and refuse."""

from __future__ import annotations

import csv
import io
import json
from copy import deepcopy
from hashlib import sha256

import pytest
from attrs import evolve

from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.state_machine import instructions as do
from pympsd.state_machine import named_servers
from pympsd.state_machine.decide import handle
from pympsd.state_machine.events import (
    ClientConnected,
    ClientGonePushed,
    ContextPushed,
    Event,
    NamespaceOpened,
    OperatorLine,
    ServerSpawned,
    StatusPushed,
)
from pympsd.state_machine.state.client import Client, ClientProcess, ReportedContext
from pympsd.state_machine.state.compound_commands import Configuration
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import MAX_NAMESPACES, NamedServer, Namespace, Source
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.identities import NO_USER, Peer
from pympsd.vocabulary.limit_table import LIMITS, PINNED_MEMORY, LimitRow, Limits, percentages
from pympsd.vocabulary.limits import ClientPriority, LimitsInForce, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.results import ServerStatus
from pympsd.vocabulary.rules import Origin

DEVICES = describe("2xH200")
LISTS = ("server list", "namespace list", "client list --all", "device list", "feature describe")


@pytest.fixture
def daemon() -> Daemon:
    """Root's daemon: server a of user 7 with namespaces default and hi, a client in hi; server b has no process."""
    daemon = Daemon(DaemonOptions(0, protocol=3, max_servers=9, pipe_directory="/p", pid_namespace=11), DEVICES)
    half = Limits(percentages(50.0))
    daemon.named_servers.add(
        NamedServer("a", 7, {"hi": Namespace("hi", half), "default": Namespace("default")}, (1, 0))
    )
    daemon.named_servers.add(NamedServer("b", 8))
    process = Server(1, 7, ThreadPercentage(), pid=847, phase=Phase.ACTIVE, name="a")
    contexts = {1: ReportedContext(3, 1, 0), 2: ReportedContext(4, 1, 1)}
    process.clients = {
        1: Client(1, 7, ClientProcess(Peer(3165259, 7, 7), 'python "a, b".py', 11, namespace="hi"), contexts)
    }
    daemon.servers[1] = process
    return daemon


def _handle(daemon: Daemon, event: Event) -> list[do.Instruction]:
    return handle(daemon, event, answer_line)


def _answers(instructions: list[do.Instruction]) -> list[Answer]:
    return [instruction.answer for instruction in instructions if isinstance(instruction, do.Reply)]


def _ask(daemon: Daemon, line: str, uid: int = 0, file: str | None = None) -> Answer:
    text = file if file is None else file.encode()
    (answer,) = _answers(_handle(daemon, OperatorLine(1, uid, parse(line.encode(), 3), file=text)))
    return answer


def _cgroups(daemon: Daemon, *existing: str) -> list[str]:
    """Return the cgroups that memacct list shows when some exist."""
    event = OperatorLine(1, 0, parse(b"memacct list --format=csv,noheader", 3), cgroups=frozenset(existing))
    (answer,) = _answers(_handle(daemon, event))
    return sorted({row.partition(",")[0] for row in answer.printed.splitlines()})


def _get_printed(daemon: Daemon, line: str, uid: int = 0) -> str:
    answer = _ask(daemon, line, uid)
    assert (answer.refused, answer.diagnostic) == (False, "")
    return answer.printed


def test_clients_with_their_limits(daemon: Daemon) -> None:
    (client,) = daemon.servers[1].clients.values()
    client.limits = LimitsInForce(50.0, 1, {0: 3 << 29}, {0: 66, 1: 32}, {0: 50.0, 1: 25.0}, connections=2)
    client.memory = {0: 96 << 20}
    plain = _get_printed(daemon, "client list --format=json")
    heading, *rows = csv.reader(io.StringIO(_get_printed(daemon, "client list --limits --format=csv")))
    assert heading[3:] == ["MAWS NS", "SM %", "SMS", "MEMORY", "LIMIT", "PRIORITY", "FREE", "CMD"]
    assert [row[4:10] for row in rows] == [
        ["50.00", "66", "96.0M", "1536M", "1", "58"],
        ["25.00", "32", "0.0M", "unlimited", "1", "58"],
    ]
    first, _ = json.loads(plain)
    assert json.loads(_get_printed(daemon, "client list --limits --format=json")) == json.loads(plain)
    assert (first["active_thread_percentage"], first["sm_count"], first["priority"]) == (50.0, 66, 1)
    assert (first["max_clients"], first["free_clients"]) == (60, 58)
    client.limits = None
    client.contexts.clear()
    (row,) = csv.reader(io.StringIO(_get_printed(daemon, "client list --limits --format=csv,noheader")))
    assert row[4:10] == ["-"] * 6, "not known, and on no device"


def test_devices_have_how_many_more_clients_fit(daemon: Daemon) -> None:
    def free(*place: str) -> list[tuple[str, int | None]]:
        event = OperatorLine(
            1, 60000 if place else 0, parse(b"device list --format=json", 3), None, None, 0.0, *place
        )
        (answer,) = _answers(_handle(daemon, event))
        return [(row["Server"], row["free_clients"]) for row in json.loads(answer.printed)]

    assert free() == [("a", 59), ("a", 59), ("b", 60), ("b", 60)]
    assert free("a", "hi") == [("a", None), ("a", None)], "a tenant does not see the clients of others"


def test_lists_print_servers_namespaces_and_clients(daemon: Daemon) -> None:
    zero, one = (device.uuid for device in DEVICES)
    assert _get_printed(daemon, "server list --format=csv,noheader").splitlines() == [
        f'a,7,847,Ready,/p/a,"{one},{zero}",3 4',
        f'b,8,-,Configured,/p/b,"{zero},{one}",-',
    ]
    assert _get_printed(daemon, "namespace list --format=csv").splitlines() == [
        "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority,pipe-directory",
        "default,a,Ready,unlimited,100.00,0,/p/a/default",
        "hi,a,Ready,unlimited,50.00,0,/p/a/hi",
        "default,b,Configured,unlimited,100.00,0,/p/b/default",
    ]
    assert _get_printed(daemon, "namespace list hi --server=a") == (
        "NAME  SERVER  SERVER STATUS  PINNED MEMORY LIMIT  ACTIVE THREAD PERCENTAGE  CLIENT PRIORITY  "
        "PIPE DIRECTORY\n"
        "hi    a       Ready          unlimited            50.00                     0                /p/a/hi\n"
    )
    clients = list(csv.reader(io.StringIO(_get_printed(daemon, "client list --format=csv"))))
    assert clients == [
        ["PID", "SERVER", "DEVICE", "MAWS NS", "CMD"],
        ["3165259", "a", zero, "a/hi (0)", 'python "a, b".py'],
        ["3165259", "a", one, "a/hi (0)", 'python "a, b".py'],
    ]
    assert _get_printed(daemon, "device list --server=a --format=csv,noheader").splitlines() == [
        f"0,a,{DEVICES[1].pci},{one},NVIDIA H200,132,15,-",
        f"1,a,{DEVICES[0].pci},{zero},NVIDIA H200,132,15,-",
    ]


def test_device_query_shows_the_devices_that_a_servers_clients_see(daemon: Daemon) -> None:
    zero, one = (f"{device.pci},{device.uuid},{device.name},N/A" for device in DEVICES)
    daemon.named_servers["a"].allowed_devices = (1,)
    heading = "Device Ordinal,PCI IDs,UUID,Name,Attributes"
    shown = ["Default", heading, f"0,{zero}", f"1,{one}", "", "Server 847", heading, f"0,{one}"]
    assert _get_printed(daemon, "device_query 847 --csv").splitlines() == shown


def test_what_later_clients_of_a_server_get_by_its_pid_is_that_of_namespace_default(daemon: Daemon) -> None:
    assert _get_printed(daemon, "get_active_thread_percentage 847") == "100.0\n"
    assert _get_printed(daemon, "get_device_pinned_mem_limit 847 1") == ""
    _ask(daemon, "server set a --active-thread-percentage=30 --pinned-memory-limit=1=4G")
    assert _get_printed(daemon, "get_active_thread_percentage 847") == "30.0\n"
    assert _get_printed(daemon, "get_device_pinned_mem_limit 847 1") == "4G\n"
    assert _get_printed(daemon, "get_device_pinned_mem_limit 847 0") == ""
    assert _ask(daemon, "get_active_thread_percentage 848") == refusal("Server 848 not found")


def test_a_tenant_does_not_learn_the_limits_of_namespace_default(daemon: Daemon) -> None:
    event = OperatorLine(1, 9, parse(b"get_active_thread_percentage 847", 3), server="a", namespace="hi")
    assert _answers(_handle(daemon, event)) == [refusal("Server 847 not found")]


@pytest.mark.parametrize("command", LISTS)
def test_json_has_the_rows_of_csv(daemon: Daemon, command: str) -> None:
    rows = json.loads(_get_printed(daemon, f"{command} --format=json"))
    heading, *lines = csv.reader(io.StringIO(_get_printed(daemon, f"{command} --format=csv")))
    assert len(rows) == len(lines) > 0
    assert all(len(row) >= len(heading) for row in rows)


def test_get_prints_single_fields(daemon: Daemon) -> None:
    assert _get_printed(daemon, "server get a pid") == "847\n"
    assert _get_printed(daemon, "server get b pid") == "-\n"
    assert _get_printed(daemon, "server get a pipe_directory") == "/p/a\n"
    assert _get_printed(daemon, "namespace get hi a active-thread-percentage") == "50.00\n"
    assert _get_printed(daemon, "namespace get hi --server=a server-status") == "Ready\n"
    assert _get_printed(daemon, "client get 3165259 maws-ns") == "a/hi (0)\n"
    assert _get_printed(daemon, "client get 3165259 linux-ns") == "0\n"
    assert json.loads(_get_printed(daemon, "client list --format=json"))[0]["linux-ns"] == 0
    daemon.options = evolve(daemon.options, pid_namespace=12)
    assert _get_printed(daemon, "client get 3165259 maws-ns") == "a/hi (11)\n"
    assert _get_printed(daemon, "client get 3165259 linux-ns") == "11\n"
    assert _get_printed(daemon, "client get 3165259 device").splitlines() == [device.uuid for device in DEVICES]


def test_a_client_may_be_named_by_its_pid_in_its_container(daemon: Daemon) -> None:
    present = daemon.servers[1].clients
    present[2] = Client(2, 7, ClientProcess(Peer(500, 7, 7), "two", 12, container_pid=9))
    assert _get_printed(daemon, "client get 9 pid") == "500\n"
    (ended,) = [
        e
        for e in _handle(daemon, OperatorLine(1, 0, parse(b"client terminate 9", 3)))
        if isinstance(e, do.TerminateClient)
    ]
    assert ended.pid == 500
    present[3] = Client(3, 7, ClientProcess(Peer(600, 7, 7), "three", 13, container_pid=9))
    text = "Several clients have PID 9 in their containers; use one of 500, 600."
    assert _ask(daemon, "client terminate 9").printed == f"{text}\n"
    present[4] = Client(4, 7, ClientProcess(Peer(9, 7, 7), "four", 11))
    assert _get_printed(daemon, "client get 9 cmd") == "four\n", "the PID here wins"
    server = daemon.servers[2] = Server(2, 8, ThreadPercentage(), pid=848, phase=Phase.ACTIVE, name="b")
    server.clients = {5: Client(5, 8, ClientProcess(Peer(700, 8, 8), "five", 14, container_pid=9))}
    text = "No client with PID 9 on server 'b'."
    assert _ask(daemon, "client terminate 9 --server=b").printed == f"{text}\n", "on another server too"
    assert _ask(daemon, "client get 0 pid").diagnostic == "No client with PID 0."


def test_a_user_sees_the_clients_of_his_servers_unless_he_asks_for_all(daemon: Daemon) -> None:
    assert _get_printed(daemon, "client list --format=csv,noheader", uid=8) == ""
    assert len(_get_printed(daemon, "client list --format=csv,noheader", uid=7).splitlines()) == 2
    assert len(_get_printed(daemon, "client list --all --format=csv,noheader", uid=8).splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("server list x", "No server named 'x'."),
        ("server get a foo", "A server has no field 'foo'. Fields: allowed-devices, context-ids, name, pid, "),
        ("server get a", "'server get' needs <name> <field>."),
        ("namespace list x", "No namespace named 'x'."),
        ("namespace get x a name", "No namespace named 'x' on server 'a'."),
        ("namespace get hi a foo", "A namespace has no field 'foo'. Fields: active-thread-percentage, "),
        ("client get 5 cmd", "No client with PID 5."),
        ("client get 3165259 foo", "A client has no field 'foo'. Fields: cmd, device, linux-ns, maws-ns, pci-id, "),
        ("device list --format=xml", "--format must be table, csv or json"),
        ("feature describe x", "No feature 'x'. Features: context-share, memacct."),
        ("memacct list /sys/fs/cgroup/x", "Cgroup '/x' has no limits of its own."),
        ("sm-partition list --server=c", "No server named 'c'."),
        ("sm-partition list --server=a --device=2", "No device '2' of server 'a'. Devices: 0 (GPU-"),
        ("sm-partition list --device=2", "No device '2'. Devices: 0 (GPU-12"),
        ("srv list", "Unknown module 'srv'. Modules: client, config, context-share, device, "),
        ("server make", "Unknown verb 'make' of module 'server'. Verbs: create, delete, get, list, set."),
        ("server", "'server' needs a verb. Verbs: create, delete, get, list, set."),
        ("lspart --all", "lspart: '--all' is not understood; usage: lspart [--json]"),
        ("srver list", "Unknown module 'srver'. Did you mean 'server'? Modules: client, "),
        ("get_server_lst", "Unknown module 'get_server_lst'. Did you mean 'get_server_list'? Modules: client, "),
        ("server lst", "Unknown verb 'lst' of module 'server'. Did you mean 'list'? Verbs: create, "),
        ("server list --frmat=csv", "Unknown option '--frmat' of 'server list'. Did you mean '--format'? Options: "),
        (
            "start_server -uid 5 -mlopart",
            "start_server is a command of protocol 2; this daemon speaks 3: server create --uid=5 (-mlopart has no ",
        ),
    ],
)
def test_a_refused_query_leaves_standard_output_empty(daemon: Daemon, line: str, message: str) -> None:
    answer = _ask(daemon, line)
    assert answer.refused
    assert answer.printed == ""
    assert answer.diagnostic.startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("server create", "'server create' needs <name> or --uid=<n>."),
        ("server create a", "Server 'a' exists already."),
        ("server create Train-1", "Bad name 'Train-1': 1 to 64 lowercase letters, digits and underscores."),
        ("server create c --allowed-devices=GPU-dead", "No device 'GPU-dead'. Devices: 0 (GPU-"),
        ("server create c --locality-domains=true", "Device 0 (NVIDIA H200) has one locality domain: nothing to "),
        (
            "server create c --allowed-devices=1 --locality-domains=true",
            "Device 1 (NVIDIA H200) has one locality domain: nothing to enable.",
        ),
        (
            "server set a --locality-domains=true",
            "Device 1 (NVIDIA H200) has one locality domain: nothing to enable.",
        ),
        (
            "server create uid_05 --uid=5",
            (
                "Names that begin with uid_ are reserved for users' servers: that of user 5 is 'uid_5', not 'uid_05'"
                "; choose another name."
            ),
        ),
        (
            "server create uid_5 --uid=6",
            (
                "Names that begin with uid_ are reserved for users' servers: that of user 6 is 'uid_6', not 'uid_5'"
                "; choose another name, or give --uid=5."
            ),
        ),
        ("server create uid_x", "Names that begin with uid_ are reserved for users' servers: that of user 0 is"),
        ("server create c --uid=x", "--uid must be a user's number, not 'x'."),
        ("server delete x", "No server named 'x'."),
        ("server delete a", "Server 'a' has 1 active client; --force terminates it first."),
        ("server set a", "'server set' needs at least one of --active-thread-percentage, --client-priority, "),
        ("server set a --uid=9", "Server 'a' has 1 active client: its user can change when it has none."),
        ("namespace create hi --server=a", "Namespace 'hi' exists already on server 'a'."),
        ("namespace create hi --server=x", "No server named 'x'."),
        ("namespace create control --server=a", "The name 'control' is taken by a socket of the pipe directory."),
        ("namespace create " + "n" * 64 + " --server=" + "s" * 64, "No server named"),
        ("namespace set hi --server=a", "'namespace set' needs at least one of --active-thread-percentage, --client"),
        ("namespace set x --server=a --client-priority=1", "No namespace named 'x' on server 'a'."),
        ("namespace set hi --server=a --pinned-memory-limit=9=4G", "No device '9' of server 'a'. Devices: 0 (GPU-"),
        ("namespace delete default --server=a", "Namespace 'default' belongs to its server."),
        ("client terminate 5", "No client with PID 5."),
        ("client terminate 3165259 --server=b", "No client with PID 3165259 on server 'b'."),
        (
            "client terminate 3165259 --timeout=0",
            "--timeout must be a number of seconds above 0, up to 86400, not '0'.",
        ),
        (
            "sm-partition create p --server=a --device=0 --chunks=1",
            "Device 0 has 1 active client outside partitions; end it, or wait until it has gone.",
        ),
        ("memacct limit batch --hard-limit=2G", "A cgroup is named by its full path, such as /sys/fs/cgroup/batch"),
        ("memacct limit /a/../b --hard-limit=2G", "A cgroup is named by its full path"),
        (
            "memacct limit /a --soft-limit=unlimited",
            "--soft-limit must be a whole number above 0 and K, M or G, or 'none'",
        ),
        ("memacct limit /a* --hard-limit=2G", "A cgroup is named by its full path"),
        ("memacct limit /a --hard-limit=2G --device=2", "No device '2'. Devices: 0 (GPU-"),
        ("sm-partition create p --server=a --device=0", "'sm-partition create' needs --chunks=<n>."),
        ("sm-partition delete p --server=a --device=1", "No SM partition named 'p' on server 'a', device 1."),
        ("feature disable context_share", "context-share cannot be disabled: every client of pympsd runs in a se"),
        ("memacct set x=1", "Unknown option '--x' of 'memacct set'. Options: --audit-log."),
        ("config apply F", "'config apply' needs the text of the file"),
    ],
)
def test_a_refused_change_is_printed_and_changes_nothing(daemon: Daemon, line: str, message: str) -> None:
    answer = _ask(daemon, line)
    assert answer.refused
    assert answer.printed.startswith(message)
    assert set(daemon.named_servers) == {"a", "b"}
    assert set(daemon.named_servers["a"].namespaces) == {"default", "hi"}
    assert daemon.compound_commands.pending == []


@pytest.mark.parametrize(
    "line",
    [
        "server create c --uid=7",
        "server set a --client-priority=1",
        "server delete a --force",
        "namespace create lo --server=a",
        "namespace set hi --server=a --client-priority=1",
        "namespace delete hi --server=a --force",
        "client terminate 3165259",
        "feature disable memacct",
        "memacct set audit_log=false",
        "config apply F",
    ],
)
def test_another_user_may_change_nothing(daemon: Daemon, line: str) -> None:
    answer = _ask(daemon, line, uid=60000)
    command = " ".join(line.split()[:2]).upper()
    owner = "server" if command.startswith(("SERVER", "NAMESPACE", "CLIENT")) else "daemon"
    assert answer.printed == f"Insufficient privileges for UID 60000. '{command}' requires {owner} owner.\n"


@pytest.mark.parametrize("line", ["shutdown_server 847", "terminate_client 847 1", "server delete b"])
def test_nor_somebody_in_a_container_whose_user_is_not_known(daemon: Daemon, line: str) -> None:
    answer = _ask(daemon, line, uid=NO_USER)
    assert answer.refused
    assert answer.printed.startswith("Insufficient privileges in a container")
    assert str(NO_USER) not in answer.printed
    assert answer.diagnostic.startswith("Ask from the daemon's own PID and user namespace")


def test_limits_are_set_for_later_clients(daemon: Daemon) -> None:
    answer = _ask(daemon, "namespace set hi --server=a --active-thread-percentage=25 --pinned-memory-limit=1=4G", 7)
    assert (answer.refused, answer.printed) == (False, "")
    assert answer.diagnostic == "1 client keeps its limits until it restarts."
    assert _get_printed(daemon, "namespace get hi a pinned-memory-limit") == "0=unlimited,1=4G\n"


def test_limits_by_device_count_as_the_clients_of_the_server_do(daemon: Daemon) -> None:
    zero, entry = DEVICES
    daemon.named_servers.add(NamedServer("c", 7, allowed_devices=(1,)))
    for limit in ("0=4G", f"{entry.uuid}=4G", "4G"):
        assert _get_printed(daemon, f"server set c --pinned-memory-limit={limit} --total-memory-limit={limit}") == ""
        assert _get_printed(daemon, f"server set c --max-pinned-memory-limit={limit}") == ""
        for limits in (daemon.named_servers["c"].namespaces["default"].limits, daemon.named_servers["c"].maximum):
            assert (limits.pinned_memory or {})[1] == PinnedMemory(4 << 30)
        (row,) = json.loads(_get_printed(daemon, "server list c --format=json"))
        assert (row["default_limits"]["pinned-memory-limit"], row["max_pinned_memory_limit"]) == (4 << 30, 4 << 30)
        (row,) = json.loads(_get_printed(daemon, "namespace list --server=c --format=json"))
        assert row["total_memory_limit"] == 4 << 30
        assert "4G" in (text := _get_printed(daemon, "config show"))
        assert _ask(daemon, "config apply F", file=text).printed == "no change\n"
        assert (
            _get_printed(daemon, "server set c --pinned-memory-limit=unlimited --total-memory-limit=unlimited") == ""
        )
        assert _get_printed(daemon, "server set c --max-pinned-memory-limit=unlimited") == ""
    for option in ("pinned-memory-limit", "total-memory-limit", "max-pinned-memory-limit"):
        for word in ("1", zero.uuid):
            refused = _ask(daemon, f"server set c --{option}={word}=4G")
            assert refused.printed == f"No device '{word}' of server 'c'. Devices: 0 ({entry.uuid}).\n"
    # Server a has both, the other way round.
    _ask(daemon, "namespace set hi --server=a --pinned-memory-limit=0=4G,1=2G")
    assert daemon.named_servers["a"].namespaces["hi"].limits.pinned_memory == {
        1: PinnedMemory(4 << 30),
        0: PinnedMemory(2 << 30),
    }
    (row,) = json.loads(_get_printed(daemon, "namespace list hi --format=json"))
    assert row["pinned-memory-limit"] == {"0": 4 << 30, "1": 2 << 30}
    assert 'pinned_memory_limit = "0=4G,1=2G"' in (text := _get_printed(daemon, "config show"))
    assert _ask(daemon, "config apply F", file=text).printed == "no change\n"


def test_partitions_of_a_device_are_those_of_the_servers_that_have_it(daemon: Daemon) -> None:
    zero, entry = (device.uuid for device in DEVICES)
    daemon.named_servers.add(NamedServer("c", 7, allowed_devices=(1,)))
    daemon.servers.clear()
    for server, device in (("a", 0), ("a", 1), ("b", 0), ("c", 0)):
        assert not _ask(
            daemon, f"sm-partition create p{device} --server={server} --device={device} --chunks=1"
        ).refused

    def list_shown(options: str) -> list[list[str]]:
        text = _get_printed(daemon, f"sm-partition list --format=csv,noheader {options}")
        return [row[:3] for row in csv.reader(io.StringIO(text))]

    assert list_shown("--device=0") == list_shown(f"--device={zero}") == [["a", zero, "p1"], ["b", zero, "p0"]]
    assert list_shown(f"--device={entry[:10]}") == [["a", entry, "p0"], ["c", entry, "p0"]]
    _ask(daemon, "sm-partition create rest --server=b --device=1 --chunks=1 --include-remainder=true")
    assert _ask(
        daemon, "sm-partition create r --server=c --device=0 --chunks=1 --include-remainder=true"
    ).printed == ("The remaining 12 SMs of device 0 are in partition 'rest' of server 'b'.\n")
    assert list_shown("--device=0 --server=c") == [["c", entry, "p0"]]
    assert [row[0] for row in list_shown("--device=0 --all")] == ["a", "a", "b", "b"]


def test_a_file_that_names_no_devices_counts_those_that_its_server_has(daemon: Daemon) -> None:
    daemon.named_servers.add(NamedServer("c", 7, allowed_devices=(1,)))
    text = 'schema_version = "1.0"\n[servers.c]\nuid = 7\npinned_memory_limit = "{}=4G"\n'
    assert _ask(daemon, "config apply F", file=text.format(0)).printed == (
        "set namespace 'c/default': pinned-memory-limit unlimited -> 4G\n"
    )
    assert daemon.named_servers["c"].namespaces["default"].limits.pinned_memory == {1: PinnedMemory(4 << 30)}
    assert _ask(daemon, "config apply F", file=text.format(1)).diagnostic.startswith(
        "F:4: servers.c.pinned_memory_limit: no device '1' of this server; devices: 0 (GPU-af"
    )


def test_a_change_of_limits_is_logged_from_what_it_was_to_what_it_is(daemon: Daemon) -> None:
    done = _handle(daemon, OperatorLine(1, 0, parse(b"namespace set hi --server=a --pinned-memory-limit=1=4G", 3)))
    (logged,) = [entry for entry in done if isinstance(entry, do.Log) and entry.event == "namespace_set"]
    assert logged.fields == {
        "name": "a/hi",
        "before": "50.00 %, memory unlimited, priority 0",
        "limits": "50.00 %, memory 1=4G, priority 0",
    }


EXAMPLES = {
    "<limit>": ("2G", "unlimited"),
    "<percentage>": ("25", "default"),
    "0|1": ("1", "default"),
    "<name>|none": ("half", "none"),
}
"""A limit, and the word that lifts it, for each placeholder of values."""


def _set_limit(daemon: Daemon, row: LimitRow, text: str) -> list[do.Instruction]:
    line = f"namespace set hi --server=a --{row.name}={text}".encode()
    return _handle(daemon, OperatorLine(1, 0, parse(line, 3)))


def test_every_placeholder_has_an_example() -> None:
    assert {row.form for row in LIMITS} <= EXAMPLES.keys(), "add a limit and the word that lifts it"


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.name)
def test_a_change_of_any_limit_can_be_seen_in_the_log(daemon: Daemon, row: LimitRow) -> None:
    done = _set_limit(daemon, row, EXAMPLES[row.form][0])
    (logged,) = [log for log in done if isinstance(log, do.Log) and log.event == "namespace_set"]
    assert logged.fields["before"] != logged.fields["limits"]


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.name)
def test_any_limit_can_be_lifted_again(daemon: Daemon, row: LimitRow) -> None:
    for text, is_lifted in zip(EXAMPLES[row.form], (False, True), strict=True):
        _set_limit(daemon, row, text)
        entries = row.entries(daemon.named_servers["a"].namespaces["hi"].limits, (0, 1))
        assert all((entry == row.default) is is_lifted for entry in entries)


def test_a_limit_without_words_of_its_own_is_logged_by_its_name(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_servers, "LIMITS", (*LIMITS, evolve(PINNED_MEMORY, name="max-contexts")))
    done = _handle(daemon, OperatorLine(1, 0, parse(b"namespace set hi --server=a --pinned-memory-limit=4G", 3)))
    (logged,) = [log for log in done if isinstance(log, do.Log) and log.event == "namespace_set"]
    assert logged.fields["limits"] == "50.00 %, memory 0=4G, 1=4G, priority 0, max-contexts 4G"


def test_a_namespace_bound_to_a_partition_that_is_not_there_is_reported(daemon: Daemon) -> None:
    def diagnostic_for(namespace: str) -> str:
        return (
            f"Server 'b' has no SM partition 'nope' yet; until it is created, clients of namespace '{namespace}' get "
            "no context."
        )

    assert _ask(daemon, "namespace set default --server=b --sm-partition=nope") == Answer(
        diagnostic=diagnostic_for("default")
    )
    assert _ask(daemon, "server set b --sm-partition=nope") == Answer(diagnostic=diagnostic_for("default"))
    _handle(daemon, OperatorLine(1, 0, parse(b"namespace create lo --server=b --sm-partition=nope", 3)))
    assert _open(daemon, "b", "lo") == [Answer(diagnostic=diagnostic_for("lo"))]
    text = 'schema_version = "1.0"\n[servers.b.namespaces.lo.pympsd]\nsm_partition = "nope"\n'
    assert _ask(daemon, "config apply F", file=text).diagnostic == f"F:3: {diagnostic_for('lo')}".rstrip(".")
    _ask(daemon, "sm-partition create nope --server=b --device=0 --chunks=1")
    assert _ask(daemon, "config apply F", file=text).diagnostic == ""
    assert _ask(daemon, "namespace set lo --server=b --sm-partition=nope") == Answer()
    assert _ask(daemon, "namespace set lo --server=b --sm-partition=none") == Answer()


def test_limits_of_a_server_are_those_of_its_default_namespace(daemon: Daemon) -> None:
    assert _get_printed(daemon, "server set b --active-thread-percentage=25 --pinned-memory-limit=8G") == ""
    assert _get_printed(daemon, "namespace list --server=b --format=csv,noheader") == (
        "default,b,Configured,8G,25.00,0,/p/b/default\n"
    )
    assert _get_printed(daemon, "server set b --pinned-memory-limit=unlimited") == ""
    assert _get_printed(daemon, "namespace get default b pinned-memory-limit") == "unlimited\n"


def _open(daemon: Daemon, server: str, *namespaces: str) -> list[Answer]:
    return [answer for name in namespaces for answer in _answers(_handle(daemon, NamespaceOpened(server, name)))]


def test_a_server_is_answered_when_it_is_ready(daemon: Daemon) -> None:
    begun = _handle(daemon, OperatorLine(1, 7, parse(b"server create c", 3)))
    assert _answers(begun) == []
    assert do.Working(1) in begun
    spawned = [
        instruction
        for instruction in _handle(daemon, NamespaceOpened("c", "default"))
        if isinstance(instruction, do.SpawnServer)
    ]
    _handle(daemon, ServerSpawned(spawned[0].server, 900))
    assert _get_printed(daemon, "server get c status") == "Starting\n"
    assert _answers(_handle(daemon, StatusPushed(spawned[0].server, ServerStatus.ACTIVE))) == [Answer()]
    assert _get_printed(daemon, "server get c uid") == "7\n"


def test_a_change_of_its_user_is_answered_when_a_server_is_ready(daemon: Daemon) -> None:
    begun = _handle(daemon, OperatorLine(1, 0, parse(b"server set b --uid=9 --client-priority=1", 3)))
    assert _answers(begun) == []
    assert do.Working(1) in begun
    assert do.OpenNamespace("b", "default", 9) in begun
    spawned = [
        instruction
        for instruction in _handle(daemon, NamespaceOpened("b", "default"))
        if isinstance(instruction, do.SpawnServer)
    ]
    assert [entry.uid for entry in spawned] == [9]
    _handle(daemon, ServerSpawned(spawned[0].server, 900))
    assert _answers(_handle(daemon, StatusPushed(spawned[0].server, ServerStatus.ACTIVE))) == [Answer()]
    assert _get_printed(daemon, "namespace get default b client-priority") == "1\n"


def test_a_server_whose_sockets_cannot_be_made_for_its_new_user_goes_back(daemon: Daemon) -> None:
    _handle(daemon, OperatorLine(1, 0, parse(b"server set b --uid=9", 3)))
    _handle(daemon, NamespaceOpened("b", "", "no room"))
    failed = _handle(daemon, NamespaceOpened("b", "default", "no room"))
    (answer,) = _answers(failed)
    assert (answer.refused, answer.printed) == (True, "Server 'b' stays that of user 8: no room\n")
    assert do.OpenNamespace("b", "default", 8) in failed
    assert _get_printed(daemon, "server get b uid") == "8\n"
    assert _get_printed(daemon, "server get b status") == "Failed\n"
    _open(daemon, "b", "", "default")
    assert _get_printed(daemon, "server get b status") == "Starting\n"


def test_a_new_namespace_reports_what_it_does_not_inherit(daemon: Daemon) -> None:
    _ask(daemon, "server set a --active-thread-percentage=10")
    assert _answers(_handle(daemon, OperatorLine(1, 7, parse(b"namespace create batch --server=a", 3)))) == []
    (answer,) = _open(daemon, "a", "batch")
    assert (answer.refused, answer.printed) == (False, "")
    assert answer.diagnostic == (
        "'batch' does not inherit the limits of 'default': it has 100.00 % and unlimited memory until namespace set."
    )
    _handle(daemon, OperatorLine(1, 7, parse(b"namespace create capped --server=a --pinned-memory-limit=4G", 3)))
    assert _open(daemon, "a", "capped") == [Answer()]


FILE = """schema_version = "1.0"
[servers.a]
uid = 7
[servers.a.namespaces.hi]
active_thread_percentage = "30"
[servers.c.namespaces.lo]
client_priority = 1
[servers.c.namespaces.default]
pinned_memory_limit = "4G"
"""


def test_a_file_is_applied_as_a_whole_and_answered_once(daemon: Daemon) -> None:
    assert _ask(daemon, "config apply F --check", file=FILE).printed.splitlines() == [
        "set namespace 'a/hi': active-thread-percentage 50.00 -> 30.00",
        "created server 'c'",
    ]
    assert "c" not in daemon.named_servers
    begun = _handle(daemon, OperatorLine(1, 0, parse(b"config apply F", 3), file=FILE.encode(), at=1.0))
    assert _answers(begun) == []
    status = _ask(daemon, "config status")
    assert status.refused
    assert status.printed == (
        f"generation=1 source=F applied=1970-01-01T00:00:01Z hash={sha256(FILE.encode()).hexdigest()} "
        "pending=2 failed=0\n"
    )
    assert _open(daemon, "c", "lo") == []
    spawned = [
        instruction
        for instruction in _handle(daemon, NamespaceOpened("c", "default"))
        if isinstance(instruction, do.SpawnServer)
    ]
    _handle(daemon, ServerSpawned(spawned[0].server, 900))
    (answer,) = _answers(_handle(daemon, StatusPushed(spawned[0].server, ServerStatus.ACTIVE)))
    assert not answer.refused
    assert answer.printed.splitlines() == [
        "set namespace 'a/hi': active-thread-percentage 50.00 -> 30.00",
        "created server 'c'",
    ]
    assert _get_printed(daemon, "config status").endswith("pending=0 failed=0\n")
    again = _ask(daemon, "config apply F", file=FILE)
    assert (again.refused, again.printed) == (False, "no change\n")
    shown = _get_printed(daemon, "config show")
    assert _ask(daemon, "config apply F", file=shown).printed == "no change\n"


def test_a_file_of_many_servers_is_answered_before_they_are_ready_and_starts_a_few_at_a_time(daemon: Daemon) -> None:
    daemon.options = evolve(daemon.options, max_servers=99)
    most = int(daemon.options.policy.max_starts)
    count = 2 * most
    text = 'schema_version = "1.0"\n' + "".join(f"[servers.m{number}]\n" for number in range(count))
    assert _answers(_handle(daemon, OperatorLine(1, 0, parse(b"config apply F", 3), file=text.encode()))) == []
    opened = [
        instruction
        for number in range(count)
        for instruction in _handle(daemon, NamespaceOpened(f"m{number}", "default"))
    ]
    (answer,) = _answers(opened)
    assert len(answer.printed.splitlines()) == count
    assert answer.diagnostic == f"{count} servers are being started; 'config status' reports when all are ready."
    starting = [instruction for instruction in opened if isinstance(instruction, do.SpawnServer)]
    assert len(starting) == most
    # A client's is not held back.
    event = ClientConnected(
        1, ClientProcess(Peer(50, 0, 0, (0,)), "train", 7, namespace="default"), server=f"m{count - 1}"
    )
    (others,) = [instruction for instruction in _handle(daemon, event) if isinstance(instruction, do.SpawnServer)]
    assert others.name == f"m{count - 1}"
    for turn in range(count):
        entry = [others, *starting][turn]
        _handle(daemon, ServerSpawned(entry.server, 900 + turn))
        done = _handle(daemon, StatusPushed(entry.server, ServerStatus.ACTIVE))
        assert _answers(done) == []
        starting += [instruction for instruction in done if isinstance(instruction, do.SpawnServer)]
    assert _get_printed(daemon, "config status").endswith("pending=0 failed=0\n")


def test_a_file_with_too_many_namespaces_is_refused_as_a_whole(daemon: Daemon) -> None:
    tables = "".join(f"[servers.c.namespaces.n{number}]\n" for number in range(MAX_NAMESPACES))
    answer = _ask(daemon, "config apply F", file='schema_version = "1.0"\n[servers.c]\n' + tables)
    assert answer.refused
    assert answer.diagnostic == "F:3: servers.c has 257 namespaces with default; at most 256 are possible"
    assert "c" not in daemon.named_servers


def test_a_daemon_that_has_not_come_to_its_file_is_not_ready(daemon: Daemon) -> None:
    daemon.configuration = Configuration(starts=True)
    assert _ask(daemon, "config status").refused
    assert _ask(daemon, "config status").printed == ("generation=0 source=- applied=- hash=- pending=1 failed=0\n")
    _ask(daemon, "config apply F", file='schema_version = "1.0"')
    assert not _ask(daemon, "config status").refused


def test_entries_that_cannot_be_applied_are_reported_and_the_others_are_applied(daemon: Daemon) -> None:
    text = 'schema_version = "1.0"\n[servers.a]\nuid = 9\nclient_priority = 1\n[shares]\nservers = 4\n'
    answer = _ask(daemon, "config apply F", file=text)
    assert answer.refused
    assert answer.printed.splitlines() == [
        "set shares: servers 16 -> 4",
        "server 'a' stays that of user 7: 'server set a --uid=9' changes it",
    ]
    assert _ask(daemon, "config status").printed.endswith("pending=0 failed=1\n")


def test_a_configuration_is_not_in_force_while_a_server_has_failed(daemon: Daemon) -> None:
    daemon.named_servers.add(NamedServer("b", 8, source=Source.CONFIG, failed="its devices are gone"))
    assert "b,8,-,Failed," in _get_printed(daemon, "server list --format=csv")
    status = _ask(daemon, "config status")
    assert status.refused
    assert status.printed.endswith("pending=0 failed=1\n")
    daemon.named_servers["b"].source = Source.AUTO
    assert not _ask(daemon, "config status").refused


def test_a_server_none_of_whose_devices_is_left(daemon: Daemon) -> None:
    uuid = daemon.devices[0].uuid
    four = Limits(pinned_memory=dict.fromkeys((0, 1), PinnedMemory(4 << 30)))
    daemon.named_servers.add(NamedServer("c", 7, {"default": Namespace("default", four)}, (), failed="gone"))
    assert _get_printed(daemon, "namespace get default c pinned-memory-limit") == "-\n"
    assert _get_printed(daemon, "namespace get default c total-memory-limit") == "-\n"
    assert (
        _get_printed(daemon, "namespace list --server=c --format=csv,noheader")
        == "default,c,Failed,-,100.00,0,/p/c/default\n"
    )
    (row,) = json.loads(_get_printed(daemon, "namespace list --server=c --format=json"))
    assert (row["pinned-memory-limit"], row["total_memory_limit"]) == (None, None)
    refused = _ask(daemon, f"server set c --pinned-memory-limit={uuid}=4G")
    assert refused.printed == f"No device '{uuid}' of server 'c'. Devices: none.\n"
    shown = _get_printed(daemon, "config show")
    assert (
        shown.partition("# None of")[2]
        == """ the devices of server 'c' is there:
# [servers.c]
# uid = 7
# allowed_devices = ""
# [servers.c.namespaces.default]
# pinned_memory_limit = "4G"
"""
    )
    assert _ask(daemon, "config apply F", file=shown).printed == "no change\n"


def test_a_check_reports_what_the_real_run_refuses(daemon: Daemon) -> None:
    zero, one = (device.uuid for device in DEVICES)
    _ask(daemon, f"sm-partition create p --server=b --device={one} --chunks=12")
    text = f"""schema_version = "1.0"
[servers.a]
uid = 7
devices = [{{ uuid = "{zero}", sm_partitions = [{{ name = "y", chunks = 1 }}] }}]
[servers.c]
devices = [{{ uuid = "{one}", sm_partitions = [{{ name = "z", chunks = 13 }}, {{ name = "w", chunks = 2 }}] }}]
"""
    before = deepcopy(daemon.named_servers)
    checked = _ask(daemon, "config apply F --check", file=text)
    assert checked.refused
    assert checked.printed.splitlines() == [
        "SM partition 'a/y': Device 1 has 1 active client outside partitions; end it, or wait until it has gone.",
        "created server 'c'",
        "SM partition 'c/z': Device 1 has 3 chunks free, not 13 (next to server b).",
    ]
    assert (daemon.named_servers, daemon.configuration) == (before, Configuration())
    begun = _handle(daemon, OperatorLine(1, 0, parse(b"config apply F", 3), file=text.encode()))
    begun += _handle(daemon, NamespaceOpened("c", "default"))
    (spawned,) = [instruction for instruction in begun if isinstance(instruction, do.SpawnServer)]
    _handle(daemon, ServerSpawned(spawned.server, 900))
    (answer,) = _answers(_handle(daemon, StatusPushed(spawned.server, ServerStatus.ACTIVE)))
    assert answer == checked


def test_partitions_of_a_file_are_on_devices_that_their_server_has(daemon: Daemon) -> None:
    zero, first = (device.uuid for device in DEVICES)
    daemon.named_servers.add(NamedServer("c", 7, allowed_devices=(1,)))
    text = """schema_version = "1.0"
[servers.c]
uid = 7
{}
devices = [{{ uuid = "{}", sm_partitions = [{{ name = "p", chunks = 1 }}] }}]
"""
    assert _ask(daemon, "config apply F", file=text.format("", zero)).diagnostic == (
        "F:5: servers.c.devices.0.uuid: the server's allowed_devices lack it"
    )
    second = _ask(daemon, "config apply F", file=text.format('allowed_devices = "0"', zero))
    assert second.printed == "server 'c' keeps its devices: delete the server first to give it others\n"
    # As for the server's clients, the device has ordinal 0.
    answer = _ask(daemon, "config apply F", file=text.format("", first))
    assert answer.printed == "created SM partition 'c/p' on device 0\n"


def test_errors_of_a_file_are_all_said_and_nothing_is_done(daemon: Daemon) -> None:
    (answer,) = _answers(_handle(daemon, OperatorLine(1, 0, parse(b"config apply F", 3), file=b"a = 1\n\xe9")))
    assert (answer.refused, answer.printed) == (True, "")
    assert answer.diagnostic.startswith("F:2: not TOML, because it is not UTF-8: ")
    answer = _ask(daemon, "config apply F", file='schema_version = "1.0"\n[servers.C]\nuid = -1\n')
    assert (answer.refused, answer.printed) == (True, "")
    assert [line.partition(": ")[0] for line in answer.diagnostic.splitlines()] == ["F:2", "F:3"]
    assert daemon.configuration.generation == 0


def test_a_caller_at_a_namespaces_socket_sees_only_that_namespace(daemon: Daemon) -> None:
    def through(line: str, uid: int, namespace: str = "hi") -> str:
        event = OperatorLine(1, uid, parse(line.encode(), 3), server="a", namespace=namespace)
        (answer,) = _answers(_handle(daemon, event))
        return answer.printed

    rows = "--format=csv,noheader"
    assert [row.partition(",")[0] for row in through(f"namespace list {rows}", 60000).splitlines()] == ["hi"]
    assert [row.partition(",")[0] for row in through(f"server list {rows}", 60000).splitlines()] == ["a"]
    assert json.loads(through("server list --format=json", 60000))[0]["default_limits"] is None
    assert len(through(f"client list --all {rows}", 60000).splitlines()) == 2
    assert through(f"client list --all {rows}", 60000, "default") == ""
    assert through("get_client_list 847", 60000, "default") == ""
    assert "servers.b" not in through("config show", 60000)
    for owner in (0, 7):
        assert len(through(f"namespace list {rows}", owner).splitlines()) == 3
    assert len(daemon.servers[1].clients) == 1
    assert set(daemon.named_servers) == {"a", "b"}


def test_help_lists_modules_and_commands(daemon: Daemon) -> None:
    assert "sm-partition    create, delete, list" in _get_printed(daemon, "help")
    assert _get_printed(daemon, "server help").count("server ") > 5
    assert _get_printed(daemon, "server create --help") == _get_printed(daemon, "server create help")
    assert _get_printed(daemon, "namespace get help").startswith("namespace get <name> <server> <field>")


def test_queries_of_protocol_2_are_answered(daemon: Daemon) -> None:
    assert _get_printed(daemon, "get_server_list") == "847\n"
    assert _get_printed(daemon, "get_client_list 847") == "3165259\n"
    assert _get_printed(daemon, "get_default_active_thread_percentage") == "100.0\n"


def test_the_defaults_of_protocol_2_are_those_of_the_users_own_server(daemon: Daemon) -> None:
    half = Limits(percentages(50.0), {1: PinnedMemory(4 << 30)}, ClientPriority(1))
    daemon.named_servers.add(NamedServer("uid_7", 7, {"default": Namespace("default", half)}))
    assert _get_printed(daemon, "get_default_active_thread_percentage", uid=7) == "50.0\n"
    assert _get_printed(daemon, "get_default_client_priority", uid=7) == "1\n"
    assert _get_printed(daemon, "get_default_device_pinned_mem_limit 1", uid=7) == "4G\n"
    assert _get_printed(daemon, "get_default_device_pinned_mem_limit 0", uid=7) == ""
    assert _get_printed(daemon, "get_default_active_thread_percentage", uid=8) == "100.0\n"
    assert _ask(daemon, "get_default_device_pinned_mem_limit 9", uid=7).diagnostic.startswith("9 is not a device of")
    assert _ask(daemon, "get_default_device_pinned_mem_limit", uid=7).refused


def test_percentages_by_device(daemon: Daemon) -> None:
    set_ = "namespace set hi --server=a --active-thread-percentage="
    _ask(daemon, f"{set_}0=40,1=20")
    assert _get_printed(daemon, "namespace get hi a active-thread-percentage") == "0=40.00,1=20.00\n"
    (row,) = json.loads(_get_printed(daemon, "namespace list hi --format=json"))
    assert row["active-thread-percentage"] == {"0": 40.0, "1": 20.0}
    assert 'active_thread_percentage = "0=40.00,1=20.00"' in (text := _get_printed(daemon, "config show"))
    assert _ask(daemon, "config apply F", file=text).printed == "no change\n"
    _ask(daemon, f"{set_}{DEVICES[1].uuid}=20")
    assert _get_printed(daemon, "namespace get hi a active-thread-percentage") == "20.00\n", "device 0 of server a"
    _ask(daemon, f"{set_}70")
    assert _get_printed(daemon, "namespace get hi a active-thread-percentage") == "70.00\n"
    assert _ask(daemon, f"{set_}2=20").printed.startswith("No device '2' of server 'a'.")
    assert "must be 1 to 100, not" in _ask(daemon, f"{set_}0=120").printed


def test_maximum_percentages_by_device(daemon: Daemon) -> None:
    assert _get_printed(daemon, "server set b --max-active-thread-percentage=1=30") == ""
    (row,) = json.loads(_get_printed(daemon, "server list b --format=json"))
    assert row["max_active_thread_percentage"] == {"0": 100.0, "1": 30.0}


@pytest.mark.parametrize("option", ["active-thread-percentage", "max-active-thread-percentage"])
def test_the_drivers_own_server_has_one_percentage_for_all_devices(daemon: Daemon, option: str) -> None:
    daemon.options = evolve(daemon.options, has_own_servers=False)
    refused = _ask(daemon, f"server set b --{option}=0=50")
    sentence = "is not possible with the driver's own server: it has one percentage for all devices.\n"
    assert refused.printed == f"--{option} {sentence}"
    assert _get_printed(daemon, f"server set b --{option}=50") == ""


def test_queries_of_protocol_2_print_no_percentages_by_device(daemon: Daemon) -> None:
    several = Limits({0: ThreadPercentage(50.0), 1: ThreadPercentage(25.0)})
    daemon.named_servers.add(NamedServer("uid_7", 7, {"default": Namespace("default", several)}))
    daemon.named_servers["a"].namespaces["default"].limits = several
    lines = {"get_default_active_thread_percentage": "uid_7", "get_active_thread_percentage 847": "a"}
    for line, server in lines.items():
        answer = _ask(daemon, line, uid=7)
        assert answer.refused
        sentence = f"{answer.printed}{answer.diagnostic}"
        assert f"the devices of server '{server}' differ: namespace get default {server} active-thread" in sentence
    assert _get_printed(daemon, "get_default_client_priority", uid=7) == "0\n"


def test_limits_of_a_cgroup_go_with_it_if_a_command_has_set_them(daemon: Daemon) -> None:
    for path in ("/seen", "/used", "/awaited"):
        _ask(daemon, f"memacct limit {path} --hard-limit=2G")
    (client,) = daemon.servers[1].clients.values()
    client.process = evolve(client.process, origin=Origin(7, cgroups=("/used/below",)))
    assert _cgroups(daemon, "/seen") == ["/awaited", "/seen", "/used"]
    assert _cgroups(daemon) == ["/awaited", "/used"]
    daemon.servers[1].clients.clear()
    assert _cgroups(daemon) == ["/awaited"]
    assert _cgroups(daemon, "/awaited") == ["/awaited"]
    file = 'schema_version = "1.0"\n[[cgroups]]\npath = "/awaited"\nhard_limit = "1G"'
    _ask(daemon, "config apply f.toml", file=file)
    assert _cgroups(daemon, "/awaited") == _cgroups(daemon) == ["/awaited"]


def test_a_cgroup_whose_client_came_and_went_between_two_commands_is_not_waited_for(daemon: Daemon) -> None:
    _ask(daemon, "memacct limit /pod --hard-limit=2G")
    origin = Origin(7, cgroups=("/pod/box",))
    event = ClientConnected(
        9, ClientProcess(Peer(50, 7, 7, (7,)), "train", 7, namespace="hi", origin=origin), server="a"
    )
    _handle(daemon, event)
    _handle(daemon, ClientGonePushed(1, 9))
    assert _cgroups(daemon) == []


def test_limits_of_a_cgroup_that_hold_for_a_client_came_with_its_latest_one(daemon: Daemon) -> None:
    def hard() -> list[tuple[int, int | None]]:
        rows = json.loads(_get_printed(daemon, "client list --all --format=json"))
        return [(row["pid"], row["memory_hard_limit"]) for row in rows if row["device"] == DEVICES[0].uuid]

    def joins(client_id: int) -> None:
        event = ClientConnected(
            client_id, ClientProcess(Peer(50 + client_id, 7, 7, (7,)), "c", 7, origin=origin), server="a"
        )
        _handle(daemon, event)
        _handle(daemon, ContextPushed(1, client_id, client_id, 1, 0))

    origin = Origin(7, cgroups=("/pod",))
    _ask(daemon, "memacct limit /pod --hard-limit=2G")
    joins(11)
    _ask(daemon, "memacct limit /pod --hard-limit=100G")
    first = 3165259, None
    assert hard() == [(61, 2 << 30), first]
    joins(12)
    assert hard() == [(61, 100 << 30), (62, 100 << 30), first]
    _handle(daemon, ClientGonePushed(1, 12))
    assert hard() == [(61, 100 << 30), first]


def test_the_drivers_own_server_has_no_chunks_to_list(daemon: Daemon) -> None:
    line = "sm-partition list --all --server=b --format=csv,noheader"
    assert _get_printed(daemon, line).splitlines()[0].startswith("b,GPU-")
    daemon.options = evolve(daemon.options, has_own_servers=False)
    assert _get_printed(daemon, line) == ""


def test_what_the_drivers_own_server_does_not_report_is_null(daemon: Daemon) -> None:
    keys = {"memory_free", "chunk_size", "remainder_sms", "free_chunks"}
    own = json.loads(_get_printed(daemon, "device list --format=json"))
    assert all(isinstance(device[key], int) for device in own for key in keys)
    daemon.options = evolve(daemon.options, has_own_servers=False)
    for device in json.loads(_get_printed(daemon, "device list --format=json")):
        assert {key: device[key] for key in keys} == dict.fromkeys(keys)
    assert {client["memory_used"] for client in json.loads(_get_printed(daemon, "client list --format=json"))} == {
        None
    }


def test_lspart_has_the_words_that_programs_split(daemon: Daemon) -> None:
    zero, entry = (device.uuid for device in DEVICES)
    _ask(daemon, f"sm-partition create p --server=b --device={zero} --chunks=10")
    _ask(daemon, f"sm-partition create q --server=b --device={zero} --chunks=2")
    process = daemon.servers[2] = Server(2, 8, ThreadPercentage(), pid=848, phase=Phase.ACTIVE, name="b")
    process.clients = {9: Client(9, 8, ClientProcess(Peer(77, 8, 8), "python", 11), partitions={0: "q"})}
    rows = [line.split() for line in _get_printed(daemon, "lspart", 1000).splitlines()]
    ids = [row["visible-uuid"] for row in json.loads(_get_printed(daemon, "sm-partition list --format=json"))]
    assert rows == [
        ["GPU", "Partition", "free", "used", "free", "used", "clients"],
        ["chunks", "chunks", "SM", "SM"],
        [zero[:12], "3", "12", "36", "96"],
        [zero[:12], ids[0], "10", "80", "No"],
        [zero[:12], ids[1], "2", "16", "Yes"],
        [entry[:12], "15", "0", "132", "0"],
    ]
    (tenant,) = _answers(_handle(daemon, OperatorLine(1, 1000, parse(b"lspart", 3), server="b", namespace="default")))
    assert (tenant.refused, tenant.printed) == (True, "")
    daemon.options = evolve(daemon.options, has_own_servers=False)
    assert _ask(daemon, "lspart").refused


def test_every_query_answers_with_json(daemon: Daemon) -> None:
    for query in LISTS:
        rows = json.loads(_get_printed(daemon, f"{query} --format=json"))
        assert json.loads(_get_printed(daemon, f"{query} --json")) == rows
    assert json.loads(_get_printed(daemon, "server get a uid --json")) == "7"
    assert json.loads(_get_printed(daemon, "config show --json")) == _get_printed(daemon, "config show").removesuffix(
        "\n"
    )
    assert "Unknown option '--json' of 'server create'" in _ask(daemon, "server create x --json").printed
    assert _ask(daemon, "server list --json --format=csv").refused
    assert _ask(daemon, "server get x uid --json").printed == ""


FIVE = "\N{ARABIC-INDIC DIGIT FIVE}"
NO_NUMBERS = {
    "server create x --uid={}": (NO_USER, 99999999999, "-1", "0x10", "1e3", "5x", "+5", "", FIVE),
    "server set a --active-thread-percentage={}": ("0", "-1", "1e2", "0x32", "101", "5x", FIVE),
    "namespace set hi --server=a --pinned-memory-limit={}": ("-1G", "0G", "0x1G", "1e3M", f"{'9' * 30}G", f"{FIVE}G"),
    "namespace set hi --server=a --client-priority={}": ("2", "-1", "0x1", "01", "+1", FIVE),
    "sm-partition create p --server=b --device=0 --chunks={}": ("0", "-1", "0x1", "1e1", "9" * 9, FIVE),
    "client terminate {}": ("-1", "0x10", "3165259x", "9" * 30, FIVE),
}


@pytest.mark.parametrize("line", [line.format(number) for line, numbers in NO_NUMBERS.items() for number in numbers])
def test_a_number_that_is_not_one_changes_nothing(daemon: Daemon, line: str) -> None:
    before = deepcopy(daemon.named_servers)
    assert _ask(daemon, line).refused
    assert daemon.named_servers == before
