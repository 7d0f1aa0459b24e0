"""Memory that clients lack though they are within their soft limits: the owner ends others, and they try again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from pympsd.wire.executor_messages import MemoryShort, MemoryUsed, RoomMade
from pympsd_server.backends.budget import Shortage
from pympsd_server.backends.interface import Device

PAUSES: Final = (0.01, 0.02, 0.04)
"""Seconds between the tries: a GPU's memory is free only when no work can use it any more."""
LONGEST_SECONDS: Final = 15.0
"""The limit for the owner's answer: stopping the work of clients takes time."""
_Taken = TypeVar("_Taken")


class Shortages:
    """Used by the clients' workers, which wait here; the owner's thread brings the answers."""

    def __init__(self, device: Device, reports: bool, send: Callable[[object], None]) -> None:
        """``reports``: whether the owner takes MemoryUsed."""
        self._device, self._reports, self._send = device, reports, send
        self._numbers = count(1)
        self._waiting: dict[int, tuple[threading.Event, list[bool]]] = {}

    def report(self) -> None:
        """Send what clients hold at this moment, to an owner that asked for it."""
        if self._reports:
            self._send(MemoryUsed(dict(self._device.memory_used)))

    def with_room(self, client: int, take: Callable[[], _Taken]) -> _Taken:
        """Call ``take`` for a client; if it raises Shortage, have room made and call it again."""
        try:
            return take()
        except Shortage as shortage:
            if not self._ask(client, shortage):
                raise
        for pause in PAUSES:
            try:
                return take()
            except Shortage:
                time.sleep(pause)
        return take()

    def _ask(self, client: int, shortage: Shortage) -> bool:
        number = next(self._numbers)
        event, answers = self._waiting[number] = (threading.Event(), [])
        self.report()
        self._send(MemoryShort(number, client, shortage.short))
        event.wait(LONGEST_SECONDS)
        del self._waiting[number]
        return any(answers)

    def answered(self, answer: RoomMade) -> None:
        """Let a worker go on."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None:
            waiting[1].append(answer.ended)
            waiting[0].set()
