"""pympsd's libnvidia-ml.so.1 as a C program sees it, loaded into the test's process."""

from __future__ import annotations

import ctypes
from pathlib import Path

from attrs import frozen

import pympsd_client

LIBRARY = Path(pympsd_client.__file__).parent / "native/libraries/libnvidia-ml.so.1"
NO_INSTANCE = 0xFFFF_FFFF
UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND, TOO_SMALL, NOT_LOADED, TIMEOUT, VERSION = 1, 2, 3, 6, 7, 9, 10, 25


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t since version 2."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class FirstProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v1_t."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("short_id", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "board", "subsystem")),
        ("long_id", ctypes.c_char * 32),
    )


@frozen
class Nvml:
    """The library at a path, by default pympsd's own."""

    library: ctypes.CDLL

    @classmethod
    def load(cls, path: Path = LIBRARY) -> Nvml:
        """Load the library, once for all tests, so a test must shut down the NVML that it has initialized."""
        library = ctypes.CDLL(str(path))
        library.nvmlErrorString.restype = ctypes.c_char_p
        return cls(library)

    def call(self, name: str, *arguments: object) -> int:
        """Return the result of a function."""
        return int(getattr(self.library, name)(*arguments))

    def explain(self, result: int) -> str:
        """Return the text of a result."""
        return str(self.library.nvmlErrorString(result).decode())

    def handles(self) -> list[ctypes.c_void_p]:
        """Return all devices."""
        count, handle = ctypes.c_uint(), ctypes.c_void_p()
        assert self.call("nvmlDeviceGetCount_v2", ctypes.byref(count)) == 0
        pointers = []
        for index in range(count.value):
            assert self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)) == 0
            pointers.append(ctypes.c_void_p(handle.value))
        return pointers

    def text(self, name: str, *arguments: object) -> str:
        """Return the text that a function writes."""
        place = ctypes.create_string_buffer(96)
        assert self.call(name, *arguments, place, len(place)) == 0, name
        return place.value.decode()

    def number(self, name: str, *arguments: object) -> int:
        """Return the number that a function writes."""
        place = ctypes.c_uint()
        assert self.call(name, *arguments, ctypes.byref(place)) == 0, name
        return place.value

    def bus_id(self, handle: ctypes.c_void_p) -> str:
        """Return a device's PCI address."""
        info = PciInfo()
        assert self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info)) == 0
        return str(info.long_id.decode())

    def capability(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        """Return a device's compute capability."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert self.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)) == 0
        return major.value, minor.value

    def memory(self, handle: ctypes.c_void_p) -> Memory:
        """Return a device's memory."""
        place = Memory(ctypes.sizeof(Memory) | 2 << 24)
        assert self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(place)) == 0
        return place

    def utilization(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        """Return the percentages of the GPU and of its memory."""
        place = (ctypes.c_uint * 2)()
        assert self.call("nvmlDeviceGetUtilizationRates", handle, place) == 0
        return place[0], place[1]

    def processes(
        self, handle: ctypes.c_void_p, kind: str = "Compute", version: str = "_v3"
    ) -> list[tuple[int, int]]:
        """Return PID and bytes of each process of a kind; "MPSCompute" has the clients."""
        structure = ProcessInfo if version else FirstProcessInfo
        count, places = ctypes.c_uint(64), (structure * 64)()
        assert self.call(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle, ctypes.byref(count), places) == 0
        listed = places[: count.value]
        assert not version or all(
            (info.gpu_instance, info.compute_instance) == (NO_INSTANCE, NO_INSTANCE) for info in listed
        )
        return [(info.pid, info.used) for info in listed]
