"""Commands for the active thread percentage: the default of the next server, and each server's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve

from pympsd.commands.arguments import A_PID, read_loose_pid
from pympsd.commands.numbers import leading_float
from pympsd.commands.privileges import may_change_settings
from pympsd.commands.registry import Caller, Decision, command
from pympsd.commands.volta import volta_only
from pympsd.state_machine.limit_resolution import limits_update
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, Part, lines, refusal
from pympsd.vocabulary.limits import BadLimit, ThreadPercentage

_SHOWN = 80
"""The number of characters of a word that are repeated."""
INVALID = "Invalid percentage, expected between (0.0, 100.0]"


def percentage_at(position: int) -> Callable[[Sequence[str]], ThreadPercentage | None]:
    """Make a reader of the percentage at a position of the words; None if it is missing or invalid."""

    def read(words: Sequence[str]) -> ThreadPercentage | None:
        number = leading_float(words[position]) if len(words) > position else None
        try:
            return ThreadPercentage(number) if number is not None else None
        except BadLimit:
            return None

    return read


def note_at(position: int) -> Callable[[Sequence[str]], str]:
    """Make a reader of the note about a percentage that more follows than C reads: ``33,3`` is 33 (recorded)."""

    def read(words: Sequence[str]) -> str:
        word = words[position] if len(words) > position else ""
        number = leading_float(word)
        try:
            is_whole = number is None or ("%" not in word and ThreadPercentage.parse(word).value == number)
        except BadLimit:
            is_whole = False
        return "" if is_whole else f"{word[:_SHOWN]!r} is read as {number:g}"

    return read


def _set(in_force: ThreadPercentage, note: str) -> Answer:
    return evolve(lines(str(in_force)), diagnostic=note)


def _refused(in_force: ThreadPercentage) -> Answer:
    """Return a refusal; recorded: the complaint is only logged, and the value that stays in force is printed."""
    parts = (Part(INVALID, printed=False), Part(str(in_force)))
    return Answer(parts, diagnostic=f"{INVALID}; it stays {in_force}", refused=True)


@command("set_default_active_thread_percentage", percentage=percentage_at(0), note=note_at(0))
@volta_only("active thread percentages have")
def set_default(daemon: Daemon, caller: Caller, percentage: ThreadPercentage | None, note: str) -> Decision:
    """Set the active thread percentage that the next server starts with: above 0, up to 100."""
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    if percentage is None:
        return Decision(_refused(daemon.defaults.thread_percentage))
    daemon.defaults.thread_percentage = percentage
    return Decision(_set(percentage, note))


@command("get_default_active_thread_percentage", takes="", prints_anyway=True)
@volta_only("active thread percentages have")
def get_default(daemon: Daemon, caller: Caller) -> Decision:
    """Print the active thread percentage that the next server starts with."""
    return _shown(daemon.defaults.thread_percentage)


@command("set_active_thread_percentage", pid=read_loose_pid, percentage=percentage_at(1), note=note_at(1))
@volta_only("active thread percentages have")
def set_of_server(
    daemon: Daemon, caller: Caller, pid: int, percentage: ThreadPercentage | None, note: str
) -> Decision:
    """Set the active thread percentage of the later clients of the server PID."""
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found"))
    if percentage is None:
        return Decision(_refused(server.thread_percentage))
    server.thread_percentage = percentage
    return Decision(_set(percentage, note), (limits_update(server),))


@command("get_active_thread_percentage", takes=A_PID, pid=read_loose_pid)
@volta_only("active thread percentages have")
def get_of_server(daemon: Daemon, caller: Caller, pid: int) -> Decision:
    """Print the active thread percentage of the later clients of the server PID."""
    server = daemon.server_by_pid(pid)
    return _shown(server.thread_percentage) if server else Decision(refusal(f"Server {pid} not found"))


def _shown(percentage: ThreadPercentage) -> Decision:
    return Decision(lines(str(percentage)), data={"active_thread_percentage": percentage.value})
