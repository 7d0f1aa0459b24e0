"""Limits, preferences and identifiers of contexts, core dumps and the profiler (CUDA driver API, Context Management).

Two limits are sent to the executor: PRINTF_FIFO_SIZE and MALLOC_HEAP_SIZE, in bytes. All other settings are hints,
which are checked, kept and returned, but have no effect: preferences of caches and banks, the other limits, settings
of core dumps (none are written here), start and stop of the profiler.
"""

from os import getpid
from socket import gethostname
from typing import Any, Final
from weakref import WeakKeyDictionary

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.results import Result
from pympsd_client._api.module import check_bank_size, check_cache_preference
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.values import number
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context, current, require_context

_LIMITS: Final = {value: name for name, value in members("CUlimit", "CU_LIMIT_").items() if name != "MAX"}
_KNOWN_BY_THE_EXECUTOR: Final = frozenset({"PRINTF_FIFO_SIZE", "MALLOC_HEAP_SIZE"})
_MAX_STACK_BYTES: Final = 512 << 10
"""The maximum local memory of a thread in bytes (CUDA C++ Programming Guide, Compute Capabilities)."""
_MAX_FETCH_BYTES: Final = 128
_PERSISTING: Final = "MAX_PERSISTING_L2_CACHE_SIZE"
_FOUR_BYTE_BANKS: Final = 1
_HANDLE_COUNT: Final = (1 << 40) - 1


def limit(requested: int) -> int:
    """Return a limit of the current context; raise UNSUPPORTED_LIMIT for a limit that the device lacks."""
    context = require_context()
    name = _limit_name(requested, context.device.properties)
    return context.settings.get(name, _default(name, context.device.properties))


