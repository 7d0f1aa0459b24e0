"""Keep the table of all commands, and run a command.

A command is a function ``(daemon, caller, **arguments) -> Decision`` under the decorator `command`, which gets the
syntax. The function's docstring is the command's help. The table `COMMANDS` has the commands of both protocols by
name. A command of protocol 2 is one word; a command of protocol 3 is a module and a verb. The field ``protocols``
states which daemons have a command:

    ps                 both: probes and scripts use it, and it has one meaning
    start_server       2 only: 3 refuses it, with the command that does the same there
    rules list         both
    namespace create   3 only

A handler changes the state only if the command will succeed. If it raises `CommandRefused` or `NotPossible`, that
becomes the answer: on standard output for a change of protocol 3, and on standard error for a query, whose output is
data only. A query never changes the state, and gets only the part of the state that the caller may see.

With ``--json`` a query prints its `Decision.data`; a list of protocol 3 prints its rows (``--format=json``). These
answers are not logged, because monitors query repeatedly.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from attrs import evolve, field, frozen

from pympsd.commands.grammar import loose, strict
from pympsd.commands.grammar.privileges import Caller, check_daemon_owner, check_settings_owner, restrict_view
from pympsd.commands.grammar.recorded import BY_FIRST_WORD, RECORDED, WITHOUT_EFFECT
from pympsd.commands.grammar.syntax import JSON_OPTION, CommandRefused, Syntax
from pympsd.process.version import CUDA_VERSIONS, DRIVER
from pympsd.state_machine.instructions import Instruction, Note
from pympsd.state_machine.named_servers import NotPossible
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, AnswerPart, refusal
from pympsd.vocabulary.untrusted import is_query

BOTH: Final = (2, 3)


@frozen
class Decision:
    """The result of a command.

    ``answer`` is the operator's answer, or None if it comes later; ``instructions`` are for the I/O layer.
    """

    answer: Answer | None
    instructions: tuple[Instruction, ...] = ()
    data: Any = None
    """In protocol 2, the data that --json prints instead of the answer; None for a refusal, which stays the same."""


Handler = Callable[..., Decision]
View = Callable[[Daemon, Caller], Daemon]


@frozen
class Command:
    """A registered command.

    The fields from ``asks_servers`` on are the keyword arguments of the decorator `command`.
    """

    syntax: Syntax
    handler: Handler
    asks_servers: bool = False
    """True if the answer depends on the servers' state; then servers that report only on request are asked first."""
    asks_process: bool = False
    """True if the first argument is the PID of a process, and `Caller` needs the properties of that process that
    rules examine.
    """
    asks_origins: bool = False
    """True if the answer to a line that names a cgroup depends on the cgroups of clients' processes."""
    has_strict_words: bool = False
    """True if protocol 2 reads the command's words as protocol 3 does, because the driver's daemon lacks
    the command.
    """
    owner_only: bool = False
    """True if only root and the user who started the daemon may give the command."""
    takes_file: bool = False
    """True if the handler gets the text of the file that the line names, as ``text``."""
    refuses_unknown: bool = False
    """True if extra words, which protocol 2 usually ignores, are an error because the command cannot be undone."""
    failure: str = ""
    """The line to print when the command is refused because of extra words, for programs that search for it."""
    in_protocol_3: str = ""
    """The equivalent in protocol 3, with ``{0}`` and ``{1}`` for the words.

    A command with an equivalent is in protocol 2 only.
    """
    driver: int = min(CUDA_VERSIONS)
    """The first driver branch whose protocol 2 has the command."""
    view: View = restrict_view
    """The function that returns the part of the state that a query gets."""
    protocols: tuple[int, ...] = field()
    """The protocols of the daemons that have the command. Default: both for one word, 3 for a module's verb."""

    @protocols.default
    def _protocols(self) -> tuple[int, ...]:
        return (3,) if self.verb else (2,) if self.in_protocol_3 else BOTH

    @cached_property
    def name(self) -> str:
        """The command's words, such as ``ps`` or ``namespace create``."""
        return self.syntax.command

    @cached_property
    def module(self) -> str:
        """The module of a command of protocol 3, such as ``namespace``; for a command of protocol 2 its name."""
        return self.name.partition(" ")[0]

    @cached_property
    def verb(self) -> str:
        """The verb of a command of protocol 3, such as ``create``; empty for a command of one word."""
        return self.name.partition(" ")[2]

    @property
    def is_strict(self) -> bool:
        """Whether the command's words are read as protocol 3 reads them: every unknown word is an error."""
        return bool(self.verb) or self.has_strict_words

    @cached_property
    def is_query(self) -> bool:
        """Whether the command changes nothing. Queries have ``--json``, and answer only what the caller may see."""
        return is_query(self.name)

    def is_in(self, protocol: int, driver: int) -> bool:
        """Return whether a daemon has the command.

        Args:
            protocol: The daemon's protocol, 2 or 3.
            driver: The driver branch that the daemon reproduces, such as 580.
        """
        return protocol in self.protocols and (protocol != 2 or driver >= self.driver)

    @property
    def names_server(self) -> bool:
        """Whether the first argument of a command of protocol 2 is the PID of a server."""
        names = (
            *(argument.name for argument in (*self.syntax.required, *self.syntax.optional)),
            *self.syntax.options,
        )
        return not self.is_strict and names[:1] == ("pid",)

    @property
    def usage(self) -> str:
        """The command with its arguments and options, as the manual writes them, such as ``ps [PID] [--json]``."""
        has_json = self.is_query and "format" not in self.syntax.options
        return f"{self.syntax.usage} [{JSON_OPTION}]" if has_json else self.syntax.usage

    def translate(self, words: Sequence[str]) -> Answer:
        """Return the refusal of a command of protocol 2 by a daemon of protocol 3, with the command to use.

        Args:
            words: The arguments, which the suggestion repeats.
        """
        arguments = (*words, *self.syntax.usage.split(" ")[len(words) + 1 :])
        text = BY_FIRST_WORD.get(" ".join((self.name, *words[:1]))) or self.in_protocol_3.format(*arguments)
        for word in words:
            if word in WITHOUT_EFFECT:
                text += f" ({word} has no counterpart here: {WITHOUT_EFFECT[word]})"
        return refuse_translated(self.name, text)

    def run(self, daemon: Daemon, caller: Caller, words: Sequence[str], file: bytes | None = None) -> Decision:
        """Run the command.

        Args:
            daemon: The state, which a successful command may change.
            caller: Who gave the command.
            words: The words after the command's name.
            file: The content of the file that the line names, if the command ``takes_file``.

        Returns:
            The decision. Refusals are answers, not exceptions.
        """
        try:
            if self.is_query:
                daemon = self.view(daemon, caller)
            if self.is_strict:
                return self._run_strict(daemon, caller, words, file)
            return self._query(daemon, caller, words) if self.is_query else self._change(daemon, caller, words)
        except (CommandRefused, NotPossible) as error:
            return Decision(self._refusal(error if isinstance(error, CommandRefused) else CommandRefused(str(error))))

    def _refusal(self, error: CommandRefused) -> Answer:
        if error.answer is not None:
            return error.answer
        if self.is_query or not self.verb:
            return refusal(diagnostic=f"{error} {error.hint}".rstrip())
        return refusal(str(error), diagnostic=error.hint)

    def _run_strict(self, daemon: Daemon, caller: Caller, words: Sequence[str], file: bytes | None) -> Decision:
        """Run a command of protocol 3."""
        if self.is_query and JSON_OPTION in words:
            words = [word for word in words if word != JSON_OPTION]
            if "format" not in self.syntax.options:
                return _wrap_as_json(self._run_strict(daemon, caller, words, file))
            words.append("--format=json")
        arguments = strict.read_words(self.syntax, words)
        if self.owner_only:
            check_daemon_owner(daemon, caller, self.name)
        if self.takes_file:
            arguments["text"] = file
        return self.handler(daemon, caller, **arguments)

    def _query(self, daemon: Daemon, caller: Caller, words: Sequence[str]) -> Decision:
        """Run a query of protocol 2."""
        plain = [word for word in words if word != JSON_OPTION]
        reading = loose.read_words(self.syntax, plain, flags_anywhere=True)
        decision = self.handler(daemon, caller, **reading.arguments)
        answer = decision.answer or Answer()
        if decision.data is None and answer.refused:
            return decision
        is_text = len(plain) == len(words)
        if reading.left_over:
            # Recorded without a server: "ps foo" is answered with "Server not found", other queries print nothing.
            prints = self.name in RECORDED and RECORDED[self.name].prints_anyway and is_text
            printed = answer if answer.refused or prints else Answer()
            return Decision(evolve(printed, refused=True, diagnostic=loose.complain(self.syntax, plain, self.usage)))
        return decision if is_text else Decision(Answer((AnswerPart(json.dumps(decision.data), logged=False),)))

    def _change(self, daemon: Daemon, caller: Caller, words: Sequence[str]) -> Decision:
        """Run a command of protocol 2 that changes something."""
        try:
            reading = loose.read_words(self.syntax, words, flags_anywhere=False)
        except CommandRefused:
            if not self.refuses_unknown:
                raise
            reading = loose.Reading({}, tuple(words))
        if self.refuses_unknown and reading.left_over:
            complaint = loose.complain(self.syntax, words, self.usage)
            raise CommandRefused(answer=refusal(*filter(None, [self.failure]), diagnostic=complaint))
        if self.owner_only:
            check_settings_owner(daemon, caller)
        decision = self.handler(daemon, caller, **reading.arguments)
        note = loose.note_ignored(self.syntax, reading.left_over, _reasons(daemon))
        if not note or (decision.answer is not None and decision.answer.refused):
            return decision
        if decision.answer is not None:
            return evolve(decision, answer=evolve(decision.answer, diagnostic=note))
        return evolve(decision, instructions=(Note(caller.session, note), *decision.instructions))


