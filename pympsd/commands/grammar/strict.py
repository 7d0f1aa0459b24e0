"""Read the words of protocol 3: positional arguments, ``--key=value`` in any order, and flags.

``key=value`` and ``--key value`` are also accepted, and ``_`` may stand for ``-`` in keys. A word that the syntax
does not declare is refused, with a sentence that names the declared words.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pympsd.commands.grammar.syntax import Argument, CommandRefused, Reader, Syntax, keyword
from pympsd.vocabulary.mistyped import find_similar
from pympsd.vocabulary.texts import BadText

_KEY_AND_VALUE: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(.*)", re.ASCII | re.DOTALL)


def read_words(syntax: Syntax, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a command by keyword, without those that are not given.

    Raise CommandRefused for an unknown, repeated or missing word, and for a value that its reader refuses.
    """
    positionals: list[str] = []
    options: dict[str, str | None] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, value = _split_option(word)
        if name is None:
            positionals.append(word)
            continue
        if name in options:
            raise CommandRefused(f"Option '--{name}' of '{syntax.command}' is repeated.")
        options[name] = _option_value(syntax, word, name, value, remaining)
    limit = len(syntax.required) + len(syntax.optional)
    if len(positionals) > limit:
        allowed = f"{limit} argument{'' if limit == 1 else 's'}" if limit else "no arguments"
        raise CommandRefused(f"'{syntax.command}' takes {allowed}, not {len(positionals)}.")
    places = _places(syntax, options, len(positionals))
    texts = {argument.name: text for argument, text in zip(places, positionals, strict=False)}
    _check_missing(syntax, texts, options)
    for name, option in syntax.instead.items():
        values = texts.get(name), options.get(option)
        if None not in values and len({*values}) > 1:
            raise CommandRefused(f"'{syntax.command}' has two values of <{name}>: '{values[0]}' and '{values[1]}'.")
    arguments = {
        keyword(argument.name): _read(argument.read, argument.placeholder, texts[argument.name])
        for argument in places[: len(texts)]
    }
    for name, value in options.items():
        is_flag = value is None
        arguments[keyword(name)] = True if is_flag else _read(syntax.options[name].read, f"--{name}", value or "")
    return arguments


def suggest_word(word: str, words: Iterable[str]) -> str:
    """Return a sentence that suggests a similar known word, and a blank; empty if no word is similar."""
    similar = find_similar(word, words)
    return f"Did you mean '{similar}'? " if similar else ""


def _split_option(word: str) -> tuple[str | None, str | None]:
    """Return the name and value of an option; the name is None for a positional argument."""
    if word.startswith("-") and len(word) > 1:
        name, equals, value = word.lstrip("-").partition("=")
        return name.replace("_", "-"), value if equals else None
    match = _KEY_AND_VALUE.fullmatch(word)
    return (match[1].replace("_", "-"), match[2]) if match else (None, None)


def _option_value(syntax: Syntax, word: str, name: str, value: str | None, remaining: list[str]) -> str | None:
    """Return the value of an option, taken from the following words if necessary; None for a flag."""
    option = f"'--{name}' of '{syntax.command}'"
    if word.startswith("-") and not word.startswith("--"):
        raise CommandRefused(_describe_unknown(syntax, word.partition("=")[0]))
    if any(name == flag.name for flag in syntax.flags):
        if value is not None:
            raise CommandRefused(f"Option {option} takes no value.")
        return None
    if name not in syntax.options:
        raise CommandRefused(_describe_unknown(syntax, f"--{name}"))
    if value is None:
        if not remaining or remaining[0].startswith("--"):
            raise CommandRefused(f"Option {option} needs a value: --{name}={syntax.options[name].placeholder}.")
        value = remaining.pop(0)
    return value


def _describe_unknown(syntax: Syntax, option: str) -> str:
    options = sorted(syntax.option_words)
    allowed = f"Options: {', '.join(options)}." if options else "The command has no options."
    return f"Unknown option '{option}' of '{syntax.command}'. {suggest_word(option, options)}{allowed}"


def _places(syntax: Syntax, options: Mapping[str, str | None], count: int) -> list[Argument]:
    """Return the positional arguments to which ``count`` words belong, in order.

    These are all arguments if there are enough words, otherwise those that are not given as options.
    """
    places = (*syntax.required, *syntax.optional)
    as_options = {name for name, option in syntax.instead.items() if option in options and count < len(places)}
    return [argument for argument in places if argument.name not in as_options]


def _check_missing(syntax: Syntax, texts: Mapping[str, str], options: Mapping[str, str | None]) -> None:
    is_complete = all(
        argument.name in texts or syntax.instead.get(argument.name, "") in options for argument in syntax.required
    )
    missing_options = [name for name in syntax.needed if name not in options]
    if is_complete and not missing_options:
        return
    # Name all positional arguments, because it is unknown which one is missing.
    places = [] if is_complete else [argument.placeholder for argument in syntax.required]
    missing = [f"--{name}={syntax.options[name].placeholder}" for name in missing_options]
    raise CommandRefused(f"'{syntax.command}' needs {' '.join((*places, *missing))}.")


def _read(read: Reader, name: str, text: str) -> Any:
    try:
        return read(text)
    except BadText as error:
        raise CommandRefused(f"{name} must be {error}.") from None
