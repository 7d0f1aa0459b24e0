"""Launches that need no interpreter: whether this process has them, and the plans they follow (native/src).

A launch that was sent is remembered once it is asked for again. Whatever may make that wrong calls `forget`: a
context that is closed, ruined or forked away, a stream destroyed, a module unloaded, a kernel's limits changed, a
command stream that has ended, the first host function (which changes what a launch has to look at).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value

if TYPE_CHECKING:
    from pympsd_client.native._launches import Launcher, Writer

CHOICE: Final = "PYMPSD_LAUNCHES"
"""Of a client. auto: native where it is there; native: or no client; python: never."""
_CHOICES: Final = ("auto", "native", "python")


def _chosen() -> Any:
    """Return the extension, None for Python's launches; raise CudaError for what cannot be had."""
    choice = os.environ.get(CHOICE) or "auto"
    if choice not in _CHOICES:
        raise invalid_value(f"{CHOICE} is {choice!r}: {', '.join(_CHOICES)} are allowed")
    if choice == "python":
        return None
    try:
        from pympsd_client.native import _launches
    except ImportError as error:
        if choice == "native":
            reason = "install pympsd where a C compiler and Python's headers are"
            reason = f"{CHOICE} is native and launches are Python's here ({error}): {reason}"
            raise CudaError(Result.ERROR_NOT_SUPPORTED, reason) from None
        return None
    return _launches


_trouble: CudaError | None = None
_library: Any = None
try:
    _library = _chosen()
except CudaError as error:  # no import fails of a setting: cuInit says it
    _trouble = error
_launcher: Launcher | None = None


def check_choice() -> None:
    """Raise INVALID_VALUE for a choice there is none of, NOT_SUPPORTED for one that cannot be had here."""
    if _trouble is not None:
        raise _trouble.again()


def is_native() -> bool:
    """Whether launches like an earlier one skip the interpreter, where the executor has a ring."""
    return _library is not None


def writer(keeper: object, address: int, *places: int) -> Writer | None:
    """Return what puts records into a ring at an address, None where Python has to (`_ring`)."""
    return None if _library is None else _library.Writer(keeper, address, *places)


def quickened(slow: Callable[..., tuple[Any, ...]], done: tuple[Any, ...], threads: object) -> Any:
    """Return a cuLaunchKernel that follows plans and calls ``slow`` where none fits; ``slow`` itself without C."""
    global _launcher
    if _library is None:
        return slow
    _launcher = _library.Launcher(slow, done, threads)
    return _launcher.cuLaunchKernel


def launcher() -> Launcher | None:
    """Return what keeps the plans, if anything does."""
    return _launcher


def can_follow(parameters: tuple[Any, ...], record: bytes) -> bool:
    """Whether a plan has room for a launch with these parameters."""
    room = _library is not None and len(record) <= _library.MOST_BYTES
    return (
        room and len(parameters) == 2 and type(parameters[1]) is tuple and len(parameters[1]) <= _library.MOST_VALUES
    )


def forget() -> None:
    """Have every launch checked in Python again."""
    if _launcher is not None:
        _launcher.forget()
