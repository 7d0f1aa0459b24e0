"""The functions of cuda.bindings.cynvml that say which devices there are: answered from what the daemon lists.

NVML does not depend on cuInit, and a process may fork after it: until the process has called cuInit, each question
has a connection of its own, which is closed at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int, c_uint32, c_uint64, memmove
from threading import Lock
from typing import Any, Final

from pympsd.version import API_VERSION, CUDA_VERSION, DRIVER_BRANCH, DRIVER_VERSION
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._connect.connection import Connection
from pympsd_client._objects.context import contexts
from pympsd_client._objects.process import Process, process
from pympsd_client.routing import explain
from pympsd_client.routing.structures import interned

_RESULTS: Final = {
    0: ("NVML_SUCCESS", b"Success"),
    1: ("NVML_ERROR_UNINITIALIZED", b"Uninitialized"),
    2: ("NVML_ERROR_INVALID_ARGUMENT", b"Invalid Argument"),
    3: ("NVML_ERROR_NOT_SUPPORTED", b"Not Supported"),
    6: ("NVML_ERROR_NOT_FOUND", b"Not Found"),
    7: ("NVML_ERROR_INSUFFICIENT_SIZE", b"Insufficient Size"),
    9: ("NVML_ERROR_DRIVER_NOT_LOADED", b"Driver Not Loaded"),
    15: ("NVML_ERROR_GPU_IS_LOST", b"GPU is lost"),
    25: ("NVML_ERROR_ARGUMENT_VERSION_MISMATCH", b"API call structure version mismatch"),
    999: ("NVML_ERROR_UNKNOWN", b"Unknown Error"),
}
_UNINITIALIZED, _INVALID, _UNSUPPORTED, _NOT_FOUND, _TOO_SMALL, _NO_DRIVER, _LOST, _VERSION = 1, 2, 3, 6, 7, 9, 15, 25
_UNKNOWN: Final = 999
_FLAGS: Final = 3
"""NVML_INIT_FLAG_NO_GPUS and NVML_INIT_FLAG_NO_ATTACH."""
_FIRST_HANDLE: Final = 0x4E56_0000
_MEMORY: Final = struct.Struct("=4Q")
_PCI: Final = struct.Struct("=16s5I32s")
_PCI_EXTENDED: Final = struct.Struct("=7I32s")
_BRANCH_BYTES: Final = 80
_CLASS, _SUBCLASS = 3, 2
"""PCI's numbers of a 3D controller, which these GPUs are: they have no display."""
_ARCHITECTURES: Final = ((9, 0, 9), (8, 9, 8), (8, 0, 7), (7, 5, 6), (7, 0, 5), (6, 0, 4))
"""From which compute capability on there is which nvmlDeviceArchitecture_t; Blackwell (10) begins at 10.0."""
_COMMAND_BYTES: Final = 1 << 12


class NvmlError(Exception):
    """A result of NVML, and why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code: Final = code


_changing: Final = Lock()
_users = 0
_devices: tuple[DeviceFacts, ...] = ()
_driver_version = API_VERSION


@contextmanager
def _connected() -> Iterator[Connection]:
    """Enclose the use of this process's connection, or without one of a new connection."""
    if process.connection is not None:
        yield process.connection
        return
    own = Process()
    own.initialize(0)
    if own.connection is None:
        process.initialize(0)  # natively: this call, too, is passed on to the driver's library
        raise NvmlError(_NO_DRIVER, "the program runs natively")
    try:
        yield own.connection
    finally:
        own.connection.close()


def _init(flags: int = 0) -> None:
    global _devices, _driver_version, _users
    if flags & ~_FLAGS:
        raise NvmlError(_INVALID, f"flags are NO_GPUS (1) and NO_ATTACH (2), not {flags}")
    with _changing:
        if not _users:
            try:
                with _connected() as connection:
                    _devices = tuple(device.facts for device in connection.devices)
                    _driver_version = connection.driver_version
            except CudaError as error:
                if error.code != Result.ERROR_NO_DEVICE:
                    raise NvmlError(_NO_DRIVER, error.reason) from None
                _devices = ()
        _users += 1


def _shut_down() -> None:
    global _users
    with _changing:
        _require()
        _users -= 1


def _require() -> None:
    if not _users:
        raise NvmlError(_UNINITIALIZED, "call nvmlInit_v2 first")


def _place(address: int) -> int:
    _require()
    if not address:
        raise NvmlError(_INVALID, "the place for the result is NULL")
    return address


def _number(address: int, value: int) -> None:
    c_uint32.from_address(_place(address)).value = value


