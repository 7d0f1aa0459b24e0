"""Every sentence of the logs in its three dialects, and the documents' example lines byte for byte."""

from __future__ import annotations

import json
import math
import os
import string
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.journal.catalogue import CONTROL_LINES, SERVER_LINES
from pympsd.journal.files import LogFile
from pympsd.journal.line_format import Dialect, Line, LogEntry, line, render
from pympsd.journal.setup import Journal
from pympsd.vocabulary.variables import DIALECTS as SETTING_DIALECTS

CATALOGUES = (CONTROL_LINES, SERVER_LINES)
TEXTS = (Dialect.DOCUMENTED, Dialect.R580)
ALL = [
    pytest.param(lines[event], event, dialect, id=f"{name}-{event}-{dialect}")
    for name, lines in (("control", CONTROL_LINES), ("server", SERVER_LINES))
    for event in lines
    for dialect in TEXTS
]
WRITTEN = [case for case in ALL if case.values[0].sentence(case.values[2]) is not None]
NUMBERS = frozenset(("pid", "uid", "server", "status", "seconds", "device", "context", "count", "limit", "left"))


def _names(template: str) -> list[str]:
    return [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]


def _fields(line: Line) -> dict[str, object]:
    """Return an event's fields: all that any of its sentences names."""
    names = [name for dialect in TEXTS for name in _names(line.sentence(dialect) or "")] + [line.r580_pid]
    return {name: 847 if name in NUMBERS else f"the {name}" for name in names if name is not None}


def _text(data: bytes | None) -> str:
    assert data is not None
    return data.decode().rstrip("\n").partition("] ")[2]


@pytest.mark.parametrize(("line", "event", "dialect"), WRITTEN)
def test_every_sentence_formats_plain_fields(line: Line, event: str, dialect: Dialect) -> None:
    names = _names(line.sentence(dialect) or "")
    assert all(name.isidentifier() for name in names)
    fields = _fields(line)
    text = _text(render(LogEntry("Server", 1, event, fields, 0.0), line, dialect))
    for name in names:
        assert str(fields[name]) in text or hex(847) in text
    assert text.isprintable()


@pytest.mark.parametrize(
    ("line", "event", "dialect"), [case for case in WRITTEN if _names(case.values[0].sentence(case.values[2]))]
)
def test_a_missing_field_raises(line: Line, event: str, dialect: Dialect) -> None:
    with pytest.raises(KeyError):
        render(LogEntry("Server", 1, event, {}, 0.0), line, dialect)


@pytest.mark.parametrize(("line", "event", "dialect"), [case for case in ALL if case not in WRITTEN])
def test_an_event_without_a_sentence_in_a_dialect_writes_no_line(line: Line, event: str, dialect: Dialect) -> None:
    assert render(LogEntry("Server", 1, event, _fields(line), 0.0), line, dialect) is None


@pytest.mark.parametrize("lines", CATALOGUES)
def test_every_event_has_a_sentence_in_at_least_one_text_dialect(lines: dict[str, Line]) -> None:
    assert all(line.documented or line.r580 for line in lines.values())


def test_values_are_not_formatted_as_templates() -> None:
    entry = LogEntry("Control", 1, "answer", {"text": "{pid} {0.__class__}"}, 0.0)
    for dialect in TEXTS:
        assert _text(render(entry, CONTROL_LINES["answer"], dialect)) == "{pid} {0.__class__}"


def test_all_lists_of_dialects_agree() -> None:
    assert tuple(Dialect) == SETTING_DIALECTS


# --- r580


