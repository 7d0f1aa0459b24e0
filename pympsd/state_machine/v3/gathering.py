"""One answer for a command that is carried out in several parts, each of which is answered by itself.

Every part has a session of its own, a negative number that no operator has; what would be answered there is gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import define, field, frozen

from pympsd.state_machine.instructions import Instruction, Reply, Working, reply
from pympsd.vocabulary.answers import Answer, Part
from pympsd.vocabulary.identities import Serials


@define
class Gathering:
    """A command under way, for an operator session."""

    session: int
    texts: dict[int, str] = field(factory=dict)
    """What is printed for each part, by its session; empty: nothing."""
    waiting: set[int] = field(factory=set)
    notes: list[str] = field(factory=list)
    """The lines for standard error."""
    failed: int = 0
    """The number of parts that were refused."""
    awaits_starts: bool = True
    """Whether it is answered only when the servers that it starts are ready."""
    starting: set[int] = field(factory=set)
    """The parts that wait for nothing but a server's start."""
    answered: bool = False

    @property
    def answer(self) -> Answer:
        """What is printed, as far as the parts are done."""
        parts = tuple(Part(text) for text in self.texts.values() if text)
        return Answer(parts, "\n".join(self.notes), bool(self.failed))


@frozen
class Configuration:
    """The configuration that was applied last."""

    generation: int = 0
    """Counts those of this daemon, and of those that it follows."""
    source: str = ""
    """The path of its file."""
    applied: str = ""
    """When, as ISO 8601 has it."""
    gathering: Gathering | None = None
    """Its changes, under way or done; None: an earlier daemon began them."""
    refused: int = 0
    """The number of those that were refused, if an earlier daemon began them."""
    awaited: bool = False
    """The daemon starts, and has not come to its file yet."""
    text: bytes | None = field(default=None, repr=False)
    """The content of the file; None: there is none, or an earlier version of pympsd applied it."""
    plan: tuple[object, object] | None = field(default=None, eq=False, repr=False)
    """What was read from the text last: the surroundings and the plan (see `pympsd.configuration.in_force`)."""

    @property
    def failed(self) -> int:
        """The number of changes that were refused."""
        return self.refused if self.gathering is None else self.gathering.failed


@define
class Gatherings:
    """All commands under way that have parts."""

    serials: Serials = field(factory=Serials)
    under_way: list[Gathering] = field(factory=list)

    def begin(self, session: int) -> Gathering:
        """Begin a command; it is answered after the event in which its last part is."""
        gathering = Gathering(session)
        self.under_way.append(gathering)
        return gathering

    def part(self, gathering: Gathering, text: str = "") -> int:
        """Return the session of a new part."""
        session = self.say(gathering, text)
        gathering.waiting.add(session)
        return session

    def starts(self, sessions: Iterable[int]) -> None:
        """Note that parts wait for nothing but a server's start any more."""
        for gathering in self.under_way:
            gathering.starting |= gathering.waiting.intersection(sessions)

    def say(self, gathering: Gathering, text: str) -> int:
        """Print a text in the place of a part that is done already; return its session."""
        session = -self.serials.take()
        gathering.texts[session] = text
        return session

    def collect(self, instructions: Iterable[Instruction]) -> Iterator[Instruction]:
        """Take the answers of parts out of instructions, and add those of the commands that are done with."""
        for instruction in instructions:
            if isinstance(instruction, Reply) and instruction.session < 0:
                self._note(instruction.session, instruction.answer)
            elif isinstance(instruction, Working) and instruction.session < 0:
                yield from (Working(each.session) for each in self.under_way if instruction.session in each.waiting)
            else:
                yield instruction
        for gathering in tuple(self.under_way):
            if not gathering.waiting:
                self.under_way.remove(gathering)
            if not gathering.answered and not _awaited(gathering):
                gathering.answered = True
                yield from reply(gathering.session, gathering.answer)

    def _note(self, session: int, answer: Answer) -> None:
        for gathering in self.under_way:
            if session in gathering.waiting:
                gathering.waiting.remove(session)
                if answer.refused:
                    gathering.failed += 1
                    gathering.texts[session] = "\n".join(part.text for part in answer.parts)
                if answer.diagnostic:
                    gathering.notes.append(answer.diagnostic)


def _awaited(gathering: Gathering) -> set[int]:
    return gathering.waiting if gathering.awaits_starts else gathering.waiting - gathering.starting
