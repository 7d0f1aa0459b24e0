"""Static SM partitions in protocol 2: ``sm_partition`` and ``lspart``, their texts, refusals and privileges."""

import json
import re

import pytest
from attrs import evolve

from pympsd.commands.grammar.line import parse
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.operator_line import decide_line
from pympsd.devices.machine import describe
from pympsd.state_machine.instructions import Reply
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import ThreadPercentage

ID = "D[0-9a-f]{35}"
UNFULFILLED = "Failed to fulfill the requested SM partition of {} chunks, error CUDA_ERROR_"
TOO_MANY, INVALID = f"{UNFULFILLED}INVALID_RESOURCE_CONFIGURATION", f"{UNFULFILLED}INVALID_VALUE"
NEEDS = "sm_partition add needs a device and a number of chunks from 1, not"
RM_NEEDS = "Failed: sm_partition rm needs a device and a partition"
ADD_USAGE, RM_USAGE = "sm_partition add DEVICE CHUNKS", "sm_partition rm DEVICE PARTITION"
NO_VERB = ("Failed: sm_partition needs add or rm", f"usage: {ADD_USAGE}, or {RM_USAGE}")
NO_DEVICE = "{} is not a device of this daemon, or begins several UUIDs; its devices are 0 ("
HEADINGS = [
    ["GPU", "Partition", "free", "used", "free", "used", "clients"],
    ["chunks", "chunks", "SM", "SM"],
]


def _daemon(machine: str = "H200", **options: bool) -> Daemon:
    return Daemon(DaemonOptions(0, static=True, **options), describe(machine))  # type: ignore[arg-type]


@pytest.fixture
def daemon() -> Daemon:
    """Return a daemon with static partitioning and an H200."""
    return _daemon()


def _ask(daemon: Daemon, line: str, uid: int = 0) -> Answer:
    decision = decide_line(daemon, Caller(1, uid), parse(line.encode(), daemon.options.protocol))
    replies = [instruction.answer for instruction in decision.instructions if isinstance(instruction, Reply)]
    answers = [answer for answer in (decision.answer, *replies) if answer is not None]
    assert len(answers) == 1
    return answers[0]


def _add(daemon: Daemon, device: str, chunks: int) -> str:
    """Make a partition; return its id with the UUID."""
    answer = _ask(daemon, f"sm_partition add {device} {chunks}")
    assert not answer.refused, answer
    match = re.fullmatch(rf"Partition (GPU-[0-9a-f-]{{36}}/{ID}) created\n", answer.printed)
    assert match, answer
    return match[1]


def _rows(daemon: Daemon) -> list[list[str]]:
    rows = [line.split() for line in _ask(daemon, "lspart").printed.splitlines()]
    assert rows[:2] == HEADINGS
    return rows[2:]


def _join(daemon: Daemon, partition: str, pid: int = 77) -> Client:
    """Let a client be in a partition of device 0."""
    server = daemon.servers.setdefault(1, Server(1, 0, ThreadPercentage(), pid=847, phase=Phase.ACTIVE))
    name = partition.partition("/")[2]
    client = Client(pid, 0, ClientProcess(Peer(pid, 0, 0), "python", 11), partitions={0: name})
    server.clients[client.id] = client
    return client


def test_the_table_has_the_documented_columns(daemon: Daemon) -> None:
    uuid = daemon.devices[0].uuid
    name = _add(daemon, uuid, 10).partition("/")[2]
    assert _ask(daemon, "lspart").printed == (
        "GPU           Partition                             free    used    free  used  clients\n"
        "                                                    chunks  chunks  SM    SM\n"
        f"{uuid[:12]}                                        5       10      52    80\n"
        f"{uuid[:12]}  {name}          10            80    No\n"
    )


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("H200", "15 0 132 0"),
        ("A100", "27 0 108 0"),
        ("L40S", "35 0 142 0"),
        ("B200", "18 0 148 0"),
        ("Orin", "8 0 16 0"),
        ("V100", "0 0 80 0"),
    ],
)
def test_a_device_without_partitions_has_a_row(machine: str, words: str) -> None:
    daemon = _daemon(machine)
    assert _rows(daemon) == [[daemon.devices[0].uuid[:12], *words.split()]]


