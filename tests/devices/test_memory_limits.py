"""Texts of memory limits: valid entries are read, invalid ones are named; the last one for a device wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe
from pympsd.devices.memory_limits import SHOWN, read, read_container_limit, text_of
from pympsd.vocabulary.limits import MAX_MEMORY

DEVICES = describe("3xH200")
IDS = [device.uuid for device in DEVICES]
GIB = 1 << 30


def _read(text: str) -> tuple[dict[int, int], list[str]]:
    limits, bad = read(DEVICES, text, "this test")
    return {index: limit.value for index, limit in limits.items()}, [entry.entry for entry in bad]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" , ,", {}),
        ("0=1G,1=512MB", {0: GIB, 1: GIB // 2}),
        (f"{IDS[2]}=2g", {2: 2 * GIB}),
        (f"{IDS[2][:10]}=2g", {2: 2 * GIB}),
        (f"1=3G,{IDS[1]}=1G", {1: GIB}),
        (f"{IDS[1]}=1G,1=3G", {1: 3 * GIB}),
        ("0=1G,0=0", {}),
        ("0=0,0=1G", {0: GIB}),
    ],
)
def test_limits_by_index_uuid_and_prefix(text: str, expected: dict[int, int]) -> None:
    assert _read(text) == (expected, [])


@pytest.mark.parametrize(
    "entry", ["x", "0", "0=", "=1G", "3=1G", "-1=1G", "0=1T", "0=1.5G", "0=-1G", "0=0G", "GPU-=1G"]
)
def test_an_invalid_entry_is_named_and_the_others_count(entry: str) -> None:
    assert _read(f"0=1G,{entry},1=2G") == ({0: GIB, 1: 2 * GIB}, [entry])


def test_the_reason_names_what_is_allowed() -> None:
    _, bad = read(DEVICES, "7=1G,0=1T", "this process")
    assert bad[0].reason.startswith("7 is not a device of this process")
    assert f"; its devices are 0 ({IDS[0]}), 1 (" in bad[0].reason
    assert all(uuid in bad[0].reason for uuid in IDS)
    assert "10G, 900M" in bad[1].reason


def test_a_long_invalid_entry_is_cut() -> None:
    limits, (first, second) = read(DEVICES, "9" * 100_000 + ",0=" + "1" * 100_000 + "G", "this test")
    assert limits == {}
    for entry in (first, second):
        assert len(entry.entry) == SHOWN
        assert len(entry.reason) < 600


@given(st.lists(st.text(st.characters(exclude_characters=",")), max_size=5))
def test_every_entry_is_read_or_named(entries: list[str]) -> None:
    limits, bad = read(DEVICES, ",".join(entries), "this test")
    assert set(limits) <= {0, 1, 2}
    assert len(bad) <= sum(bool(entry.strip()) for entry in entries)
    assert all(limit.value > 0 for limit in limits.values())


def test_the_first_name_wins() -> None:
    names = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_DEVICE_MEM_LIMIT")
    assert text_of({names[0]: "0=1G", names[1]: "0=2G"}) == "0=1G"
    assert text_of({names[0]: "", names[1]: "0=2G"}) == "0=2G"
    assert text_of({}) == ""


@pytest.mark.parametrize(
    ("text", "limit"),
    [("2048", 2 * GIB), ("0", 0), ("", 0), ("0" * 9999 + "1024", GIB), ("18446744073709551615", MAX_MEMORY)],
)
def test_a_containers_limit_is_what_the_container_toolkit_takes(text: str, limit: int) -> None:
    assert read_container_limit({"NVIDIA_GPU_MEMORY_LIMIT": text}) == (limit, [])


@pytest.mark.parametrize(
    "text", ["2G", "2Gi", "-1", "+1", " 1", "1.5", "1_000", "٢", "18446744073709551616", "9" * 9999]
)
def test_another_limit_of_a_container_is_named(text: str) -> None:
    limit, (bad,) = read_container_limit({"NVIDIA_GPU_MEMORY_LIMIT": text})
    assert (limit, bad.entry, bad.variable) == (0, text[:SHOWN], "NVIDIA_GPU_MEMORY_LIMIT")
