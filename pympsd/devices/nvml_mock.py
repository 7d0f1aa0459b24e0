"""Read and write machines in the format of nvml-mock's profiles (Mokka, NVIDIA/k8s-test-infra).

nvml-mock is a libnvidia-ml with no device behind it, for tests of Kubernetes components. With the same machine in
both formats a node has the same UUIDs, PCI addresses and memory for its device plug-in and for the daemon. A profile
is YAML, of which JSON is a part; `export_profile` writes JSON, so that nothing has to be installed.

The formats differ, and nothing that one of them lacks is dropped silently:

- A machine's own abilities (``fault_containment``, SM chunks) are not in a profile: NVML does not report them.
- A profile has figures that an emulated device lacks (power, temperatures, clocks): `read_profile` names them.
- What a profile *does* and an emulated device cannot do is refused (`_ACTIONS`): failures, MIG, metrics that move,
  processes that do not exist.
- In a profile only some keys may differ between devices: a machine whose devices differ in another key is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from pympsd.devices.machine import COMPUTE_MODES, BadMachine, parse_toml
from pympsd.devices.profiles import PROFILES, Profile
from pympsd.process.version import CUDA_VERSIONS, driver_version
from pympsd.vocabulary.device_properties import DeviceProperties

VERSION: Final = "1.0"
_MIB: Final = 1 << 20
_UNNAMED: Final = "GPU-4d4f434b-0000-0000-0000-{:012d}"
"""The UUID that nvml-mock gives a device whose UUID the profile does not state, by the device's index."""
_MAX_DEVICES_WITHOUT: Final = 8
"""The maximum number of devices for which a profile need not list the devices."""
_ARCHITECTURES: Final = {5: "maxwell", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell"}
_EXCEPTIONS: Final = {(7, 5): "turing", (8, 9): "ada"}
_SMALL_SMS: Final = ((6, 0), (7, 0), (7, 5), (8, 0))
"""Compute capabilities with 64 cores in an SM; others have 128 (CUDA C++ Programming Guide)."""
_SYSTEM: Final = frozenset(
    {"driver_version", "nvml_version", "cuda_version", "cuda_version_major", "cuda_version_minor", "num_devices"}
)
_TOP: Final = frozenset({"version", "system", "device_defaults", "devices", "nvlink", "pcie_topology"})
_TAKEN: Final = frozenset(
    {"name", "uuid", "index", "memory", "pci", "compute_capability", "num_gpu_cores", "compute_mode", "architecture"}
)
_KEYS_OF_FIGURES: Final = """
serial brand board_part_number vbios_version inforom bar1_memory pcie power thermal fan clocks
clocks_throttle_reasons supported_clocks performance_state utilization encoder_stats fbc_stats ecc retired_pages
remapped_rows display persistence_mode gpu_operation_mode driver_model accounting virtualization gsp_firmware
features gpm grace_superchip grace_cpu_pair topology platform minor_number fabric
"""
_FIGURES: Final = frozenset(_KEYS_OF_FIGURES.split())
"""The keys of a profile for figures that an emulated device does not have."""
_ACTIONS: Final = ("failure", "nvlink_error", "dynamic_metrics", "processes")
"""The keys of a profile for behaviour, which is refused rather than ignored."""


class BadProfile(BadMachine):
    """Raised for a profile that does not describe a machine of pympsd, or for a machine that no profile can describe.

    The message names the key, and what is allowed.
    """


@frozen
class ReadProfile:
    """The result of `read_profile`: the text of a machine file, and the keys of the profile that have no place in it.

    ``omitted`` has figures that an emulated device lacks, such as ``power`` and ``clocks``.
    """

    toml: str
    omitted: tuple[str, ...] = field(factory=tuple)


def export_profile(devices: Sequence[DeviceProperties]) -> dict[str, Any]:
    """Return a machine as a profile of nvml-mock, to be written as JSON.

    Args:
        devices: The machine's devices, with the compute modes that the profile is to have.

    Raises:
        BadProfile: The devices differ in compute capability, multiprocessors or compute mode, for which a profile has
            only one value.
    """
    first = devices[0]
    for device in devices:
        if (device.compute_capability, device.multiprocessors) != (first.compute_capability, first.multiprocessors):
            raise BadProfile(
                "in a profile of nvml-mock all devices have one compute capability and as many cores: export a "
                f"machine of devices like {first.name} alone"
            )
        if device.attributes["COMPUTE_MODE"] != first.attributes["COMPUTE_MODE"]:
            raise BadProfile("in a profile of nvml-mock all devices have one compute mode")
    version, cuda = driver_version(first.driver), CUDA_VERSIONS[first.driver]
    modes = {number: name.lower() for name, number in COMPUTE_MODES.items()}
    major, minor = first.compute_capability
    return {
        "version": VERSION,
        "system": {
            "driver_version": version,
            "nvml_version": f"{cuda // 1000}.{version}",
            "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "cuda_version_major": cuda // 1000,
            "cuda_version_minor": cuda % 1000 // 10,
            "num_devices": len(devices),
        },
        "device_defaults": {
            "brand": "tesla" if first.name.startswith("Tesla") else "nvidia",
            "architecture": _EXCEPTIONS.get((major, minor), _ARCHITECTURES.get(major, "unknown")),
            "compute_capability": {"major": major, "minor": minor},
            "num_gpu_cores": first.multiprocessors * _cores((major, minor)),
            "compute_mode": modes[first.attributes["COMPUTE_MODE"]],
        },
        "devices": [_export_device(index, device) for index, device in enumerate(devices)],
    }


def _export_device(index: int, device: DeviceProperties) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": device.uuid,
        "minor_number": index,
        "name": device.name,
        "pci": {"bus_id": device.bus_id[4:]},
        "memory": {
            "total_bytes": device.memory_bytes + device.reserved_bytes,
            "reserved_bytes": device.reserved_bytes,
            "free_bytes": device.memory_bytes,
            "memory_bus_width": device.attributes.get("GLOBAL_MEMORY_BUS_WIDTH", 0),
        },
    }