def _text(address: int, length: int, text: str) -> None:
    _place(address)
    value = text.encode() + b"\0"
    if length < len(value):
        raise NvmlError(_TOO_SMALL, f"the text takes {len(value)} bytes, not {length}")
    memmove(address, value, len(value))


def _versioned(address: int, content: bytes, version: int, padding: int = 0) -> None:
    """Write a structure behind the version that it begins with: its size, and its number from bit 24 on."""
    expected = (4 + padding + len(content)) | version << 24
    given = c_uint32.from_address(_place(address)).value
    if given != expected:
        raise NvmlError(_VERSION, f"the structure's version is {expected:#x}, not {given:#x}")
    memmove(address + 4 + padding, content, len(content))


def _index(handle: int) -> int:
    _require()
    if not _FIRST_HANDLE <= handle < _FIRST_HANDLE + len(_devices):
        raise NvmlError(_INVALID, f"{handle:#x} is no device")
    return handle - _FIRST_HANDLE


def _facts(handle: int) -> DeviceFacts:
    return _devices[_index(handle)]


def _by_index(index: int, place: int) -> None:
    _place(place)
    if index >= len(_devices):
        raise NvmlError(_INVALID, f"there is no device {index}; {len(_devices)} are visible, counted from 0")
    c_uint64.from_address(place).value = _FIRST_HANDLE + index


def _find(name: str | None, place: int, names: Callable[[DeviceFacts], tuple[str, ...]]) -> None:
    _place(place)
    if name is None:
        raise NvmlError(_INVALID, "the name is NULL")
    for index, facts in enumerate(_devices):
        if name.upper() in (one.upper() for one in names(facts)):
            return _by_index(index, place)
    raise NvmlError(_NOT_FOUND, f"no visible device is {name}")


def _pci(facts: DeviceFacts) -> tuple[int, int, int, int]:
    """Return domain, bus, device and function."""
    domain, bus, device, function = (int(part, 16) for part in facts.pci.replace(":", ".").split("."))
    return domain, bus, device, function


def _uuids(facts: DeviceFacts) -> tuple[str, str]:
    return facts.uuid, facts.uuid.removeprefix("GPU-")  # cuda.core asks for the latter


def _bus_ids(facts: DeviceFacts) -> tuple[str, str]:
    """Return a PCI bus id with a domain of 8 digits, as NVML writes it, and with one of 4."""
    domain, bus, device, function = _pci(facts)
    rest = f"{bus:02X}:{device:02X}.{function:X}"
    return f"{domain:08X}:{rest}", f"{domain:04X}:{rest}"


def _pci_info(handle: int, place: int) -> None:
    facts = _facts(handle)
    long, short = _bus_ids(facts)
    packed = _PCI.pack(short.encode(), *_pci_numbers(facts), long.encode())
    memmove(_place(place), packed, len(packed))


def _pci_info_extended(handle: int, place: int) -> None:
    facts = _facts(handle)
    _versioned(place, _PCI_EXTENDED.pack(*_pci_numbers(facts), _CLASS, _SUBCLASS, _bus_ids(facts)[0].encode()), 1)


def _pci_numbers(facts: DeviceFacts) -> tuple[int, ...]:
    """Return domain, bus, device, and the board's device and subsystem ids, 0 where they are not known."""
    board = (facts.attributes.get(f"GPU_PCI_{name}_ID", 0) for name in ("DEVICE", "SUBSYSTEM"))
    return *_pci(facts)[:3], *board


def _memory_info(handle: int, place: int) -> None:
    """Answer as cuMemGetInfo does: total is the process's limit if there is one."""
    uuid = _facts(handle).uuid
    _place(place)
    usable = (one for one in tuple(contexts.values()) if one.sticky_error is None)
    own = next((one for one in usable if one.device.facts.uuid == uuid), None)
    body = _ask_memory(uuid) if own is None else own.call(operations.MEMORY_INFO)
    free, total = operations.MEMORY_INFO.answer.unpack_from(body)
    _versioned(place, _MEMORY.pack(total, 0, free, total - free), 2, padding=4)


def _ask_memory(uuid: str) -> bytes:
    """Return the answer of a context that is opened for it, whose own memory counts as used."""
    with _connected() as connection:
        device = next((one for one in connection.devices if one.facts.uuid == uuid), None)
        if device is None:
            raise NvmlError(_LOST, f"{uuid} is not visible any more")
        opened = connection.open_context(device, 0)
        try:
            sequence = opened.transport.sequence()
            record = operations.MEMORY_INFO.record(opened.serial, sequence)
            _, result, body = opened.transport.call(sequence, record)
        finally:
            connection.close_context(device, opened.serial)
    if result:
        raise CudaError(result, body.decode("utf-8", "replace"))
    return body


