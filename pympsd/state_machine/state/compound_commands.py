"""Commands that are carried out in several parts: one answer for all of them, and the configuration applied last.

The problem: `config apply` may begin hundreds of changes, each of which is answered separately when its server is
ready or its socket is open, seconds later. The operator gets one answer: a line for each change and each refusal.

The idea: each part has a session of its own, a negative number that no operator has. The functions that make servers
and namespaces answer sessions without knowing whether an operator or a part is behind them. At the end of every event
`pympsd.state_machine.decide` takes the answers with negative sessions out of the instructions and records them here.

Invariants: a part is answered once; a compound command is answered once, in the event in which its last part is (with
``waits_for_starts`` off: when all pending parts wait only for the start of a server); the output of its parts is in
the order in which the parts began, whatever the order of their answers.
"""

from collections.abc import Iterable

from attrs import define, field, frozen

from pympsd.vocabulary.answers import Answer, AnswerPart
from pympsd.vocabulary.identities import Ids


@define
class CompoundCommand:
    """A control command with several parts, which is answered when all of them are."""

    session: int
    texts: dict[int, str] = field(factory=dict)
    """The text that each part printed, by the part's session; a text may be empty."""
    pending: set[int] = field(factory=set)
    """The sessions of the parts that are not answered yet."""
    notes: list[str] = field(factory=list)
    """The lines that the command writes to standard error."""
    failed: int = 0
    """The number of parts that were refused."""
    waits_for_starts: bool = True
    """True if the command is answered only when the servers that it starts are ready."""
    starting: set[int] = field(factory=set)
    """The sessions of the parts that wait only for a server's start."""
    answered: bool = False

    @property
    def answer(self) -> Answer:
        """The printed text of the parts that are answered."""
        parts = tuple(AnswerPart(text) for text in self.texts.values() if text)
        return Answer(parts, "\n".join(self.notes), bool(self.failed))

    @property
    def holds_back_answer(self) -> bool:
        """Whether the answer waits for a pending part."""
        return bool(self.pending if self.waits_for_starts else self.pending - self.starting)


@frozen
class Configuration:
    """The configuration file that was applied last, and the result."""

    generation: int = 0
    """The number of configurations that this daemon, and those before it, have applied."""
    source: str = ""
    """The path of the configuration file."""
    applied: str = ""
    """The time at which the file was applied, in ISO 8601."""
    command: CompoundCommand | None = None
    """The command with the file's changes, pending or done; None if an earlier daemon began them."""
    refused: int = 0
    """The number of changes that were refused, if an earlier daemon applied the file."""
    starts: bool = False
    """True while the daemon starts and has not applied its file yet."""
    text: bytes | None = field(default=None, repr=False)
    """The content of the file; None if no file was applied, or an earlier version of pympsd applied it."""
    plan: tuple[object, object] | None = field(default=None, eq=False, repr=False)
    """The last result of reading ``text``: the context and the plan (see `pympsd.configuration.in_force`)."""

    @property
    def failed(self) -> int:
        """The number of changes that were refused."""
        return self.refused if self.command is None else self.command.failed


@define
class CompoundCommands:
    """The compound commands that have pending parts."""

    ids: Ids = field(factory=Ids)
    pending: list[CompoundCommand] = field(factory=list)

    def begin(self, session: int) -> CompoundCommand:
        """Begin a command. Its answer is sent after the event that answers its last part."""
        command = CompoundCommand(session)
        self.pending.append(command)
        return command

    def add_part(self, command: CompoundCommand, text: str = "") -> int:
        """Add a part to a command, and return the session under which it is answered."""
        session = self.add_text(command, text)
        command.pending.add(session)
        return session

    def add_text(self, command: CompoundCommand, text: str) -> int:
        """Print a text in the place of a part that is done already; return its session."""
        session = -self.ids.take()
        command.texts[session] = text
        return session

    def mark_starting(self, sessions: Iterable[int]) -> None:
        """Record that parts now wait only for a server's start."""
        for command in self.pending:
            command.starting |= command.pending.intersection(sessions)

    def sessions_of(self, part: int) -> list[int]:
        """Return the operator sessions that wait for a part."""
        return [command.session for command in self.pending if part in command.pending]

    def record(self, part: int, answer: Answer) -> None:
        """Record the answer of a part."""
        for command in self.pending:
            if part in command.pending:
                command.pending.remove(part)
                if answer.refused:
                    command.failed += 1
                    command.texts[part] = "\n".join(text.text for text in answer.parts)
                if answer.diagnostic:
                    command.notes.append(answer.diagnostic)

    def take_answers(self) -> list[tuple[int, Answer]]:
        """Return the answers that are complete, with their sessions, and forget their commands."""
        answers = []
        for command in tuple(self.pending):
            if not command.pending:
                self.pending.remove(command)
            if not command.answered and not command.holds_back_answer:
                command.answered = True
                answers.append((command.session, command.answer))
        return answers
