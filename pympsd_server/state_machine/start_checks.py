"""Check whether MPS can run on this platform and these devices (MPS documents, 2.3.1), with lines for server.log."""

from collections.abc import Collection, Sequence
from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties

MIN_CAPABILITY: Final = (3, 5)
POINTER_BITS: Final = 64
PROHIBITED: Final = 2
EXCLUSIVE_PROCESS: Final = 3
"""The values of CUcomputemode that the checks distinguish."""
SUPPORTED: Final = "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."
"""The documents' own sentence (4.3)."""


def refusals(
    system: str, pointer_bits: int, devices: Sequence[DeviceProperties], used: Collection[int] | None = None
) -> tuple[str, ...]:
    """Return the reasons why a server cannot start, as sentences; none if it can.

    ``system``: the system's name as uname reports it; ``devices``: the devices in CUDA_VISIBLE_DEVICES, without those
    before Volta if any is newer; ``used``: the ordinals of the devices to check, those that
    clients may use (None for all).
    """
    checked = [(ordinal, device) for ordinal, device in enumerate(devices) if used is None or ordinal in used]
    if not is_platform_supported(system, pointer_bits):
        return SUPPORTED, f"This is {system} with pointers of {pointer_bits} bits."
    too_old = [
        f"{_subject(ordinal, device)} is SM {'.'.join(map(str, device.compute_capability))}."
        for ordinal, device in checked
        if device.compute_capability < MIN_CAPABILITY
    ]
    device_reasons = [reason for ordinal, device in checked for reason in _unfit(ordinal, device)]
    return (*((SUPPORTED, *too_old) if too_old else ()), *device_reasons)


def is_platform_supported(system: str, pointer_bits: int) -> bool:
    """Return whether the platform is 64-bit Linux."""
    return system == "Linux" and pointer_bits == POINTER_BITS


def is_exclusive(device: DeviceProperties) -> bool:
    """Return whether only one process may use the device.

    MPS is recommended with this compute mode, EXCLUSIVE_PROCESS; the server is then the device's only process.
    """
    return device.attributes.get("COMPUTE_MODE") == EXCLUSIVE_PROCESS


@frozen
class DeviceHolder:
    """A process that uses an exclusive device.

    Properties that this process may not read in /proc are empty, which makes the sentence about the holder shorter.
    """

    pid: int
    name: str = ""
    """The first word of the process's command in ps; empty if it cannot be read."""
    uid: int = 0
    """The process's user; set if the name can be read."""
    pipe_directory: str = ""
    """The pipe directory of the process's daemon; empty if it cannot be read."""
    is_abandoned: bool = False
    """Whether the pipe directory no longer exists."""

    @property
    def description(self) -> str:
        """The description of the process, in parentheses; empty if the name cannot be read."""
        if not self.name:
            return ""
        directory = f", CUDA_MPS_PIPE_DIRECTORY={self.pipe_directory}" if self.pipe_directory else ""
        end = ", which was removed; it ends with its last client" if self.is_abandoned else ""
        return f" ({self.name} of user {self.uid}{directory}{end})"


def describe_use(ordinal: int, device: DeviceProperties, holder: DeviceHolder) -> str:
    """Return the sentence for an exclusive device that another process uses.

    It is a reason why a server does not start. It is logged, and clients are refused with it.
    """
    return (
        f"MPS cannot use {_object(ordinal, device)}: it is in compute mode EXCLUSIVE_PROCESS and process "
        f"{holder.pid} uses it{holder.description}. Start again when that has ended."
    )


def cannot_be_held(ordinal: int, device: DeviceProperties, why: str) -> str:
    """Return the sentence for an exclusive device whose use by other processes cannot be prevented."""
    return (
        f"MPS cannot use {_object(ordinal, device)}: it is in compute mode EXCLUSIVE_PROCESS and cannot be kept for "
        f"one process: {why}"
    )


def _subject(ordinal: int, device: DeviceProperties) -> str:
    """Return a device's name for the beginning of a sentence."""
    return f"Device {ordinal} ({device.name}, {device.uuid})"


def _object(ordinal: int, device: DeviceProperties) -> str:
    return f"device {ordinal} ({device.name}, {device.uuid})"


def _unfit(ordinal: int, device: DeviceProperties) -> list[str]:
    # For a missing attribute, use CUDA's value for a 64-bit program.
    unfit = []
    if not device.attributes.get("UNIFIED_ADDRESSING", 1):
        unfit.append(
            f"MPS is only supported with unified addressing, which {_object(ordinal, device)} does not support."
        )
    if device.attributes.get("COMPUTE_MODE") == PROHIBITED:
        unfit.append(
            f"MPS cannot use {_object(ordinal, device)}: it is in compute mode PROHIBITED. Set another, or leave it "
            "out of CUDA_VISIBLE_DEVICES."
        )
    return unfit