def _reasons(daemon: Daemon) -> dict[str, str]:
    """Return why options have no effect with a daemon. -S takes precedence over -mlopart (CUDA's documents)."""
    if daemon.options.static:
        return {**WITHOUT_EFFECT, "-mlopart": "static partitioning is on"}
    if any((10, 0) <= device.compute_capability < (11, 0) for device in daemon.devices):
        return {**WITHOUT_EFFECT, "-mlopart": "pympsd does not divide devices into their locality domains yet"}
    return WITHOUT_EFFECT


def _wrap_as_json(decision: Decision) -> Decision:
    """Return the decision of a query without rows, with its printed text as a JSON string."""
    answer = decision.answer
    if answer is None or not answer.printed:
        return decision
    text = json.dumps(answer.printed.removesuffix("\n"))
    return evolve(decision, answer=evolve(answer, parts=(AnswerPart(text, logged=False),)))


def refuse_translated(name: str, text: str) -> Answer:
    """Return the refusal of a command of protocol 2 by a daemon of protocol 3.

    Args:
        name: The command.
        text: The command to use instead.
    """
    return refusal(diagnostic=f"{name} is a command of protocol 2; this daemon speaks 3: {text}")


COMMANDS: Final[dict[str, Command]] = {}
"""The commands of both protocols by name, such as ``ps`` and ``server list``."""
_VERBS: Final[dict[tuple[str, int], dict[str, Command]]] = {}
"""The commands of protocol 3 by module and protocol, then by verb."""


