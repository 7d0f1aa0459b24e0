"""An operator's command line: split into words, looked up, carried out, logged and answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import evolve

import pympsd.commands.v2  # noqa: F401 - registers the commands
from pympsd.commands.registry import JSON_OPTION, REGISTRY, Caller, Decision
from pympsd.commands.v3 import line as v3
from pympsd.configuration.in_force import count_change, defaults_of
from pympsd.state_machine.events import OperatorLine
from pympsd.state_machine.instructions import Instruction, Log, reply
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.mistyped import find_similar

LINE_LIMIT: Final = 64 * 1024
"""A longer line is cut to this number of bytes and is an unknown command."""


def answer_line(daemon: Daemon, event: OperatorLine) -> Iterator[Instruction]:
    """Log an operator's line, carry it out and answer it; the state machine's ``handle`` takes this function."""
    shown = event.line.partition(b"\0")[0].decode("utf-8", "surrogateescape").strip(" \t\r\n")
    # Monitors ask for JSON again and again.
    if not _is_query_of_data(split(event.line[:LINE_LIMIT])):
        # A line end inside would begin another line of the log.
        yield Log("command", {"line": shown.replace("\r", " ").replace("\n", " ")})
    caller = Caller(event.session, event.uid, event.at, event.server, event.namespace, event.process)
    decision = decide_line(daemon, caller, event.line, event.file)
    if decision.answer is not None:
        yield from reply(event.session, _with_note(decision.answer, event.silent))
    yield from decision.instructions


def asked_servers(daemon: Daemon, line: bytes) -> list[Server]:
    """Return the servers on whose knowledge the answer to a line depends: the one that it names, or all."""
    words = split(line[:LINE_LIMIT])
    if daemon.options.protocol == 3 and (in_v3 := v3.command_of(words)) is not None:
        return daemon.running_servers() if in_v3.asks_servers else []
    known = REGISTRY.get(words[0]) if words else None
    if known is None or not (known.asks_servers or _is_query_of_data(words)):
        return []
    plain = [word for word in words[1:] if word != JSON_OPTION]
    named = known.readers["pid"](plain) if "pid" in known.readers else None
    return [server for server in daemon.running_servers() if named in (None, server.pid)]


def asks_cgroups(line: bytes) -> bool:
    """Whether the answer to a line depends on which cgroups there are."""
    return split(line[:LINE_LIMIT])[:1] in (["memacct"], ["config"])


def asked_process(line: bytes) -> int | None:
    """Return the PID of the process that a line asks of; None if it asks of none."""
    words = split(line[:LINE_LIMIT])
    known = v3.command_of(words)
    if known is None or not known.asks_process:
        return None
    return next((int(word) for word in words[2:] if word.isascii() and word.isdecimal() and len(word) < 11), None)


def _is_query_of_data(words: list[str]) -> bool:
    """Whether a line is a query with --json."""
    if JSON_OPTION not in words:
        return False
    in_v3 = v3.command_of(words)
    return in_v3.is_query if in_v3 is not None else words[0] in REGISTRY and REGISTRY[words[0]].takes is not None


def _with_note(answer: Answer, silent: tuple[int, ...]) -> Answer:
    """Return an answer that says which servers did not answer."""
    if not silent:
        return answer
    servers = ", ".join(map(str, silent))
    note = f"server {servers} does not answer: of it this says what was known before"
    return evolve(answer, diagnostic=f"{answer.diagnostic}; {note}" if answer.diagnostic else note)


def decide_line(daemon: Daemon, caller: Caller, line: bytes, file: bytes | None = None) -> Decision:
    """Run the command of a line; ``file``: the text of the file that it names."""
    words = split(line[:LINE_LIMIT])
    is_whole, in_v3 = len(line) <= LINE_LIMIT, v3.command_of(words)
    name = words[0] if words else ""
    if is_whole and (daemon.options.protocol == 3 or name in v3.IN_BOTH):
        return v3.decide(daemon, caller, with_rest(words, line), file)
    known = REGISTRY.get(name) if is_whole else None
    if known is not None:
        before = defaults_of(daemon)
        decision = known.run(daemon, caller, words[1:])
        count_change(daemon, before)
        return decision
    if in_v3 is not None:
        both = " ".join(words[:2])
        hint = f"{both} is a command of protocol 3; start the daemon with -p 3"
        return Decision(refusal(f'Unknown command "{both}"', diagnostic=hint))
    names = sorted({*REGISTRY, *v3.IN_BOTH})
    meant = f"did you mean {similar}? " if (similar := find_similar(name, names)) else ""
    return Decision(refusal(f'Unknown command "{name}"', diagnostic=f"{meant}the commands are {', '.join(names)}"))


def with_rest(words: list[str], line: bytes) -> list[str]:
    """Return the words of a line; the rest of the line is one word if the command's argument is that (a path)."""
    known = v3.command_of(words)
    if known is None or not known.syntax.takes_rest or len(words) < 4:
        return words
    text = _text(line).strip(" \t\r\n")
    for word in words[:2]:
        text = text.removeprefix(word).lstrip(" \t\r\n")
    return [*words[:2], text]


def _text(line: bytes) -> str:
    return line.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def split(line: bytes) -> list[str]:
    """Return the words of a line: split on blanks, tabs and line ends, up to a NUL; undecodable bytes survive."""
    text = _text(line)
    return [word for word in text.replace("\t", " ").replace("\r", " ").replace("\n", " ").split(" ") if word]
