"""Write the description of a machine's devices that libnvidia-ml.so.1 reads: their properties, and the processes that
use them.

A native program has no Python, so the format is one that C reads easily: a line for each property, with its name
before its values. Lines before the first ``device`` are about the machine; ``process`` lines follow their device::

    pympsd-nvml 1
    backend emulated
    driver 590.0 590 13010 13010       version, branch, CUDA version of it, and of the driver API that programs have
    modes 0 1000 /run/pympsd/pympsd-devices.state/modes     whose file of compute modes counts, and its path
    device
    uuid GPU-7685caad-23a2-2403-a46b-a1dfeabe3819
    name NVIDIA H200
    pci 0 0 6 0                        domain, bus, device, function
    board 0 0                          PCI ids of the board and its subsystem
    capability 9 0
    memory 150109880320 67108864       bytes: all, and what processes hold
    reserved 644939776                 bytes that the driver keeps for itself, not among the others
    utilization 37 0                   percent of the last second: kernels ran; used memory (not counted: 0)
    compute_mode 0
    numa_node 0
    ordinal 0
    process 4711 C 0 37                PID, C (a server) or M (a client of one), bytes, a server's utilization
    process 4712 M 67108864
    end

A reader ignores lines with unknown names, so new ones may be added. A change of an existing line needs another number
in the first line. `pympsd_client/native/src/nvml/machine.c` is the reader.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from pympsd.process.version import API_VERSION, CUDA_VERSIONS, driver_version
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.untrusted import printable

FIRST_LINE: Final = "pympsd-nvml 1"
_MAX_NAME: Final = 95
"""The maximum length of a device's name in bytes: NVML_DEVICE_NAME_V2_BUFFER_SIZE minus 1 for the NUL."""


@frozen
class DeviceProcess:
    """A process on a device, as `nvml_text` describes it: a server or a client.

    ``pid`` is its PID in the daemon's PID namespace.
    """

    pid: int
    is_client: bool
    used: int
    """The number of bytes of device memory that the process holds."""
    utilization: int = 0
    """The percentage of the last second in which the process's kernels ran; for a server, the kernels of all its
    clients.
    """


@frozen
class ModesFile:
    """The file of compute modes that pympsd-smi changes. The file counts if root or ``owner`` has written it."""

    path: str
    owner: int = 0


def nvml_text(
    backend: str,
    devices: Sequence[DeviceProperties],
    processes: Sequence[Sequence[DeviceProcess]] = (),
    modes: ModesFile | None = None,
    utilization: Sequence[int | None] = (),
) -> str:
    """Return the text that libnvidia-ml.so.1 reads, in the format of this module's docstring.

    Args:
        backend: ``emulated``, ``cuda`` or ``vendor``.
        devices: The devices, in the order of NVML's indices.
        processes: The processes on each device, in the same order; empty if nobody uses them.
        modes: The file of compute modes whose later changes count; None means the modes of ``devices``.
        utilization: The percentage of each device, None where it is not known. Empty: emulated devices are idle, and
            the utilization of others is unknown.
    """
    of_devices = processes or [()] * len(devices)
    percentages = utilization or [0 if backend == "emulated" else None] * len(devices)
    lines = [FIRST_LINE, f"backend {backend}", *_driver(devices)]
    if modes is not None and modes.path.isprintable():
        lines.append(f"modes 0 {modes.owner} {modes.path}")
    for ordinal, (device, users, percentage) in enumerate(zip(devices, of_devices, percentages, strict=True)):
        lines += _device(ordinal, device, users, percentage)
    return "".join(f"{line}\n" for line in (*lines, "end"))


def _driver(devices: Sequence[DeviceProperties]) -> Iterator[str]:
    for device in devices[:1]:
        yield f"driver {driver_version(device.driver)} {device.driver} {CUDA_VERSIONS[device.driver]} {API_VERSION}"


def _device(
    ordinal: int, device: DeviceProperties, users: Sequence[DeviceProcess], utilization: int | None
) -> Iterator[str]:
    """Yield the lines of a device and of the processes on it."""
    domain, bus, slot, function = (int(part, 16) for part in device.pci.replace(":", ".").split("."))
    attributes = device.attributes
    used = min(sum(process.used for process in users), device.memory_bytes)
    yield "device"
    yield f"uuid {device.uuid}"
    name = " ".join(printable(device.name).split())
    yield f"name {name.encode()[:_MAX_NAME].decode(errors='ignore')}"
    yield f"pci {domain} {bus} {slot} {function}"
    yield f"board {attributes.get('GPU_PCI_DEVICE_ID', 0)} {attributes.get('GPU_PCI_SUBSYSTEM_ID', 0)}"
    yield "capability {} {}".format(*device.compute_capability)
    yield f"memory {device.memory_bytes} {used}"
    yield f"reserved {device.reserved_bytes}"
    if utilization is not None:
        yield f"utilization {utilization} 0"
    yield f"compute_mode {attributes.get('COMPUTE_MODE', 0)}"
    yield f"numa_node {attributes.get('HOST_NUMA_ID', -1)}"
    yield f"ordinal {ordinal}"
    for process in users:
        percentage = f" {process.utilization}" if process.utilization else ""
        yield f"process {process.pid} {'M' if process.is_client else 'C'} {process.used}{percentage}"
