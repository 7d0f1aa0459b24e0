"""Prints the visible devices as JSON: ``{"devices": [...]}``, or ``{"error": "..."}`` with exit status 1."""

from __future__ import annotations

import os
import sys

if not __package__:  # run by path, isolated: the packages are two folders up
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import msgspec

from pympsd.devices.discovery import visible_devices
from pympsd.vocabulary.settings import Settings


def main() -> int:
    """Print the devices that this environment describes."""
    try:
        answer: dict[str, object] = {"devices": visible_devices(Settings.from_environment(os.environ))}
    except ValueError as error:
        answer = {"error": str(error)}
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
