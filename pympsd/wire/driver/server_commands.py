"""Encode the daemon's commands and questions to the driver's server, and decode the answers. Decoding checks every
size and count.

A command is a tuple of packets, sent without a pause between them. The server handles one command at a time and
answers in order, so a question may be sent before earlier ones are answered.
"""

import struct
from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

from attrs import frozen

from pympsd.errors import RemoteError
from pympsd.vocabulary.device_properties import uuid_text
from pympsd.wire.driver.handshake import DESCRIPTOR, encode_device

T = TypeVar("T")
Reader = Generator[int, bytes, T]
"""Yields the size of the packet that it expects, receives that packet, and returns the answer at the end."""

_INT: Final = struct.Struct("<i")
_LONG: Final = struct.Struct("<q")
_DOUBLE: Final = struct.Struct("<d")
_SIZE: Final = struct.Struct("<Q")
_CONTEXT: Final = struct.Struct("<ii32x")
_PROCESS: Final = struct.Struct("<ii4xi16sii")
_DEVICE: Final = struct.Struct("<6i16s132s")
"""The layout of a device: its ordinal, then bus, device and domain in the order of cudaDeviceProp.

In recordings, bus and domain were always 0.
"""
_DEVICE_NAME: Final = struct.Struct("<8x68s")
_UUID_BYTES: Final = 16
_MAX_RECORDS: Final = 1 << 16
_DEVICE_QUERY_ROOM: Final = 11024
"""A number that is sent with the question for devices, as recorded; its meaning is unknown."""
STATUS_ACTIVE: Final = 1
STATUS_FAULT: Final = 0

_NEW_CLIENT: Final = 2
_SHUT_DOWN: Final = 5
_CLIENTS: Final = 6
_DEVICE_CLIENTS: Final = 7
_GET_PERCENTAGE: Final = 8
_SET_PERCENTAGE: Final = 9
_TERMINATE: Final = 13
_PROCESSES: Final = 14
_SET_PRIORITY: Final = 15
_STATUS: Final = 17
_SET_MEMORY_LIMIT: Final = 20
_DEVICES: Final = 24


@frozen
class Question(Generic[T]):
    """A command that is answered; ``read`` returns a new reader of the answer."""

    packets: tuple[bytes, ...]
    read: Callable[[], Reader[T]]


@frozen
class DriverContext:
    """A client context: the process's PID (0 if it is not visible to the server), and its number in the process."""

    pid: int
    number: int


@frozen
class ListedProcess:
    """A client process with its first context, as ps shows it."""

    pid: int
    context: int
    device: int
    uuid: str
    identity: int
    """The ID that ps shows, which counts the contexts of the server."""


@frozen
class DeviceClients:
    """The client contexts on one device."""

    uuid: str
    name: str
    contexts: tuple[DriverContext, ...]


@frozen
class ServerDevice:
    """A device as the server sees it; ``pci`` is the address as device_query prints it."""

    ordinal: int
    pci: str
    uuid: str
    name: str


NEW_CLIENT: Final = (_INT.pack(_NEW_CLIENT), DESCRIPTOR)
"""The command that hands over a client.

The last packet is sent with the server's end of the connection to the client.
"""


def set_percentage(percentage: float) -> tuple[bytes, ...]:
    """Return the command that sets the active thread percentage of new clients."""
    return _INT.pack(_SET_PERCENTAGE), _DOUBLE.pack(percentage)


def set_priority(priority: int) -> tuple[bytes, ...]:
    """Return the command that sets the priority of new clients."""
    return _INT.pack(_SET_PRIORITY), _INT.pack(priority)


def set_memory_limit(device: int, count: int) -> tuple[bytes, ...]:
    """Return the command that sets the memory limit of new clients on a device, in bytes."""
    return _INT.pack(_SET_MEMORY_LIMIT), encode_device(device), _SIZE.pack(count)


def shut_down_if_idle() -> Question[int]:
    """Return the question that ends the server if no client is left.

    The answer is the number of client threads; 0 means that the server ends.
    """
    return Question((_INT.pack(_SHUT_DOWN),), _integer)


