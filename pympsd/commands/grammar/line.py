"""Parse a command line: split it into words and find its command, once, when the line arrives.

Before the daemon can carry out a line, it may need information that takes time to get: reports of servers that report
only on request, properties of the process that a line names, or which cgroups exist. The state machine never waits,
so the I/O layer must get the information first. It parses the line once and keeps the result:

    bytes --parse--> ParsedLine --+--> the dispatcher asks servers, reads the process or the cgroups
                                  +--> OperatorLine --> the state machine finds the command by its name and runs it

    b" client get  77 pid\r"  ->  ParsedLine(words=("client", "get", "77", "pid"), command="client get", ...)

Words are separated by blanks, tabs and line ends. A NUL ends the line. Bytes that are not UTF-8 become surrogates, so
that an answer repeats them unchanged. A command whose only argument is a path gets the rest of the line as one word.

What must never happen:

- that a truncated line is carried out: of a line that is too long only the first words are kept, for the answer, and
  the line is refused;
- that bytes are lost or changed between the operator's line and a message that quotes it;
- that words are read here and later with different results. Therefore only the PIDs of the servers to ask are read
  here; all arguments are read when the command runs.
"""

from typing import Final

from pympsd.commands.grammar import loose
from pympsd.commands.grammar.registry import Command, find_command
from pympsd.commands.grammar.syntax import JSON_OPTION, CommandRefused
from pympsd.vocabulary.parsed_line import ParsedLine

MAX_LINE_BYTES: Final = 64 * 1024
"""The maximum length of a line in bytes; a longer line is cut, and refused as an unknown command."""
_BLANKS: Final = " \t\r\n"
_TO_BLANKS: Final = str.maketrans("\t\r\n", "   ")
_USES_CGROUPS: Final = frozenset({"memacct", "config"})
"""The commands' modules whose answers depend on the existing cgroups."""
_MAX_PID_DIGITS: Final = 10
_CGROUP: Final = "cgroup"
"""A text that every line that names a cgroup contains."""


def parse(line: bytes, protocol: int) -> ParsedLine:
    """Return the words of a line, and what its command needs; ``protocol``: the daemon's protocol."""
    text = line[:MAX_LINE_BYTES].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    words = [word for word in text.translate(_TO_BLANKS).split(" ") if word]
    command = find_command(words)
    if command is not None and command.syntax.takes_rest and len(words) > 3:
        words = [*words[:2], _rest(text, words[:2])]
    is_query = command is not None and command.is_query
    # The JSON of a protocol 2 query contains more than its text.
    asks_servers = (
        command is not None
        and protocol in command.protocols
        and (command.asks_servers or (is_query and JSON_OPTION in words and not command.verb))
    )
    return ParsedLine(
        line.partition(b"\0")[0].decode("utf-8", "surrogateescape").strip(_BLANKS),
        tuple(words),
        command.name if command else "",
        protocol,
        asks_servers,
        _server_pid(command, words) if command and asks_servers and not command.is_strict else None,
        _process(words) if command and command.asks_process else None,
        bool(words) and words[0] in _USES_CGROUPS,
        is_query,
        len(line) <= MAX_LINE_BYTES,
        command is not None and command.asks_origins and _CGROUP in text,
    )


def _rest(text: str, names: list[str]) -> str:
    """Return the rest of a text after the given words."""
    text = text.strip(_BLANKS)
    for name in names:
        text = text.removeprefix(name).lstrip(_BLANKS)
    return text


def _server_pid(command: Command, words: list[str]) -> int | None:
    """Return the server's PID that a command of protocol 2 names; 0, which is not a server's, if the command will be
    refused.
    """
    plain = [word for word in words[1:] if word != JSON_OPTION]
    try:
        arguments = loose.read_words(command.syntax, plain, flags_anywhere=command.is_query).arguments
    except CommandRefused:
        return 0
    pid: int | None = arguments.get("pid")
    return pid


def _process(words: list[str]) -> int | None:
    """Return the first number after module and verb that may be a PID."""
    numbers = (word for word in words[2:] if word.isascii() and word.isdecimal() and len(word) <= _MAX_PID_DIGITS)
    return next((int(word) for word in numbers), None)