@pytest.mark.parametrize(
    ("machine", "chunks", "rows"),
    [
        ("H200", (15,), ["0 15 12 120", "15 120 No"]),
        ("L40S", (1, 2), ["32 3 130 12", "1 4 No", "2 8 No"]),
        ("A100", (2,), ["25 2 100 8", "2 8 No"]),
        ("Orin", (1, 7), ["0 8 0 16", "1 2 No", "7 14 No"]),
        ("L20", (18, 5), ["0 23 0 92", "18 72 No", "5 20 No"]),
    ],
)
def test_chunks_and_sms_are_counted(machine: str, chunks: tuple[int, ...], rows: list[str]) -> None:
    daemon = _daemon(machine)
    names = [_add(daemon, "0", count).partition("/")[2] for count in chunks]
    assert len(set(names)) == len(names)
    expected = [rows[0].split(), *([name, *row.split()] for name, row in zip(names, rows[1:], strict=True))]
    assert [row[1:] for row in _rows(daemon)] == expected


def test_devices_are_followed_by_their_partitions_and_named_as_far_as_they_differ() -> None:
    daemon = _daemon("2xH200")
    first, second = (device.uuid for device in daemon.devices)
    daemon.devices = (daemon.devices[0], evolve(daemon.devices[1], uuid=f"{first[:15]}{second[15:]}"))
    length = next(n for n in range(40) if first[:n] != daemon.devices[1].uuid[:n])
    ids = [_add(daemon, device, 2) for device in ("1", "0", "1")]
    assert [(row[0], row[1]) for row in _rows(daemon)] == [
        (first[:length], "13"),
        (first[:length], ids[1].partition("/")[2]),
        (daemon.devices[1].uuid[:length], "11"),
        (daemon.devices[1].uuid[:length], ids[0].partition("/")[2]),
        (daemon.devices[1].uuid[:length], ids[2].partition("/")[2]),
    ]
    assert len({line.partition("/")[2] for line in ids}) == 3


def test_the_same_chunks_have_the_same_id(daemon: Daemon) -> None:
    first = _add(daemon, "0", 10)
    _ask(daemon, f"sm_partition rm {first}")
    assert _add(daemon, daemon.devices[0].uuid[:12], 10) == first
    assert _add(_daemon(), "0", 10) == first
    assert _add(_daemon(), "0", 9) != first


def test_scattered_chunks_make_a_partition(daemon: Daemon) -> None:
    _, second, _ = (_add(daemon, "0", count) for count in (3, 4, 5))
    _ask(daemon, f"sm_partition rm {second}")
    _add(daemon, "0", 5)
    assert _rows(daemon)[-1][2:] == ["5", "40", "No"]
    chunks = [chunk for partition in daemon.partitions for chunk in partition.chunks]
    assert len(set(chunks)) == len(chunks) == 13


@pytest.mark.parametrize(
    "form", ["{uuid} {id}", "{uuid}/{id}", "{short} {id}", "{uuid} {uuid}/{id}", "0 {short}/{id}"]
)
def test_a_partition_is_removed_in_each_of_its_spellings(daemon: Daemon, form: str) -> None:
    uuid, _, name = _add(daemon, "0", 1).partition("/")
    words = form.format(uuid=uuid, id=name, short=uuid[:12])
    assert _ask(daemon, f"sm_partition rm {words}").printed == f"Partition {uuid}/{name} removed\n"
    assert _rows(daemon) == [[uuid[:12], "15", "0", "132", "0"]]


