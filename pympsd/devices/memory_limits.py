"""Read pinned device memory limits, ``0=1G,GPU-...=512MB``: the daemon's and each client's own.

MPS documents, 4.2.7. A device is named by index, UUID or unique prefix of one, as in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from pympsd.devices.visible import find_device, listed
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import MOST_MEMORY, BadLimit, PinnedMemory
from pympsd.vocabulary.variables import MEMORY_LIMIT_FORM, MEMORY_LIMITS

SHOWN: Final = 100
"""The number of characters of an invalid entry that are kept."""
OF_CONTAINER: Final = "NVIDIA_GPU_MEMORY_LIMIT"
"""MiB of each device that a container may hold: a scheduler sets it, for a hook of NVIDIA's container toolkit
(apply-cuda-memory-limits), which takes a decimal number of 64 bits and nothing else."""
MOST_OF_CONTAINER: Final = 2**64 - 1
_WHOLE: Final = re.compile("0*([0-9]{0,20})")


@frozen
class BadEntry:
    """An invalid entry, and why it is invalid."""

    entry: str
    """Cut if it is very long."""
    reason: str
    variable: str = MEMORY_LIMITS[0]


def variable_of(environment: Mapping[str, str]) -> str:
    """Return the variable of MEMORY_LIMITS that counts in an environment: the first one that is not empty."""
    return next((name for name in MEMORY_LIMITS if environment.get(name)), MEMORY_LIMITS[0])


def text_of(environment: Mapping[str, str]) -> str:
    """Return the limits of an environment, empty if it has none."""
    return environment.get(variable_of(environment), "")


def of_container(environment: Mapping[str, str]) -> tuple[int, list[BadEntry]]:
    """Return the bytes that OF_CONTAINER leaves each device of a client's, 0 for no limit, and an invalid text."""
    text = environment.get(OF_CONTAINER, "")
    found = _WHOLE.fullmatch(text)
    mebibytes = int(found[1] or "0") if found else MOST_OF_CONTAINER + 1
    if mebibytes <= MOST_OF_CONTAINER:
        return min(mebibytes << 20, MOST_MEMORY), []
    shown = text[:SHOWN]
    reason = f"it is a whole number of MiB, such as 2048, or 0 for no limit; not {shown!r}"
    return 0, [BadEntry(shown, reason, OF_CONTAINER)]


def read(devices: Sequence[DeviceFacts], text: str, owner: str) -> tuple[dict[int, PinnedMemory], list[BadEntry]]:
    """Return the limits by index of ``devices``, and the invalid entries; the last one for a device wins.

    Each valid entry counts, whatever the others are. ``owner`` names the owner of the devices in messages.
    """
    limits: dict[int, PinnedMemory] = {}
    bad: list[BadEntry] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        word, equals, value = (part.strip() for part in entry.partition("="))
        if not (word and equals) and any(character.isdigit() for character in entry):  # a limit, or a device
            bad.append(BadEntry(entry[:SHOWN], f"the form is {MEMORY_LIMIT_FORM}"))
            continue
        index = find_device(devices, word)
        if index is None:
            bad.append(BadEntry(entry[:SHOWN], no_such_device(devices, word[:SHOWN], owner)))
            continue
        try:
            limit = PinnedMemory.parse(value[:SHOWN])
        except BadLimit as error:
            bad.append(BadEntry(entry[:SHOWN], str(error)))
            continue
        limits.pop(index, None)
        if limit is not None:
            limits[index] = limit
    return limits, bad


def no_such_device(devices: Sequence[DeviceFacts], word: str, owner: str) -> str:
    """Return the message that a word names no device, with the devices that there are."""
    return f"{word} is no device of {owner}, or the beginning of several UUIDs; its devices are {listed(devices)}"
