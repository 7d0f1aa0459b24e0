"""Every sentence of the logs, and the documents' example lines byte for byte."""

from __future__ import annotations

import os
import string
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from pympsd.journal.catalogue import CONTROL_LINES, SERVER_LINES, sentence
from pympsd.journal.line_format import line

ALL = [
    pytest.param(lines, event, id=f"{name}-{event}")
    for name, lines in (("control", CONTROL_LINES), ("server", SERVER_LINES))
    for event in lines
]
NUMBERS = frozenset(("pid", "uid", "server", "status", "clients", "seconds", "device", "context", "count"))


def _fields(template: str) -> list[str]:
    return [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]


@pytest.mark.parametrize(("lines", "event"), ALL)
def test_every_sentence_takes_plain_fields(lines: dict[str, str], event: str) -> None:
    names = _fields(lines[event])
    assert all(name.isidentifier() for name in names)
    fields: dict[str, object] = {name: 847 if name in NUMBERS else f"the {name}" for name in names}
    text = sentence(lines, event, fields)
    assert all(str(value) in text for value in fields.values())
    assert text.isprintable()


@pytest.mark.parametrize(("lines", "event"), [case for case in ALL if _fields(case.values[0][case.values[1]])])
def test_a_missing_field_is_said(lines: dict[str, str], event: str) -> None:
    with pytest.raises(KeyError):
        sentence(lines, event, {})


def test_an_event_that_is_not_in_the_catalogue_is_said() -> None:
    with pytest.raises(KeyError, match="no_such_event"):
        sentence(CONTROL_LINES, "no_such_event", {})


def test_values_are_never_read_as_templates() -> None:
    assert sentence(CONTROL_LINES, "answer", {"text": "{pid} {0.__class__}"}) == "{pid} {0.__class__}"


TOO_OLD = "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."
DOCUMENTED = [
    (
        "[2013-08-05 12:50:23.347 Control 13894] Starting new server 13929 for user 500",
        CONTROL_LINES,
        "server_starting",
        {"server": 13929, "uid": 500},
    ),
    (
        "[2013-08-05 12:50:24.870 Control 13894] NEW SERVER 13929: Ready",
        CONTROL_LINES,
        "server_ready",
        {"server": 13929},
    ),
    (
        "[2013-08-05 13:02:26.226 Control 13894] Server 13929 exited with status 0",
        CONTROL_LINES,
        "server_exited",
        {"server": 13929, "status": 0},
    ),
    (
        "[2013-08-05 13:02:10.866 Control 13894] NEW CLIENT 19276 from user 500: Server already exists",
        CONTROL_LINES,
        "client_server_exists",
        {"pid": 19276, "uid": 500},
    ),
    ("[2013-08-05 13:02:10.961 Control 13894] Accepting connection...", CONTROL_LINES, "connection_accepted", {}),
    (
        "[2013-08-05 13:02:10.961 Control 13894] Unable to read new connection type information",
        CONTROL_LINES,
        "connection_type_unreadable",
        {},
    ),
    (
        "[2013-08-05 13:00:09.269 Server 13929] New client 14781 connected",
        SERVER_LINES,
        "client_connected",
        {"pid": 14781},
    ),
    (
        "[2013-08-05 13:00:09.270 Server 13929] Client 14777 disconnected",
        SERVER_LINES,
        "client_disconnected",
        {"pid": 14777},
    ),
    ("[2013-08-06 10:51:31.706 Server 29489] MPS server failed to start", SERVER_LINES, "server_failed", {}),
    (
        f"[2013-08-06 10:51:31.706 Server 29489] {TOO_OLD}",
        SERVER_LINES,
        "server_failed_reason",
        {"reason": TOO_OLD},
    ),
    (
        "[2022-04-28 15:56:07.410 Other 11570] Volta MPS: status of client {11661, 1} is ACTIVE",
        SERVER_LINES,
        "context_active",
        {"pid": 11661, "context": 1},
    ),
    (
        "[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11641, 1} is INACTIVE",
        SERVER_LINES,
        "context_inactive",
        {"pid": 11641, "context": 1},
    ),
    (
        "[2022-04-28 15:56:09.244 Other 11570] Client {11643, 2} exit",
        SERVER_LINES,
        "context_exit",
        {"pid": 11643, "context": 2},
    ),
]
"""The example lines of the MPS documents, 4.3 (MPS Logging Format), whose events pympsd has."""


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Local time in one zone or another."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield os.environ["TZ"]
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("expected", "lines", "event", "fields"), DOCUMENTED, ids=[case[0] for case in DOCUMENTED])
@pytest.mark.usefixtures("zone")
def test_the_documents_lines(expected: str, lines: dict[str, str], event: str, fields: dict[str, object]) -> None:
    stamp, _, rest = expected[1:].partition("]")[0].rpartition(" ")[0].rpartition(" ")
    pid = int(expected.partition("]")[0].rpartition(" ")[2])
    when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").timestamp()
    assert line(when, rest, pid, sentence(lines, event, fields)) == expected.encode() + b"\n"
