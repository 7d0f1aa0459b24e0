"""Contexts, primary and other (CUDA driver API, Primary Context Management and Context Management).

A context is a program's state on one device. Each thread has a stack of contexts, whose top is the current one; a
context may be current to several threads. The primary context of a device counts its users and is closed when the
last one releases it; other contexts are destroyed by their handle. With execution affinity, which needs MPS, a
context has fewer SMs than its device.

Functions raise NOT_INITIALIZED before cuInit, INVALID_DEVICE for a device that is not visible, and INVALID_CONTEXT
for a handle that is not a context's. In a context that has had a fault they raise its error.
"""

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, check_no_flags, invalid_context, invalid_value, not_supported
from pympsd_client._arguments.resources import SM_COUNT
from pympsd_client._arguments.values import number, read_unsigned
from pympsd_client._objects.context import Context, context_of, contexts, current, require_context, this_thread
from pympsd_client._objects.process import process

_SCHEDULING: Final = (0, 1, 2, 4)
_SCHEDULING_MASK: Final = 0x07
_FLAGS_MASK: Final = 0xFF
_MAP_HOST: Final = 8
_API_VERSION: Final = 3020
"""The API version that drivers since CUDA 3.2 return for every context."""


def retain_primary(device: int) -> int:
    """Return the device's primary context and count one more user; do not make it current."""
    return process.primary(device).retain(process.require()).handle


def release_primary(device: int) -> None:
    """Release a primary context; the last release frees the context's resources.

    Raise INVALID_CONTEXT if the context is not retained.
    """
    process.primary(device).release(process.require())


def reset_primary(device: int) -> None:
    """Free the primary context's resources; to continue, its users have to retain it again."""
    process.primary(device).reset(process.require())


def primary_state(device: int) -> tuple[int, int]:
    """Return the flags, and 1 if the context is active, else 0."""
    primary = process.primary(device)
    return primary.flags, int(primary.context is not None and primary.context.active)


def set_primary_flags(device: int, flags: int) -> None:
    """Set the flags of the primary context; they do not affect the executor. Raise INVALID_VALUE for MAP_HOST."""
    primary = process.primary(device)
    if flags & _MAP_HOST:
        raise invalid_value("CU_CTX_MAP_HOST is not a flag of primary contexts: all of them map host memory")
    primary.flags = _check_flags(flags)
    if primary.context is not None:
        primary.context.flags = primary.flags


def create_variant(ctxCreateParams: Any = None, flags: Any = 0, dev: Any = ...) -> int:
    """Make a context and make it current; called as in CUDA 13 ``(params, flags, dev)`` or 12 ``(flags, dev)``.

    With execution affinity in the parameters the context has that number of SMs, rounded up; cuCtxGetExecAffinity
    returns the number. Raise UNSUPPORTED_EXEC_AFFINITY for 0 SMs, for more than the process may use, and without MPS;
    MPS_MAX_CLIENTS_REACHED and the server's other refusals.
    """
    if dev is ...:
        ctxCreateParams, flags, dev = None, ctxCreateParams, flags
    return create(ctxCreateParams, read_unsigned(flags, 32), number(dev))


def create_with_affinity(parameters: Any, count: int, flags: int, device: int) -> int:
    """Make a context as CUDA 12 does, with a list of ``numParams`` CUexecAffinityParam; see cuCtxCreate."""
    return _create(_affinity(parameters, count), flags, device)


def create(parameters: Any, flags: int, device: int) -> int:
    """Make a context with the parameters of a CUctxCreateParams, or without any (None); see cuCtxCreate."""
    if parameters is None:
        return _create(None, flags, device)
    if parameters.cigParams:
        raise not_supported("contexts in graphics mode (cigParams) are not supported")
    affinity = _affinity(parameters.execAffinityParams, number(parameters.numExecAffinityParams))
    return _create(affinity, flags, device)


def _create(affinity: int | None, flags: int, device: int) -> int:
    visible, checked = process.device(device), _check_flags(flags)
    context = Context.open_new(process.require(), visible, checked, affinity)
    this_thread.stack.append(context)
    return context.handle