END_IF_IDLE: Final = _INT.pack(_SHUT_DOWN)
"""The question of `shut_down_if_idle` as bytes for the keeper, which ignores the answer."""


def clients() -> Question[tuple[int, ...]]:
    """Return the question for the PIDs of the client processes that have contexts."""
    return Question((_INT.pack(_CLIENTS),), _make_list_reader(_integer))


def device_clients() -> Question[tuple[DeviceClients, ...]]:
    """Return the question for the client contexts on each device in use."""

    def read() -> Reader[DeviceClients]:
        uuid = uuid_text((yield _UUID_BYTES))
        (name,) = _DEVICE_NAME.unpack((yield _DEVICE_NAME.size))
        contexts = yield from _make_list_reader(_context)()
        return DeviceClients(uuid, _text(name), contexts)

    return Question((_INT.pack(_DEVICE_CLIENTS),), _make_list_reader(read))


def processes() -> Question[tuple[ListedProcess, ...]]:
    """Return the question for the list of ps: the client processes that have contexts."""

    def read() -> Reader[ListedProcess]:
        pid, context, device, uuid, identity, _ = _PROCESS.unpack((yield _PROCESS.size))
        return ListedProcess(pid, context, device, uuid_text(uuid), identity)

    # The server waits for the second packet after it has answered.
    return Question((_INT.pack(_PROCESSES), _INT.pack(0)), _make_list_reader(read))


def terminate(pid: int) -> Question[int]:
    """Return the question that ends a client process's contexts; the answer is a CUresult number."""
    return Question((_INT.pack(_TERMINATE), _INT.pack(pid)), _integer)


def status() -> Question[int]:
    """Return the question for the status; the answer is STATUS_ACTIVE or STATUS_FAULT."""

    def read() -> Reader[int]:
        number = yield from _integer()
        if number not in (STATUS_ACTIVE, STATUS_FAULT):
            raise RemoteError(f"there is no server status {number}")
        return number

    return Question((_INT.pack(_STATUS),), read)


def devices() -> Question[tuple[ServerDevice, ...]]:
    """Return the question for the server's devices."""

    def read() -> Reader[ServerDevice]:
        ordinal, bus, device, domain, function, _, uuid, name = _DEVICE.unpack((yield _DEVICE.size))
        pci = f"{domain:04x}:{bus:02x}.{device:02x}.{function:02x}"
        return ServerDevice(ordinal, pci, uuid_text(uuid), _text(name))

    return Question((_INT.pack(_DEVICES), _LONG.pack(_DEVICE_QUERY_ROOM)), _make_list_reader(read))


def resume(percentage: float) -> Question[None]:
    """Return the question that ends the answers to the previous daemon, some of which may come after a takeover.

    The question sets a percentage that no other daemon sets and that a 32-bit float can represent. The reader skips
    the answers that come before that percentage. The caller must set the correct percentage before the next client
    comes.
    """
    expected = _DOUBLE.pack(percentage)

    def read() -> Reader[None]:
        while (yield 0) != expected:
            pass

    return Question((*set_percentage(percentage), _INT.pack(_GET_PERCENTAGE)), read)


def _integer() -> Reader[int]:
    (number,) = _INT.unpack((yield _INT.size))
    return int(number)


def _context() -> Reader[DriverContext]:
    return DriverContext(*_CONTEXT.unpack((yield _CONTEXT.size)))


def _make_list_reader(read_one: Callable[[], Reader[T]]) -> Callable[[], Reader[tuple[T, ...]]]:
    """Return a function that makes readers of a count and of as many records."""

    def read() -> Reader[tuple[T, ...]]:
        count = yield from _integer()
        if not 0 <= count <= _MAX_RECORDS:
            raise RemoteError(f"it counts {count} records")
        records = []
        for _ in range(count):
            records.append((yield from read_one()))
        return tuple(records)

    return read


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("ascii", "replace")