def read_profile(profile: object) -> ReadProfile:
    """Return the machine file of a profile; raise BadProfile, which names what pympsd does not have."""
    top = _mapping(profile, "the profile")
    _check_keys(top, _TOP, "a profile")
    if str(top.get("version", "")) != VERSION:
        raise BadProfile(f"the profile's version must be {VERSION}, not {top.get('version')!r}")
    system = _mapping(top.get("system", {}), "system")
    _check_keys(system, _SYSTEM, "system")
    defaults = _mapping(top.get("device_defaults", {}), "device_defaults")
    entries = [_mapping(entry, "an entry of devices") for entry in top.get("devices") or ()]
    by_index = {entry.get("index"): entry for entry in entries}
    count = system.get("num_devices") or len(entries) or _MAX_DEVICES_WITHOUT
    if len(by_index) < len(entries) or not isinstance(count, int):
        raise BadProfile("each entry of devices has its own index, and num_devices is a number")
    omitted = {f"system.{name}" for name in system} - {"system.num_devices"}
    omitted |= {name for name in ("nvlink", "pcie_topology") if top.get(name)}
    branch = str(system.get("driver_version", "")).partition(".")[0]
    lines = []
    if branch in map(str, CUDA_VERSIONS):
        lines.append(f"driver = {branch}\n")
        omitted -= {f"system.{name}" for name in _SYSTEM}
    for index in range(count):
        own = {name: value for name, value in by_index.get(index, {}).items() if value is not None}
        omitted |= _check_device({**defaults, **own}, index)
        lines.append("".join(f"{line}\n" for line in _read_device(defaults, own, index)))
    text = "\n".join(lines)
    parse_toml(text)  # refuses values that no machine has
    return ReadProfile(text, tuple(sorted(omitted)))


def _check_device(device: Mapping[str, Any], index: int) -> set[str]:
    """Return the keys of a device for which a machine file has no place; raise BadProfile for keys that must not be
    ignored.
    """
    _check_keys(device, _TAKEN | _FIGURES | {*_ACTIONS, "mig"}, f"device {index}")
    for name in _ACTIONS:
        if device.get(name):
            raise BadProfile(f"device {index}: {name}: pympsd does not have this; remove it from the profile")
    if str(_mapping(device.get("mig") or {}, "mig").get("mode_current", "disabled")) != "disabled":
        raise BadProfile(f"device {index}: mig.mode_current: emulated devices have no MIG; make it disabled")
    return {name for name in device if name in _FIGURES and name not in ("brand", "minor_number", "serial")}


