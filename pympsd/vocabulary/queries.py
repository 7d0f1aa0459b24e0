"""Which command lines only ask, by their words alone. Imports nothing, as the command line uses it.

A tool that does not trust the daemon sends it these only; the table of all commands calls this function.
"""

VERBS = frozenset({"list", "get", "describe", "show", "status", "test"})
"""The verbs of protocol 3 that change nothing; their standard output is data only."""
_HELP = frozenset({"help", "--help"})
_NAMES = frozenset({"ps", "device_query", "lspart"})
"""The queries of protocol 2 whose names do not begin with get_."""


def is_query(line: str) -> bool:
    """Return whether a command line changes nothing at a daemon of either protocol, and names no file."""
    words = line.split()
    if not words or words[0] in _HELP:
        return True
    second = words[1] if len(words) > 1 else ""
    return words[0].startswith("get_") or words[0] in _NAMES or second in VERBS | _HELP