@pytest.mark.parametrize(
    ("expected", "line", "fields"),
    [
        (
            "Control   847] Starting new server 847 for user 0",
            CONTROL_LINES["server_starting"],
            {"server": 847, "uid": 0},
        ),
        ("Other   500] Startup", SERVER_LINES["server_startup"], {}),
        ("Client   907] Invalid CUDA_VISIBLE_DEVICES.", SERVER_LINES["client_devices_invalid"], {"pid": 907}),
        (
            "Server   500] Client {PID: 907, Context ID: 1} exiting. Number of active client contexts is 2.",
            SERVER_LINES["context_exit"],
            {"pid": 907, "context": 1, "left": 2},
        ),
    ],
)
def test_the_author_of_a_line_in_r580(expected: str, line: Line, fields: dict[str, int]) -> None:
    source = expected.partition(" ")[0] if expected.startswith("Control") else "Server"
    line_bytes = render(LogEntry(source, 500, "any", fields, 0.0), line, Dialect.R580)
    assert line_bytes is not None
    assert line_bytes.decode().partition(".000 ")[2] == f"{expected}\n"


# --- one line, whatever the fields contain


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("lines", CATALOGUES)
def test_only_answers_have_several_lines(lines: dict[str, Line], dialect: Dialect) -> None:
    for name, catalogued in lines.items():
        fields = {
            field: "1\n[forged]" if isinstance(value, str) else value for field, value in _fields(catalogued).items()
        }
        line_bytes = render(LogEntry("Server", 1, name, fields, 0.0), catalogued, dialect)
        assert line_bytes is None or name == "answer" or line_bytes.count(b"\n") == 1


# --- JSON


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        render(LogEntry("Server", 1, "answer", {"text": number}, 0.0), CONTROL_LINES["answer"], Dialect.JSON)


@pytest.mark.parametrize(
    "event", [(lines, event) for lines in CATALOGUES for event in lines], ids=lambda case: case[1]
)
def test_json_has_every_event_with_its_fields(event: tuple[dict[str, Line], str]) -> None:
    lines, name = event
    fields = _fields(lines[name])
    line_bytes = render(LogEntry("Server", 847, name, fields, 1375699823.347), lines[name], Dialect.JSON)
    assert line_bytes is not None
    assert line_bytes.count(b"\n") == 1
    written = json.loads(line_bytes)
    assert datetime.fromisoformat(written.pop("time")).timestamp() == 1375699823.347
    assert written == {"who": "Server", "pid": 847, "event": name, "fields": fields}


TEXT = st.binary(max_size=50).map(lambda data: data.decode("utf-8", "surrogateescape"))


