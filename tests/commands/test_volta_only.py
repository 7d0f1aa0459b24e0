"""Percentages and memory limits on a machine older than Volta: stored and printed as always, with a note."""

from __future__ import annotations

import pytest

from pympsd.commands.grammar.line import parse
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import COMMANDS, Decision
from pympsd.commands.operator_line import decide_line
from pympsd.devices.machine import parse_toml
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.limits import ThreadPercentage

OLD, NEW = '[[device]]\nprofile = "P100"', '[[device]]\nprofile = "V100"'
LINES = [
    ("set_default_active_thread_percentage 50", "50.0\n"),
    ("get_default_active_thread_percentage", "50.0\n"),
    ("set_active_thread_percentage 847 25", "25.0\n"),
    ("get_active_thread_percentage 847", "25.0\n"),
    ("set_default_device_pinned_mem_limit 0 2G", ""),
    ("get_default_device_pinned_mem_limit 0", "2G\n"),
    ("set_device_pinned_mem_limit 847 0 1G", ""),
    ("get_device_pinned_mem_limit 847 0", "1G\n"),
]


def _decide(daemon: Daemon, caller: Caller, line: bytes) -> Decision:
    return decide_line(daemon, caller, parse(line, daemon.options.protocol))


def machine(toml: str) -> Daemon:
    """A daemon with a server 847 on one device."""
    daemon = Daemon(DaemonOptions(0), parse_toml(toml))
    daemon.servers = {1: Server(1, 0, ThreadPercentage(), pid=847, phase=Phase.ACTIVE)}
    return daemon


def ask(daemon: Daemon, line: str) -> Answer:
    answer = _decide(daemon, Caller(1, 0), line.encode()).answer
    assert answer is not None
    return answer


def test_commands_answer_as_always_and_note_that_they_have_no_effect() -> None:
    daemon = machine(OLD)
    for line, printed in LINES:
        answer = ask(daemon, line)
        assert (answer.printed, answer.refused) == (printed, False)
        assert "have no effect" in answer.diagnostic
        assert "older than Volta" in answer.diagnostic
        assert "\n" not in answer.diagnostic
    assert daemon.defaults.thread_percentage.value == 50
    assert str(daemon.servers[1].memory_limits[0]) == "1G"


def test_unknown_devices_are_not_said_to_be_old() -> None:
    daemon = Daemon(DaemonOptions(0), ())
    daemon.servers = {1: Server(1, 0, ThreadPercentage(), pid=847, phase=Phase.ACTIVE)}
    for line, printed in LINES:
        answer = ask(daemon, line)
        if "mem_limit" not in line:  # no device has the number 0 yet
            assert (answer.printed, answer.refused) == (printed, False)
            assert "the first server reports" in answer.diagnostic
        assert "older than Volta" not in answer.diagnostic


def test_answers_on_volta_have_no_note() -> None:
    daemon = machine(NEW)
    for line, printed in LINES:
        answer = ask(daemon, line)
        assert (answer.printed, answer.refused, answer.diagnostic) == (printed, False, "")


@pytest.mark.parametrize(
    "line", ["set_default_active_thread_percentage 0", "set_default_device_pinned_mem_limit 0 x"]
)
def test_a_refusal_has_no_note(line: str) -> None:
    assert ask(machine(OLD), line) == ask(machine(NEW), line)
    assert ask(machine(OLD), line).refused


def test_a_command_with_a_note_keeps_its_help() -> None:
    docstring = COMMANDS["get_default_active_thread_percentage"].handler.__doc__
    assert docstring == "Print the active thread percentage that the next server starts with."
