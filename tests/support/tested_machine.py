"""The machine of daemons under test if a test does not choose one.

``PYMPSD_TEST_BACKEND=cuda`` (scripts/test-gpu): the first GPU of this machine; ``rehearsal``: an emulated one that
can no more than a GPU can (scripts/test-gpu --rehearse). Without it nothing here changes what a test asks for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pympsd.devices.discovery import Probed
from pympsd.devices.driver_probe import ask_driver
from pympsd.devices.machine import describe
from pympsd.vocabulary.device_properties import DeviceProperties

VARIABLE = "PYMPSD_TEST_BACKEND"
REHEARSAL = "rehearsal"
LIKE_A_GPU = str(Path(__file__).parents[1] / "gpu" / "like_a_gpu.toml")
OF_ALL = ("PYMPSD_WORKER", "PYMPSD_KERNEL_CACHE")
"""Passed on to every daemon under test: what executes records, and where compiled kernels are kept."""
PASSED_ON = ("LD_LIBRARY_PATH",)
"""Further variables that a GPU's daemons get from the test process: where the driver is."""
CHOICES = ("PYMPSD_BACKEND", "PYMPSD_EMULATED_DEVICES")
"""A test that sets one of these chooses the machine itself."""


def rehearses() -> bool:
    """Whether an emulated device stands for the GPU."""
    return os.environ.get(VARIABLE) == REHEARSAL


def on_real_gpu() -> bool:
    """Whether daemons that do not choose a machine get a GPU."""
    return os.environ.get(VARIABLE) == "cuda"


def on_gpu() -> bool:
    """Whether daemons that do not choose a machine get a GPU, or the device that stands for it."""
    return on_real_gpu() or rehearses()


def with_machine(settings: Mapping[str, str]) -> dict[str, str]:
    """Return a daemon's settings, with those of the machine if the test does not choose one.

    A GPU is asked for by name: a test must not pass because ``auto`` found an emulated one.
    """
    settings = {**{name: os.environ[name] for name in OF_ALL if name in os.environ}, **settings}
    if not on_gpu() or any(name in settings for name in CHOICES):
        return dict(settings)
    if rehearses():
        return {"PYMPSD_EMULATED_DEVICES": LIKE_A_GPU, **settings}
    machine = {"PYMPSD_BACKEND": "cuda"}
    if len(_probe().devices) > 1:
        machine["CUDA_VISIBLE_DEVICES"] = "0"
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**machine, **passed, **settings}


def gpus() -> tuple[DeviceProperties, ...]:
    """Return the properties of all GPUs of this machine."""
    return tuple(describe(LIKE_A_GPU) if rehearses() else _probe().devices)


def gpu() -> DeviceProperties:
    """Return the properties of the GPU that is tested."""
    devices = gpus()
    assert devices, f"there is no GPU to test on: {_probe().unusable or _probe().absent}"
    return devices[0]


@cache
def _probe() -> Probed:
    return ask_driver()
