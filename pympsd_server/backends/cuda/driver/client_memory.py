"""Print the device memory of MPS clients as JSON, one line for each line of standard input.

The daemon runs this program as a child, because a library of the driver may hang or crash. The driver's own MPS
server does not report its clients' memory; NVML does.

A line maps the UUID of each device to bytes by PID, ``{"GPU-...": {"4711": 1048576}}``, or is ``{"error": "why"}``.
PIDs are those of this process's PID namespace. The program ends at the end of its input, or after IDLE_SECONDS
without a request, so that it does not keep the driver in use.
"""

import ctypes
import json
import select
import sys
from typing import Any, Final

from pympsd.errors import CallError

IDLE_SECONDS: Final = 10.0
_INSUFFICIENT_SIZE: Final = 7
_NOT_AVAILABLE: Final = (1 << 64) - 1
_UUID_BYTES: Final = 96
_ATTEMPTS: Final = 4
"""The maximum number of requests for the list of processes. The space for it doubles after each that did not fit."""


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t (NVML API reference, Device Structs)."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlError(CallError):
    """A call of NVML failed; the message names the call and the error."""


class Nvml:
    """The functions of NVML that this program calls."""

    def __init__(self) -> None:
        """Load and initialise the library; raise NvmlError or OSError."""
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")

    def memory(self) -> dict[str, dict[int, int]]:
        """Return, for the UUID of each device, the bytes that MPS clients hold by PID; raise NvmlError."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        usage = {}
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            uuid = ctypes.create_string_buffer(_UUID_BYTES)
            self._call("nvmlDeviceGetUUID", device, uuid, ctypes.c_uint(_UUID_BYTES))
            usage[uuid.value.decode(errors="replace")] = self._read_device(device)
        return usage

    def _read_device(self, device: ctypes.c_void_p) -> dict[int, int]:
        count = ctypes.c_uint(0)
        for _ in range(_ATTEMPTS):
            count = ctypes.c_uint(2 * count.value + 64)
            processes = (_Process * count.value)()
            arguments = device, ctypes.byref(count), processes
            if self._call("nvmlDeviceGetMPSComputeRunningProcesses_v3", *arguments, allowed=_INSUFFICIENT_SIZE) == 0:
                break
        else:
            raise NvmlError("nvmlDeviceGetMPSComputeRunningProcesses_v3: there are more processes than can be listed")
        entries = processes[: count.value]
        return {process.pid: process.used_memory for process in entries if process.used_memory != _NOT_AVAILABLE}

    def _call(self, name: str, *arguments: Any, allowed: int = 0) -> int:
        code = int(getattr(self._library, name)(*arguments))
        if code not in (0, allowed):
            raise NvmlError(f"{name}: {(self._library.nvmlErrorString(code) or b'?').decode(errors='replace')}")
        return code


def main() -> None:
    """Answer each line of standard input, until it ends or no line has come for IDLE_SECONDS."""
    try:
        nvml = Nvml()
        reason = ""
    except (OSError, AttributeError, NvmlError) as error:
        nvml, reason = None, str(error)
    while select.select([sys.stdin], (), (), IDLE_SECONDS)[0] and sys.stdin.readline():
        answer: dict[str, Any] = {"error": reason}
        if nvml is not None:
            try:
                answer = nvml.memory()
            except (AttributeError, NvmlError) as error:
                answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
