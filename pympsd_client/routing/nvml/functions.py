"""The functions of cuda.bindings.cynvml: the devices that there are, and their properties.

PyTorch, CuPy and cuda.core ask NVML for names, UUIDs, memory and topology before they call cuInit. They get the
devices that the client sees: CUDA_VISIBLE_DEVICES and the limits of the server apply, and on an emulated machine the
values are those of its description. `_FUNCTIONS` has a row for each function: what writes its result, and the format
of its parameters (`routing.driver`). Three makers cover the plain ones: a number or a text of a device's properties,
and a constant text. `machine` has the functions about topology and about hardware that an emulated device does not
have.

Functions that NVML has and pympsd does not return NVML_ERROR_NOT_SUPPORTED, which programs expect of many GPUs.
Results have their own numbers (`_RESULTS`), so CudaError is translated: a lost connection is NVML_ERROR_GPU_IS_LOST.
"""

import struct
from collections.abc import Callable
from ctypes import c_int, c_uint64, memmove
from typing import Any, Final

from pympsd.process.version import CUDA_VERSION, DRIVER_BRANCH, DRIVER_VERSION
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.results import Result
from pympsd_client._arguments import explanations
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import contexts
from pympsd_client.routing import explain
from pympsd_client.routing.nvml import devices as nvml
from pympsd_client.routing.nvml import machine
from pympsd_client.routing.nvml.devices import NvmlError
from pympsd_client.routing.structures import intern

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
_MEMORY: Final = struct.Struct("=4Q")
_PCI: Final = struct.Struct("=16s5I32s")
_PCI_EXTENDED: Final = struct.Struct("=7I32s")
_BRANCH_BYTES: Final = 80
_CLASS, _SUBCLASS = 3, 2
"""PCI's numbers of a 3D controller, which these GPUs are: they have no display."""
_ARCHITECTURES: Final = ((9, 0, 9), (8, 9, 8), (8, 0, 7), (7, 5, 6), (7, 0, 5), (6, 0, 4))
"""The nvmlDeviceArchitecture_t from a compute capability on; Blackwell (10) begins at 10.0."""
_COMMAND_BYTES: Final = 1 << 12


def _by_index(index: int, place: int) -> None:
    nvml.place(place)
    if index >= len(nvml.devices()):
        reason = f"there is no device {index}; {len(nvml.devices())} are visible, counted from 0"
        raise NvmlError(nvml.INVALID, reason)
    c_uint64.from_address(place).value = nvml.handle_of(index)


def _find(name: str | None, place: int, names: Callable[[DeviceProperties], tuple[str, ...]]) -> None:
    nvml.place(place)
    if name is None:
        raise NvmlError(nvml.INVALID, "the name is NULL")
    for index, device in enumerate(nvml.devices()):
        if name.upper() in (candidate.upper() for candidate in names(device.properties)):
            return _by_index(index, place)
    raise NvmlError(nvml.NOT_FOUND, f"no visible device is {name}")


def _pci(properties: DeviceProperties) -> tuple[int, int, int, int]:
    """Return domain, bus, device and function."""
    domain, bus, device, function = (int(part, 16) for part in properties.pci.replace(":", ".").split("."))
    return domain, bus, device, function


def _uuids(properties: DeviceProperties) -> tuple[str, str]:
    return properties.uuid, properties.uuid.removeprefix("GPU-")  # cuda.core asks for the latter


def _bus_ids(properties: DeviceProperties) -> tuple[str, str]:
    """Return a PCI bus id with a domain of 8 digits, as NVML writes it, and with one of 4."""
    domain, bus, device, function = _pci(properties)
    rest = f"{bus:02X}:{device:02X}.{function:X}"
    return f"{domain:08X}:{rest}", f"{domain:04X}:{rest}"


def _pci_info(handle: int, place: int) -> None:
    properties = nvml.properties(handle)
    long, short = _bus_ids(properties)
    packed = _PCI.pack(short.encode(), *_pci_numbers(properties), long.encode())
    memmove(nvml.place(place), packed, len(packed))


