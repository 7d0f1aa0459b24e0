"""Declare the syntax of a command once: its arguments, options and flags, from which its usage follows.

Usage, help, completions, suggestions and the manual's tables follow from this declaration. Two readers turn words
into the arguments of a handler: `loose` for the commands of protocol 2 and `strict` for ``module verb`` of protocol
3.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from attrs import field, frozen

from pympsd.errors import InputError
from pympsd.vocabulary.answers import Answer

JSON_OPTION: Final = "--json"
Reader = Callable[[str], Any]
"""Converts a text to a value; raises BadText or CommandRefused."""


class CommandRefused(InputError):
    """A command is refused; the message is the sentence for the user.

    ``hint`` is a second sentence, for standard error. ``answer``, if given, replaces both: driver 580's recorded one.
    """

    def __init__(self, sentence: str = "", hint: str = "", answer: Answer | None = None) -> None:
        super().__init__(sentence)
        self.hint = hint
        self.answer = answer


def keyword(name: str) -> str:
    """Return the keyword with which a handler gets an argument or option.

    >>> keyword("active-thread-percentage")
    'active_thread_percentage'
    """
    return name.replace("-", "_")


@frozen
class Argument:
    """A positional argument.

    ``name`` is the handler's keyword; ``read`` converts the word to the value.
    """

    name: str
    read: Reader = str
    _placeholder: str = ""

    @property
    def placeholder(self) -> str:
        """The argument as the usage shows it: ``<name>`` unless declared otherwise, such as ``PID``."""
        return self._placeholder or f"<{self.name}>"


@frozen
class Option:
    """An option with a value: ``--name=VALUE``, or in protocol 2 ``-x VALUE``.

    ``read`` converts the text to the handler's value, and raises BadText or CommandRefused for a text that is not
    allowed.
    """

    read: Reader
    placeholder: str
    """The word for the value in the usage."""
    spelling: str = ""
    """The option as users type it, if that is not ``--name``."""


@frozen
class Flag:
    """An option without a value; the handler gets True if it was given."""

    name: str
    _spelling: str = ""

    @property
    def spelling(self) -> str:
        """The flag as users type it: ``--name`` unless another spelling is declared."""
        return self._spelling or f"--{self.name}"


def _arguments(arguments: Iterable[str | Argument]) -> tuple[Argument, ...]:
    return tuple(argument if isinstance(argument, Argument) else Argument(argument) for argument in arguments)


def _flags(flags: Iterable[str | Flag]) -> tuple[Flag, ...]:
    return tuple(flag if isinstance(flag, Flag) else Flag(flag) for flag in flags)


@frozen
class Syntax:
    """The syntax of a command: positional arguments in order, options by name, flags.

    A name alone declares an argument whose value is the word itself, or a flag typed ``--name``:

    >>> Syntax("server delete", required=("name",), flags=("force",)).usage
    'server delete <name> [--force]'
    >>> Syntax("quit", options={"timeout": Option(int, "SECONDS", "-t")}).usage
    'quit [-t SECONDS]'
    """

    command: str
    """The name of the command: one word in protocol 2, module and verb in protocol 3."""
    required: tuple[Argument, ...] = field(default=(), converter=_arguments)
    optional: tuple[Argument, ...] = field(default=(), converter=_arguments)
    options: Mapping[str, Option] = field(factory=dict)
    flags: tuple[Flag, ...] = field(default=(), converter=_flags)
    needed: tuple[str, ...] = ()
    """The options that must be given."""
    instead: Mapping[str, str] = field(factory=dict)
    """The options that may replace positional arguments, by the argument's name.

    With ``{"server": "server"}``, ``namespace get`` takes the server as its second argument or by ``--server``.
    """
    takes_rest: bool = False
    """Whether the rest of the line is the only argument: a path, which may contain blanks."""

    @property
    def usage(self) -> str:
        """The command with its arguments and options, as the manual writes them."""
        return " ".join((self.command, *self._usages()))

    @property
    def option_words(self) -> tuple[str, ...]:
        """Every option and flag as users type it, without values, for completions."""
        return (*map(self.spelling, self.options), *(flag.spelling for flag in self.flags))

    def spelling(self, name: str) -> str:
        """Return an option as users type it, without its value: ``--name`` unless another spelling is declared."""
        return self.options[name].spelling or f"--{name}"

    def _usages(self) -> Iterator[str]:
        yield from (argument.placeholder for argument in self.required)
        yield from (f"[{argument.placeholder}]" for argument in self.optional)
        for name, option in self.options.items():
            text = f"{self.spelling(name)}{' ' if option.spelling else '='}{option.placeholder}"
            yield text if name in self.needed else f"[{text}]"
        yield from (f"[{flag.spelling}]" for flag in self.flags)
