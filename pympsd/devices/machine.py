"""Read the description of an emulated machine: a short form such as ``2xH200,1xP100``, or the path of a TOML file.

The file has one ``[[device]]`` table for each device (or for ``count`` equal ones)::

    fault_containment = "device"  # as real hardware; "client": a fatal fault stays with its context
    driver = 590                  # 580: versions, client contexts and commands of that driver
    stops_kernels = true          # false, as real hardware: a running kernel ends when done or with its executor
    isolates_address_spaces = true  # false, as real hardware: clients of one executor share an address space

    [[device]]
    profile = "H200"          # one of pympsd.devices.profiles.PROFILES: H200, B200, A100, L40S, Orin ...
    uuid = "GPU-7685caad-23a2-2403-a46b-a1dfeabe3819"   # the rest is optional
    pci = "0000:00.06.00"
    name = "NVIDIA H200"
    multiprocessors = 132
    memory_mib = 143155
    compute_capability = "9.0"
    compute_mode = "DEFAULT"  # or EXCLUSIVE_PROCESS, PROHIBITED: until pympsd-smi changes it
    unified_addressing = true # false: a device that MPS refuses
    sm_chunks = [15, 8]       # of static SM partitions: how many chunks, of how many SMs each
    sm_chunks_2 = [15, 8]     # the same in protocol 2: each has one or more of the chunks above
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from attrs import evolve

from pympsd.devices.profiles import PROFILES, Profile
from pympsd.errors import InputError
from pympsd.process.version import CUDA_VERSIONS, DRIVER
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.partitions import MIN_CAPABILITY, chunk_count, chunk_size
from pympsd.vocabulary.variables import DRIVER_VARIABLE, EMULATED_DEVICES, BadSetting, read

VARIABLE: Final = EMULATED_DEVICES
"""The name of the variable that describes the machine, in short form or by the path of a file."""
MAX_DEVICES: Final = 64
MAX_FIGURE: Final = 1 << 20
"""The greatest number allowed in a description.

