"""Repeated launches without the interpreter: whether this process can make them, and their plans (native/src).

**The problem.** A launch through Python costs several microseconds, most of them for checks whose results do not
change from one launch to the next.

**The idea.** The second time a launch is made, Python adds a *plan* for it: the record exactly as it was sent, and
the offsets of the parameters' values in the record. A later cuLaunchKernel with the same kernel, stream, shape and
types of parameters is made in C: it copies the record into the ring with new values and a new sequence number. Any
call that no plan fits takes the slow path in Python (`pympsd_client._objects.code.launch`), so each rule has one
implementation.

    cuLaunchKernel -> plan found, still valid -> ring            (C only)
                   -> no plan -> launch() checks, sends, adds a plan -> ring

**Invariants**

- An event that may make *one* plan wrong must call `invalidate`, which drops *all* plans. The events are: a context
  is closed, meets a fault or belongs to the parent process; a stream is destroyed; a module is unloaded; an attribute
  of a kernel changes; a command stream ends; the first host function is launched (afterwards a launch has more to
  check); a capture begins.
- A plan is added together with the number of invalidations (``epoch``) that Python read *before* its checks. The
  extension refuses the plan if there was an invalidation since.
- The interpreter's lock protects the cache: no Python code runs between the check that a plan is valid and the last
  byte written into the ring.

**What must never happen:** a launch in C that the slow path would refuse. If in doubt, invalidate: it is cheap, and
rarely needed.

The extension is optional. Without it, or with ``PYMPSD_LAUNCHES=python``, every launch goes through Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pympsd.vocabulary.variables import LAUNCHES, BadSetting, read
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported

if TYPE_CHECKING:
    from pympsd.wire.module_layout import FunctionLayout
    from pympsd_client.native._launches import Launcher, Writer


def _choose() -> Any:
    """Return the extension, or None for launches in Python; raise CudaError if PYMPSD_LAUNCHES cannot be followed."""
    try:
        choice = read(os.environ, LAUNCHES)
    except BadSetting as error:
        raise invalid_value(str(error)) from None
    if choice == "python":
        return None
    try:
        from pympsd_client.native import _launches
    except ImportError as error:
        if choice == "native":
            reason = "install pympsd on a machine with a C compiler and Python's headers"
            reason = f"{LAUNCHES} is native and launches are Python's here ({error}): {reason}"
            raise not_supported(reason) from None
        return None
    return _launches


_error: CudaError | None = None
_library: Any = None
try:
    _library = _choose()
except CudaError as error:  # cuInit reports it, because an import must not fail for a wrong setting
    _error = error
_launcher: Launcher | None = None


def check_choice() -> None:
    """Raise INVALID_VALUE for an unknown PYMPSD_LAUNCHES, NOT_SUPPORTED for "native" without the extension."""
    if _error is not None:
        raise _error.copy()


def is_native() -> bool:
    """Return whether repeated launches skip the interpreter, provided that the executor has a ring."""
    return _library is not None


def writer(keeper: object, address: int, *places: int) -> Writer | None:
    """Return the extension's writer for the ring at an address; None without the extension."""
    return None if _library is None else _library.Writer(keeper, address, *places)


def add_cache(slow: Callable[..., tuple[Any, ...]], done: tuple[Any, ...], threads: object) -> Any:
    """Return a cuLaunchKernel that calls ``slow`` only if no plan fits; without the extension return ``slow``."""
    global _launcher
    if _library is None:
        return slow
    _launcher = _library.Launcher(slow, done, threads)
    return _launcher.cuLaunchKernel


def launcher() -> Launcher | None:
    """Return the cache of plans; None without the extension."""
    return _launcher


def fits_plan(parameters: tuple[Any, ...] | int, count: int, record: bytes) -> bool:
    """Return whether a launch with these ``count`` parameters fits into a plan."""
    if _library is None or len(record) > _library.MAX_BYTES or count > _library.MAX_VALUES:
        return False
    return isinstance(parameters, int) or (len(parameters) == 2 and type(parameters[1]) is tuple)


def by_pointers() -> tuple[Any, ...]:
    """Return what stands for the parameters' types in a plan's key if they come as an array of pointers."""
    return () if _library is None else _library.BY_POINTERS


def gather(address: int, layout: FunctionLayout) -> bytes | None:
    """Return the flat buffer of the parameters behind an array of pointers; None if Python has to read them."""
    return None if _library is None else _library.gather(address, layout.parameters, layout.parameter_bytes)


when_invalidated: Final[list[Callable[[], None]]] = []
"""Functions that are called at each invalidation."""


def invalidate() -> None:
    """Drop all plans, so that every launch is checked in Python again."""
    for call in when_invalidated:
        call()
    if _launcher is not None:
        _launcher.invalidate()