@given(st.dictionaries(st.text(), TEXT | st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_any_fields_are_one_line_of_json(fields: dict[str, object]) -> None:
    line_bytes = render(LogEntry("Control", 1, "answer", fields, 0.0), CONTROL_LINES["answer"], Dialect.JSON)
    assert line_bytes is not None
    assert line_bytes.count(b"\n") == 1
    assert set(json.loads(line_bytes)["fields"]) == set(fields)


def test_undecodable_bytes_are_replaced_in_json() -> None:
    fields = {"text": b"\xff name".decode("utf-8", "surrogateescape")}
    line_bytes = render(LogEntry("Control", 1, "answer", fields, 0.0), CONTROL_LINES["answer"], Dialect.JSON)
    assert line_bytes is not None
    assert json.loads(line_bytes)["fields"] == {"text": "\N{REPLACEMENT CHARACTER} name"}


@pytest.mark.parametrize("dialect", Dialect)
def test_a_journal_writes_both_files_in_its_dialect(dialect: Dialect, tmp_path: Path) -> None:
    journal = Journal(LogFile(str(tmp_path / "control.log")), LogFile(str(tmp_path / "server.log")), dialect)
    journal.write_control("server_starting", {"server": 847, "uid": 0})
    journal.write_server("Server", 847, "client_connected", {"pid": 907, "context": 0})
    for file in (journal.control, journal.server):
        assert file is not None
        file.close()
    (control,) = (tmp_path / "control.log").read_text().splitlines()
    (server,) = (tmp_path / "server.log").read_text().splitlines()
    expected = {
        Dialect.DOCUMENTED: (
            f"Control {os.getpid():>5}] Starting new server 847 for user 0",
            "New client 907 connected",
        ),
        Dialect.R580: ("Control   847] Starting new", "Client {PID: 907, Context ID: 0} connected"),
        Dialect.JSON: ('"event": "server_starting"', '"fields": {"pid": 907, "context": 0}'),
    }
    assert expected[dialect][0] in control
    assert expected[dialect][1] in server


@pytest.mark.parametrize("event", ["server_startup", "server_connecting", "server_initializing"])
@pytest.mark.parametrize("dialect", [Dialect.DOCUMENTED, Dialect.R580])
def test_a_server_that_starts_calls_itself_other(event: str, dialect: Dialect) -> None:
    written = render(LogEntry("Server", 7, event, {"socket": "/p/control"}, 0.0), SERVER_LINES[event], dialect)
    assert written is not None
    assert b" Other     7] " in written


def test_a_server_before_volta_writes_no_lines_of_volta_mps() -> None:
    fields = {"pid": 7, "context": 1, "device": 0, "name": "P100", "left": 0}
    of_volta = {event: entry for event, entry in SERVER_LINES.items() if "Volta MPS:" in (entry.documented or "")}
    assert len(of_volta) > 5
    for event, catalogued in of_volta.items():
        written = render(LogEntry("Server", 9, event, fields, 0.0, is_volta=False), catalogued, Dialect.DOCUMENTED)
        assert written == render(LogEntry("Server", 9, event, fields, 0.0), catalogued, Dialect.R580)
        assert b"Volta" not in (written or b"")


def test_an_event_that_is_not_in_the_catalogue_raises() -> None:
    with pytest.raises(KeyError, match="no_such_event"):
        Journal(None, None).write_control("no_such_event", {})


# --- the documents


TOO_OLD = "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."
EXAMPLES = """\
[2013-08-05 12:50:23.347 Control 13894] Starting new server 13929 for user 500
[2013-08-05 12:50:24.870 Control 13894] NEW SERVER 13929: Ready
[2013-08-05 13:02:26.226 Control 13894] Server 13929 exited with status 0
[2013-08-05 13:02:10.866 Control 13894] NEW CLIENT 19276 from user 500: Server already exists
[2013-08-05 13:02:10.961 Control 13894] Accepting connection...
[2013-08-05 13:02:10.961 Control 13894] Unable to read new connection type information
[2013-08-05 13:00:09.269 Server 13929] New client 14781 connected
[2013-08-05 13:00:09.270 Server 13929] Client 14777 disconnected
[2013-08-06 10:51:31.706 Server 29489] MPS server failed to start
[2013-08-06 10:51:31.706 Server 29489] MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU.
[2022-04-28 15:56:07.410 Other 11570] Volta MPS: status of client {11661, 1} is ACTIVE
[2022-04-28 15:56:07.468 Other 11570] Volta MPS: status of client {11663, 1} is ACTIVE
[2022-04-28 15:56:07.518 Other 11570] Volta MPS: status of client {11643, 2} is ACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: Server is handling a fatal GPU error.
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11641, 1} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11643, 1} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11643, 2} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: The following devices
[2022-04-28 15:56:08.906 Other 11570] 0
[2022-04-28 15:56:08.907 Other 11570] 1
[2022-04-28 15:56:08.907 Other 11570] Volta MPS: The following clients have a sticky error set:
[2022-04-28 15:56:08.907 Other 11570] 11641
[2022-04-28 15:56:08.907 Other 11570] 11643
[2022-04-28 15:56:09.200 Other 11570] Client {11641, 1} exit
[2022-04-28 15:56:09.244 Other 11570] Client {11643, 1} exit
[2022-04-28 15:56:09.244 Other 11570] Client {11643, 2} exit
[2022-04-28 15:56:09.245 Other 11570] Volta MPS: Destroy server context on device 0
[2022-04-28 15:56:09.269 Other 11570] Volta MPS: Destroy server context on device 1
[2022-04-28 15:56:10.310 Other 11570] Volta MPS: Creating server context on device 0
[2022-04-28 15:56:10.397 Other 11570] Volta MPS: Creating server context on device 1
"""
"""Every example line of the MPS documents, 4.3 (MPS Logging Format)."""

EVENTS: dict[str, tuple[dict[str, Line], str, dict[str, object]]] = {
    "Starting new server 13929 for user 500": (CONTROL_LINES, "server_starting", {"server": 13929, "uid": 500}),
    "NEW SERVER 13929: Ready": (CONTROL_LINES, "server_ready", {"server": 13929}),
    "Server 13929 exited with status 0": (CONTROL_LINES, "server_exited", {"server": 13929, "status": 0}),
    "NEW CLIENT 19276 from user 500: Server already exists": (
        CONTROL_LINES,
        "client_server_exists",
        {"pid": 19276, "uid": 500},
    ),
    "Accepting connection...": (CONTROL_LINES, "connection_accepted", {}),
    "Unable to read new connection type information": (CONTROL_LINES, "connection_type_unreadable", {}),
    "New client 14781 connected": (SERVER_LINES, "client_connected", {"pid": 14781, "context": 0}),
    "Client 14777 disconnected": (SERVER_LINES, "client_disconnected", {"pid": 14777}),
    "MPS server failed to start": (SERVER_LINES, "server_failed", {}),
    TOO_OLD: (SERVER_LINES, "server_failed_reason", {"reason": TOO_OLD}),
    "Volta MPS: Server is handling a fatal GPU error.": (SERVER_LINES, "fault_handling", {}),
    "Volta MPS: The following devices": (SERVER_LINES, "fault_devices", {}),
    "0": (SERVER_LINES, "fault_device", {"device": 0}),
    "1": (SERVER_LINES, "fault_device", {"device": 1}),
    "Volta MPS: The following clients have a sticky error set:": (SERVER_LINES, "fault_clients", {}),
    "11641": (SERVER_LINES, "fault_client", {"pid": 11641}),
    "11643": (SERVER_LINES, "fault_client", {"pid": 11643}),
    "Volta MPS: Destroy server context on device 0": (SERVER_LINES, "server_context_destroyed", {"device": 0}),
    "Volta MPS: Destroy server context on device 1": (SERVER_LINES, "server_context_destroyed", {"device": 1}),
    **{
        f"Volta MPS: status of client {{{pid}, {number}}} is {status}": (
            SERVER_LINES,
            f"context_{status.lower()}",
            {"pid": pid, "context": number},
        )
        for status, clients in (
            ("ACTIVE", ((11661, 1), (11663, 1), (11643, 2))),
            ("INACTIVE", ((11641, 1), (11643, 1), (11643, 2))),
        )
        for pid, number in clients
    },
    **{
        f"Client {{{pid}, {number}}} exit": (SERVER_LINES, "context_exit", {"pid": pid, "context": number, "left": 0})
        for pid, number in ((11641, 1), (11643, 1), (11643, 2))
    },
    **{
        f"Volta MPS: Creating server context on device {device}": (
            SERVER_LINES,
            "server_context_creating",
            {"device": device, "name": "NVIDIA H200"},
        )
        for device in (0, 1)
    },
}
"""The event, with its fields, that writes each line."""


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Local time in several zones."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield os.environ["TZ"]
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("example", EXAMPLES.splitlines())
@pytest.mark.usefixtures("zone")
def test_the_documents_example_lines(example: str) -> None:
    head, _, text = example[1:].partition("] ")
    stamp, source, pid = head.rsplit(" ", 2)
    when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").timestamp()
    lines, event, fields = EVENTS[text]
    author = "Control" if lines is CONTROL_LINES else "Server"
    assert render(LogEntry(author, int(pid), event, fields, when), lines[event], Dialect.DOCUMENTED) == (
        f"{example}\n".encode()
    )
    assert line(when, source, int(pid), text) == f"{example}\n".encode()


def test_every_example_has_an_event() -> None:
    texts = {example.partition("] ")[2] for example in EXAMPLES.splitlines()}
    assert texts == EVENTS.keys()
