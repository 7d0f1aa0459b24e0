"""Read the words of protocol 2: arguments by their position, as driver 580 reads them (recorded).

An option with a value is recognised only as the first word. A missing argument is read as an empty word. Words that
the syntax does not declare are left over: a query is refused after it has answered as recorded; a change ignores the
words, with a note on the options among them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from pympsd.commands.grammar.recorded import AS_DECLARED, RECORDED, WITHOUT_EFFECT, Recorded
from pympsd.commands.grammar.syntax import JSON_OPTION, CommandRefused, Syntax, keyword
from pympsd.vocabulary.answers import Answer, AnswerPart, refusal
from pympsd.vocabulary.mistyped import find_similar


@frozen
class Reading:
    """The arguments of a command by keyword, and the words that are left over."""

    arguments: dict[str, Any]
    left_over: tuple[str, ...]


def read_words(syntax: Syntax, words: Sequence[str], *, flags_anywhere: bool) -> Reading:
    """Return the arguments in the words after a command's name. Raise CommandRefused.

    ``flags_anywhere``: flags may come before the arguments; otherwise they count as positions, as the driver counts
    them.
    """
    recorded = RECORDED.get(syntax.command, AS_DECLARED)
    remaining = list(words)
    for spelling, usual in recorded.spellings.items():
        if tuple(remaining[: len(spelling)]) == spelling:
            remaining[: len(spelling)] = [usual]
    flags = {flag.spelling for flag in syntax.flags}
    places = [word for word in remaining if word not in flags] if flags_anywhere else remaining
    arguments = _take_options(syntax, recorded, places)
    arguments |= {keyword(flag.name): flag.spelling in remaining for flag in syntax.flags}
    if recorded.missing and len(places) < len(syntax.required):
        raise _refuse_missing(syntax, recorded)
    left_over = places[len(syntax.required) + len(syntax.optional) :]
    for index, argument in enumerate((*syntax.required, *syntax.optional)):
        value = arguments[keyword(argument.name)] = argument.read(places[index] if index < len(places) else "")
        if value is None and recorded.missing:
            raise _refuse_missing(syntax, recorded)
        if value is None and index < len(places):
            left_over.append(places[index])
    if flags_anywhere:
        left_over += [flag for flag in flags for _ in range(remaining.count(flag) - 1)]
    return Reading(arguments, tuple(word for word in left_over if flags_anywhere or word not in flags))


def _take_options(syntax: Syntax, recorded: Recorded, words: list[str]) -> dict[str, Any]:
    """Remove options with values from the beginning of ``words``; return the values by keyword, None for a missing
    option.
    """
    values: dict[str, Any] = {}
    for name, option in syntax.options.items():
        is_there = bool(words) and words[0] == syntax.spelling(name)
        value = values[keyword(name)] = option.read((*words, "")[1]) if is_there else None
        if value is None and name in syntax.needed:
            raise _refuse_missing(syntax, recorded)
        del words[: 2 * is_there]
    return values


def _refuse_missing(syntax: Syntax, recorded: Recorded) -> CommandRefused:
    """Return the refusal of a command that lacks an argument."""
    if not recorded.missing:
        return CommandRefused(f"{syntax.command} needs more arguments; usage: {syntax.usage}")
    if not recorded.missing_is_logged_only:
        return CommandRefused(answer=refusal(recorded.missing))
    part, note = (
        AnswerPart(recorded.missing, printed=False),
        f"{recorded.missing.removesuffix('.')}; usage: {syntax.usage}",
    )
    return CommandRefused(answer=Answer((part,), diagnostic=note, refused=True))


def complain(syntax: Syntax, words: Sequence[str], usage: str) -> str:
    """Return the message about words that a command does not accept. It names the option that was probably meant."""
    options = (JSON_OPTION, *syntax.option_words)
    similar = [option for word in words if word.startswith("-") and (option := find_similar(word, options))]
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    return f"{syntax.command}: {' '.join(words)[:80]!r} is not understood{hint}; usage: {usage}"


def note_ignored(syntax: Syntax, words: Sequence[str], reasons: Mapping[str, str] = WITHOUT_EFFECT) -> str:
    """Return a note on the options among the words that a change ignores; empty without options.

    ``reasons``: why known options have no effect here.
    """
    notes = []
    for word in words:
        if re.match("--?[A-Za-z]", word):
            similar = find_similar(word, syntax.option_words)
            hint = f" (did you mean {similar}?)" if similar else ""
            reason = reasons.get(word)
            notes.append(f"{word} is left out: {reason}" if reason else f"{word[:80]} is ignored{hint}")
    return f"{syntax.command}: {'; '.join(notes)}" if notes else ""