@pytest.mark.parametrize(
    ("line", "printed", "diagnostic"),
    [
        ("add {U0} 12", TOO_MANY.format(12), "Device 0 has 11 chunks free, not 12."),
        ("add {U0} 999999999", TOO_MANY.format(999999999), "Device 0 has 11 chunks free, not 999999999."),
        ("add 0 0", INVALID.format(0), f"{NEEDS} '0'."),
        ("add 0 -1", INVALID.format(-1), f"{NEEDS} '-1'."),
        ("add 0 2x", INVALID.format("2x"), f"{NEEDS} '2x'."),
        ("add 0 ٣", INVALID.format("٣"), f"{NEEDS} '٣'."),
        ("add 0 9999999999", INVALID.format("9999999999"), f"{NEEDS} '9999999999'."),
        ("add 0", INVALID.format(0), f"{NEEDS} ''."),
        ("add", INVALID.format(0), f"usage: {ADD_USAGE}"),
        ("add GPU-dead 1", "Failed to find device GPU-dead", NO_DEVICE.format("GPU-dead")),
        ("add GPU- 1", "Failed to find device GPU-", NO_DEVICE.format("GPU-")),
        ("add MIG-1 1", "Failed to find device MIG-1", NO_DEVICE.format("MIG-1")),
        ("add 2 1", "Failed to find device 2", NO_DEVICE.format("2")),
        ("rm {U0} nonsense", "Failed to find partition nonsense on device {U0}", "The device has: {ID}"),
        ("rm {U1} {ID}", "Failed to find partition {ID} on device {U1}", "The device has none."),
        ("rm {U0} {U1}/{ID}", "Failed to find partition {U1}/{ID} on device {U0}", "The device has: {ID}"),
        ("rm {U0} GPU-dead/{ID}", "Failed to find partition GPU-dead/{ID} on device {U0}", "The device has: {ID}"),
        ("rm GPU-dead {ID}", "Failed to find device GPU-dead", NO_DEVICE.format("GPU-dead")),
        ("rm {U0}", RM_NEEDS, f"usage: {RM_USAGE}"),
        ("rm", RM_NEEDS, f"usage: {RM_USAGE}"),
        ("", *NO_VERB),
        ("list", *NO_VERB),
        (
            "add 0 1 2",
            "Failed: sm_partition takes a device and one more argument",
            "sm_partition: 'add 0 1 2' is not understood; usage: sm_partition add|rm DEVICE CHUNKS|PARTITION",
        ),
    ],
)
def test_a_refusal_names_the_reason_and_changes_nothing(line: str, printed: str, diagnostic: str) -> None:
    daemon = _daemon("2xH200")
    name = _add(daemon, "0", 4).partition("/")[2]
    names = {"U0": daemon.devices[0].uuid, "U1": daemon.devices[1].uuid, "ID": name}
    before = list(daemon.partitions)
    answer = _ask(daemon, f"sm_partition {line.format(**names)}")
    assert answer.refused
    assert answer.printed == f"{printed.format(**names)}\n"
    assert answer.diagnostic.startswith(diagnostic.format(**names))
    assert daemon.partitions == before


def test_a_device_before_ampere_has_no_partitions() -> None:
    answer = _ask(_daemon("V100"), "sm_partition add 0 1")
    assert answer.printed == f"{UNFULFILLED.format(1)}NOT_SUPPORTED\n"
    assert answer.diagnostic.startswith("Static partitions need compute capability 8.0; device 0, Tesla V100")
    assert answer.diagnostic.endswith(", has 7.0.")


def test_a_partition_with_clients_is_in_use(daemon: Daemon) -> None:
    partition = _add(daemon, "0", 1)
    client = _join(daemon, partition)
    _join(daemon, partition, pid=78)
    assert _rows(daemon)[-1][-1] == "Yes"
    answer = _ask(daemon, f"sm_partition rm {partition}")
    assert answer == Answer(answer.parts, "PIDs of its clients: 77, 78", refused=True)
    assert answer.printed == f"Partition {partition} in use. Terminate all clients before removing.\n"
    client.terminated = True
    assert _ask(daemon, f"sm_partition rm {partition}").diagnostic == "PIDs of its clients: 78"
    assert _rows(daemon)[-1][-1] == "Yes"


