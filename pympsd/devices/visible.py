"""Select the devices that CUDA_VISIBLE_DEVICES makes visible, in its order (MPS documents, 4.2.1; recorded:
several-gpus).

An entry is an index, a UUID, or a unique prefix of a UUID that includes ``GPU-``. Reading stops at the first invalid
entry; the devices before it stay visible.
"""

from collections.abc import Sequence

from pympsd.errors import InputError
from pympsd.vocabulary.device_properties import DeviceProperties


class NoVisibleDevice(InputError, ValueError):
    """Raised when CUDA_VISIBLE_DEVICES leaves no device visible; the message names the existing devices.

    The daemon then ends with the status CUDA_ERROR_NO_DEVICE, 100.
    """


class DuplicateDevice(InputError, ValueError):
    """Raised when CUDA_VISIBLE_DEVICES names a device twice.

    The daemon then ends with the status CUDA_ERROR_INVALID_DEVICE, 101.
    """


def select(devices: Sequence[DeviceProperties], visible: str | None) -> tuple[int, ...]:
    """Return the indices of the visible devices, in the order in which they are visible.

    Args:
        devices: All devices.
        visible: The value of CUDA_VISIBLE_DEVICES; None if the variable is not set, and all devices are visible.

    Raises:
        NoVisibleDevice: No device is left.
        DuplicateDevice: A device is named twice.

    >>> from pympsd.devices.machine import describe
    >>> select(describe("4xH200"), "2,0,none,1")
    (2, 0)
    """
    if visible is None:
        return tuple(range(len(devices)))
    indices: list[int] = []
    for entry in visible.split(","):
        index = find_device(devices, entry.strip())
        if index is None:
            break
        if index in indices:
            raise DuplicateDevice(f"CUDA_VISIBLE_DEVICES={visible} names device {index} twice; name it once")
        indices.append(index)
    if not indices:
        reason = f"CUDA_VISIBLE_DEVICES={visible} leaves no device visible"
        raise NoVisibleDevice(f"{reason}; choose from {list_devices(devices)}")
    return tuple(indices)


def select_of(
    devices: Sequence[DeviceProperties], allowed: Sequence[int] | None, visible: str | None
) -> tuple[int, ...]:
    """Return the indices in ``devices`` of those allowed devices that are visible.

    ``visible`` counts the allowed devices only: 0 is the first allowed one.

    Args:
        devices: All devices.
        allowed: The indices of those that may be used; None means all.
        visible: The value of CUDA_VISIBLE_DEVICES, or None.

    Raises:
        NoVisibleDevice, DuplicateDevice: As `select`.
    """
    if allowed is None:
        return select(devices, visible)
    return tuple(allowed[index] for index in select([devices[index] for index in allowed], visible))


def keep_one_generation(devices: Sequence[DeviceProperties], indices: Sequence[int]) -> tuple[int, ...]:
    """Drop the pre-Volta devices if any visible one is Volta or newer (MPS documents, 2.3.4)."""
    volta = tuple(index for index in indices if devices[index].is_volta_or_newer)
    return volta or tuple(indices)


def list_devices(devices: Sequence[DeviceProperties]) -> str:
    """Return the indices and UUIDs of devices as one line for a message: ``0 (GPU-7685...), 1 (GPU-1bd8...)``."""
    return ", ".join(f"{index} ({device.uuid})" for index, device in enumerate(devices))


def find_device(devices: Sequence[DeviceProperties], entry: str) -> int | None:
    """Return the ordinal of the device that a word names, or None if it names none or several.

    Args:
        devices: The devices.
        entry: An index, a UUID, or a prefix of a UUID that only one device has; a prefix includes ``GPU-``.

    >>> from pympsd.devices.machine import describe
    >>> two = describe("2xH200")
    >>> find_device(two, "1"), find_device(two, "2"), find_device(two, two[1].uuid), find_device(two, "GPU-")
    (1, None, 1, None)
    """
    if entry.isdecimal():
        # Compare texts, because Python refuses to read numbers with thousands of digits.
        indexes = {str(index): index for index in range(len(devices))}
        return indexes.get(entry.lstrip("0") or "0")
    if not entry.startswith("GPU-"):
        return None
    matches = [index for index, device in enumerate(devices) if device.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
