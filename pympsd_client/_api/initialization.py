"""Initialization, version, the visible devices and their memory (CUDA driver API, sections 6.2, 6.3 and 6.5).

cuInit is the first call of every program, so this module imports only the code that connects to a device, but not the
modules for memory and graphs, and not cuda-bindings.
"""

from pympsd.process.version import API_VERSION
from pympsd_client._objects.process import process


def initialize(flags: int) -> None:
    """Connect to the MPS daemon, or continue without one; see `pympsd_client`.

    Raise MPS_CONNECTION_FAILED if PYMPSD_REQUIRE_MPS=1 and there is no daemon; the daemon's refusal
    (MPS_SERVER_NOT_READY, ...); NO_DEVICE; INVALID_VALUE for flags, and for invalid values of PYMPSD_REQUIRE_MPS,
    PYMPSD_LENIENT_LIMITS and PYMPSD_LAUNCHES; NOT_SUPPORTED for PYMPSD_LAUNCHES=native without the extension. The
    call waits while another user has the turn; after 10 s a RuntimeWarning reports that.
    """
    process.initialize(flags)


def driver_version() -> int:
    """Return the reported CUDA version, 1000 x major + 10 x minor. Can be called before cuInit."""
    if process.forked:
        process.require()
    connection = process.connection
    return API_VERSION if connection is None else connection.driver_version


def count() -> int:
    """Return the number of devices that this process sees."""
    connection = process.require()
    connection.check()
    return len(connection.devices)


def device(ordinal: int) -> int:
    """Return the device with a number, counted from 0; raise INVALID_DEVICE."""
    return process.device(ordinal).number


def total_memory(device: int) -> int:
    """Return the device's memory in bytes."""
    return process.device(device).properties.memory_bytes
