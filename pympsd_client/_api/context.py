"""Contexts, primary and other (CUDA driver API, Primary Context Management and Context Management)."""

from __future__ import annotations

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.entry_point import door
from pympsd_client._arguments.bindings import CUcontext, CUdevice, CUexecAffinityParam, CUexecAffinityType
from pympsd_client._arguments.errors import DONE, SUCCESS, CudaError, invalid_value
from pympsd_client._arguments.numbers import number, unsigned
from pympsd_client._connect.connection import Connection
from pympsd_client._objects.context import Context, context_of, handles
from pympsd_client._objects.process import current, here
from pympsd_client._objects.thread_local import mine

_SCHEDULING: Final = (0, 1, 2, 4)
_SCHEDULING_MASK: Final = 0x07
_FLAGS_MASK: Final = 0xFF
_API_VERSION: Final = 3020
"""What drivers since CUDA 3.2 answer for every context."""
_SM_COUNT: Final = int(CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)


class _Absent:
    """The mark of an argument that was not given."""


_ABSENT: Final = _Absent()


@door(1)
def cuDevicePrimaryCtxRetain(dev: Any) -> tuple[Any, ...]:
    """Return the device's primary context, one user more; it is not made current."""
    return SUCCESS, CUcontext(here.primary(dev).retain(here.require()).handle)


@door()
def cuDevicePrimaryCtxRelease(dev: Any) -> tuple[Any, ...]:
    """One user less; the last one's release frees what the context held. INVALID_CONTEXT when not retained."""
    here.primary(dev).release(here.require())
    return DONE


@door()
def cuDevicePrimaryCtxReset(dev: Any) -> tuple[Any, ...]:
    """Free what the primary context holds; its users retain it again to go on."""
    here.primary(dev).reset(here.require())
    return DONE


@door(2)
def cuDevicePrimaryCtxGetState(dev: Any) -> tuple[Any, ...]:
    """Return the flags, and 1 when the context is active, else 0."""
    primary = here.primary(dev)
    return SUCCESS, primary.flags, int(primary.context is not None and primary.context.active)


@door()
def cuDevicePrimaryCtxSetFlags(dev: Any, flags: Any) -> tuple[Any, ...]:
    """Set the flags of the primary context; they change nothing about how an executor works."""
    primary = here.primary(dev)
    primary.flags = _flags(flags)
    if primary.context is not None:
        primary.context.flags = primary.flags
    return DONE


@door(1)
def cuCtxCreate(ctxCreateParams: Any = None, flags: Any = 0, dev: Any = _ABSENT) -> tuple[Any, ...]:
    """Make a context and make it current; called as in CUDA 13 ``(params, flags, dev)`` or 12 ``(flags, dev)``.

    With execution affinity in the params it has so many SMs, rounded up: cuCtxGetExecAffinity tells how many.
    UNSUPPORTED_EXEC_AFFINITY for 0 SMs, for more than the process may use, and without MPS;
    MPS_MAX_CLIENTS_REACHED and what else the server refuses with.
    """
    if dev is _ABSENT:
        ctxCreateParams, flags, dev = None, ctxCreateParams, flags
    return _create(here.require(), _affinity_of(ctxCreateParams), flags, dev)


@door(1)
def cuCtxCreate_v3(paramsArray: Any, numParams: Any, flags: Any, dev: Any) -> tuple[Any, ...]:
    """Make a context as CUDA 12 does, with a list of ``numParams`` CUexecAffinityParam; see cuCtxCreate."""
    return _create(here.require(), _affinity(paramsArray, number(numParams)), flags, dev)


@door(1)
def cuCtxCreate_v4(ctxCreateParams: Any, flags: Any, dev: Any) -> tuple[Any, ...]:
    """Make a context as CUDA 12 does; see cuCtxCreate."""
    return _create(here.require(), _affinity_of(ctxCreateParams), flags, dev)


def _create(connection: Connection, affinity: int | None, flags: Any, dev: Any) -> tuple[Any, ...]:
    context = Context(here.device(dev), _flags(flags), primary=False, affinity=affinity)
    try:
        context.open(connection)
    except BaseException:
        handles.contexts.pop(context.handle, None)
        raise
    mine.stack.append(context)
    return SUCCESS, CUcontext(context.handle)


def _affinity_of(parameters: Any) -> int | None:
    if parameters is None:
        return None
    if parameters.cigParams:
        raise CudaError(Result.ERROR_NOT_SUPPORTED, "contexts in graphics mode (cigParams) are not supported")
    return _affinity(parameters.execAffinityParams, number(parameters.numExecAffinityParams))


