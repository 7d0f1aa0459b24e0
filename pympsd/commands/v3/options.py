"""Define the options that several commands of protocol 3 take."""

from typing import Final

from pympsd.commands.grammar.syntax import Option
from pympsd.commands.v3.output import Format
from pympsd.vocabulary.identities import NO_USER
from pympsd.vocabulary.limit_table import LIMITS as TABLE
from pympsd.vocabulary.limit_table import WITH_MAXIMUM
from pympsd.vocabulary.texts import BadText

MAX_SECONDS: Final = 86400


def read_uid(text: str) -> int:
    """Return a uid; raise BadText."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < NO_USER):
        raise BadText("a user's number,", text)
    return int(text)


def read_seconds(text: str) -> float:
    """Return a number of seconds above 0 and up to MAX_SECONDS; raise BadText."""
    seconds = _parse_seconds(text)
    if not seconds:
        raise BadText(f"a number of seconds above 0, up to {MAX_SECONDS},", text)
    return seconds


def read_seconds_or_zero(text: str) -> float:
    """Return a number of seconds from 0 to MAX_SECONDS; raise BadText."""
    seconds = _parse_seconds(text)
    if seconds is None:
        raise BadText(f"a number of seconds from 0 to {MAX_SECONDS},", text)
    return seconds


def _parse_seconds(text: str) -> float | None:
    digits = text.replace(".", "", 1)
    seconds = float(text) if digits.isascii() and digits.isdecimal() and len(text) < 16 else -1.0
    return seconds if 0.0 <= seconds <= MAX_SECONDS else None


FORMAT: Final = Option(Format.parse, "table|csv|json[,noheader]")
SERVER: Final = Option(str, "<s>")
UID: Final = Option(read_uid, "<n>")
SECONDS: Final = Option(read_seconds, "<seconds>")
LIMITS: Final = {row.name: Option(row.read, row.form) for row in sorted(TABLE, key=lambda row: row.name)}
"""An option for each row of the table of limits, by name."""
LIMITS_SHOWN: Final = ", ".join(f"--{name}" for name in LIMITS)
MAXIMA: Final = {f"max-{row.name}": LIMITS[row.name] for row in WITH_MAXIMUM}
"""An option for each limit that may have a maximum in a server."""