def _pci_info_extended(handle: int, place: int) -> None:
    properties = nvml.properties(handle)
    data = _PCI_EXTENDED.pack(*_pci_numbers(properties), _CLASS, _SUBCLASS, _bus_ids(properties)[0].encode())
    nvml.write_versioned(place, data, 1)


def _pci_numbers(properties: DeviceProperties) -> tuple[int, ...]:
    """Return domain, bus, device, and the board's device and subsystem ids, 0 if they are unknown."""
    board = (properties.attributes.get(f"GPU_PCI_{name}_ID", 0) for name in ("DEVICE", "SUBSYSTEM"))
    return *_pci(properties)[:3], *board


def _memory_info(handle: int, place: int) -> None:
    """Write the memory like cuMemGetInfo: the total is the process's limit if there is one."""
    uuid = nvml.properties(handle).uuid
    nvml.place(place)
    usable = (context for context in tuple(contexts.values()) if context.sticky_error is None)
    own = next((context for context in usable if context.device.properties.uuid == uuid), None)
    body = _ask_memory(uuid) if own is None else own.call(operations.MEMORY_INFO)
    free, total = operations.MEMORY_INFO.answer.unpack_from(body)
    nvml.write_versioned(place, _MEMORY.pack(total, 0, free, total - free), 2, padding=4)


def _ask_memory(uuid: str) -> bytes:
    """Return the answer of a context that is opened for this call; its own memory counts as used."""
    with nvml.connect() as connection:
        device = next((candidate for candidate in connection.devices if candidate.properties.uuid == uuid), None)
        if device is None:
            raise NvmlError(nvml.LOST, f"{uuid} is not visible any more")
        opened = connection.open_context(device, 0)
        try:
            sequence = opened.transport.sequence()
            record = operations.MEMORY_INFO.record(opened.context_id, sequence)
            _, result, body = opened.transport.call(sequence, record)
        finally:
            connection.close_context(device, opened.context_id)
    if result:
        raise CudaError(result, body.decode("utf-8", "replace"))
    return body


def _capability(handle: int, major: int, minor: int) -> None:
    for place, value in zip((major, minor), nvml.properties(handle).compute_capability, strict=True):
        c_int.from_address(nvml.place(place)).value = value


def _architecture(properties: DeviceProperties) -> int:
    capability = properties.compute_capability
    numbers = (number for *least, number in _ARCHITECTURES if tuple(least) <= capability < (10, 0))
    return next(numbers, 0xFFFF_FFFF)  # NVML_DEVICE_ARCH_UNKNOWN


def _process_name(pid: int, place: int, length: int) -> None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            name = file.read(_COMMAND_BYTES).partition(b"\0")[0].decode(errors="replace")
    except OSError as error:
        raise NvmlError(nvml.NOT_FOUND, f"there is no process {pid} ({error.strerror})") from None
    nvml.text(place, length, name)


_Row = tuple[Callable[..., Any], str]


def _number_of(value: Callable[[DeviceProperties], int]) -> _Row:
    return (lambda handle, place: nvml.number(place, value(nvml.properties(handle)))), "QQ"


def _text_of(value: Callable[[DeviceProperties], str]) -> _Row:
    return (lambda handle, place, length: nvml.text(place, length, value(nvml.properties(handle)))), "QQI"


def _constant(text: str) -> _Row:
    return (lambda place, length: nvml.text(place, length, text)), "QI"


