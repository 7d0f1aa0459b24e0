"""Recorded lines of the driver's own servers: recognised, and written in the three dialects."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from pympsd.journal.catalogue import SERVER_LINES
from pympsd.journal.files import LogFile
from pympsd.journal.line_format import Dialect, LogEntry, render
from pympsd.journal.recognition import Recognised, Recogniser
from pympsd.journal.setup import Journal

TESTS = Path(__file__).parents[1]
LINE = re.compile(rb"(?:  log\| )?(\[([0-9-]{10} [0-9:.]{12}) (Server|Client|Other) +(\d+)\] (.*)\n)")


@frozen
class Recorded:
    """A recorded line."""

    whole: bytes
    when: float
    who: str
    pid: int
    text: str


def _load_recorded(path: Path) -> list[Recorded]:
    with path.open("rb") as file:
        matches = filter(None, map(LINE.fullmatch, file))
        return [
            Recorded(
                match[1], datetime.fromisoformat(match[2].decode()).timestamp(), match[3].decode(), int(match[4]),
                match[5].decode(),
            )
            for match in matches
        ]  # fmt: skip


SERVER_LOGS = sorted((TESTS / "data" / "driver-logs").glob("*.server.log"))
SESSIONS = sorted((TESTS / "conformance" / "recorded").glob("*.txt"))
NO_SERVER_SAYS = "Using log directory: $LOG"
"""In the log before there is a server."""


@pytest.mark.parametrize("path", [*SERVER_LOGS, *SESSIONS], ids=lambda path: path.name)
def test_every_recorded_line_is_an_event_that_writes_the_same(path: Path) -> None:
    recogniser = Recogniser()
    for line in _load_recorded(path):
        recognised = recogniser.recognise(line.pid, line.text)
        if line.text == NO_SERVER_SAYS:
            assert recognised is None
            continue
        assert recognised is not None, line.text
        entry = LogEntry("Server", line.pid, recognised.event, recognised.fields, line.when)
        assert render(entry, SERVER_LINES[recognised.event], Dialect.R580) == line.whole


def test_lines_were_recorded() -> None:
    assert len(SERVER_LOGS) == 4
    assert sum(len(_load_recorded(path)) for path in [*SERVER_LOGS, *SESSIONS]) > 1000


# --- fields and what only the line before says


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Device pinned memory limit for device 1 set to 0xc0000000 bytes",
            Recognised("server_memory_limit", {"device": 1, "limit": 0xC0000000}),
        ),
        (
            "Received new client request for {PID: -1333654781, Context ID: 0}",
            Recognised("client_requested", {"pid": -1333654781, "context": 0}),
        ),
        ("Active Threads Percentage set to 60.0", Recognised("server_thread_percentage", {"percentage": "60.0"})),
        (
            "Creating server context on device 0 (A (B) C)",
            Recognised("server_context_creating", {"device": 0, "name": "A (B) C"}),
        ),
        ("Client {PID: 7, Context ID: 0} connected", Recognised("client_connected", {"pid": 7, "context": 0})),
        ("Client {PID: 7, Context ID: 2} connected", Recognised("context_connected", {"pid": 7, "context": 2})),
        (
            "Client termination of process 7 did not finish within 30 s.",
            Recognised("termination_overdue", {"pid": 7, "seconds": 30.0}),
        ),
        ("Invalid CUDA_VISIBLE_DEVICES.", Recognised("client_devices_invalid", {"pid": 5})),
        ("Server Priority set to 01", None),
        ("Server Priority set to \N{ARABIC-INDIC DIGIT ONE}", None),
        ("Server Priority set to", None),
        ("0", None),
        ("", None),
        ("anything", None),
    ],
)
def test_recorded_lines_are_recognised_with_their_fields(text: str, expected: Recognised | None) -> None:
    assert Recogniser().recognise(5, text) == expected


def _events(lines: list[tuple[int, str]]) -> list[str | None]:
    recogniser = Recogniser()
    return [
        recognised and recognised.event for recognised in (recogniser.recognise(pid, text) for pid, text in lines)
    ]


DEVICES = "The following devices will be reset:"
CLIENTS = "The following client process have a sticky error set:"


def test_numbers_are_what_the_line_before_states_of_each_server() -> None:
    output = [(1, DEVICES), (2, DEVICES), (1, "0"), (1, "1"), (1, CLIENTS), (1, "7"), (2, "0"), (1, "8")]
    assert _events(output) == [
        *("fault_devices", "fault_devices", "fault_device", "fault_device"),
        *("fault_clients", "fault_client", "fault_device", "fault_client"),
    ]


def test_numbers_after_another_line_are_not_known() -> None:
    assert _events([(1, DEVICES), (1, "what"), (1, "0")]) == ["fault_devices", None, None]
    assert _events([(1, CLIENTS), (1, "Exiting"), (1, "7")]) == ["fault_clients", "server_exiting", None]


def test_a_failed_start_has_a_reason() -> None:
    assert _events([(1, "MPS server failed to start"), (1, "for a reason")]) == [
        "server_failed",
        "server_failed_reason",
    ]


@given(st.lists(st.text() | st.integers().map(str) | st.sampled_from([DEVICES, CLIENTS]), max_size=5))
def test_any_text_is_recognised_or_not(texts: list[str]) -> None:
    _events([(1, text) for text in texts])


# --- written


def _write(dialect: Dialect, tmp_path: Path, lines: list[Recorded]) -> list[bytes]:
    file = LogFile(str(tmp_path / f"{dialect}.log"))
    journal = Journal(None, file, dialect)
    for line in lines:
        journal.write_server_text(line.who, line.pid, line.text, line.when)
    file.close()
    return (tmp_path / f"{dialect}.log").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("path", SERVER_LOGS, ids=lambda path: path.name)
def test_r580_is_as_recorded(path: Path, tmp_path: Path) -> None:
    lines = _load_recorded(path)
    assert _write(Dialect.R580, tmp_path, lines) == [line.whole for line in lines]


def _make_recorded(texts: list[str], who: str = "Server") -> list[Recorded]:
    return [Recorded(b"", time.time(), who, 5, text) for text in texts]


def test_documented_forms_are_recognised(tmp_path: Path) -> None:
    lines = _make_recorded(["Startup"], "Other") + _make_recorded(
        [
            "Creating server context on device 0 (NVIDIA H200)",
            "Received new client request for {PID: -5, Context ID: 0}",
            "Client {PID: 7, Context ID: 0} connected",
            "Client {PID: 7, Context ID: 1} connected",
            "Status of client {PID: 7, Context ID: 1} is ACTIVE",
            "Server failed to recevie command with status 806, assuming client {PID: 7, Context ID: 1} exit",
            "Client {PID: 7, Context ID: 1} exiting. Number of active client contexts is 0.",
            "Client {PID: 7, Context ID: 1} exiting. Worker is in reset. Number of active client contexts is 0.",
            "Client process 7 disconnected",
            DEVICES,
            "0",
            CLIENTS,
            "7",
            "Destroy server context on device 0 (NVIDIA H200)",
            "a line of a later driver",
        ]
    )
    written = _write(Dialect.DOCUMENTED, tmp_path, lines)
    assert [tuple(line.decode().rstrip("\n").split(maxsplit=4)[2:]) for line in written] == [
        ("Other", "5]", "Startup"),
        ("Other", "5]", "Volta MPS: Creating server context on device 0"),
        ("Server", "5]", "Received new client request for {PID: -5, Context ID: 0}"),
        ("Server", "5]", "New client 7 connected"),
        ("Other", "5]", "Volta MPS: status of client {7, 1} is ACTIVE"),
        ("Other", "5]", "Client {7, 1} exit"),
        ("Other", "5]", "Client {7, 1} exit"),
        ("Server", "5]", "Client 7 disconnected"),
        ("Other", "5]", "Volta MPS: The following devices"),
        ("Other", "5]", "0"),
        ("Other", "5]", "Volta MPS: The following clients have a sticky error set:"),
        ("Other", "5]", "7"),
        ("Other", "5]", "Volta MPS: Destroy server context on device 0"),
        ("Server", "5]", "a line of a later driver"),
    ]


def test_json_has_events_and_fields(tmp_path: Path) -> None:
    texts = ["Client {PID: 7, Context ID: 1} connected", "a line of a later driver"]
    written = [json.loads(line) for line in _write(Dialect.JSON, tmp_path, _make_recorded(texts))]
    assert [(line["who"], line["pid"], line["event"], line["fields"]) for line in written] == [
        ("Server", 5, "context_connected", {"pid": 7, "context": 1}),
        ("Server", 5, "vendor_line", {"text": "a line of a later driver"}),
    ]
