"""The .target of PTX: which devices it is for (PTX ISA, PTX module directives)."""

from __future__ import annotations

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.module import load
from pympsd_server.backends.interface import BackendError


def _image(target: str) -> bytes:
    return f".version 9.5\n.target {target}\n.address_size 64\n.visible .entry k() {{ ret; }}\n".encode()


@pytest.mark.parametrize(
    ("target", "capability"),
    [
        ("sm_60", (6, 0)),
        ("sm_75", (9, 0)),
        ("sm_90, texmode_independent", (9, 0)),
        ("sm_90", (10, 0)),
        ("sm_90a", (9, 0)),
        ("sm_100f", (10, 3)),
        ("sm_120", (12, 1)),
    ],
)
def test_a_target_that_the_device_can_run(target: str, capability: tuple[int, int]) -> None:
    assert list(load(_image(target), capability).kernels) == ["k"]


@pytest.mark.parametrize(
    ("target", "capability", "is_for"),
    [
        ("sm_70", (6, 0), "that and newer devices"),
        ("sm_90", (8, 0), "that and newer devices"),
        ("sm_100", (9, 0), "that and newer devices"),
        ("sm_90a", (10, 0), "that device alone"),
        ("sm_100a", (10, 3), "that device alone"),
        ("sm_103f", (10, 0), "its family alone"),
        ("sm_100f", (12, 0), "its family alone"),
    ],
)
def test_a_target_for_other_devices_is_refused(target: str, capability: tuple[int, int], is_for: str) -> None:
    for _ in range(2):  # what was translated for another device is kept, and refused for this one all the same
        with pytest.raises(BackendError) as caught:
            load(_image(target), capability)
        assert caught.value.code == Result.ERROR_INVALID_PTX
        assert caught.value.reason.startswith(f"line 2: .target {target} is for {is_for}; ")
        assert caught.value.reason.endswith(f"compile for sm_{capability[0]}{capability[1]} or older")


@pytest.mark.parametrize("target", ["compute_90", "sm_", "sm_90x"])
def test_a_target_that_does_not_exist_is_refused(target: str) -> None:
    with pytest.raises(BackendError, match=f"line 2: unsupported .target {target}"):
        load(_image(target), (9, 0))