It also limits a device's memory in MiB, which must fit in the device's window of addresses.
"""
_COUNTS: Final = frozenset(map(str, range(1, MAX_DEVICES + 1)))
CONTAINMENTS: Final = ("device", "client")
ABILITIES: Final = ("stops_kernels", "isolates_address_spaces")
"""The abilities of emulated devices that real devices lack. A description may set each of them to false."""
COMPUTE_MODES: Final = {"DEFAULT": 0, "PROHIBITED": 2, "EXCLUSIVE_PROCESS": 3}
_CHUNKS: Final = ("sm_chunks", "sm_chunks_2")
_KEYS_OF_A_DEVICE: Final = """
profile count uuid pci name multiprocessors memory_mib compute_capability compute_mode unified_addressing
"""
_KEYS: Final = frozenset({*_KEYS_OF_A_DEVICE.split(), *_CHUNKS})


class BadMachine(InputError, ValueError):
    """Raised if a machine's description is invalid, or if the machine's state cannot be read.

    The message explains what is allowed, and what to do.
    """


def describe(text: str) -> tuple[DeviceProperties, ...]:
    """Return the devices of a machine.

    Args:
        text: The short form, or the path of a TOML file.

    Raises:
        BadMachine: The description is invalid, or the file cannot be read.

    >>> [(device.name, device.multiprocessors) for device in describe("H200,2xL40S")]
    [('NVIDIA H200', 132), ('NVIDIA L40S', 142), ('NVIDIA L40S', 142)]
    """
    if is_file(text):
        try:
            return parse_toml(_read(text))
        except BadMachine as error:
            raise BadMachine(f"the machine file {text}: {error}; fix it, or name another in {VARIABLE}") from None
    return _check_devices([properties for part in text.split(",") for properties in _short(part.strip(), text)])


def is_file(text: str) -> bool:
    """Return whether a description is the path of a file, and not the short form.

    >>> is_file("machine.toml"), is_file("/etc/machine"), is_file("2xH200")
    (True, True, False)
    """
    return "/" in text or text.endswith(".toml")


def parse_toml(text: str) -> tuple[DeviceProperties, ...]:
    """Return the devices that a TOML text describes.

    Args:
        text: The content of a machine file, in the form that the module's docstring shows.

    Raises:
        BadMachine: The text is not TOML, or a key or value is invalid.

    >>> parse_toml('[[device]]\\nprofile = "H200"\\nmemory_mib = 1024')[0].memory_bytes
    1073741824
    """
    try:
        machine = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib raises other ValueErrors too: for a date, a long number
        raise BadMachine(f"the machine description is not TOML: {error}") from None
    tables = machine.get("device")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadMachine("a machine description has one [[device]] table a device")
    allowed_keys = ("device", "fault_containment", "driver", *ABILITIES)
    unknown = machine.keys() - set(allowed_keys)
    if unknown:
        raise BadMachine(f"a machine has no {', '.join(sorted(unknown))}; it has {', '.join(allowed_keys)}")
    containment = machine.get("fault_containment", CONTAINMENTS[0])
    if containment not in CONTAINMENTS:
        raise BadMachine(f"fault_containment must be one of {', '.join(CONTAINMENTS)}, not {containment!r}")
    driver = machine.get("driver", DRIVER)
    if type(driver) is not int or driver not in CUDA_VERSIONS:
        raise BadMachine(f"driver must be one of {', '.join(map(str, CUDA_VERSIONS))}, not {driver!r}")
    stops, isolates = (_read_flag(machine, ability) for ability in ABILITIES)
    devices = _check_devices([properties for table in tables for properties in _parse_table(table)])
    return tuple(
        evolve(
            device,
            contains_faults=containment == "client",
            driver=driver,
            stops_kernels=stops,
            isolates_address_spaces=isolates and device.isolates_address_spaces,
        )
        for device in devices
    )


def set_driver(devices: tuple[DeviceProperties, ...], environment: Mapping[str, str]) -> tuple[DeviceProperties, ...]:
    """Return the devices with the driver branch that PYMPSD_DRIVER requests; raise BadMachine."""
    try:
        requested = int(read(environment, DRIVER_VARIABLE) or 0)
    except BadSetting as error:
        raise BadMachine(str(error)) from None
    return tuple(evolve(device, driver=requested or device.driver) for device in devices)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise BadMachine(error.strerror or str(error)) from None
    except ValueError as error:  # an invalid path, or a file that is not text
        raise BadMachine(str(error)) from None


def _short(part: str, whole: str) -> list[tuple[Profile, dict[str, Any]]]:
    count, _, name = part.rpartition("x")
    if name not in PROFILES or (count or "1") not in _COUNTS:
        raise BadMachine(
            f"PYMPSD_EMULATED_DEVICES={whole}: {part!r} is not one of {', '.join(PROFILES)}, nor one of these names "
            f"after a count up to {MAX_DEVICES} (3xH200), nor the path of a TOML file"
        )
    return [(PROFILES[name], {})] * int(count or "1")


def _parse_table(table: dict[str, Any]) -> list[tuple[Profile, dict[str, Any]]]:
    unknown = table.keys() - _KEYS
    if unknown:
        raise BadMachine(f"a device has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(_KEYS))}")
    profile = PROFILES.get(str(table.get("profile", "H200")))
    if profile is None:
        raise BadMachine(f"profile {table['profile']!r} is not one of {', '.join(PROFILES)}")
    count = table.get("count", 1)
    if type(count) is not int or not 0 < count <= MAX_DEVICES:
        raise BadMachine(f"count must be a number from 1 to {MAX_DEVICES}, not {count!r}")
    if count > 1 and table.keys() & {"uuid", "pci"}:
        raise BadMachine("devices of a count above 1 cannot share one uuid or pci")
    return [(profile, table)] * count


def _check_devices(devices: list[tuple[Profile, dict[str, Any]]]) -> tuple[DeviceProperties, ...]:
    if not 0 < len(devices) <= MAX_DEVICES:
        raise BadMachine(f"a machine has 1 to {MAX_DEVICES} devices, not {len(devices)}")
    properties = tuple(_properties(index, profile, table) for index, (profile, table) in enumerate(devices))
    if len({device.uuid for device in properties}) < len(properties):
        raise BadMachine("two devices have the same uuid")
    return properties


_OF_OWN_SPACES: Final = (
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "HOST_NUMA_MEMORY_POOLS_SUPPORTED",
    "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "IPC_EVENT_SUPPORTED",
    "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
)


def _properties(index: int, profile: Profile, table: dict[str, Any]) -> DeviceProperties:
    """Return the device that a ``[[device]]`` table describes; the profile has the values that the table omits."""
    capability = _capability(table, profile)
    multiprocessors = _positive(table, "multiprocessors", profile.multiprocessors)
    mode = table.get("compute_mode", "DEFAULT")
    if not isinstance(mode, str) or mode not in COMPUTE_MODES:
        raise BadMachine(f"compute_mode must be one of {', '.join(COMPUTE_MODES)}, not {mode!r}")
    unified = _read_flag(table, "unified_addressing")
    identity = {
        "COMPUTE_CAPABILITY_MAJOR": capability[0],
        "COMPUTE_CAPABILITY_MINOR": capability[1],
        "MULTIPROCESSOR_COUNT": multiprocessors,
        "COMPUTE_MODE": COMPUTE_MODES[mode],
        "UNIFIED_ADDRESSING": int(unified),
        # Mapping and sharing memory is possible only if each client has an address space of its own.
        **dict.fromkeys(_OF_OWN_SPACES, int(capability >= (7, 0))),
        "COOPERATIVE_LAUNCH": int(capability >= (6, 0)),
        "CLUSTER_LAUNCH": int(capability >= (9, 0)),
        "PCI_BUS_ID": 0,
        "PCI_DEVICE_ID": 6 + index,
    }
    chunks, chunks_2 = (_chunks(table, key) for key in _CHUNKS)
    if multiprocessors == profile.multiprocessors:
        chunks = chunks or profile.sm_chunks
    device = DeviceProperties(
        name=str(table.get("name", profile.name)),
        uuid=_uuid(table, index),
        pci=_pci(table, index),
        compute_capability=capability,
        multiprocessors=multiprocessors,
        memory_bytes=_positive(table, "memory_mib", 0) << 20 if "memory_mib" in table else profile.memory_bytes,
        attributes={**profile.attributes, **identity},
        stops_kernels=True,
        isolates_address_spaces=capability >= (7, 0),
        sm_chunks=chunks,
        sm_chunks_2=chunks_2,
        reserved_bytes=0 if "memory_mib" in table else profile.reserved_bytes,
    )
    _check_chunks(device, table)
    return device


def _chunks(table: dict[str, Any], key: str) -> tuple[int, int] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise BadMachine(f"{key} must be [CHUNKS, SMS-IN-EACH], as in [15, 8], not {value!r}")
    return value[0], value[1]


def _check_chunks(device: DeviceProperties, table: dict[str, Any]) -> None:
    """Raise BadMachine for chunks that a device cannot have.

    The device may be too old or have too few SMs. A chunk of protocol 2 must consist of whole chunks of protocol 3.
    """
    keys = [key for key in _CHUNKS if key in table]
    if keys and device.compute_capability < MIN_CAPABILITY:
        raise BadMachine(f"{keys[0]}: static SM partitions need compute capability 8.0")
    if device.sm_chunks is not None and device.multiprocessors < device.sm_chunks[0] * device.sm_chunks[1]:
        count, size = device.sm_chunks
        raise BadMachine(f"sm_chunks: {count} chunks of {size} SMs do not fit {device.multiprocessors} SMs")
    if device.sm_chunks_2 is not None:
        count, size = device.sm_chunks_2
        maximum, unit = chunk_count(device), chunk_size(device)
        if size % unit or count * size > maximum * unit:
            raise BadMachine(
                f"sm_chunks_2: {count} chunks of {size} SMs cannot be made of {maximum} chunks of {unit}"
            )


def _pci(table: dict[str, Any], index: int) -> str:
    address = str(table.get("pci", f"0000:00.{6 + index:02x}.00"))
    parts = address.replace(":", ".").split(".")
    is_hexadecimal = not set("".join(parts)) - set("0123456789abcdefABCDEF")
    if list(map(len, parts)) != [4, 2, 2, 2] or address[4] != ":" or not is_hexadecimal:
        raise BadMachine(f"a pci id must be written as device_query prints it, 0000:00.06.00, not {address!r}")
    return address


def _uuid(table: dict[str, Any], index: int) -> str:
    value = table.get("uuid")
    if value is None:
        return f"GPU-{uuid5(NAMESPACE_OID, f'pympsd emulated device {index}')}"
    groups = str(value).removeprefix("GPU-").split("-")
    is_hexadecimal = not set("".join(groups)) - set("0123456789abcdef")
    if not str(value).startswith("GPU-") or list(map(len, groups)) != [8, 4, 4, 4, 12] or not is_hexadecimal:
        raise BadMachine(f"a uuid must be GPU- and 32 hexadecimal digits in five groups, not {value!r}")
    return str(value)


def _capability(table: dict[str, Any], profile: Profile) -> tuple[int, int]:
    value = table.get("compute_capability")
    if value is None:
        return profile.compute_capability
    major, dot, minor = str(value).partition(".")
    if not (dot and 0 < len(major) < 4 and 0 < len(minor) < 4 and (major + minor).isdecimal()):
        raise BadMachine(f'a compute_capability must be written like "9.0", not {value!r}')
    return int(major), int(minor)


def _read_flag(table: dict[str, Any], key: str) -> bool:
    value = table.get(key, True)
    if not isinstance(value, bool):
        raise BadMachine(f"{key} must be true or false, not {value!r}")
    return value


def _positive(table: dict[str, Any], key: str, default: int) -> int:
    value = table.get(key, default)
    if type(value) is not int or not 0 < value <= MAX_FIGURE:
        raise BadMachine(f"{key} must be a number from 1 to {MAX_FIGURE}, not {value!r}")
    return value


def set_attributes(device: DeviceProperties, **attributes: int) -> DeviceProperties:
    """Return a device with some of its attributes changed; the argument itself stays as it is.

    Args:
        device: The device.
        attributes: New values by the names of CUdevice_attribute without their prefix, such as ``COMPUTE_MODE=2``.
    """
    return evolve(device, attributes={**device.attributes, **attributes})
