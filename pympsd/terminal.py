"""Commands typed at a terminal: line editing, history, completion of names, and help (at a terminal only)."""

from __future__ import annotations

import readline
from collections.abc import Iterator

from pympsd.commands.manual import command_help
from pympsd.commands.registry import REGISTRY

PROMPT = "> "
HISTORY_LINES = 1000
HELP = ("help", "?")


def typed_lines() -> Iterator[bytes]:
    """Yield each line for the daemon, and answer help here; stop at the end of input (Ctrl-D)."""
    readline.set_completer(_complete)
    readline.set_completer_delims(" \t")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(HISTORY_LINES)
    while (line := _ask()) is not None:
        words = line.split()
        if words and words[0] in HELP:
            print(command_help(words[1] if len(words) > 1 else ""), end="")
        elif words:
            yield line.encode("utf-8", "surrogateescape")


def _ask() -> str | None:
    try:
        return input(PROMPT)
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        # As in a shell: drop the line and continue.
        print()
        return ""


def _complete(text: str, state: int) -> str | None:
    before = readline.get_line_buffer()[: readline.get_begidx()].split()
    if before and before[0] not in HELP:
        return None
    names = sorted(name for name in (*REGISTRY, *HELP) if name.startswith(text))
    return f"{names[state]} " if state < len(names) else None
