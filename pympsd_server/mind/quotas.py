"""What a context may use: SMs out of percentages, the client's priority out of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary.limits import BadLimit, ClientPriority, ThreadPercentage

STEP: Final = 2
LEAST: Final = 8
"""Percentages give SMs in steps of 2 and at least 8 (recorded on an H200: mps-behaviour, Limits)."""


def multiprocessors(percentage: ThreadPercentage, available: int) -> int:
    """Return the SMs a percentage gives on a device that has ``available``: rounded down to the step."""
    share = int(percentage.value * available / 100)
    return min(available, max(LEAST, share - share % STEP)) if percentage.value < 100 else available


def client_percentage(server: ThreadPercentage, environment: Mapping[str, str]) -> ThreadPercentage:
    """Return a client's percentage: its environment only lowers; what is no percentage there means no limit."""
    try:
        return min(server, ThreadPercentage.parse(environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")))
    except BadLimit:
        return server


def client_priority(default: int, environment: Mapping[str, str]) -> int:
    """Return a client's priority level: its own setting wins over the default."""
    try:
        return ClientPriority.parse(environment.get("CUDA_MPS_CLIENT_PRIORITY", "")).level
    except BadLimit:
        return default
