"""Read limits by device from variables: memory, ``0=1G,GPU-...=512MB``, and percentages, ``0=50,1=25``.

A device is named by its index, its UUID or a unique prefix of the UUID, as in CUDA_VISIBLE_DEVICES. The MPS documents
(4.2.7) define this form for memory. Only pympsd has percentages by device: clients on unlike GPUs need unlike
portions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from attrs import evolve, frozen

from pympsd.devices.visible import find_device, list_devices
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import ALL_DEVICES, MAX_MEMORY, BadLimit, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.variables import MEMORY_LIMIT_FORM, MEMORY_LIMITS, PERCENTAGE, PERCENTAGE_FORM

SHOWN: Final = 100
"""The maximum number of characters of an invalid entry that are kept for messages."""
OF_CONTAINER: Final = "NVIDIA_GPU_MEMORY_LIMIT"
"""The name of the variable with the memory of each device, in MiB, that a container may hold.

A scheduler sets the variable for a hook of NVIDIA's container toolkit (apply-cuda-memory-limits), which accepts only
a decimal number of 64 bits.
"""
MAX_OF_CONTAINER: Final = 2**64 - 1
V = TypeVar("V")
_WHOLE: Final = re.compile("0*([0-9]{0,20})")


@frozen
class BadEntry:
    """An invalid entry of a variable, and the reason. ``variable`` is the name of that variable."""

    entry: str
    """The invalid entry, cut to SHOWN characters if it is longer."""
    reason: str
    variable: str = MEMORY_LIMITS[0]


def variable_of(environment: Mapping[str, str]) -> str:
    """Return the name of the variable that limits memory in an environment: the first non-empty one of MEMORY_LIMITS.

    If all are empty, return the first name of MEMORY_LIMITS, which messages then mention.
    """
    return next((name for name in MEMORY_LIMITS if environment.get(name)), MEMORY_LIMITS[0])


def text_of(environment: Mapping[str, str]) -> str:
    """Return the memory limits that an environment has, such as ``0=1G,1=512MB``; empty if it has none."""
    return environment.get(variable_of(environment), "")


def read_container_limit(environment: Mapping[str, str]) -> tuple[int, list[BadEntry]]:
    """Return the limit that NVIDIA_GPU_MEMORY_LIMIT sets for each device of a client.

    Returns:
        The bytes, 0 for no limit, and the entry as invalid if it is not a whole number of MiB below 2**64. An invalid
        entry sets no limit.

    >>> read_container_limit({"NVIDIA_GPU_MEMORY_LIMIT": "2048"})
    (2147483648, [])
    """
    text = environment.get(OF_CONTAINER, "")
    match = _WHOLE.fullmatch(text)
    mebibytes = int(match[1] or "0") if match else MAX_OF_CONTAINER + 1
    if mebibytes <= MAX_OF_CONTAINER:
        return min(mebibytes << 20, MAX_MEMORY), []
    excerpt = text[:SHOWN]
    reason = f"it must be a whole number of MiB, such as 2048, or 0 for no limit; not {excerpt!r}"
    return 0, [BadEntry(excerpt, reason, OF_CONTAINER)]


def read(
    devices: Sequence[DeviceProperties], text: str, owner: str
) -> tuple[dict[int, PinnedMemory], list[BadEntry]]:
    """Return the memory limits in bytes by index in ``devices``, and the invalid entries.

    The last valid entry for a device counts, whether or not other entries are invalid. ``owner`` names the owner of
    the devices in messages.
    """
    return _read_by_device(devices, text, owner, PinnedMemory.parse, MEMORY_LIMIT_FORM)


def read_percentages(
    environment: Mapping[str, str], devices: Sequence[DeviceProperties]
) -> tuple[dict[int, ThreadPercentage], list[BadEntry]]:
    """Return a client's percentages by index in ``devices``, or one percentage for all devices, and the invalid
    entries. A single number is the percentage for all devices. If it is invalid, it counts as not set, as in the
    driver; its error is reported elsewhere.
    """
    text = environment.get(PERCENTAGE, "")
    if "=" in text:
        percentages, bad = _read_by_device(devices, text, "this process", ThreadPercentage.parse, PERCENTAGE_FORM)
        return percentages, [evolve(problem, variable=PERCENTAGE) for problem in bad]
    try:
        return {ALL_DEVICES: ThreadPercentage.parse(text)}, []
    except BadLimit:
        return {}, []


def _read_by_device(
    devices: Sequence[DeviceProperties], text: str, owner: str, parse: Callable[[str], V | None], form: str
) -> tuple[dict[int, V], list[BadEntry]]:
    """Return the values that ``parse`` reads, by device ordinal, and the entries that are not of this form."""
    limits: dict[int, V] = {}
    bad: list[BadEntry] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        word, equals, value = (part.strip() for part in entry.partition("="))
        if not (word and equals) and any(character.isdigit() for character in entry):  # a limit, or a device
            bad.append(BadEntry(entry[:SHOWN], f"the form is {form}"))
            continue
        index = find_device(devices, word)
        if index is None:
            bad.append(BadEntry(entry[:SHOWN], describe_unknown_device(devices, word[:SHOWN], owner)))
            continue
        try:
            limit = parse(value[:SHOWN])
        except BadLimit as error:
            bad.append(BadEntry(entry[:SHOWN], str(error)))
            continue
        limits.pop(index, None)
        if limit is not None:
            limits[index] = limit
    return limits, bad


def describe_unknown_device(devices: Sequence[DeviceProperties], word: str, owner: str) -> str:
    """Return the message for a word that does not name a device; the message lists the existing devices.

    Args:
        devices: The devices of ``owner``.
        word: The word; it may also be a prefix that several UUIDs have.
        owner: Whose devices they are, as the message names it.
    """
    devices_text = list_devices(devices)
    return f"{word} is not a device of {owner}, or begins several UUIDs; its devices are {devices_text}"
