"""The devices of NVML, from its initialization on, and access to the memory that C passes.

NVML does not depend on cuInit, and a process may fork after it: until the process has called cuInit, each call opens
a connection of its own and closes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_uint32, memmove
from threading import Lock
from typing import Final

from pympsd.errors import CallError
from pympsd.process.version import API_VERSION
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect.connection import Connection, Device
from pympsd_client._objects.process import Process, process

UNINITIALIZED, INVALID, UNSUPPORTED, NOT_FOUND, TOO_SMALL, NO_DRIVER, LOST, VERSION = 1, 2, 3, 6, 7, 9, 15, 25
UNKNOWN: Final = 999
_FLAGS: Final = 3
"""NVML_INIT_FLAG_NO_GPUS and NVML_INIT_FLAG_NO_ATTACH."""
_FIRST_HANDLE: Final = 0x4E56_0000


class NvmlError(CallError):
    """A result of NVML, and why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code: Final = code


_changing: Final = Lock()
_users = 0
_devices: tuple[Device, ...] = ()
_driver_version = API_VERSION


@contextmanager
def connect() -> Iterator[Connection]:
    """Yield this process's connection, or a new one that is closed after the block."""
    if process.connection is not None:
        yield process.connection
        return
    own = Process()
    own.initialize(0)
    if own.connection is None:
        process.initialize(0)  # natively: this call, too, is passed on to the driver's library
        raise NvmlError(NO_DRIVER, "the program runs natively")
    try:
        yield own.connection
    finally:
        own.connection.close()


def init(flags: int = 0) -> None:
    """Find the devices; each call needs one of nvmlShutdown."""
    global _devices, _driver_version, _users
    if flags & ~_FLAGS:
        raise NvmlError(INVALID, f"flags are NO_GPUS (1) and NO_ATTACH (2), not {flags}")
    with _changing:
        if not _users:
            try:
                with connect() as connection:
                    _devices = connection.devices
                    _driver_version = connection.driver_version
            except CudaError as error:
                if error.code != Result.ERROR_NO_DEVICE:
                    raise NvmlError(NO_DRIVER, error.reason) from None
                _devices = ()
        _users += 1


def shut_down() -> None:
    """Undo one initialization."""
    global _users
    with _changing:
        require()
        _users -= 1


def require() -> None:
    """Raise NvmlError unless NVML is initialized."""
    if not _users:
        raise NvmlError(UNINITIALIZED, "call nvmlInit_v2 first")


def place(address: int) -> int:
    """Return an address to write to; NvmlError for NULL."""
    require()
    if not address:
        raise NvmlError(INVALID, "the place for the result is NULL")
    return address


def number(address: int, value: int) -> None:
    """Write an unsigned int."""
    c_uint32.from_address(place(address)).value = value


def text(address: int, length: int, value: str) -> None:
    """Write a NUL-terminated text into ``length`` bytes."""
    place(address)
    data = value.encode() + b"\0"
    if length < len(data):
        raise NvmlError(TOO_SMALL, f"the text takes {len(data)} bytes, not {length}")
    memmove(address, data, len(data))


def write_versioned(address: int, content: bytes, version: int, padding: int = 0) -> None:
    """Write a structure after its version: its size, with the version number from bit 24."""
    expected = (4 + padding + len(content)) | version << 24
    actual = c_uint32.from_address(place(address)).value
    if actual != expected:
        raise NvmlError(VERSION, f"the structure's version is {expected:#x}, not {actual:#x}")
    memmove(address + 4 + padding, content, len(content))


def devices() -> tuple[Device, ...]:
    """Return the devices that were found by the initialization."""
    return _devices


def driver_version() -> int:
    """Return the version of CUDA that the server has."""
    return _driver_version


def handle_of(number: int) -> int:
    """Return the handle of a device."""
    return _FIRST_HANDLE + number


def index(handle: int) -> int:
    """Return the number of a device."""
    require()
    if not _FIRST_HANDLE <= handle < _FIRST_HANDLE + len(_devices):
        raise NvmlError(INVALID, f"{handle:#x} is not a device")
    return handle - _FIRST_HANDLE


def device(handle: int) -> Device:
    """Return a device."""
    return _devices[index(handle)]


def properties(handle: int) -> DeviceProperties:
    """Return a device's properties."""
    return device(handle).properties
