"""Driver functions that read or write values at C addresses in ways that rows do not describe.

A row states for each parameter whether it is an input or an output, which is enough for Python. C passes some of them
differently: a value of any type through ``void *``, an array and the address of its length, a number that is read and
then overwritten. Each function here takes C's arguments as ints, checks the addresses, and calls the core.

`_FUNCTIONS` names each function's core, and the maker that builds the function around it. `resolve` calls the maker
at the function's first call, so that the core's module is not imported before.
"""

from collections.abc import Callable, Sequence
from ctypes import c_int, c_size_t, c_uint32, c_uint64, memmove, string_at
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.values import AttributeValue, InMemory, check_count, check_not_null
from pympsd_client._objects.process import process
from pympsd_client.signatures.rows import find_core

Core = Callable[..., Any]
Resolved = tuple[Callable[..., Any], str]
"""A function, and the format of its parameters."""


def _check(*addresses: int) -> None:
    """Raise NOT_INITIALIZED before cuInit, INVALID_VALUE if an address is NULL."""
    process.require()
    check_not_null("a value", *addresses)


def _copy(data: bytes, address: int) -> None:
    memmove(address, data, len(data))


# --- values of any type through void *


def _output(core: Core, index: int, format: str) -> Resolved:
    """Return a function whose argument at ``index`` is the address to which it writes the core's value."""

    def get(*arguments: int) -> None:
        _check(arguments[index])
        value: AttributeValue = core(*arguments[:index], *arguments[index + 1 :])
        _copy(value.packed, arguments[index])

    return get, format


def _input(core: Core, index: int, format: str) -> Resolved:
    """Return a function whose argument at ``index`` is the address of a value that the core reads."""

    def put(*arguments: int) -> None:
        _check(arguments[index])
        core(*arguments[:index], InMemory(arguments[index]), *arguments[index + 1 :])

    return put, format


def _write_values(values: Sequence[AttributeValue], data: int) -> None:
    """Write each value to the address with the same index in an array."""
    for value, address in zip(values, (c_uint64 * len(values)).from_address(data), strict=True):
        _check(address)
        _copy(value.packed, address)


def _get_pointer_attributes(core: Core) -> Resolved:
    def get(count: int, attributes: int, data: int, address: int) -> None:
        _check(attributes, data)
        _write_values(core(count, InMemory(attributes), address), data)

    return get, "IQQQ"


def _get_range_attributes(core: Core) -> Resolved:
    def get(data: int, sizes: int, attributes: int, count: int, address: int, length: int) -> None:
        _check(data, sizes, attributes)
        _write_values(core(InMemory(sizes), InMemory(attributes), count, address, length), data)

    return get, "QQQQQQ"


# --- settings of core dumps: void *, and a size that is read and written


def _get_setting(core: Core) -> Resolved:
    """Return a function that writes the core's value and its size in bytes to addresses."""

    def get(setting: int, value: int, size: int) -> None:
        process.require()
        content: bool | int | bytes = core(setting)
        if isinstance(content, bytes):
            data = content + b"\0"
        else:
            data = int(content).to_bytes(1 if type(content) is bool else 4, "little")
        check_not_null("the size", size)
        length = c_size_t.from_address(size)
        if value and length.value < len(data):
            raise invalid_value(f"the value has {len(data)} bytes, but the buffer has {length.value}")
        if value:
            _copy(data, value)
        length.value = len(data)

    return get, "iQQ"


def _set_setting(core: Core) -> Resolved:
    is_text = find_core("_api.settings.is_dump_text")

    def put(setting: int, value: int, size: int) -> None:
        _check(value, size)
        count = c_size_t.from_address(size).value
        check_count(count, "a setting")
        data = string_at(value, count)
        core(setting, data if is_text(setting) else int.from_bytes(data[:4], "little"))

    return put, "iQQ"


# --- resources of green contexts: arrays


def _read_resource(address: int) -> InMemory | None:
    return InMemory(address) if address else None


def _write_parts(parts: list[bytes], result: int, remainder: bytes, remaining: int) -> None:
    if result:
        _copy(b"".join(parts), result)
    if remaining:
        _copy(remainder, remaining)


def _split_by_count(core: Core) -> Resolved:
    def split(result: int, number: int, resource: int, remaining: int, flags: int, minimum: int) -> None:
        process.require()
        check_not_null("nbGroups", number)
        count = c_uint32.from_address(number)
        requested = count.value if result else 0
        if result and not requested:
            raise invalid_value("nbGroups is 0; pass the number of CUdevResource for which there is space")
        parts, count.value, remainder = core(requested, _read_resource(resource), flags, minimum)
        _write_parts(parts, result, remainder, remaining)

    return split, "QQQQII"


def _split(core: Core) -> Resolved:
    def split(result: int, number: int, resource: int, remaining: int, flags: int, groups: int) -> None:
        process.require()
        parts, remainder = core(number, _read_resource(resource), flags, _read_resource(groups))
        _write_parts(parts, result, remainder, remaining)

    return split, "QIQQIQ"


# --- graphs: arrays that the core makes, and numbers that are read and written