def _capability(handle: int, major: int, minor: int) -> None:
    for place, value in zip((major, minor), _facts(handle).compute_capability, strict=True):
        c_int.from_address(_place(place)).value = value


def _architecture(facts: DeviceFacts) -> int:
    capability = facts.compute_capability
    known = (number for *least, number in _ARCHITECTURES if tuple(least) <= capability < (10, 0))
    return next(known, 0xFFFF_FFFF)  # NVML_DEVICE_ARCH_UNKNOWN


def _process_name(pid: int, place: int, length: int) -> None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            name = file.read(_COMMAND_BYTES).partition(b"\0")[0].decode(errors="replace")
    except OSError as error:
        raise NvmlError(_NOT_FOUND, f"there is no process {pid} ({error.strerror})") from None
    _text(place, length, name)


_Row = tuple[Callable[..., Any], str]


def _number_of(value: Callable[[DeviceFacts], int]) -> _Row:
    return (lambda handle, place: _number(place, value(_facts(handle)))), "QQ"


def _text_of(value: Callable[[DeviceFacts], str]) -> _Row:
    return (lambda handle, place, length: _text(place, length, value(_facts(handle)))), "QQI"


def _constant(text: str) -> _Row:
    return (lambda place, length: _text(place, length, text)), "QI"


_BRANCH: Final = f"r{DRIVER_BRANCH}_00".encode().ljust(_BRANCH_BYTES, b"\0")
_FUNCTIONS: Final[dict[str, _Row]] = {
    "nvmlInit_v2": (_init, ""),
    "nvmlInitWithFlags": (_init, "I"),
    "nvmlShutdown": (_shut_down, ""),
    "nvmlSystemGetCudaDriverVersion": (lambda place: _number(place, _driver_version), "Q"),
    "nvmlSystemGetCudaDriverVersion_v2": (lambda place: _number(place, _driver_version), "Q"),
    "nvmlSystemGetDriverBranch": (lambda place, length: _versioned(place, _BRANCH, 1), "QI"),
    "nvmlSystemGetDriverVersion": _constant(DRIVER_VERSION),
    "nvmlSystemGetNVMLVersion": _constant(f"{CUDA_VERSION // 1000}.{DRIVER_VERSION}"),
    "nvmlSystemGetProcessName": (_process_name, "IQI"),
    "nvmlDeviceGetArchitecture": _number_of(_architecture),
    "nvmlDeviceGetComputeMode": _number_of(lambda facts: facts.attributes["COMPUTE_MODE"]),
    "nvmlDeviceGetCount_v2": (lambda place: _number(place, len(_devices)), "Q"),
    "nvmlDeviceGetCudaComputeCapability": (_capability, "QQQ"),
    "nvmlDeviceGetHandleByIndex_v2": (_by_index, "IQ"),
    "nvmlDeviceGetHandleByPciBusId_v2": (lambda name, place: _find(name, place, _bus_ids), "sQ"),
    "nvmlDeviceGetHandleByUUID": (lambda name, place: _find(name, place, _uuids), "sQ"),
    "nvmlDeviceGetIndex": (lambda handle, place: _number(place, _index(handle)), "QQ"),
    "nvmlDeviceGetMemoryInfo_v2": (_memory_info, "QQ"),
    "nvmlDeviceGetName": _text_of(lambda facts: facts.name),
    "nvmlDeviceGetPciInfoExt": (_pci_info_extended, "QQ"),
    "nvmlDeviceGetPciInfo_v3": (_pci_info, "QQ"),
    "nvmlDeviceGetUUID": _text_of(lambda facts: facts.uuid),
    "nvmlDeviceIsMigDeviceHandle": _number_of(lambda facts: facts.uuid.startswith("MIG-")),
}


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters."""
    return _FUNCTIONS.get(name) or (explain.refusing(name), "")


def failed(name: str, error: BaseException | None) -> int:
    """Return the result of a call that raised; explain it."""
    code = _UNKNOWN
    if isinstance(error, NvmlError):
        code = error.code
    elif isinstance(error, explain.Missing):
        code = _UNSUPPORTED
    elif isinstance(error, CudaError):
        code = _LOST if error.code == Result.ERROR_MPS_CONNECTION_FAILED else _UNKNOWN
    if explain.is_on():
        reason = error.reason if isinstance(error, CudaError) else str(error)
        explain.say(name, code, reason, isinstance(error, explain.Missing), _RESULTS[code][0])
    return code


def error_string(code: int) -> int:
    """Return the address of a result's text."""
    return interned(_RESULTS.get(code, _RESULTS[_UNKNOWN])[1])
