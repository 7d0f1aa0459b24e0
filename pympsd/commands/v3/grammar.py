"""The grammar of protocol 3: ``module verb``, positional arguments, ``--key=value`` in any order, and flags.

``key=value`` and ``--key value`` are accepted too, and ``_`` is the same as ``-`` in keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from pympsd.vocabulary.mistyped import find_similar
from pympsd.vocabulary.texts import BadText

_KEY_AND_VALUE: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(.*)", re.ASCII | re.DOTALL)

Reader = Callable[[str], Any]
"""Makes a value of a text; raises BadText."""


class Refused(Exception):
    """A command is refused; the message is the sentence for the user, ``hint`` more of it for standard error."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint


@frozen
class Option:
    """An option with a value; ``shown``: the value in the usage."""

    read: Reader
    shown: str


@frozen
class Syntax:
    """What a command takes: positional arguments in order, options by name, flags."""

    command: str
    """The module and the verb."""
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    options: Mapping[str, Option] = field(factory=dict)
    flags: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    """The options that must be given."""
    instead: Mapping[str, str] = field(factory=dict)
    """Positional arguments that may be given as an option of another name: ``server`` of ``namespace get``."""
    takes_rest: bool = False
    """The rest of the line is its one argument: a path, which may have blanks."""

    @property
    def usage(self) -> str:
        """The command with its arguments, as the manual writes them."""
        options = (self._option_usage(name) for name in self.options)
        flags = (f"[--{flag}]" for flag in self.flags)
        optional = (f"[<{name}>]" for name in self.optional)
        return " ".join((self.command, *(f"<{name}>" for name in self.required), *optional, *options, *flags))

    def _option_usage(self, name: str) -> str:
        text = f"--{name}={self.options[name].shown}"
        return text if name in self.needed else f"[{text}]"


def read_words(syntax: Syntax, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a command by keyword; raise Refused. What is not given is absent."""
    positionals: list[str] = []
    given: dict[str, str | None] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, value = _option_of(word)
        if name is None:
            positionals.append(word)
            continue
        if name in given:
            raise Refused(f"Option '--{name}' of '{syntax.command}' is given twice.")
        given[name] = _value_of(syntax, word, name, value, rest)
    most = len(syntax.required) + len(syntax.optional)
    if len(positionals) > most:
        most_shown = f"{most} argument{'' if most == 1 else 's'}" if most else "no arguments"
        raise Refused(f"'{syntax.command}' takes {most_shown}, not {len(positionals)}.")
    arguments: dict[str, Any] = dict(zip(_places(syntax, given, len(positionals)), positionals, strict=False))
    _check_missing(syntax, arguments, given)
    for place, option in syntax.instead.items():
        twice = arguments.get(_keyword(place)), given.get(option)
        if None not in twice and len({*twice}) > 1:
            raise Refused(f"'{syntax.command}' is given two values of <{place}>: '{twice[0]}' and '{twice[1]}'.")
    for name, value in given.items():
        arguments[_keyword(name)] = True if value is None else _read(syntax, name, value)
    return arguments


def _option_of(word: str) -> tuple[str | None, str | None]:
    """Return the name and value of an option; the name is None for a positional argument."""
    if word.startswith("-") and len(word) > 1:
        name, equals, value = word.lstrip("-").partition("=")
        return name.replace("_", "-"), value if equals else None
    found = _KEY_AND_VALUE.fullmatch(word)
    return (found[1].replace("_", "-"), found[2]) if found else (None, None)


def _value_of(syntax: Syntax, word: str, name: str, value: str | None, rest: list[str]) -> str | None:
    """Return the value of an option, None for a flag; take it from the words after it if it stands there."""
    shown = f"'--{name}' of '{syntax.command}'"
    if word.startswith("-") and not word.startswith("--"):
        raise Refused(_unknown(syntax, word.partition("=")[0]))
    if name in syntax.flags:
        if value is not None:
            raise Refused(f"Option {shown} takes no value.")
        return None
    if name not in syntax.options:
        raise Refused(_unknown(syntax, f"--{name}"))
    if value is None:
        if not rest or rest[0].startswith("--"):
            raise Refused(f"Option {shown} needs a value: --{name}={syntax.options[name].shown}.")
        value = rest.pop(0)
    return value


def _unknown(syntax: Syntax, option: str) -> str:
    known = sorted(f"--{name}" for name in (*syntax.options, *syntax.flags))
    allowed = f"Options: {', '.join(known)}." if known else "It has none."
    return f"Unknown option '{option}' of '{syntax.command}'. {did_you_mean(option, known)}{allowed}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests a known word, and a blank; empty if none is similar."""
    similar = find_similar(word, known)
    return f"Did you mean '{similar}'? " if similar else ""


def _places(syntax: Syntax, given: Mapping[str, str | None], count: int) -> list[str]:
    """Return the keywords of the positional arguments; less those that are given as options, unless there are
    ``count`` words and that is one for each.
    """
    places = (*syntax.required, *syntax.optional)
    taken = {place for place, option in syntax.instead.items() if option in given and count < len(places)}
    return [_keyword(name) for name in places if name not in taken]


def _check_missing(syntax: Syntax, arguments: Mapping[str, Any], given: Mapping[str, str | None]) -> None:
    missing_places = [
        name
        for name in syntax.required
        if _keyword(name) not in arguments and syntax.instead.get(name, "") not in given
    ]
    missing_options = [name for name in syntax.needed if name not in given]
    if not missing_places and not missing_options:
        return
    # Name all of the positional arguments: which of them is missing is not known.
    places = [f"<{name}>" for name in syntax.required] if missing_places else []
    options = [f"--{name}={syntax.options[name].shown}" for name in missing_options]
    raise Refused(f"'{syntax.command}' needs {' '.join((*places, *options))}.")


def _read(syntax: Syntax, name: str, text: str) -> Any:
    try:
        return syntax.options[name].read(text)
    except BadText as error:
        raise Refused(f"--{name} is {error}.") from None


def _keyword(name: str) -> str:
    return name.replace("-", "_")
