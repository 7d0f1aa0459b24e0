"""Internal errors in a thread that all clients depend on: reported on standard error, and the thread continues."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from pympsd_server.backends.interface import BackendError


def report_internal_error(where: str, error: Exception) -> None:
    """Report an exception that should never have been raised."""
    text = "".join(traceback.format_exception(error)).rstrip()
    with suppress(OSError, ValueError):  # it may be closed
        print(f"pympsd executor: internal error in {where}, continuing: {text}", file=sys.stderr, flush=True)


def call_isolated(where: str, act: Callable[[], None]) -> None:
    """Call what is one client's, so that its errors do not affect the others; all but a BackendError are reported."""
    try:
        act()
    except BackendError:
        pass
    except Exception as error:
        report_internal_error(where, error)