_BRANCH: Final = f"r{DRIVER_BRANCH}_00".encode().ljust(_BRANCH_BYTES, b"\0")
_FUNCTIONS: Final[dict[str, _Row]] = {
    "nvmlInit_v2": (nvml.init, ""),
    "nvmlInitWithFlags": (nvml.init, "I"),
    "nvmlShutdown": (nvml.shut_down, ""),
    "nvmlSystemGetCudaDriverVersion": (lambda place: nvml.number(place, nvml.driver_version()), "Q"),
    "nvmlSystemGetCudaDriverVersion_v2": (lambda place: nvml.number(place, nvml.driver_version()), "Q"),
    "nvmlSystemGetDriverBranch": (lambda place, length: nvml.write_versioned(place, _BRANCH, 1), "QI"),
    "nvmlSystemGetDriverVersion": _constant(DRIVER_VERSION),
    "nvmlSystemGetNVMLVersion": _constant(f"{CUDA_VERSION // 1000}.{DRIVER_VERSION}"),
    "nvmlSystemGetProcessName": (_process_name, "IQI"),
    "nvmlDeviceGetArchitecture": _number_of(_architecture),
    "nvmlDeviceGetComputeMode": _number_of(lambda properties: properties.attributes["COMPUTE_MODE"]),
    "nvmlDeviceGetCount_v2": (lambda place: nvml.number(place, len(nvml.devices())), "Q"),
    "nvmlDeviceGetCudaComputeCapability": (_capability, "QQQ"),
    "nvmlDeviceGetHandleByIndex_v2": (_by_index, "IQ"),
    "nvmlDeviceGetHandleByPciBusId_v2": (lambda name, place: _find(name, place, _bus_ids), "sQ"),
    "nvmlDeviceGetHandleByUUID": (lambda name, place: _find(name, place, _uuids), "sQ"),
    "nvmlDeviceGetIndex": (lambda handle, place: nvml.number(place, nvml.index(handle)), "QQ"),
    "nvmlDeviceGetMemoryInfo_v2": (_memory_info, "QQ"),
    "nvmlDeviceGetName": _text_of(lambda properties: properties.name),
    "nvmlDeviceGetPciInfoExt": (_pci_info_extended, "QQ"),
    "nvmlDeviceGetPciInfo_v3": (_pci_info, "QQ"),
    "nvmlDeviceGetBrand": _number_of(machine.brand),
    "nvmlDeviceGetCpuAffinity": (machine.near_cpus, "QIQ"),
    "nvmlDeviceGetCpuAffinityWithinScope": (machine.near_cpus, "QIQi"),
    "nvmlDeviceGetDisplayActive": (machine.nothing, "QQ"),
    "nvmlDeviceGetDisplayMode": (machine.nothing, "QQ"),
    "nvmlDeviceGetFieldValues": (machine.field_values, "QiQ"),
    "nvmlDeviceGetMemoryAffinity": (machine.near_nodes, "QIQi"),
    "nvmlDeviceGetMinorNumber": (machine.minor_number, "QQ"),
    "nvmlDeviceGetNumFans": (machine.nothing, "QQ"),
    "nvmlDeviceGetPersistenceMode": (machine.nothing, "QQ"),
    "nvmlDeviceGetSupportedEventTypes": (machine.event_types, "QQ"),
    "nvmlDeviceGetTopologyNearestGpus": (machine.nearest, "QiQQ"),
    "nvmlDeviceSetPersistenceMode": (machine.set_persistence, "Qi"),
    "nvmlSystemGetTopologyGpuSet": (machine.near_gpus, "IQQ"),
    "nvmlDeviceGetUUID": _text_of(lambda properties: properties.uuid),
    "nvmlDeviceIsMigDeviceHandle": _number_of(lambda properties: properties.uuid.startswith("MIG-")),
}


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters."""
    return _FUNCTIONS.get(name) or (explain.refusing(name), "")


def result_of_error(name: str, error: BaseException | None) -> int:
    """Return the result of a call that raised; explain it."""
    code = nvml.UNKNOWN
    if isinstance(error, NvmlError):
        code = error.code
    elif isinstance(error, explain.Missing):
        code = nvml.UNSUPPORTED
    elif isinstance(error, CudaError):
        code = nvml.LOST if error.code == Result.ERROR_MPS_CONNECTION_FAILED else nvml.UNKNOWN
    reason = error.reason if isinstance(error, CudaError) else str(error)
    is_lacking = isinstance(error, explain.Missing)
    explanations.explain(name, _RESULTS[code][0], reason, is_lacking=is_lacking)
    return code


def error_string(code: int) -> int:
    """Return the address of a result's text."""
    return intern(_RESULTS.get(code, _RESULTS[nvml.UNKNOWN])[1])
