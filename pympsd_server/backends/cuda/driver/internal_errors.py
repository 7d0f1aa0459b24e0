"""What goes wrong in a thread that all clients depend on: said on standard error, and the thread goes on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from pympsd_server.backends.interface import BackendError


def tell_defect(where: str, error: Exception) -> None:
    """Say that something failed that never should."""
    text = "".join(traceback.format_exception(error)).rstrip()
    with suppress(OSError, ValueError):  # nobody may be there to read it
        print(f"pympsd executor: {where} met a defect and goes on: {text}", file=sys.stderr, flush=True)


def call_apart(where: str, act: Callable[[], None]) -> None:
    """Call what is one client's: what it meets is not the others'. A refusal is nobody's; a defect is told."""
    try:
        act()
    except BackendError:
        pass
    except Exception as error:
        tell_defect(where, error)