def _affinity(parameters: Any, count: int) -> int | None:
    """Return the number of SMs in the last of an array of execution affinities; None if the array is empty."""
    entries = list(parameters or ())
    if count != len(entries):
        raise invalid_value(f"there are {len(entries)} execution affinities, but their number is {count}")
    for entry in entries:
        _check_affinity_type(number(entry.type))
    return number(entries[-1].param.smCount.val) if entries else None


def _check_affinity_type(kind: int) -> None:
    if kind != SM_COUNT:
        raise invalid_value(f"the execution affinity type must be SM_COUNT ({SM_COUNT}), not {kind}")


def execution_affinity(kind: int) -> int:
    """Return the number of SMs that the current context may use, as a CUexecAffinityParam of type SM_COUNT.

    Raise UNSUPPORTED_EXEC_AFFINITY if contexts cannot be limited: without MPS, and on devices before Volta.
    """
    context = current()
    if kind != SM_COUNT or not (process.require().provisions and context.device.properties.is_volta_or_newer):
        reason = "execution affinity is of type SM_COUNT, and needs an MPS daemon and a Volta or newer device"
        raise CudaError(Result.ERROR_UNSUPPORTED_EXEC_AFFINITY, reason)
    return context.usable().multiprocessors


def destroy(handle: int) -> None:
    """Destroy a context and free its resources; pop it from the calling thread's stack if it is on top.

    The context stays current to other threads, whose calls return CONTEXT_IS_DESTROYED.
    """
    context = context_of(handle)
    if context.primary:
        raise invalid_context("a primary context is not destroyed; call cuDevicePrimaryCtxRelease")
    if context.partition is not None:
        raise invalid_context("the context is a green context's; call cuGreenCtxDestroy")
    contexts.pop(context.handle, None)
    stack = this_thread.stack
    if stack and stack[-1] is context:
        stack.pop()
    context.close(process.require())


def current_handle() -> int:
    """Return the calling thread's current context, or NULL if it has none."""
    return current().handle if this_thread.stack else 0


def set_current(handle: int) -> None:
    """Replace the context on top of the stack; NULL pops it."""
    context = context_of(handle) if handle else None
    if this_thread.stack:
        this_thread.stack.pop()
    if context is not None:
        this_thread.stack.append(context)


def push_current(handle: int) -> None:
    """Push a context onto the calling thread's stack."""
    this_thread.stack.append(context_of(handle))


def pop_current() -> int:
    """Pop the current context and return it; raise INVALID_CONTEXT if none is current."""
    context = current()
    this_thread.stack.pop()
    return context.handle


def device_of(handle: int) -> int:
    """Return the device of a context (NULL: the current one)."""
    return (context_of(handle) if handle else current()).device.number


def synchronize(handle: int) -> None:
    """Wait for all work of a context (NULL: the current one); return the error if some of it has failed."""
    (context_of(handle) if handle else current()).synchronize()


def flags_of_current() -> int:
    """Return the flags of the current context."""
    return current().flags


def set_flags_of_current(flags: int) -> None:
    """Set the flags of the current context; they do not affect the executor."""
    context = require_context()
    context.flags = _check_flags(flags)


def attach(flags: int) -> int:
    """Return the current context; each call requires one more cuCtxDetach to destroy it."""
    check_no_flags("cuCtxAttach", flags)
    context = require_context()
    context.attached += 1
    return context.handle


def detach(handle: int) -> None:
    """Undo cuCtxAttach of the current context, or destroy it like cuCtxDestroy.

    Raise INVALID_CONTEXT for a context that is not current.
    """
    context = context_of(handle)
    if context is not current():
        raise invalid_context("cuCtxDetach takes only the calling thread's current context")
    if context.attached:
        context.attached -= 1
    else:
        destroy(handle)


def api_version(handle: int) -> int:
    """Return the API version of a context (NULL: the current one)."""
    require_context(handle)
    return _API_VERSION


def stream_priority_range() -> tuple[int, int]:
    """Return the current context's least and greatest stream priority; the greatest is the lowest number."""
    return current().usable().stream_priorities


def _check_flags(flags: int) -> int:
    if flags & ~_FLAGS_MASK or flags & _SCHEDULING_MASK not in _SCHEDULING:
        raise invalid_value(f"context flags must be CUctx_flags with at most one way of scheduling, not {flags:#x}")
    return flags
