"""Whether MPS can run on this platform and these devices (MPS documents, 2.3.1): what server.log says when not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pympsd.vocabulary.device_facts import DeviceFacts

LEAST_CAPABILITY: Final = (3, 5)
POINTER_BITS: Final = 64
PROHIBITED: Final = 2
EXCLUSIVE_PROCESS: Final = 3
"""Values of CUcomputemode."""
SUPPORTED: Final = "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."
"""The documents' own sentence (4.3)."""


def refusals(system: str, pointer_bits: int, devices: Sequence[DeviceFacts]) -> tuple[str, ...]:
    """Return why a server cannot start, sentence by sentence; none when it can.

    ``system`` is what uname calls the system, ``devices`` those visible after CUDA_VISIBLE_DEVICES, without those
    before Volta where any is newer.
    """
    if not platform_is_supported(system, pointer_bits):
        return SUPPORTED, f"This is {system} with pointers of {pointer_bits} bits."
    too_old = [
        f"{called(ordinal, device)} is SM {'.'.join(map(str, device.compute_capability))}."
        for ordinal, device in enumerate(devices)
        if device.compute_capability < LEAST_CAPABILITY
    ]
    others = [why for ordinal, device in enumerate(devices) for why in _unfit(ordinal, device)]
    return (*((SUPPORTED, *too_old) if too_old else ()), *others)


def platform_is_supported(system: str, pointer_bits: int) -> bool:
    """Whether it is 64-bit Linux."""
    return system == "Linux" and pointer_bits == POINTER_BITS


def wants_exclusively(device: DeviceFacts) -> bool:
    """Whether only one process may use the device."""
    return device.attributes.get("COMPUTE_MODE") == EXCLUSIVE_PROCESS


def in_use(ordinal: int, device: DeviceFacts, pid: int) -> str:
    """Return that an exclusive device has a process already."""
    return (
        f"MPS cannot use {_object(ordinal, device)}: it is in compute mode EXCLUSIVE_PROCESS and process {pid} "
        "uses it. Start again when that has ended."
    )


def cannot_be_held(ordinal: int, device: DeviceFacts, why: str) -> str:
    """Return that an exclusive device cannot be kept from other processes."""
    return (
        f"MPS cannot use {_object(ordinal, device)}: it is in compute mode EXCLUSIVE_PROCESS and cannot be kept for "
        f"one process: {why}"
    )


def called(ordinal: int, device: DeviceFacts) -> str:
    """Return what a sentence that begins with a device calls it."""
    return f"Device {ordinal} ({device.name}, {device.uuid})"


def _object(ordinal: int, device: DeviceFacts) -> str:
    return f"device {ordinal} ({device.name}, {device.uuid})"


def _unfit(ordinal: int, device: DeviceFacts) -> list[str]:
    # What an attribute's absence means is what CUDA assumes of a 64-bit program.
    unfit = []
    if not device.attributes.get("UNIFIED_ADDRESSING", 1):
        unfit.append(f"MPS is only supported with unified addressing, which {_object(ordinal, device)} has not.")
    if device.attributes.get("COMPUTE_MODE") == PROHIBITED:
        unfit.append(
            f"MPS cannot use {_object(ordinal, device)}: it is in compute mode PROHIBITED. Set another, or leave it "
            "out of CUDA_VISIBLE_DEVICES."
        )
    return unfit
