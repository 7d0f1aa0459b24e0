"""Print the GPUs of this machine as JSON. The daemon runs this as a child, because a driver may hang or crash.

The output is ``{"devices": [...]}``, ``{"absent": "why"}`` if there is no device to use, or ``{"unusable": "why"}``.
"""

import ctypes
import json
import os
import sys
from typing import Any, Final

if not __package__:  # run by path, isolated: the packages are five folders up
    sys.path.insert(0, os.path.abspath(os.path.join(__file__, *[os.pardir] * 5)))

from pympsd.vocabulary.device_properties import uuid_text

_NO_DEVICE: Final = 100
_STUB_LIBRARY: Final = 34


def pci_of(bus_id: str) -> str:
    """Convert a bus id from the driver's form, ``0000:00:06.0``, to device_query's form, ``0000:00.06.00``."""
    domain, bus, device_and_function = bus_id.lower().split(":")
    device, function = device_and_function.split(".")
    return f"{domain[-4:]}:{bus}.{device}.{int(function, 16):02x}"


def main() -> None:
    """Print the devices."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        answer: dict[str, Any] = {"absent": f"the driver's library cannot be loaded: {error}"}
    else:
        answer = _ask()
    sys.stdout.write(json.dumps(answer) + "\n")


def _ask() -> dict[str, Any]:
    from cuda.bindings import driver  # type: ignore[import-not-found,import-untyped,unused-ignore]  # no stubs

    code = int(driver.cuInit(0)[0])
    if code in (_NO_DEVICE, _STUB_LIBRARY):
        return {"absent": f"the driver finds no device: cuInit returns CUresult {code}"}
    if code:
        name = driver.cuGetErrorName(driver.CUresult(code))[1] if code in _list_codes(driver) else b"unknown"
        return {"unusable": f"cuInit returns CUresult {code}, {bytes(name or b'unknown').decode()}"}
    code, count = driver.cuDeviceGetCount()
    if int(code) or not count:
        return {"absent": "the driver counts no device"}
    return {"devices": [_properties(driver, number) for number in range(count)]}


def _list_codes(driver: Any) -> set[int]:
    return {int(member) for member in driver.CUresult.__members__.values()}


def _properties(driver: Any, number: int) -> dict[str, Any]:
    """Return the properties of a device by its number, as the daemon receives them in JSON."""
    device = driver.cuDeviceGet(number)[1]
    attributes = {}
    for name, attribute in driver.CUdevice_attribute.__members__.items():
        code, value = driver.cuDeviceGetAttribute(attribute, device)
        if not int(code):  # an older driver lacks some
            attributes[name.removeprefix("CU_DEVICE_ATTRIBUTE_")] = int(value)
    return {
        "name": _text(driver.cuDeviceGetName(128, device)[1]),
        "uuid": uuid_text(bytes(driver.cuDeviceGetUuid(device)[1].bytes)),
        "pci": pci_of(_text(driver.cuDeviceGetPCIBusId(32, device)[1])),
        "compute_capability": (attributes["COMPUTE_CAPABILITY_MAJOR"], attributes["COMPUTE_CAPABILITY_MINOR"]),
        "multiprocessors": attributes["MULTIPROCESSOR_COUNT"],
        "memory_bytes": int(driver.cuDeviceTotalMem(device)[1]),
        "attributes": attributes,
        "sm_chunks": _sm_chunks(driver, device),
    }


def _sm_chunks(driver: Any, device: Any) -> tuple[int, int] | None:
    """Return the number of groups of SMs into which the driver splits the device, and the SMs of a group.

    Return None if the driver refuses.
    """
    try:
        code, all_sms = driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
        if int(code):
            return None
        code, groups, count, _ = driver.cuDevSmResourceSplitByCount(all_sms.sm.smCount, all_sms, 0, 1)
    except RuntimeError:  # a driver before 12.4 lacks these functions
        return None
    return None if int(code) or not count else (int(count), int(groups[0].sm.smCount))


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode().strip()


if __name__ == "__main__":
    # Variables that a client or an operator set for other programs must not hide devices or lead to a daemon.
    for variable in [name for name in os.environ if name.startswith(("CUDA_VISIBLE_DEVICES", "CUDA_MPS_"))]:
        del os.environ[variable]
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"
    main()
