"""Read commands at a terminal, with line editing, history, completion of names, and help."""

import os
import readline
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from pympsd.commands.grammar.registry import COMMANDS, find_command, first_words, verbs_of
from pympsd.commands.manual import help_of, list_commands
from pympsd.vocabulary.mistyped import find_similar

PROMPT = "> "
HISTORY_LINES = 1000
HELP = ("help", "?")
LEAVE = ("exit", "bye", "logout")
"""The words that people type to leave; they are not commands of the daemon."""
KNOWN = (*{command.module: None for command in COMMANDS.values()}, *HELP)
LIST_SECONDS = 2.0
"""The longest wait for the list of servers when TAB is pressed, in seconds."""


def read_lines(in_v3: bool = False) -> Iterator[bytes]:
    """Yield the lines for the daemon until the end of input (Ctrl-D).

    Help is answered here, or in protocol 3 by the daemon.
    """
    readline.set_completer(partial(_complete, 3 if in_v3 else 2))
    readline.set_completer_delims(" \t")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(HISTORY_LINES)
    while (line := _ask()) is not None:
        words = line.split()
        if words and words[0] in HELP and in_v3:
            yield " ".join((*words[1:], "help")).encode("utf-8", "surrogateescape")
        elif words and words[0] in HELP:
            print(help_of(words[1:]) or list_commands(2), end="")
        elif words and words[0] in LEAVE:
            print("Ctrl-D leaves this prompt; quit ends the daemon and its servers")
        elif words:
            yield line.encode("utf-8", "surrogateescape")
            if words[0] not in KNOWN and (similar := find_similar(words[0], KNOWN)):
                print(f"Did you mean {similar}?")


def _ask() -> str | None:
    try:
        return input(PROMPT)
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        # Drop the line and continue, as a shell does.
        print()
        return ""


_candidates: list[str] = []
"""The candidates of the completion, which readline requests one by one."""


def _complete(protocol: int, text: str, state: int) -> str | None:
    before = readline.get_line_buffer()[: readline.get_begidx()].split()
    if state == 0:
        _candidates[:] = sorted(word for word in _words_after(before, protocol) if word.startswith(text))
    return _candidates[state] if state < len(_candidates) else None


def _words_after(before: list[str], protocol: int) -> Iterator[str]:
    """Yield the words that may follow ``before``, each with a blank: commands, verbs, servers, options."""
    if before and before[0] in HELP:
        before = before[1:]
    command = find_command(before)
    if not before:
        yield from (f"{word} " for word in (*first_words(protocol), *HELP))
    elif command is None:
        yield from (f"{verb} " for verb in (*verbs_of(before[0], protocol), "help"))
    elif command.names_server and len(before) == 1:
        yield from (f"{pid} " for pid in _servers())
    else:
        options = command.syntax.options.items()
        yield from (f"{option.spelling} " if option.spelling else f"--{name}=" for name, option in options)
        yield from (f"{flag.spelling} " for flag in command.syntax.flags)


def _servers() -> list[str]:
    """Return the PIDs of the servers; empty if the daemon does not respond."""
    program = os.path.join(os.path.dirname(os.path.dirname(__file__)), "__main__.py")
    command = [sys.executable, "-I", "-S", program, "get_server_list"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIST_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()
