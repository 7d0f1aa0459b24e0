"""Repeated launches without the interpreter: whether this process has them, and the cache they use (native/src).

The second time a launch is made, a plan for it is added: its record as it was sent, and where in it the parameters'
values lie. Whatever may make plans wrong calls `invalidate`: a context closed, poisoned or forked away, a stream
destroyed, a module unloaded, a kernel's limits changed, a command stream that has ended, the first host function
(after which a launch has more to check).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import LAUNCHES, BadSetting, read
from pympsd_client._arguments.errors import CudaError, invalid_value

if TYPE_CHECKING:
    from pympsd.wire.module_layout import FunctionLayout
    from pympsd_client.native._launches import Launcher, Writer


def _chosen() -> Any:
    """Return the extension, None for launches in Python; raise CudaError when the choice cannot be had."""
    try:
        choice = read(os.environ, LAUNCHES, "auto")
    except BadSetting as error:
        raise invalid_value(str(error)) from None
    if choice == "python":
        return None
    try:
        from pympsd_client.native import _launches
    except ImportError as error:
        if choice == "native":
            reason = "install pympsd where a C compiler and Python's headers are"
            reason = f"{LAUNCHES} is native and launches are Python's here ({error}): {reason}"
            raise CudaError(Result.ERROR_NOT_SUPPORTED, reason) from None
        return None
    return _launches


_error: CudaError | None = None
_library: Any = None
try:
    _library = _chosen()
except CudaError as error:  # cuInit reports it: a setting must not fail an import
    _error = error
_launcher: Launcher | None = None


def check_choice() -> None:
    """Raise INVALID_VALUE for an unknown choice, NOT_SUPPORTED for one that cannot be had here."""
    if _error is not None:
        raise _error.again()


def is_native() -> bool:
    """Return whether repeated launches skip the interpreter, provided that the executor has a ring."""
    return _library is not None


def writer(keeper: object, address: int, *places: int) -> Writer | None:
    """Return the extension's writer to a ring at an address; None without the extension."""
    return None if _library is None else _library.Writer(keeper, address, *places)


def with_cache(slow: Callable[..., tuple[Any, ...]], done: tuple[Any, ...], threads: object) -> Any:
    """Return a cuLaunchKernel that calls ``slow`` only when no plan fits; ``slow`` itself without the extension."""
    global _launcher
    if _library is None:
        return slow
    _launcher = _library.Launcher(slow, done, threads)
    return _launcher.cuLaunchKernel


def launcher() -> Launcher | None:
    """Return the cache of plans; None without the extension."""
    return _launcher


def fits_plan(parameters: tuple[Any, ...] | int, count: int, record: bytes) -> bool:
    """Return whether a plan has room for a launch with these parameters, ``count`` of them."""
    if _library is None or len(record) > _library.MAX_BYTES or count > _library.MAX_VALUES:
        return False
    return isinstance(parameters, int) or (len(parameters) == 2 and type(parameters[1]) is tuple)


def by_pointers() -> tuple[Any, ...]:
    """Return what stands for the types of parameters that come as the address of an array of pointers."""
    return () if _library is None else _library.BY_POINTERS


def gather(address: int, layout: FunctionLayout) -> bytes | None:
    """Return the flat buffer of a kernel's parameters at an array of pointers; None if Python is to look at them."""
    return None if _library is None else _library.gather(address, layout.parameters, layout.parameter_bytes)


when_invalidated: Final[list[Callable[[], None]]] = []
"""Called with each invalidation."""


def invalidate() -> None:
    """Drop all plans: every launch is checked in Python again."""
    for call in when_invalidated:
        call()
    if _launcher is not None:
        _launcher.invalidate()