def test_a_client_outside_of_partitions_and_one_that_is_not_reported_yet_keep_partitions_from_being_made(
    daemon: Daemon,
) -> None:
    client = _join(daemon, _add(daemon, "0", 1))
    client.partitions = {}
    answer = _ask(daemon, "sm_partition add 0 2")
    assert answer.printed == f"{TOO_MANY.format(2)}\n"
    assert answer.diagnostic == "Device 0 has 1 active client outside partitions; end it, or wait until it has gone."
    daemon.servers[1].pending = True
    answer = _ask(daemon, "sm_partition add 0 2")
    assert answer.printed == f"{UNFULFILLED.format(2)}NOT_READY\n"
    reason = "Server 'uid_0' has not reported its clients to this daemon yet; try again."
    assert answer.diagnostic == reason
    answer = _ask(daemon, f"sm_partition rm 0 {daemon.partitions[0].name}")
    assert answer.printed.startswith("Failed to remove partition GPU-")
    assert answer.diagnostic == reason


@pytest.mark.parametrize("line", ["sm_partition add 0 1", "sm_partition rm 0 x", "sm_partition"])
def test_another_user_is_refused_as_recorded(daemon: Daemon, line: str) -> None:
    answer = _ask(daemon, line, uid=1000)
    assert answer.refused
    assert answer.printed == (
        "Insufficient privileges for UID 1000. Control deamon settings can only be modified by the user who started "
        "it or by the root user.\n"
    )
    assert not _ask(daemon, "lspart", uid=1000).refused


@pytest.mark.parametrize("line", ["sm_partition add 0 1", "sm_partition rm 0 x", "sm_partition"])
def test_without_static_partitioning_partitions_are_refused(line: str) -> None:
    daemon = Daemon(DaemonOptions(0), describe("H200"))
    answer = _ask(daemon, line)
    assert answer.printed == "Failed: static partitioning is not enabled\n"
    assert (answer.refused, answer.diagnostic) == (True, "Start the daemon with -S.")
    answer = _ask(daemon, "lspart")
    assert answer.printed == "lspart is not supported: static partitioning is not enabled\n"
    assert (answer.refused, answer.diagnostic) == (True, "Start the daemon with -S.")
    daemon.options = evolve(daemon.options, has_own_servers=False)
    for command in (line, "lspart"):
        assert "not possible with the driver's own server" in _ask(daemon, command).diagnostic


def test_driver_580_does_not_have_the_commands() -> None:
    daemon = Daemon(DaemonOptions(0, driver=580), describe("H200"))
    for name in ("sm_partition", "lspart"):
        answer = _ask(daemon, name)
        assert answer.printed == f'Unknown command "{name}"\n'
        assert "lspart" not in answer.diagnostic


def test_protocol_3_names_its_own_commands() -> None:
    daemon = Daemon(DaemonOptions(0, protocol=3), describe("H200"))
    text = "sm_partition is a command of protocol 2; this daemon speaks 3: sm-partition"
    assert _ask(daemon, "sm_partition add 0 1") == Answer(
        diagnostic=f"{text} create P --server=NAME --device=UUID --chunks=N", refused=True
    )
    assert _ask(daemon, "sm_partition rm 0 x").diagnostic == f"{text} delete P --server=NAME --device=UUID"


def test_the_json_of_lspart_has_a_row_for_each_line(daemon: Daemon) -> None:
    uuid, _, name = _add(daemon, "0", 10).partition("/")
    keys = ("gpu", "partition", "free_chunks", "used_chunks", "free_sms", "used_sms", "clients")
    rows = json.loads(_ask(daemon, "lspart --json").printed)
    assert rows == [
        dict(zip(keys, (uuid, None, 5, 10, 52, 80, None), strict=True)),
        dict(zip(keys, (uuid, name, None, 10, None, 80, False), strict=True)),
    ]
    assert _ask(daemon, "lspart --all").diagnostic == "lspart: '--all' is not understood; usage: lspart [--json]"
