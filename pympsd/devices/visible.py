"""CUDA_VISIBLE_DEVICES: which devices are visible, in which order (MPS documents, 4.2.1; recorded: several-gpus).

An entry is an index, a UUID or a unique prefix of one that includes ``GPU-``. Reading stops at the first invalid
entry; the devices before it stay visible.
"""

from collections.abc import Sequence

from pympsd.errors import InputError
from pympsd.vocabulary.device_properties import DeviceProperties


class NoVisibleDevice(InputError, ValueError):
    """No device is visible; the message explains why. The daemon's exit status is CUDA_ERROR_NO_DEVICE."""


class DuplicateDevice(InputError, ValueError):
    """A device is named twice. The daemon's exit status is CUDA_ERROR_INVALID_DEVICE."""


def select(devices: Sequence[DeviceProperties], visible: str | None) -> tuple[int, ...]:
    """Return the indexes of the visible devices in order; None: all of them."""
    if visible is None:
        return tuple(range(len(devices)))
    chosen: list[int] = []
    for entry in visible.split(","):
        index = find_device(devices, entry.strip())
        if index is None:
            break
        if index in chosen:
            raise DuplicateDevice(f"CUDA_VISIBLE_DEVICES={visible} names device {index} twice; name it once")
        chosen.append(index)
    if not chosen:
        reason = f"CUDA_VISIBLE_DEVICES={visible} leaves no device visible"
        raise NoVisibleDevice(f"{reason}; choose from {list_devices(devices)}")
    return tuple(chosen)


def select_of(
    devices: Sequence[DeviceProperties], allowed: Sequence[int] | None, visible: str | None
) -> tuple[int, ...]:
    """Return the indexes of the visible devices among the allowed ones, as which ``visible`` counts them."""
    if allowed is None:
        return select(devices, visible)
    return tuple(allowed[index] for index in select([devices[index] for index in allowed], visible))


def keep_one_generation(devices: Sequence[DeviceProperties], chosen: Sequence[int]) -> tuple[int, ...]:
    """Drop the pre-Volta devices if any visible one is Volta or newer (MPS documents, 2.3.4)."""
    volta = tuple(index for index in chosen if devices[index].is_volta_or_newer)
    return volta or tuple(chosen)


def list_devices(devices: Sequence[DeviceProperties]) -> str:
    """Return the indexes and UUIDs of devices, for messages."""
    return ", ".join(f"{index} ({device.uuid})" for index, device in enumerate(devices))


def find_device(devices: Sequence[DeviceProperties], entry: str) -> int | None:
    """Return the index of the device that an index, a UUID or a unique prefix of one names, or None."""
    if entry.isdecimal():
        # By text: Python refuses to read numbers of thousands of digits.
        indexes = {str(index): index for index in range(len(devices))}
        return indexes.get(entry.lstrip("0") or "0")
    if not entry.startswith("GPU-"):
        return None
    matches = [index for index, device in enumerate(devices) if device.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
