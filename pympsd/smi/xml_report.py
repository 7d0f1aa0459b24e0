"""Write the report of -q -x: XML with the elements of nvidia-smi 580 (nvsmi_device_v12.dtd).

Values that an emulated device lacks are ``N/A``, as for a GPU that lacks them.
"""

import time
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from pympsd.process.version import cuda_version, driver_version
from pympsd.smi.machine import MIB, MonitoredDevice, MonitoredMachine
from pympsd.smi.summary import sort_processes

_HEAD: Final = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
_LACKING: Final = "N/A"
Elements = Sequence[tuple[str, object]]
"""XML elements: each a name, and a text or nested elements."""


def report(machine: MonitoredMachine, devices: Sequence[MonitoredDevice], parts: frozenset[str]) -> str:
    """Return the report that ``-q -x`` prints: XML, as nvidia-smi writes it.

    Args:
        machine: The machine, for the versions of driver and CUDA.
        devices: The devices that the report describes.
        parts: Some of MEMORY, COMPUTE, UTILIZATION and PIDS; empty for the whole report (see
            `pympsd.smi.report.parts`).
    """
    head = (
        ("timestamp", time.strftime("%a %b %e %H:%M:%S %Y")),
        ("driver_version", driver_version(machine.driver)),
        ("cuda_version", cuda_version(machine.driver)),
        ("attached_gpus", len(machine.devices)),
    )
    text = _HEAD + "<nvidia_smi_log>\n" + _elements(head, 1)
    for device in devices:
        text += f"\t<gpu id={quoteattr(device.bus_id)}>\n{_elements(_device(device, parts), 2)}\t</gpu>\n"
    return f"{text}</nvidia_smi_log>\n"


def _elements(elements: Elements, depth: int) -> str:
    lines = []
    for name, content in elements:
        before = "\t" * depth
        if isinstance(content, tuple):
            lines.append(f"{before}<{name}>\n{_elements(content, depth + 1)}{before}</{name}>\n")
        else:
            lines.append(f"{before}<{name}>{escape(str(content))}</{name}>\n")
    return "".join(lines)


def _device(device: MonitoredDevice, parts: frozenset[str]) -> Elements:
    sections = {
        "": _identity(device),
        "MEMORY": _memory(device),
        "COMPUTE": (("compute_mode", device.shown_mode),),
        "UTILIZATION": (("utilization", _utilization(device)),),
        " ": _sensors(),
        "PIDS": (("processes", _processes(device)),),
    }
    return [element for name, elements in sections.items() if not parts or name in parts for element in elements]


def _make_lacking(*names: str) -> Elements:
    return tuple((name, _LACKING) for name in names)


def _identity(device: MonitoredDevice) -> Elements:
    """Return the elements that identify a device: its name, UUID and PCI address."""
    domain, bus, device_and_function = device.bus_id.split(":")
    pci = (
        ("pci_bus", bus),
        ("pci_device", device_and_function.partition(".")[0]),
        ("pci_domain", domain[-4:]),
        *_make_lacking("pci_device_id"),
        ("pci_bus_id", device.bus_id),
        *_make_lacking("pci_sub_system_id"),
    )
    return (
        ("product_name", device.properties.name),
        *_make_lacking("product_brand", "product_architecture", "display_mode", "display_attached", "display_active"),
        *_make_lacking("persistence_mode", "addressing_mode"),
        ("mig_mode", _make_lacking("current_mig", "pending_mig")),
        ("mig_devices", "None"),
        *_make_lacking("accounting_mode", "accounting_mode_buffer_size"),
        ("driver_model", _make_lacking("current_dm", "pending_dm")),
        *_make_lacking("serial"),
        ("uuid", device.properties.uuid),
        *_make_lacking("minor_number", "vbios_version", "multigpu_board", "board_id", "board_part_number"),
        ("ecc_mode", _make_lacking("current_ecc", "pending_ecc")),
        ("pci", pci),
        *_make_lacking("fan_speed", "performance_state"),
    )


def _memory(device: MonitoredDevice) -> Elements:
    return (
        ("fb_memory_usage", tuple((name, f"{size} MiB") for name, size in device.memory_mib.items())),
        ("bar1_memory_usage", _make_lacking("total", "used", "free")),
    )


def _utilization(device: MonitoredDevice) -> Elements:
    rates = (("gpu_util", f"{device.utilization} %"), ("memory_util", "0 %"))
    return (*rates, *_make_lacking("encoder_util", "decoder_util", "jpeg_util", "ofa_util"))


def _sensors() -> Elements:
    return (
        ("temperature", _make_lacking("gpu_temp", "gpu_temp_tlimit", "memory_temp")),
        (
            "gpu_power_readings",
            _make_lacking("power_state", "average_power_draw", "instant_power_draw", "current_power_limit"),
        ),
        ("clocks", _make_lacking("graphics_clock", "sm_clock", "mem_clock", "video_clock")),
        ("max_clocks", _make_lacking("graphics_clock", "sm_clock", "mem_clock", "video_clock")),
    )


def _processes(device: MonitoredDevice) -> Elements:
    return tuple(
        (
            "process_info",
            (
                *_make_lacking("gpu_instance_id", "compute_instance_id"),
                ("pid", process.pid),
                ("type", process.kind),
                ("process_name", process.name),
                ("used_memory", f"{process.used // MIB} MiB"),
            ),
        )
        for process in sort_processes(device.processes)
    )