def _list(core: Core, arrays: int) -> Resolved:
    """Return a function whose parameters are a handle, the addresses of arrays, and the address of their length."""

    def write(handle: int, *addresses: int) -> None:
        process.require()
        *lists, size = addresses
        check_not_null("the number", size)
        length = c_uint64.from_address(size)
        if any(lists) and not length.value:
            raise invalid_value("the length of the arrays is 0; pass NULL for them to ask only for the number")
        values = core(handle, length.value if any(lists) else 0)
        if any(lists) and len(lists) > 1 and not lists[-1] and any(values[-2]):
            raise CudaError(Result.ERROR_LOSSY_QUERY, "the edges have data; ask with the version that returns it")
        for address, elements in zip(lists, values, strict=False):
            if address and elements:
                memmove(address, (c_uint64 * len(elements))(*elements), 8 * len(elements))
        length.value = values[-1]

    return write, "Q" * (arrays + 2)


def _exchange_mode(core: Core) -> Resolved:
    def exchange(address: int) -> None:
        _check(address)
        mode = c_int.from_address(address)
        mode.value = core(mode.value)

    return exchange, "Q"


def _get_capture_info(core: Core, arrays: int) -> Resolved:
    """Return cuStreamGetCaptureInfo; the addresses of all outputs except the status may be NULL."""

    def info(stream: int, status: int, *addresses: int) -> None:
        _check(status)
        c_int.from_address(status).value, *values = core(stream)
        for address, value in zip(addresses, values, strict=True):
            if address:
                c_uint64.from_address(address).value = value if isinstance(value, int) else value.address

    return info, "Q" * (arrays + 5)


def _update_executable(core: Core) -> Resolved:
    def update(executable: int, graph: int, address: int) -> None:
        process.require()
        try:
            info = core(executable, graph)
        except CudaError as error:
            for info in error.outputs if address else ():
                _copy(info, address)
            raise
        if address:
            _copy(info, address)

    return update, "QQQ"


_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "cuCoredumpGetAttribute": (_get_setting, "_api.settings.dump_setting"),
    "cuCoredumpGetAttributeGlobal": (_get_setting, "_api.settings.global_dump_setting"),
    "cuCoredumpSetAttribute": (_set_setting, "_api.settings.set_dump_setting"),
    "cuCoredumpSetAttributeGlobal": (_set_setting, "_api.settings.set_global_dump_setting"),
    "cuDevSmResourceSplit": (_split, "_api.green_context.split"),
    "cuDevSmResourceSplitByCount": (_split_by_count, "_api.green_context.split_by_count"),
    "cuGraphExecUpdate": (_update_executable, "_graphs.executable_functions.update"),
    "cuGraphGetEdges": (_list, "_graphs.structure.edges", 3),
    "cuGraphGetNodes": (_list, "_graphs.structure.nodes", 1),
    "cuGraphGetRootNodes": (_list, "_graphs.structure.root_nodes", 1),
    "cuGraphNodeGetDependencies": (_list, "_graphs.structure.dependencies", 2),
    "cuGraphNodeGetDependentNodes": (_list, "_graphs.structure.dependent_nodes", 2),
    "cuMemExportToShareableHandle": (_output, "_api.memory.virtual.export", 0, "QQiQ"),
    "cuMemPoolGetAttribute": (_output, "_api.memory.pools.attribute", 2, "QiQ"),
    "cuMemPoolSetAccess": (_input, "_api.memory.pools.set_access", 1, "QQQ"),
    "cuMemPoolSetAttribute": (_input, "_api.memory.pools.set_attribute", 2, "QiQ"),
    "cuMemRangeGetAttribute": (_output, "_api.memory.managed.attribute", 0, "QQiQQ"),
    "cuMemRangeGetAttributes": (_get_range_attributes, "_api.memory.managed.attributes"),
    "cuMemSetAccess": (_input, "_api.memory.virtual.set_access", 2, "QQQQ"),
    "cuPointerGetAttribute": (_output, "_api.memory.pointer.attribute", 0, "QiQ"),
    "cuPointerGetAttributes": (_get_pointer_attributes, "_api.memory.pointer.attributes"),
    "cuPointerSetAttribute": (_input, "_api.memory.pointer.set_attribute", 0, "QiQ"),
    "cuStreamGetCaptureInfo": (_get_capture_info, "_graphs.capture_functions.info", 2),
    "cuStreamGetCaptureInfo_v2": (_get_capture_info, "_graphs.capture_functions.info_without_edges", 1),
    "cuThreadExchangeStreamCaptureMode": (_exchange_mode, "_graphs.capture_functions.exchange_mode"),
}
"""The maker of each function, the path of its core, and the other arguments of the maker."""


def has(name: str) -> bool:
    """Return whether this module has a function."""
    return name in _FUNCTIONS


def resolve(name: str) -> Resolved | None:
    """Return a function and the format of its parameters, or None if this module does not have it."""
    if name not in _FUNCTIONS:
        return None
    make, core, *arguments = _FUNCTIONS[name]
    function, format = make(find_core(core), *arguments)
    return function, format
