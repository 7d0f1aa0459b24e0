"""Answer --query-gpu and --query-compute-apps: selected fields as CSV (recorded).

The tables have the fields of nvidia-smi 580, by the names that it lists with --help-query-gpu and
--help-query-compute-apps. An emulated GPU has values for few of them; other fields print ``[N/A]``, as in nvidia-smi
for values that a GPU lacks. Names that are not in these tables are refused. The header of a CSV column contains the
field's unit.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Final

from pympsd.process.version import driver_version
from pympsd.smi.machine import MIB, MonitoredDevice, MonitoredMachine, MonitoredProcess
from pympsd.smi.options import BAD_VALUE, UnsupportedRequest


def _words(text: str) -> list[str]:
    return text.split()


_TIMES: Final = ("volatile", "aggregate")
_PLACES: Final = _words("device_memory dram register_file l1_cache l2_cache texture_memory cbu sram total")
_ECC: Final = (
    *(f"ecc.errors.{'.'.join(name)}" for name in product(("corrected", "uncorrected"), _TIMES, _PLACES)),
    *(f"ecc.errors.uncorrected.{name}.sram.{kind}" for name in _TIMES for kind in ("parity", "secded")),
    *(f"ecc.errors.uncorrected.aggregate.sram.{name}" for name in _words("thresholdExceeded l2 sm mcu pcie other")),
)
_REASONS: Final = _words(
    "supported active gpu_idle applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown "
    "hw_power_brake_slowdown sw_thermal_slowdown sync_boost"
)
_COUNTERS: Final = _words("sw_power_cap sync_boost sw_thermal_slowdown hw_thermal_slowdown hw_power_brake_slowdown")
_POWER: Final = _words("draw.average draw.instant limit default_limit min_limit max_limit")
_KINDS_OF_CLOCKS: Final = ("clocks.applications", "clocks.default_applications", "clocks.max")
_CLOCKS: Final = (
    *(f"clocks.current.{name}" for name in ("graphics", "sm", "memory", "video")),
    *(f"{group}.{name}" for group in _KINDS_OF_CLOCKS for name in ("graphics", "memory")),
    "clocks.max.sm",
)
_UNITLESS: Final = _words("""
timestamp driver_version count name serial uuid vgpu_driver_capability.heterogenous_multivGPU
vgpu_device_capability.fractional_multiVgpu vgpu_device_capability.heterogeneous_timeSlice_profile
vgpu_device_capability.heterogeneous_timeSlice_sizes vgpu_device_capability.homogeneous_placements
vgpu_device_capability.mig_timeslice vgpu_device_capability.mig_timeslice_mode pci.bus_id pci.domain pci.bus
pci.device pci.baseClass pci.subClass pci.device_id pci.sub_device_id pcie.link.gen.current pcie.link.gen.gpucurrent
pcie.link.gen.max pcie.link.gen.gpumax pcie.link.gen.hostmax pcie.link.width.current pcie.link.width.max index
display_mode display_attached display_active persistence_mode addressing_mode accounting.mode accounting.buffer_size
driver_model.current driver_model.pending vbios_version inforom.img inforom.oem inforom.ecc inforom.pwr
inforom.checksum_validation gpu_recovery_action gom.current gom.pending pstate compute_mode compute_cap
encoder.stats.sessionCount encoder.stats.averageFps encoder.stats.averageLatency dramEncryption.mode.current
dramEncryption.mode.pending ecc.mode.current ecc.mode.pending retired_pages.single_bit_ecc.count
retired_pages.double_bit.count retired_pages.pending remapped_rows.correctable remapped_rows.uncorrectable
remapped_rows.pending remapped_rows.failure remapped_rows.histogram.max remapped_rows.histogram.high
remapped_rows.histogram.partial remapped_rows.histogram.low remapped_rows.histogram.none temperature.gpu
temperature.gpu.tlimit temperature.memory power.management mig.mode.current mig.mode.pending gsp.mode.current
gsp.mode.default c2c.mode fabric.state fabric.status fabric.cliqueId fabric.clusterUuid fabric.health.bandwidth
fabric.health.route_recovery_in_progress fabric.health.route_unhealthy fabric.health.access_timeout_recovery
platform.chassis_serial_number platform.slot_number platform.tray_index platform.host_id platform.peer_type
platform.module_id platform.gpu_fabric_guid hostname
""")

DEVICE_FIELDS: Final[dict[str, str]] = {
    **dict.fromkeys((*_UNITLESS, *_ECC, *(f"clocks_event_reasons.{name}" for name in _REASONS)), ""),
    **{f"clocks_event_reasons_counters.{name}": "us" for name in _COUNTERS},
    **{f"memory.{name}": "MiB" for name in ("total", "reserved", "used", "free")},
    **{f"protected_memory.{name}": "MiB" for name in ("total", "used", "free")},
    **{f"utilization.{name}": "%" for name in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")},
    **dict.fromkeys(("fan.speed", "edpp_multiplier"), "%"),
    **dict.fromkeys(("power.draw", "enforced.power.limit", "module.enforced.power.limit"), "W"),
    **{f"{group}.{name}": "W" for group in ("power", "module.power") for name in _POWER},
    **dict.fromkeys(_CLOCKS, "MHz"),
}
"""The unit of each field; empty for a field without a unit."""

DEVICE_ALIASES: Final = {
    "gpu_uuid": "uuid",
    "gpu_name": "name",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "gpu_operation_mode.current": "gom.current",
    "gpu_operation_mode.pending": "gom.pending",
    "inforom.image": "inforom.img",
    "inforom.power": "inforom.pwr",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    **{f"clocks_throttle_reasons.{name}": f"clocks_event_reasons.{name}" for name in _REASONS},
    **{f"clocks.{name}": f"clocks.current.{name}" for name in ("sm", "video")},
    "clocks.gr": "clocks.current.graphics",
    "clocks.mem": "clocks.current.memory",
    **{f"{group}.gr": f"{group}.graphics" for group in _KINDS_OF_CLOCKS},
    **{f"{group}.mem": f"{group}.memory" for group in _KINDS_OF_CLOCKS},
}
"""Other names of fields, with the name that the header has."""

PROCESS_FIELDS: Final = {
    **dict.fromkeys(("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid", "pid", "process_name"), ""),
    "used_gpu_memory": "MiB",
}
PROCESS_ALIASES: Final = {"used_memory": "used_gpu_memory", "name": "process_name"}


NOT_AVAILABLE: Final = "[N/A]"

_OF_DEVICES: Final[dict[str, Callable[[MonitoredDevice], object]]] = {
    "timestamp": lambda _: _format_now(),
    "index": lambda device: device.index,
    "uuid": lambda device: device.properties.uuid,
    "name": lambda device: device.properties.name,
    "pci.bus_id": lambda device: device.bus_id,
    "pci.domain": lambda device: f"0x{device.bus_id.split(':')[0][-4:]}",
    "pci.bus": lambda device: f"0x{device.bus_id.split(':')[1]}",
    "pci.device": lambda device: f"0x{device.bus_id.split(':')[2].partition('.')[0]}",
    "memory.total": lambda device: device.memory_mib["total"],
    "memory.reserved": lambda device: device.memory_mib["reserved"],
    "memory.used": lambda device: device.memory_mib["used"],
    "memory.free": lambda device: device.memory_mib["free"],
    "utilization.gpu": lambda device: device.utilization,
    "utilization.memory": lambda _: 0,
    "compute_mode": lambda device: device.shown_mode,
    "compute_cap": lambda device: ".".join(map(str, device.properties.compute_capability)),
    "driver_version": lambda device: driver_version(device.properties.driver),
}
"""The values of the fields that an emulated device has."""
_OF_PROCESSES: Final[dict[str, Callable[[MonitoredDevice, MonitoredProcess], object]]] = {
    "timestamp": lambda _, process: _format_now(),
    "pid": lambda _, process: process.pid,
    "process_name": lambda _, process: process.name,
    "used_gpu_memory": lambda _, process: process.used // MIB,
    "gpu_name": lambda device, _: device.properties.name,
    "gpu_uuid": lambda device, _: device.properties.uuid,
    "gpu_bus_id": lambda device, _: device.bus_id,
}


def render_devices(
    machine: MonitoredMachine, devices: Sequence[MonitoredDevice], fields: str, form: frozenset[str]
) -> str:
    """Return the answer to ``--query-gpu``: a header, and a line for each device.

    Args:
        machine: The machine, for the field ``count``.
        devices: The devices to list.
        fields: Names of fields, separated by commas; aliases are accepted.
        form: Modifiers of ``--format``: ``noheader`` leaves the header out, ``nounits`` the units of values.

    Returns:
        Lines of comma-separated values. Memory is in MiB; a value that an emulated device lacks is ``[N/A]``.

    Raises:
        UnsupportedRequest: nvidia-smi does not have one of the fields.
    """
    readers: dict[str, Callable[[MonitoredDevice], object]] = {**_OF_DEVICES, "count": lambda _: len(machine.devices)}
    names = _read_field_names(fields, DEVICE_FIELDS, DEVICE_ALIASES)
    rows = ([readers[name](device) if name in readers else None for name in names] for device in devices)
    return _csv(DEVICE_FIELDS, names, rows, form)


def render_processes(devices: Sequence[MonitoredDevice], fields: str, form: frozenset[str]) -> str:
    """Return the answer to ``--query-compute-apps``: a header, and a line for each process on each device.

    Each server is followed by its clients. Arguments and errors are those of `render_devices`.
    """
    names = _read_field_names(fields, PROCESS_FIELDS, PROCESS_ALIASES)
    rows = (
        [_OF_PROCESSES[name](device, process) if name in _OF_PROCESSES else None for name in names]
        for device in devices
        for process in device.processes
    )
    return _csv(PROCESS_FIELDS, names, rows, form)


def fields_help(fields: Mapping[str, str], aliases: Mapping[str, str]) -> str:
    """Return the output of ``--help-query-gpu`` or ``--help-query-compute-apps``: a line for each field.

    Args:
        fields: The fields, each with its unit.
        aliases: Other names of fields, each with the field's name.
    """
    lines = ["List of valid properties to query:", ""]
    for name in fields:
        alternatives = [f' or "{alias}"' for alias, field in aliases.items() if field == name]
        lines.append(f'"{name}"{"".join(alternatives)}')
    return "".join(f"{line}\n" for line in lines)


def _format_now() -> str:
    seconds = time.time()
    return f"{time.strftime('%Y/%m/%d %H:%M:%S', time.localtime(seconds))}.{int(seconds % 1 * 1000):03d}"


def _read_field_names(fields: str, all_fields: Iterable[str], replacements: Mapping[str, str]) -> list[str]:
    names = []
    for field in (word.strip() for word in fields.split(",")):
        name = replacements.get(field, field)
        if name not in all_fields:
            raise UnsupportedRequest(f'Field "{field}" is not a valid field to query.\n\n', BAD_VALUE)
        names.append(name)
    return names


def _csv(
    units: Mapping[str, str], names: Sequence[str], rows: Iterable[Sequence[object]], form: frozenset[str]
) -> str:
    """Return the lines of CSV. None in a row stands for a value that an emulated device does not have."""
    after = [f" {units[name]}" if units[name] and "nounits" not in form else "" for name in names]
    lines = [
        ", ".join(
            NOT_AVAILABLE if value is None else f"{value}{unit}" for value, unit in zip(row, after, strict=True)
        )
        for row in rows
    ]
    if "noheader" not in form:
        lines.insert(0, ", ".join(f"{name} [{units[name]}]" if units[name] else name for name in names))
    return "".join(f"{line}\n" for line in lines)
