"""The recorded grammar of driver 580 (tests/conformance/grammar.jsonl): same line, same answer, same log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pympsd.commands.v2
from pympsd.commands.registry import LINE_LIMIT, REGISTRY, Asker, answer_line, command, split
from pympsd.devices.machine import describe
from pympsd.mind.daemon_state import Daemon

ROOT: Final = Asker(1, 0)
NOT_YET: Final = frozenset(
    {
        "get_default_active_thread_percentage",
        "set_default_active_thread_percentage",
        "get_active_thread_percentage",
        "set_active_thread_percentage",
        "get_default_device_pinned_mem_limit",
        "set_default_device_pinned_mem_limit",
        "get_device_pinned_mem_limit",
        "set_device_pinned_mem_limit",
        "get_default_client_priority",
        "set_default_client_priority",
        "terminate_client",
        "shutdown_server",
    }
)
"""Commands of the next issue. This set must shrink: a command that is registered may not stand here."""
FLOWS: Final = frozenset({"quit"})
"""Their answer is the daemon's end: tests/flows and tests/mind."""
DIFFERENT: Final = {
    "start_server - uid 0\n": "the manual prints '- uid': accepted, a server is started and nothing is printed",
    "y" * 4096 + "\n": "the vendor's daemon dies of a line of 4,096 bytes: ours answers that the command is unknown",
}
"""Deliberate differences, by line, each with its reason."""


def _recorded() -> list[dict[str, Any]]:
    path = Path(__file__).parent.parent / "conformance" / "grammar.jsonl"
    return [row for line in path.read_text().splitlines() if "stdin" in (row := json.loads(line))]


ROWS: Final = _recorded()


def _name(row: dict[str, Any]) -> str:
    return "".join(row["stdin"].split()[:1])


def _is_different(row: dict[str, Any]) -> bool:
    return row["stdin"] in DIFFERENT or (_name(row).startswith("yyy") and "daemon_died" in row)


COMPARED: Final = [row for row in ROWS if _name(row) not in NOT_YET | FLOWS and not _is_different(row)]
LATER: Final = [row for row in ROWS if _name(row) in NOT_YET]


def _line(row: dict[str, Any]) -> bytes:
    text: str = row["stdin"]
    assert text.endswith("\n")
    return text[:-1].encode()


def _id(row: dict[str, Any]) -> str:
    return repr(row["stdin"][:40])


@pytest.mark.parametrize("row", COMPARED, ids=_id)
def test_a_line_is_answered_and_logged_as_recorded(row: dict[str, Any], recorded_daemon: Daemon) -> None:
    decision = answer_line(recorded_daemon, ROOT, _line(row))
    assert decision.answer is not None
    assert decision.answer.printed == row["stdout"]
    assert [part.text for part in decision.answer.parts if part.logged] == row["log"]
    assert decision.instructions == ()


@pytest.mark.parametrize("row", LATER, ids=_id)
def test_a_command_of_the_next_issue_is_unknown_for_now(row: dict[str, Any], recorded_daemon: Daemon) -> None:
    decision = answer_line(recorded_daemon, ROOT, _line(row))
    assert decision.answer is not None
    assert decision.answer.printed == f'Unknown command "{_name(row)}"\n'
    assert decision.answer.refused


def test_every_row_is_accounted_for() -> None:
    rest = [row for row in ROWS if _name(row) in FLOWS or _is_different(row)]
    assert len(COMPARED) + len(LATER) + len(rest) == len(ROWS) == 126
    assert len(COMPARED) >= 41


def test_what_is_registered_is_not_put_off() -> None:
    assert not NOT_YET & REGISTRY.keys()
    assert REGISTRY.keys() - FLOWS == {
        "get_server_list",
        "get_server_status",
        "start_server",
        "get_client_list",
        "get_device_client_list",
        "ps",
        "device_query",
    }
    assert pympsd.commands.v2.__all__


def test_the_manuals_spelling_of_start_server_works(recorded_daemon: Daemon) -> None:
    decision = answer_line(recorded_daemon, ROOT, b"start_server - uid 0")
    assert decision.answer is not None
    assert (decision.answer.printed, decision.answer.refused) == ("", False)
    assert len(decision.instructions) == 1


def test_a_line_that_killed_the_vendors_daemon_is_an_unknown_command(recorded_daemon: Daemon) -> None:
    (row,) = [row for row in ROWS if _is_different(row) and _name(row).startswith("y")]
    decision = answer_line(recorded_daemon, ROOT, _line(row))
    assert decision.answer is not None
    assert decision.answer.printed == f'Unknown command "{_name(row)}"\n'


def test_a_refused_user_id_is_explained_on_stderr_only(recorded_daemon: Daemon) -> None:
    decision = answer_line(recorded_daemon, ROOT, b"start_server -uid -1")
    assert decision.answer is not None
    assert decision.answer.printed == ""
    assert decision.answer.diagnostic == "start_server: -1 is no user id; a number from 0 up is"


# --- any bytes at all


@given(st.binary(max_size=300))
def test_any_bytes_are_answered(line: bytes) -> None:
    daemon = Daemon(0, describe("H200"))
    decision = answer_line(daemon, ROOT, line)
    assert decision.answer is not None or split(line)[:1] == ["quit"]


@given(st.sampled_from(sorted(REGISTRY)), st.lists(st.text(max_size=10) | st.integers().map(str), max_size=4))
def test_any_words_after_a_command_are_answered(name: str, words: list[str]) -> None:
    line = " ".join([name, *words]).encode("utf-8", "replace")
    decision = answer_line(Daemon(0, describe("H200")), Asker(1, 1000), line)
    assert decision.answer is not None
    assert 'Unknown command "' not in decision.answer.printed


@given(st.lists(st.binary(min_size=1).filter(lambda b: not set(b) & set(b" \t\r\n\0")), max_size=6), st.data())
def test_words_are_split_at_blanks_and_keep_their_bytes(words: list[bytes], data: st.DataObject) -> None:
    blanks = st.text(" \t\r\n", min_size=1, max_size=3).map(str.encode)
    line = b"".join(data.draw(blanks) + word for word in words) + data.draw(blanks)
    assert [word.encode("utf-8", "surrogateescape") for word in split(line)] == words
    assert split(line + b"\0after a NUL") == split(line)


@given(st.binary(min_size=1, max_size=50).filter(lambda b: not set(b) & set(b" \t\r\n\0")))
def test_an_unknown_command_is_echoed_byte_by_byte(name: bytes) -> None:
    decision = answer_line(Daemon(0, describe("H200")), ROOT, b"  " + name + b" x y\r")
    if name.decode("utf-8", "surrogateescape") not in REGISTRY:
        assert decision.answer is not None
        echoed = decision.answer.printed.encode("utf-8", "surrogateescape")
        assert echoed == b'Unknown command "' + name + b'"\n'


def test_a_line_over_the_limit_is_cut_and_never_a_command(recorded_daemon: Daemon) -> None:
    decision = answer_line(recorded_daemon, ROOT, b"get_server_list ".ljust(LINE_LIMIT + 1, b"x"))
    assert decision.answer is not None
    assert decision.answer.printed == 'Unknown command "get_server_list"\n'
    endless = answer_line(recorded_daemon, ROOT, b"x" * (1 << 20)).answer
    assert endless is not None
    assert len(endless.printed) < LINE_LIMIT + 30


def test_a_name_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="ps is registered twice"):
        command("ps")(lambda daemon, asker: None)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_command_has_its_help(name: str) -> None:
    assert (REGISTRY[name].handler.__doc__ or "").strip().endswith(".")
