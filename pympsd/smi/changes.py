"""Make the changes that only root may make: compute modes, and a reset. Texts and exit statuses are nvidia-smi's."""

import os
from collections.abc import Sequence
from typing import Final

from pympsd.devices.machine import COMPUTE_MODES
from pympsd.smi.machine import MODE_NAMES, MonitoredDevice, MonitoredMachine
from pympsd.smi.options import BAD_VALUE, UnsupportedRequest

NO_PERMISSION: Final = 4
OTHER_ERROR: Final = 255
EARLY_END: Final = "Terminating early due to previous errors.\n"
ALL_DONE: Final = "All done.\n"
_RETIRED: Final = ("1", "EXCLUSIVE_THREAD")
_RETIRED_WARNING: Final = "Warning: Exclusive_Thread was deprecated! Setting Exclusive_Process instead.\n"


def set_mode(machine: MonitoredMachine, devices: Sequence[MonitoredDevice], word: str) -> tuple[str, int]:
    """Set the compute mode of devices, which only root may do.

    Args:
        machine: The machine, in whose folder the mode is written.
        devices: The devices that get the mode.
        word: The value of ``-c``: a name in any case, such as ``exclusive_process``, or its number.

    Returns:
        The text to print and the exit status: 0, 4 without root's rights, 255 if the folder cannot be written.

    Raises:
        UnsupportedRequest: The word is not a compute mode.
        BadMachine: The file of compute modes cannot be read.
    """
    warnings = [_RETIRED_WARNING] if word.upper() in _RETIRED else []
    mode = _mode(word)
    changes: dict[str, str] = {}
    for device in devices:
        if device.mode == mode:
            warnings.append(f"Compute mode is already set to {mode} for GPU {device.bus_id}.\n")
            continue
        if os.geteuid() != 0:
            why = "Insufficient Permissions"
            warnings.append(f"Unable to set the compute mode for GPU {device.bus_id}: {why}\n{EARLY_END}")
            return "".join(warnings), NO_PERMISSION
        changes[device.properties.uuid] = mode
        warnings.append(f"Set compute mode to {mode} for GPU {device.bus_id}.\n")
    if changes:
        try:
            machine.folder.change_modes(changes)
        except OSError as error:
            return (
                f"Unable to set the compute mode: {machine.folder.explain(error)}\n{EARLY_END}",
                OTHER_ERROR,
            )
    return "".join(warnings) + ALL_DONE, 0


def _mode(word: str) -> str:
    if word.upper() in _RETIRED:
        return "EXCLUSIVE_PROCESS"
    if word.upper() in COMPUTE_MODES:
        return word.upper()
    if not word.isascii() or not word.isdecimal():
        raise UnsupportedRequest(
            f"ERROR: Option {word} is invalid for -c. Please run '{{program}} -h' for help.\n\n", BAD_VALUE
        )
    mode = MODE_NAMES.get(int(word)) if len(word) < len("1000") else None
    if mode is None:
        raise UnsupportedRequest(f"Invalid compute mode: {word}\n{EARLY_END}", BAD_VALUE)
    return mode


def set_persistence(devices: Sequence[MonitoredDevice], word: str) -> tuple[str, int]:
    """Accept a persistence mode, which has no effect, because an emulated device is always ready.

    Scripts set it before they start MPS, and take a failure for a broken GPU.
    """
    if word.upper() not in ("0", "1", "DISABLED", "ENABLED"):
        raise UnsupportedRequest(f"ERROR: Option {word} is invalid for -pm; it is 0 or 1.\n\n", BAD_VALUE)
    if os.geteuid() != 0:
        gpu = devices[0].bus_id
        return f"Unable to set persistence mode for GPU {gpu}: Insufficient Permissions\n{EARLY_END}", NO_PERMISSION
    lines = (
        f"GPU {device.bus_id} is emulated and always ready: persistence mode has no effect.\n" for device in devices
    )
    return "".join(lines) + ALL_DONE, 0


def reset(devices: Sequence[MonitoredDevice]) -> tuple[str, int]:
    """Reset devices that no process uses; an emulated device needs no further action.

    Returns:
        The text to print and the exit status: 0, 4 without root's rights, 255 if a process uses one of the devices.
        As with nvidia-smi, all devices are then left unchanged.
    """
    if os.geteuid() != 0:
        text = "".join(
            f"Unable to disable persistence mode for GPU {device.bus_id}: Insufficient Permissions\n"
            for device in devices[:1]
        )
        return text, NO_PERMISSION
    busy = [device for device in devices if device.processes]
    if busy:
        return _describe_busy(busy), OTHER_ERROR
    return "".join(f"GPU {device.bus_id} was successfully reset.\n" for device in devices) + ALL_DONE, 0


def _describe_busy(devices: Sequence[MonitoredDevice]) -> str:
    device_lines = "".join(f"  GPU {device.bus_id}: In use by another client\n" for device in devices)
    count = "1 device is" if len(devices) == 1 else f"{len(devices)} devices are"
    advice = "End them first: quit stops an MPS daemon and its servers."
    return (
        f"The following GPUs could not be reset:\n{device_lines}\n"
        f"{count} currently being used by one or more other processes. {advice}\n"
    )
