"""Visible devices: the recorded selections (several-gpus.txt) and any other text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pympsd.devices
from pympsd.devices.discovery import Probed, visible_machine
from pympsd.devices.machine import describe, parse_toml
from pympsd.devices.visible import DuplicateDevice, NoVisibleDevice, keep_one_generation, select
from pympsd.vocabulary.settings import Settings

UUIDS = (
    "GPU-7685caad-23a2-2403-a46b-a1dfeabe3819",
    "GPU-c194f552-d094-dc8e-63fd-a74b1b2f9eeb",
    "GPU-1fa198a8-8dc2-f4f0-6580-04426b8f9987",
    "GPU-322a5082-f813-4312-b977-d11a60647341",
)
FOUR = parse_toml("\n".join(f'[[device]]\nuuid = "{uuid}"' for uuid in UUIDS))


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, (0, 1, 2, 3)),
        ("0,2", (0, 2)),
        ("2,0", (2, 0)),
        ("1", (1,)),
        ("0,9", (0,)),
        ("0,abc,1", (0,)),
        (UUIDS[1], (1,)),
        ("GPU-c194f552", (1,)),
        (f"{UUIDS[1]},{UUIDS[0]}", (1, 0)),
        (" 3 , 1", (3, 1)),
        ("0,-1,1", (0,)),
        ("1,", (1,)),
        ("1," + "9" * 5000, (1,)),
    ],
)
def test_the_recorded_selections(visible: str | None, chosen: tuple[int, ...]) -> None:
    assert select(FOUR, visible) == chosen


@pytest.mark.parametrize("visible", ["9,0", ",", "", "GPU-", "-1", "abc", UUIDS[1][4:], "GPU-0", "4"])
def test_an_empty_selection_is_refused_with_the_devices(visible: str) -> None:
    with pytest.raises(NoVisibleDevice, match=rf"; choose from 0 \({UUIDS[0]}\), 1 \({UUIDS[1]}\), 2 "):
        select(FOUR, visible)


@pytest.mark.parametrize("visible", ["0,0", "1,GPU-c194f552", f"{UUIDS[3]},0,{UUIDS[3]}", "2,02"])
def test_a_device_named_twice_is_refused(visible: str) -> None:
    with pytest.raises(DuplicateDevice, match=r"names device \d twice"):
        select(FOUR, visible)


def test_entries_after_the_first_invalid_one_are_ignored() -> None:
    assert select(FOUR, "0,x,0") == (0,)


@given(st.permutations(range(4)), st.integers(1, 4))
def test_any_order_is_kept(order: list[int], count: int) -> None:
    assert select(FOUR, ",".join(map(str, order[:count]))) == tuple(order[:count])


@given(st.text() | st.text("0123456789,GPU- abcdef-"))
def test_any_text_selects_devices_or_is_refused_by_name(visible: str) -> None:
    try:
        chosen = select(FOUR, visible)
    except (NoVisibleDevice, DuplicateDevice) as error:
        assert "CUDA_VISIBLE_DEVICES=" in str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert chosen
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= set(range(4))


def test_pre_volta_devices_are_dropped_if_a_newer_one_is_visible() -> None:
    mixed = describe("P100,H200,P100,V100")
    assert keep_one_generation(mixed, (0, 1, 2, 3)) == (1, 3)
    assert keep_one_generation(mixed, (3, 0)) == (3,)
    assert keep_one_generation(mixed, (2, 0)) == (2, 0)


def test_settings_lead_to_devices() -> None:
    environment = {"PYMPSD_EMULATED_DEVICES": "1xP100,2xA100", "CUDA_VISIBLE_DEVICES": "2,0"}
    (device,) = visible_machine(Settings.from_environment(environment), Probed, find_server=str).devices
    assert device == describe("1xP100,2xA100")[2]


def _print_devices(environment: dict[str, str]) -> tuple[int, dict[str, object]]:
    main = Path(pympsd.devices.__file__).with_name("__main__.py")
    ran = subprocess.run(
        [sys.executable, "-I", str(main)], env=environment, cwd="/", capture_output=True, timeout=60, check=False
    )
    assert ran.stderr == b""
    return ran.returncode, json.loads(ran.stdout)


def test_run_by_path_it_prints_json() -> None:
    status, answer = _print_devices({"PYMPSD_EMULATED_DEVICES": "2xH200"})
    assert status == 0
    assert [device["name"] for device in answer["devices"]] == ["NVIDIA H200"] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"PYMPSD_EMULATED_DEVICES": "B300"}, "one of H200"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "leaves no device visible"),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, "twice"),
        ({"PYMPSD_BACKEND": "x"}, "PYMPSD_BACKEND must be one of"),
    ],
)
def test_run_by_path_it_prints_the_error(environment: dict[str, str], says: str) -> None:
    status, answer = _print_devices(environment)
    assert status == 1
    assert says in str(answer["error"])