def _read_device(defaults: Mapping[str, Any], own: Mapping[str, Any], index: int) -> Iterator[str]:
    """Yield the lines of a machine file for one device: its own values, otherwise the profile's defaults."""
    device = {**defaults, **own, "pci": {**(defaults.get("pci") or {}), **(own.get("pci") or {})}}
    capability = _mapping(device.get("compute_capability") or {}, "compute_capability")
    major, minor = (capability.get(name) for name in ("major", "minor"))
    if not isinstance(major, int) or not isinstance(minor, int):
        raise BadProfile("device_defaults.compute_capability has the numbers major and minor")
    name, profile = str(device.get("name") or "NVIDIA GPU"), _profile(str(device.get("name")), (major, minor))
    yield "[[device]]"
    yield f"profile = {_quote(_name_of(profile))}"
    yield f"name = {_quote(name)}"
    yield f"uuid = {_quote(str(own.get('uuid') or _UNNAMED.format(index)))}"
    if bus_id := device["pci"].get("bus_id"):
        yield f"pci = {_quote(_pci(str(bus_id)))}"
    yield f'compute_capability = "{major}.{minor}"'
    if cores := device.get("num_gpu_cores"):
        yield f"multiprocessors = {_multiprocessors(cores, (major, minor))}"
    total = _mapping(device.get("memory") or {}, "memory").get("total_bytes")
    if total is not None and total != profile.memory_bytes + profile.reserved_bytes:
        if not isinstance(total, int) or total % _MIB:
            raise BadProfile(f"device {index}: memory.total_bytes must be a number of whole MiB, not {total!r}")
        yield f"memory_mib = {total // _MIB}"
    mode = str(device.get("compute_mode") or "default").upper()
    if mode not in COMPUTE_MODES:
        allowed = ", ".join(name.lower() for name in COMPUTE_MODES)
        raise BadProfile(f"compute_mode must be one of {allowed}, not {device['compute_mode']!r}")
    yield f"compute_mode = {_quote(mode)}"


def _profile(name: str, capability: tuple[int, int]) -> Profile:
    """Return the profile of the device with this name, or else a profile with this compute capability."""
    alike = [profile for profile in PROFILES.values() if profile.compute_capability == capability]
    for profile in alike:
        if profile.name == name:
            return profile
    if not alike:
        capabilities = sorted({profile.compute_capability for profile in PROFILES.values()})
        texts = ", ".join(f"{major}.{minor}" for major, minor in capabilities)
        raise BadProfile(f"compute capability {capability[0]}.{capability[1]}: emulated devices have one of {texts}")
    return alike[0]


def _name_of(profile: Profile) -> str:
    return next(name for name, candidate in PROFILES.items() if candidate is profile)


def _cores(capability: tuple[int, int]) -> int:
    return 64 if capability in _SMALL_SMS else 128


def _multiprocessors(cores: object, capability: tuple[int, int]) -> int:
    if not isinstance(cores, int) or cores <= 0 or cores % _cores(capability):
        raise BadProfile(f"num_gpu_cores must be a multiple of {_cores(capability)}, not {cores!r}")
    return cores // _cores(capability)


def _pci(bus_id: str) -> str:
    """Return a PCI address in the form of machine files: 0000:1A:00.0 becomes 0000:1a.00.00."""
    parts = bus_id.lower().replace(".", ":").split(":")
    if len(parts) != 4 or len(parts[3]) != 1 or int(parts[0] or "0", 16) >= 1 << 16:
        raise BadProfile(f"pci.bus_id must be written like 0000:1A:00.0, not {bus_id!r}")
    return f"{int(parts[0], 16):04x}:{parts[1]}.{parts[2]}.0{parts[3]}"


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadProfile(f"{what} has keys and values, and is not {value!r:.60}")
    return value


def _check_keys(mapping: Mapping[str, Any], allowed_keys: frozenset[str] | set[str], what: str) -> None:
    if unknown := [str(name) for name in mapping if name not in allowed_keys]:
        raise BadProfile(f"{what}: pympsd has no meaning for {', '.join(sorted(unknown))}")


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if not text.isprintable():
        raise BadProfile(f"{text!r} has characters that cannot be printed")
    return f'"{escaped}"'
