"""The recorded grammar of driver 580 (tests/conformance/grammar.jsonl): same line, same answer, same log."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.commands.grammar.line import MAX_LINE_BYTES, parse
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import COMMANDS, Decision, command
from pympsd.commands.grammar.syntax import Syntax
from pympsd.commands.operator_line import decide_line
from pympsd.devices.machine import describe, parse_toml
from pympsd.state_machine.instructions import SpawnServer
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.vocabulary.answers import Answer

CONFORMANCE: Final = Path(__file__).parent.parent / "conformance"
RECORDED: Final = (CONFORMANCE / "one-h200.toml").read_text()
ROOT: Final = Caller(1, 0)
NAMES: Final = sorted(command.name for command in COMMANDS.values() if command.is_in(2, 580) and not command.verb)
"""The commands of one word that driver 580 has, and ours."""


def _decide(daemon: Daemon, caller: Caller, line: bytes) -> Decision:
    return decide_line(daemon, caller, parse(line, daemon.options.protocol))


def _load_recorded() -> list[dict[str, Any]]:
    lines = (CONFORMANCE / "grammar.jsonl").read_text().splitlines()
    return [row for line in lines if "stdin" in (row := json.loads(line))]


ROWS: Final = _load_recorded()
DIFFERENT: Final = {
    entry["index"]: entry for entry in tomllib.loads((CONFORMANCE / "differences.toml").read_text())["difference"]
}


def _name(row: dict[str, Any]) -> str:
    return "".join(row["stdin"].split()[:1])


@cache
def _answers() -> list[Answer | None]:
    """Return the answers to the recorded lines in order, by a daemon that is fresh where the recorded one was."""
    daemon = _fresh()
    answers = []
    for row in ROWS:
        decision = _decide(daemon, ROOT, row["stdin"].removesuffix("\n").encode())
        # start_server is answered when the process has started, with no output.
        starts = any(isinstance(instruction, SpawnServer) for instruction in decision.instructions)
        answers.append(Answer() if starts else decision.answer)
        if row.get("daemon_died"):
            daemon = _fresh()
    return answers


def _fresh() -> Daemon:
    return Daemon(DaemonOptions(0, driver=580), parse_toml(RECORDED))


def _id(index: int) -> str:
    return f"{index}-{ROWS[index]['stdin'][:40]!r}"


def _get_texts(answer: Answer) -> tuple[str, list[str]]:
    return answer.printed, [part.text for part in answer.parts if part.logged]


COMPARED: Final = range(len(ROWS))


@pytest.mark.parametrize("index", [index for index in COMPARED if index not in DIFFERENT], ids=_id)
def test_a_line_is_answered_and_logged_as_recorded(index: int) -> None:
    answer, row = _answers()[index], ROWS[index]
    assert answer is not None
    printed, logged = _get_texts(answer)
    assert printed == row["stdout"]
    # For a few cases the recording lacks the log.
    assert logged == row.get("log", logged)


@pytest.mark.parametrize("index", [index for index in COMPARED if index in DIFFERENT], ids=_id)
def test_a_deliberate_difference_is_as_listed(index: int) -> None:
    answer, name = _answers()[index], _name(ROWS[index])
    assert answer is not None
    expected = DIFFERENT[index]
    assert _get_texts(answer) == (
        expected["stdout"].replace("{name}", name),
        [text.replace("{name}", name) for text in expected["log"]],
    )


def test_every_row_is_accounted_for() -> None:
    assert len(ROWS) == 126
    assert len(DIFFERENT) < 20


def test_every_refusal_is_one_line_on_stdout_or_stderr() -> None:
    for index in COMPARED:
        answer = _answers()[index]
        assert answer is not None
        assert answer.refused <= bool(answer.printed or answer.diagnostic), ROWS[index]["stdin"]
        assert "\n" not in answer.diagnostic
        is_note = " is read as " in answer.diagnostic
        assert answer.refused or is_note or not answer.diagnostic, ROWS[index]["stdin"]


def test_the_commands_are_those_of_the_reference_and_our_own() -> None:
    own = {"get_waiting_list", "get_refusal_list", "drain", "undrain", "get_drain_list"}
    assert sorted(set(NAMES) - own) == [
        "device_query",
        "get_active_thread_percentage",
        "get_client_list",
        "get_default_active_thread_percentage",
        "get_default_client_priority",
        "get_default_device_pinned_mem_limit",
        "get_device_client_list",
        "get_device_pinned_mem_limit",
        "get_server_list",
        "get_server_status",
        "ps",
        "quit",
        "set_active_thread_percentage",
        "set_default_active_thread_percentage",
        "set_default_client_priority",
        "set_default_device_pinned_mem_limit",
        "set_device_pinned_mem_limit",
        "shutdown_server",
        "start_server",
        "terminate_client",
    ]


def test_the_manuals_spelling_of_start_server_works(recorded_daemon: Daemon) -> None:
    decision = _decide(recorded_daemon, ROOT, b"start_server - uid 0")
    # The answer comes when the server's process has started.
    assert decision.answer is None
    assert decision.instructions == (SpawnServer(1, 0, None),)


def test_a_refused_user_id_is_explained_on_stderr_only(recorded_daemon: Daemon) -> None:
    decision = _decide(recorded_daemon, ROOT, b"start_server -uid -1")
    assert decision.answer is not None
    assert decision.answer.printed == ""
    assert decision.answer.diagnostic == ("'-1' is not a user id; a number from 0 to 4294967294 is")


@pytest.mark.parametrize(
    "line", ["quit please no", "quit -t x", "quit -t", "quit -t 5s", "quit -t -1", "quit -t 1 2"]
)
def test_a_malformed_quit_is_refused_and_ends_nothing(recorded_daemon: Daemon, line: str) -> None:
    decision = _decide(recorded_daemon, ROOT, line.encode())
    assert decision.answer is not None
    assert (decision.answer.refused, decision.answer.printed, decision.instructions) == (True, "", ())
    assert repr(line.removeprefix("quit ")) in decision.answer.diagnostic
    assert recorded_daemon.quitting is None


# --- any bytes at all


@given(st.binary(max_size=300))
def test_any_bytes_are_answered(line: bytes) -> None:
    daemon = Daemon(DaemonOptions(0), describe("H200"))
    decision = _decide(daemon, ROOT, line)
    assert decision.answer is not None or parse(line, 2).command in ("quit", "terminate_client")


@given(st.sampled_from(NAMES), st.lists(st.text(max_size=10) | st.integers().map(str), max_size=4))
def test_any_words_after_a_command_are_answered(name: str, words: list[str]) -> None:
    line = " ".join([name, *words]).encode("utf-8", "replace")
    decision = _decide(Daemon(DaemonOptions(0), describe("H200")), Caller(1, 1000), line)
    assert decision.answer is not None
    assert 'Unknown command "' not in decision.answer.printed


@given(st.lists(st.binary(min_size=1).filter(lambda b: not set(b) & set(b" \t\r\n\0")), max_size=6), st.data())
def test_words_are_split_at_blanks_and_keep_their_bytes(words: list[bytes], data: st.DataObject) -> None:
    blanks = st.text(" \t\r\n", min_size=1, max_size=3).map(str.encode)
    line = b"".join(data.draw(blanks) + word for word in words) + data.draw(blanks)
    assert [word.encode("utf-8", "surrogateescape") for word in parse(line, 2).words] == words
    assert parse(line + b"\0after a NUL", 2) == parse(line, 2)


@given(st.binary(min_size=1, max_size=50).filter(lambda b: not set(b) & set(b" \t\r\n\0")))
def test_an_unknown_command_is_echoed_byte_by_byte(name: bytes) -> None:
    decision = _decide(Daemon(DaemonOptions(0), describe("H200")), ROOT, b"  " + name + b" x y\r")
    if name.decode("utf-8", "surrogateescape") not in COMMANDS:
        assert decision.answer is not None
        echoed = decision.answer.printed.encode("utf-8", "surrogateescape")
        assert echoed == b'Unknown command "' + name + b'"\n'


def test_a_line_over_the_limit_is_cut_and_never_a_command(recorded_daemon: Daemon) -> None:
    decision = _decide(recorded_daemon, ROOT, b"get_server_list ".ljust(MAX_LINE_BYTES + 1, b"x"))
    assert decision.answer is not None
    assert decision.answer.printed == 'Unknown command "get_server_list"\n'
    endless = _decide(recorded_daemon, ROOT, b"x" * (1 << 20)).answer
    assert endless is not None
    assert len(endless.printed) < MAX_LINE_BYTES + 30


def test_a_name_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="ps is registered twice"):
        command(Syntax("ps"))(lambda daemon, caller: None)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_help(name: str) -> None:
    assert (COMMANDS[name].handler.__doc__ or "").strip().endswith(".")