def command(syntax: Syntax, **fields: Any) -> Callable[[Handler], Handler]:
    """Register a handler for a command. Raise ValueError if the name is already registered.

    ``fields``: further fields of `Command`. The smallest command of protocol 2, in a separate file in commands/v2:

        @command(Syntax("get_server_count"))
        def get_server_count(daemon: Daemon, caller: Caller) -> Decision:
            '''Print the number of servers.'''
            count = len(daemon.list_running_servers())
            return Decision(lines(str(count)), data=count)
    """

    def register(handler: Handler) -> Handler:
        if syntax.command in COMMANDS:
            raise ValueError(f"the command {syntax.command} is registered twice")
        new = COMMANDS[syntax.command] = Command(syntax, handler, **fields)
        for protocol in new.protocols if new.verb else ():
            _VERBS.setdefault((new.module, protocol), {})[new.verb] = new
        return handler

    return register


def find_command(words: Sequence[str]) -> Command | None:
    """Return the command of either protocol with which a line begins, or None.

    Args:
        words: The words of the line.
    """
    return COMMANDS.get(" ".join(words[:2])) or COMMANDS.get("".join(words[:1]))


def verbs_of(module: str, protocol: int) -> dict[str, Command]:
    """Return the commands of a module by verb; empty if the protocol does not have the module."""
    return _VERBS.get((module, protocol), {})


def first_words(protocol: int, driver: int = DRIVER) -> list[str]:
    """Return the words with which a line may begin, sorted: modules, and commands of one word.

    Args:
        protocol: 2 or 3.
        driver: The driver branch that the daemon reproduces.
    """
    return sorted({command.module for command in COMMANDS.values() if command.is_in(protocol, driver)})


def load(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, which registers the commands in it.

    Args:
        package: The package's full name.
        path: The package's ``__path__``.
    """
    for module in iter_modules(path):
        import_module(f"{package}.{module.name}")
