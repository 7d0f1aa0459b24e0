"""Which limits apply: those of a server's later clients, and the device that an operator's word names."""

from __future__ import annotations

from collections.abc import Sequence

from pympsd.devices import memory_limits
from pympsd.devices.visible import find_device
from pympsd.state_machine.daemon_state import Server
from pympsd.state_machine.instructions import UpdateServerLimits
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import PinnedMemory


class UnknownDevice(ValueError):
    """A word names no device of this machine; ``well_formed``: it could name one of another machine."""

    def __init__(self, word: str, well_formed: bool, reason: str) -> None:
        super().__init__(reason)
        self.word = word
        self.well_formed = well_formed


def limits_update(server: Server) -> UpdateServerLimits:
    """Return the instruction that sends a server its current limits."""
    limits = {ordinal: limit.value for ordinal, limit in server.memory_limits.items()}
    return UpdateServerLimits(server.serial, server.thread_percentage.value, limits)


def default_limits(devices: Sequence[DeviceFacts], text: str) -> tuple[dict[int, PinnedMemory], list[str]]:
    """Read the daemon's own ``0=1G,GPU-...=512MB``; return the limits by ordinal, and a complaint per bad entry.

    Each valid entry counts, whatever the others are; the last one for a device wins.
    """
    limits, bad = memory_limits.read(devices, text, "this daemon")
    complaints = [f"{memory_limits.VARIABLES[0]}: {one.entry!r} is left out: {one.reason}" for one in bad]
    return limits, complaints


def device_named(devices: Sequence[DeviceFacts], word: str) -> int:
    """Return the ordinal of the device a word names: an ordinal, a UUID or a unique prefix; raise UnknownDevice."""
    ordinal = find_device(devices, word)
    if ordinal is not None:
        return ordinal
    reason = memory_limits.no_such_device(devices, word, "this daemon")
    raise UnknownDevice(word, word.isdecimal() or word.startswith("GPU-"), reason)