def set_limit(requested: int, value: int) -> None:
    """Set a limit of the current context; raise INVALID_VALUE above its maximum, NOT_PERMITTED for a constant limit.

    Only PRINTF_FIFO_SIZE and, until a kernel has called malloc, MALLOC_HEAP_SIZE have an effect. All other limits are
    only kept.
    """
    context = require_context()
    properties = context.device.properties
    name = _limit_name(requested, properties)
    if name in ("SHMEM_SIZE", "CIG_ENABLED"):
        raise CudaError(Result.ERROR_NOT_PERMITTED, f"CU_LIMIT_{name} is a constant of the device")
    bounds = {
        "STACK_SIZE": _MAX_STACK_BYTES,
        "MAX_L2_FETCH_GRANULARITY": _MAX_FETCH_BYTES,
        "PERSISTING_L2_CACHE_SIZE": properties.attributes.get(_PERSISTING, 0),
    }
    if value > bounds.get(name, value):
        raise invalid_value(f"CU_LIMIT_{name} must be 0 to {bounds[name]}, not {value}")
    if name in _KNOWN_BY_THE_EXECUTOR:
        value = min(value, properties.memory_bytes // 8)
        context.call(operations.SET_LIMIT, requested, value)
    context.settings[name] = value


def _limit_name(requested: int, properties: DeviceProperties) -> str:
    name = _LIMITS.get(requested)
    if name is None or name == "PER_BLOCK_MEMORY_SIZE":
        raise invalid_value(f"there is no limit {requested}")
    lacks = {
        "DEV_RUNTIME_SYNC_DEPTH": properties.compute_capability >= (9, 0),
        "CIG_SHMEM_FALLBACK_ENABLED": True,
        "PERSISTING_L2_CACHE_SIZE": not properties.attributes.get(_PERSISTING),
    }
    if lacks.get(name):
        raise CudaError(Result.ERROR_UNSUPPORTED_LIMIT, f"{properties.name} has no CU_LIMIT_{name}")
    return name


def _default(name: str, properties: DeviceProperties) -> int:
    """Return the default of a limit, as recorded on an H200 or as documented."""
    return {
        "STACK_SIZE": 1024,
        "PRINTF_FIFO_SIZE": 1 << 20,
        "MALLOC_HEAP_SIZE": 8 << 20,
        "DEV_RUNTIME_SYNC_DEPTH": 2,
        "DEV_RUNTIME_PENDING_LAUNCH_COUNT": 2048,
        "MAX_L2_FETCH_GRANULARITY": 64,
        "PERSISTING_L2_CACHE_SIZE": properties.attributes.get(_PERSISTING, 0) * 3 // 10,
        "SHMEM_SIZE": properties.attributes.get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", 0),
    }.get(name, 0)


def cache_preference() -> int:
    """Return the CUfunc_cache of the current context."""
    context = require_context()
    return context.settings.get("cache", 0)


def set_cache_preference(preference: int) -> None:
    """Keep a CUfunc_cache, which has no effect because shared memory is not part of the cache here.

    Raise INVALID_VALUE.
    """
    context = require_context()
    check_cache_preference(preference)
    context.settings["cache"] = preference


def bank_size() -> int:
    """Return CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE, which all devices since Maxwell have."""
    current().usable()
    return _FOUR_BYTE_BANKS


def set_bank_size(size: int) -> None:
    """Accept a CUsharedconfig, which has had no effect since Maxwell; raise INVALID_VALUE."""
    current().usable()
    check_bank_size(size)


def context_id(handle: int) -> int:
    """Return the id of a context (NULL: the current one), which no other context of this process has or had."""
    context = require_context(handle)
    return context.handle & _HANDLE_COUNT


def accept() -> None:
    """Do nothing, because neither a profiler nor persisting cache lines exist here."""
    current().usable()


# --- core dumps: settings are kept and returned, but no dump is ever written

_DUMP_SETTINGS: Final = {
    value: name for name, value in members("CUcoredumpSettings", "CU_COREDUMP_").items() if name != "MAX"
}
_DUMP_TEXTS: Final = {"FILE": "core", "PIPE": "corepipe"}
_ONLY_GLOBAL: Final = frozenset({"ENABLE_USER_TRIGGER", "PIPE"})
_DUMP_TEXT_BYTES: Final = 1023
_global_dumps: Final[dict[str, bool | int | bytes]] = {}
_dumps: Final[WeakKeyDictionary[Context, dict[str, bool | int | bytes]]] = WeakKeyDictionary()


def _dump_setting(setting: int) -> str:
    name = _DUMP_SETTINGS.get(setting)
    if name is None:
        raise invalid_value(f"there is no setting {setting} of core dumps")
    return name


def is_dump_text(setting: int) -> bool:
    """Return whether a setting of core dumps is a text; raise INVALID_VALUE for an unknown setting."""
    return _dump_setting(setting) in _DUMP_TEXTS


def _default_of_dumps(name: str) -> bool | int | bytes:
    if name in _DUMP_TEXTS:
        return f"{_DUMP_TEXTS[name]}.cuda.{gethostname()}.{getpid()}".encode()
    return 0 if name == "GENERATION_FLAGS" else name == "TRIGGER_HOST"


def _read_dump_setting(name: str, argument: Any) -> bool | int | bytes:
    if name not in _DUMP_TEXTS:
        value = number(argument)
        return value if name == "GENERATION_FLAGS" else bool(value)
    if not isinstance(argument, bytes):
        raise TypeError(f"CU_COREDUMP_{name} must be set to bytes, not {type(argument).__name__}")
    if len(argument) > _DUMP_TEXT_BYTES:
        raise invalid_value(f"CU_COREDUMP_{name} must have at most {_DUMP_TEXT_BYTES} bytes, not {len(argument)}")
    return argument.partition(b"\0")[0]


def global_dump_setting(setting: int) -> bool | int | bytes:
    """Return the global value of a setting of core dumps; such settings have no effect. Raise INVALID_VALUE."""
    name = _dump_setting(setting)
    return _global_dumps.get(name, _default_of_dumps(name))


def set_global_dump_setting(setting: int, value: Any) -> None:
    """Keep the global value of a setting of core dumps; such settings have no effect. Raise INVALID_VALUE."""
    name = _dump_setting(setting)
    _global_dumps[name] = _read_dump_setting(name, value)


def dump_setting(setting: int) -> bool | int | bytes:
    """Return the current context's setting of core dumps, or the global setting if it has none."""
    context = require_context()
    own = _dumps.get(context, {})
    return own.get(_dump_setting(setting), global_dump_setting(setting))


def set_dump_setting(setting: int, value: Any) -> None:
    """Keep a setting of core dumps for the current context, without effect.

    Raise NOT_PERMITTED for a setting that can only be global.
    """
    context = require_context()
    name = _dump_setting(setting)
    if name in _ONLY_GLOBAL:
        raise CudaError(
            Result.ERROR_NOT_PERMITTED,
            f"CU_COREDUMP_{name} is set for all contexts: call cuCoredumpSetAttributeGlobal",
        )
    _dumps.setdefault(context, {})[name] = _read_dump_setting(name, value)
