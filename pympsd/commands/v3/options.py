"""The options that several commands of protocol 3 take."""

from __future__ import annotations

from typing import Final

from pympsd.commands.grammar.syntax import Option
from pympsd.commands.v3.output import Format
from pympsd.vocabulary.identities import NO_USER
from pympsd.vocabulary.namespaces import name_problem
from pympsd.vocabulary.partitions import NO_PARTITION
from pympsd.vocabulary.texts import BadText, read_memory_by_device, read_percentage, read_priority

MOST_SECONDS: Final = 86400


def read_uid(text: str) -> int:
    """Read the number of a user."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < NO_USER):
        raise BadText("a user's number,", text)
    return int(text)


def read_seconds(text: str) -> float:
    """Read a number of seconds."""
    digits = text.replace(".", "", 1)
    seconds = float(text) if digits.isascii() and digits.isdecimal() and len(text) < 16 else 0.0
    if not 0.0 < seconds <= MOST_SECONDS:
        raise BadText(f"a number of seconds above 0, up to {MOST_SECONDS},", text)
    return seconds


def read_partition(text: str) -> str:
    """Read the name of an SM partition; ``none`` is an empty one."""
    if name_problem(text):
        raise BadText("none or the name of an SM partition: lowercase letters, digits and underscores,", text)
    return "" if text == NO_PARTITION else text


FORMAT: Final = Option(Format.parse, "table|csv|json[,noheader]")
SERVER: Final = Option(str, "<s>")
UID: Final = Option(read_uid, "<n>")
SECONDS: Final = Option(read_seconds, "<seconds>")
LIMITS: Final = {
    "active-thread-percentage": Option(read_percentage, "<percentage>"),
    "client-priority": Option(read_priority, "0|1"),
    "pinned-memory-limit": Option(read_memory_by_device, "<limit>"),
    "total-memory-limit": Option(read_memory_by_device, "<limit>"),
    "sm-partition": Option(read_partition, "<name>|none"),
}
LIMITS_SHOWN: Final = ", ".join(f"--{name}" for name in LIMITS)
