"""Look up an operator's command line, carry it out, log it and answer it.

    bytes --grammar.line.parse--> ParsedLine --decide_line--> Decision --answer_line--> instructions

The dispatcher parses a line when it arrives, asks the servers on which the answer depends, and passes the event
`OperatorLine` to the state machine. `answer_line` returns the instructions: the log of the command, its reply, and
its effects. A daemon of protocol 3 also accepts the commands of protocol 2 that mean the same in both; a daemon of
protocol 2 also accepts the modules that both protocols have.
"""

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from pympsd.commands import manual
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import COMMANDS, Decision, first_words, verbs_of
from pympsd.commands.grammar.strict import suggest_word
from pympsd.commands.grammar.syntax import JSON_OPTION
from pympsd.commands.v3.output import data
from pympsd.configuration.in_force import count_change, defaults_of
from pympsd.state_machine.events import OperatorLine
from pympsd.state_machine.instructions import Instruction, Log, reply
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.mistyped import find_similar
from pympsd.vocabulary.parsed_line import ParsedLine

HELP: Final = ("help", "--help")


def answer_line(daemon: Daemon, event: OperatorLine) -> Iterator[Instruction]:
    """Log an operator's line, carry it out and answer it.

    This function is an argument of the state machine's ``handle``.
    """
    # Monitors send queries with --json again and again.
    if not (event.line.is_query and JSON_OPTION in event.line.words):
        # A line end in the command would begin a new line of the log.
        yield Log("command", {"line": event.line.text.replace("\r", " ").replace("\n", " ")})
    caller = Caller(event.session, event.uid, event.at, event.server, event.namespace, event.process)
    decision = decide_line(daemon, caller, event.line, event.file)
    if decision.answer is not None:
        yield from reply(event.session, _add_note(decision.answer, event.silent))
    yield from decision.instructions


def servers_to_ask(daemon: Daemon, line: ParsedLine) -> list[Server]:
    """Return the servers on which the answer to a line depends: the server that the line names, or all servers."""
    if not line.asks_servers:
        return []
    return [server for server in daemon.list_running_servers() if line.server_pid in (None, server.pid)]


def decide_line(daemon: Daemon, caller: Caller, line: ParsedLine, file: bytes | None = None) -> Decision:
    """Run the command of a line; ``file``: the text of the file that the line names."""
    words, protocol = line.words, daemon.options.protocol
    name = words[0] if words else ""
    if line.is_whole and protocol == 3 and name in ("", *HELP):
        return data(manual.overview())
    if line.is_whole and verbs_of(name, protocol):
        return _run_module_command(daemon, caller, line, file)
    command = COMMANDS.get(name) if line.is_whole else None
    if command is not None and command.is_in(protocol, daemon.options.driver):
        before = defaults_of(daemon)
        decision = command.run(daemon, caller, words[1:])
        count_change(daemon, before)
        return decision
    return Decision(_refuse_unknown(line, protocol, daemon.options.driver))


def _run_module_command(daemon: Daemon, caller: Caller, line: ParsedLine, file: bytes | None) -> Decision:
    module, *remaining = line.words
    verbs = verbs_of(module, daemon.options.protocol)
    if remaining and remaining[0] in HELP:
        return data(manual.module_help(module))
    if not line.command:
        allowed = f"Verbs: {', '.join(sorted(verbs))}."
        hint = suggest_word(remaining[0], verbs) if remaining else ""
        problem = f"Unknown verb '{remaining[0]}' of module '{module}'." if remaining else f"'{module}' needs a verb."
        return Decision(refusal(diagnostic=f"{problem} {hint}{allowed}"))
    command = COMMANDS[line.command]
    if remaining[1:] == ["help"] or "--help" in remaining:
        return data(manual.command_help(command))
    return command.run(daemon, caller, remaining[1:], file)


def _refuse_unknown(line: ParsedLine, protocol: int, driver: int) -> Answer:
    """Return the refusal of a line that is not a command of the daemon's protocol."""
    name = line.words[0] if line.words else ""
    names = first_words(protocol, driver)
    command = COMMANDS.get(line.command)
    if protocol == 3 and line.is_whole:
        if command is not None:
            return command.translate(line.words[1:])
        modules = [word for word in names if verbs_of(word, protocol)]
        problem = f"Unknown module '{name}'. {suggest_word(name, names)}Modules: {', '.join(modules)}."
        return refusal(diagnostic=problem)
    if command is not None and command.verb:
        hint = f"{command.name} is a command of protocol 3; start the daemon with -p 3"
        return refusal(f'Unknown command "{command.name}"', diagnostic=hint)
    similar = find_similar(name, names)
    suggestion = f"did you mean {similar}? " if similar else ""
    return refusal(f'Unknown command "{name}"', diagnostic=f"{suggestion}the commands are {', '.join(names)}")


def _add_note(answer: Answer, silent: tuple[int, ...]) -> Answer:
    """Return an answer with a note on the servers that did not respond."""
    if not silent:
        return answer
    note = f"server {', '.join(map(str, silent))} did not respond; showing its last reported state"
    return evolve(answer, diagnostic=f"{answer.diagnostic}; {note}" if answer.diagnostic else note)
