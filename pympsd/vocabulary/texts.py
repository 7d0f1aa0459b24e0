"""Limits as operators and configuration files write them in protocol 3, and as they are shown.

A reader raises BadText, which contains what is allowed. The caller completes the sentence, because only it knows
where the text is from.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

from pympsd.errors import InputError
from pympsd.vocabulary.identities import name_problem
from pympsd.vocabulary.limits import MAX_MEMORY, ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.partitions import NO_PARTITION

V = TypeVar("V")

LIFTED: Final = ("unlimited", "default")
"""The words that lift a limit."""
NO_LIMIT: Final = "unlimited"
CONTAINMENTS: Final = ("server", "partition")
"""The words for containment of faults in SM partitions."""
MAX_COUNT: Final = 99999
_UNITS: Final = {"K": 10, "M": 20, "G": 30}
_MEMORY: Final = re.compile(r"([0-9]+)([KMG])B?", re.ASCII | re.IGNORECASE)
_MAX_DIGITS: Final = 20
"""The maximum number of digits that are read: a number with more digits is above the limit in every unit."""
_PERCENTAGE: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?", re.ASCII)


class BadText(InputError, ValueError):
    """A text is not a valid value; ``allowed`` continues a sentence "... is": ``true or false,``."""

    def __init__(self, allowed: str, text: str) -> None:
        super().__init__(f"{allowed} not {text!r}")
        self.allowed = allowed


def read_percentage(text: str) -> ThreadPercentage:
    """Read a percentage from 1 to 100.

    >>> read_percentage("25").value, read_percentage("33.3").value
    (25.0, 33.3)

    A text that lifts a limit (LIFTED) gives the default, 100. Raises BadText for anything else.
    """
    if text in LIFTED:
        return ThreadPercentage()
    value = float(text) if _PERCENTAGE.fullmatch(text) else 0.0
    if not 1.0 <= value <= 100.0:
        raise BadText("1 to 100,", text)
    return ThreadPercentage(value)


def read_memory(text: str) -> PinnedMemory | None:
    """Read a limit of device memory, such as ``4G``, ``512M`` or ``1024K``; None means no limit.

    >>> read_memory("4G").value == 4 << 30
    True

    Units are K, M and G, of 1024, in either case. Raises BadText for 0, for another form, and above MAX_MEMORY.
    """
    if text in LIFTED:
        return None
    match = _MEMORY.fullmatch(text)
    # Python reads no numbers of thousands of digits.
    size = int(match[1].lstrip("0")[:_MAX_DIGITS] or "0") << _UNITS[match[2].upper()] if match else 0
    if size > MAX_MEMORY:
        raise BadText(f"at most {MAX_MEMORY >> 30}G,", text)
    if not size:
        raise BadText("a whole number above 0 and K, M or G, or 'unlimited';", text)
    return PinnedMemory(size)


def read_by_device(read: Callable[[str], V], what: str, example: str) -> Callable[[str], dict[str, V]]:
    """Return a reader of one value for all devices (key ``""``), or of ``0=4G,GPU-...=8G``, one for each device.

    ``read`` reads one value. The error for a bad text uses ``what``, the name of such a value, and ``example``, a
    text with several.
    """

    def read_each(text: str) -> dict[str, V]:
        if "=" not in text and ":" not in text:
            return {"": read(text)}
        values: dict[str, V] = {}
        for entry in text.split(","):
            device, _, value = entry.partition("=")
            if not device or device in values or "=" not in entry:
                raise BadText(f"one {what} for all devices, or one a device as in {example};", text)
            values[device] = read(value)
        return values

    return read_each


def read_partition(text: str) -> str:
    """Read the name of an SM partition; ``none`` is an empty one.

    Raises BadText unless it has 1 to 64 lowercase letters, digits and underscores.
    """
    if name_problem(text):
        raise BadText("none or the name of an SM partition: lowercase letters, digits and underscores,", text)
    return "" if text == NO_PARTITION else text


def read_priority(text: str) -> ClientPriority:
    """Read a client priority.

    0 is normal and 1 below normal; ``default`` is 0. Raises BadText for anything else.
    """
    if text == "default":
        return ClientPriority()
    if text not in ("0", "1"):
        raise BadText("0 (normal) or 1 (below normal),", text)
    return ClientPriority(int(text))


def read_boolean(text: str) -> bool:
    """Read ``true`` or ``false``.

    Raises BadText for anything else; the case of letters counts.
    """
    if text not in ("true", "false"):
        raise BadText("true or false,", text)
    return text == "true"


def read_containment(text: str) -> bool:
    """Read how far a fault of an SM partition's client extends: ``partition`` (true) or ``server``."""
    if text not in CONTAINMENTS:
        raise BadText("partition or server,", text)
    return text == CONTAINMENTS[True]


def read_count(text: str) -> int:
    """Read a number from 1 to MAX_COUNT.

    Raises BadText for anything else, also for more digits than MAX_COUNT has, before they are converted.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_COUNT)) and int(text)):
        raise BadText(f"a number from 1 to {MAX_COUNT},", text)
    return int(text)


def percentage_text(percentage: ThreadPercentage) -> str:
    """Return a percentage with two decimals.

    >>> percentage_text(ThreadPercentage(33.3))
    '33.30'
    """
    return f"{percentage.value:.2f}"


def memory_text(limit: PinnedMemory | None) -> str:
    """Return a limit in the largest unit that divides it.

    >>> memory_text(PinnedMemory(3 << 30)), memory_text(PinnedMemory(1536 << 20)), memory_text(None)
    ('3G', '1536M', 'unlimited')
    """
    if limit is None:
        return NO_LIMIT
    for unit, bits in reversed(_UNITS.items()):
        whole, remainder = divmod(limit.value, 1 << bits)
        if not remainder:
            return f"{whole}{unit}"
    return str(limit.value)


def format_memory_in_use(count: int | None) -> str:
    """Return a number of bytes in use as lists show it, in MiB: ``512.0M``; ``-`` if it is unknown.

    >>> format_memory_in_use(512 << 20), format_memory_in_use(None)
    ('512.0M', '-')
    """
    return "-" if count is None else f"{count / (1 << 20):.1f}M"


def limit_of_memory_text(count: int | None) -> str:
    """Return a limit of memory in bytes as operators write it: ``4G``; ``unlimited`` if there is none."""
    return memory_text(None if count is None else PinnedMemory(count))


def moment(seconds: float) -> str | None:
    """Return a time as JSON has it: ISO 8601, in UTC.

    Args:
        seconds: Seconds since 1970; 0 gives None.
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None