def _affinity(parameters: Any, count: int) -> int | None:
    """Return the SMs that an array of execution affinities asks for; the last entry wins."""
    entries = list(parameters or ())
    if count != len(entries):
        raise invalid_value(f"there are {len(entries)} execution affinities and their number is said to be {count}")
    for entry in entries:
        _check_affinity_type(entry.type)
    return number(entries[-1].param.smCount.val) if entries else None


def _check_affinity_type(kind: Any) -> None:
    if number(kind) != _SM_COUNT:
        raise invalid_value(f"the execution affinity type is SM_COUNT ({_SM_COUNT}), not {number(kind)}")


@door(1)
def cuCtxGetExecAffinity(typename: Any) -> tuple[Any, ...]:
    """Return the SMs the current context may use, as a CUexecAffinityParam of type SM_COUNT.

    UNSUPPORTED_EXEC_AFFINITY where contexts cannot be kept to some: without MPS, and before Volta.
    """
    connection = here.require()
    context = current()
    _check_affinity_type(typename)
    if not (connection.provisions and context.device.facts.is_volta_or_newer):
        reason = "there is no execution affinity here: it needs an MPS daemon and a Volta or newer device"
        raise CudaError(Result.ERROR_UNSUPPORTED_EXEC_AFFINITY, reason)
    affinity = CUexecAffinityParam()
    affinity.type = CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
    affinity.param.smCount.val = context.usable().multiprocessors
    return SUCCESS, affinity


@door()
def cuCtxDestroy(ctx: Any) -> tuple[Any, ...]:
    """Destroy a context and free what it held; it leaves the calling thread's stack if it is on top.

    Where it is current to other threads it stays so: their calls return CONTEXT_IS_DESTROYED.
    """
    connection = here.require()
    context = context_of(ctx)
    if context.primary:
        raise CudaError(
            Result.ERROR_INVALID_CONTEXT, "a primary context is not destroyed; call cuDevicePrimaryCtxRelease"
        )
    handles.contexts.pop(context.handle, None)
    if mine.stack and mine.stack[-1] is context:
        mine.stack.pop()
    context.close(connection)
    return DONE


@door(1)
def cuCtxGetCurrent() -> tuple[Any, ...]:
    """Return the calling thread's current context; a NULL handle when there is none."""
    here.require()
    return SUCCESS, CUcontext(mine.stack[-1].handle if mine.stack else 0)


@door()
def cuCtxSetCurrent(ctx: Any) -> tuple[Any, ...]:
    """Put a context in place of the one on top of the stack; NULL takes that one off."""
    here.require()
    handle = number(ctx)
    context = context_of(handle) if handle else None
    if mine.stack:
        mine.stack.pop()
    if context is not None:
        mine.stack.append(context)
    return DONE


@door()
def cuCtxPushCurrent(ctx: Any) -> tuple[Any, ...]:
    """Put a context on top of the calling thread's stack."""
    here.require()
    mine.stack.append(context_of(number(ctx)))
    return DONE


@door(1)
def cuCtxPopCurrent() -> tuple[Any, ...]:
    """Take the current context off the stack and return it; INVALID_CONTEXT when there is none."""
    here.require()
    context = current()
    mine.stack.pop()
    return SUCCESS, CUcontext(context.handle)


@door(1)
def cuCtxGetDevice() -> tuple[Any, ...]:
    """Return the current context's device."""
    here.require()
    return SUCCESS, CUdevice(current().device.number)


@door()
def cuCtxSynchronize() -> tuple[Any, ...]:
    """Wait for all work of the current context; return the error of earlier asynchronous work, if any."""
    current().synchronize()
    return DONE


@door(1)
def cuCtxGetFlags() -> tuple[Any, ...]:
    """Return the flags of the current context."""
    here.require()
    return SUCCESS, current().flags


@door(1)
def cuCtxGetApiVersion(ctx: Any) -> tuple[Any, ...]:
    """Return the API version of a context (NULL: the current one)."""
    here.require()
    context = context_of(number(ctx)) if number(ctx) else current()
    context.usable()
    return SUCCESS, _API_VERSION


@door(2)
def cuCtxGetStreamPriorityRange() -> tuple[Any, ...]:
    """Return the least and the greatest stream priority of the current context (the greatest is the lower number)."""
    least, greatest = current().usable().stream_priorities
    return SUCCESS, least, greatest


def _flags(flags: Any) -> int:
    value = unsigned(flags, 32)
    if value & ~_FLAGS_MASK or value & _SCHEDULING_MASK not in _SCHEDULING:
        raise invalid_value(f"context flags are CUctx_flags with at most one way of scheduling, not {value:#x}")
    return value
