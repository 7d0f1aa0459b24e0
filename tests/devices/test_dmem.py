"""The limits in the kernel's dmem files: whose device a line is of, and what it says."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe
from pympsd.service.files.cgroups import CgroupFiles, limits_in
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import MAX_MEMORY, CgroupLimit, PinnedMemory

(H200,) = describe("H200")
DEVICES = (evolve(H200, pci="0000:03.00.00"), evolve(H200, pci="0001:C1.1F.07"))
GIB = 1 << 30
ONE, OTHER = "drm/0000:03:00.0/vram0", "drm/0001:c1:1f.7/vram0"


def limit(hard: int | None = None, soft: int | None = None) -> CgroupLimit:
    """Return limits in bytes."""
    return CgroupLimit(*(None if count is None else PinnedMemory(count) for count in (hard, soft)))


def of_one(most: str, least: str = "") -> dict[int, CgroupLimit]:
    """Return the limits of a single cgroup with files."""
    return limits_in(DEVICES, [CgroupFiles("/a", most, least)]).get("/a", {})


@pytest.mark.parametrize(
    ("most", "least", "limits"),
    [
        (f"{ONE} 4096\n{OTHER} max\n", f"{ONE} 0\n{OTHER} 0\n", {0: limit(4096)}),
        (f"{ONE} max\n{OTHER} {GIB}\n", f"{ONE} {GIB}\n{OTHER} 0\n", {0: limit(soft=GIB), 1: limit(GIB)}),
        (f"{ONE} 0\n", "", {0: limit(0)}),
        (f"{ONE} {MAX_MEMORY}\n", f"{ONE} max\n", {0: limit(soft=MAX_MEMORY)}),
        (f"{ONE} {2**64 - 4096}\n", f"{ONE} {2**64 - 4096}\n", {0: limit(soft=MAX_MEMORY)}),
        (f"{ONE} 7\ndrm/0000:03:00.0/vram1 5\n", f"{ONE} 0\ndrm/0000:03:00.0/vram1 3\n", {0: limit(5, 3)}),
        (f"{ONE} max\ndrm/0000:03:00.0/stolen 5\n", f"{ONE} 4\ndrm/0000:03:00.0/stolen 3\n", {0: limit(5, 3)}),
        ("", "", {}),
    ],
)  # fmt: skip
def test_the_lines_of_a_cgroup_are_read_as_limits(most: str, least: str, limits: dict[int, CgroupLimit]) -> None:
    assert of_one(most, least) == limits


@pytest.mark.parametrize(
    ("region", "ordinals"),
    [
        ("drm/0000:03:00.0/vram0", {0}),
        ("0000:03:00.0", {0}),
        ("nvidia/00000000:03:00.0", {0}),
        ("drm/0001:C1:1F.7/vram", {1}),
        ("drm/00000001:c1:1F.7/a-b", {1}),
        ("drm/0000:00:01.0/0000:03:00.0/vram0", {0}),
        ("drm/0000:03:00.1/vram0", set()),
        ("drm/0000:03:00.00/vram0", set()),
        ("drm/10000:03:00.0/vram0", set()),
        ("drm/a0000:03:00.0/vram0", set()),
        ("drm/000:03:00.0/vram0", set()),
        ("drm/0000:13:00.0/vram0", set()),
        ("drm/0000:03.00.0/vram0", set()),
        ("drm/0000:03:00.0/a b", set()),
        ("drm/card0/vram0", set()),
        ("", set()),
    ],
)
def test_a_line_is_of_the_device_whose_address_its_region_names(region: str, ordinals: set[int]) -> None:
    assert of_one(f"{region} 4096\n").keys() == ordinals


@pytest.mark.parametrize(
    "value", ["", "-1", "4096K", "1e9", "0x10", "max max", "Max", "٣", "1" * 5000, "4 096", "nan", " 5", "5 "]
)
def test_a_line_with_nonsense_does_not_count_and_the_others_do(value: str) -> None:
    assert of_one(f"{ONE} {value}\n{OTHER} 5\n", f"{ONE} {value}\n\n \n{OTHER} 3\n") == {1: limit(5, 3)}


def test_a_soft_limit_is_a_guarantee_as_far_as_all_above_have_it() -> None:
    """As the kernel has it; or who owns a cgroup could guarantee itself what is others'."""
    softs = (8 * GIB, 2 * GIB, 4 * GIB, 0, 4 * GIB)
    paths = [f"/{depth}" for depth in range(5)]
    files = [CgroupFiles(path, "", f"{ONE} {soft}\n") for path, soft in zip(paths, softs, strict=True)]
    cgroup_limits = limits_in(DEVICES, files)
    assert cgroup_limits == {
        "/0": {0: limit(soft=8 * GIB)},
        "/1": {0: limit(soft=2 * GIB)},
        "/2": {0: limit(soft=2 * GIB)},
    }


def test_hard_limits_are_each_cgroups_own_for_the_least_holds_anyway() -> None:
    files = [CgroupFiles("/a", f"{ONE} 5\n", ""), CgroupFiles("/a/b", f"{ONE} 9\n", "")]
    assert limits_in(DEVICES, files) == {"/a": {0: limit(5)}, "/a/b": {0: limit(9)}}


def test_a_device_without_an_address_has_no_limits() -> None:
    unknown = evolve(H200, pci="N/A")
    assert limits_in((unknown, DEVICES[0]), [CgroupFiles("/a", f"N/A 4\n{ONE} 5\n", "")]) == {"/a": {1: limit(5)}}


ADDRESSES = st.tuples(st.sampled_from((0, 1, 0xABCD)), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
VALUES = st.one_of(st.none(), st.integers(0, MAX_MEMORY - 1))


def _device(address: tuple[int, int, int, int]) -> DeviceProperties:
    domain, bus, slot, function = address
    return evolve(H200, pci=f"{domain:04x}:{bus:02x}.{slot:02x}.{function:02x}")


@given(
    st.lists(ADDRESSES, min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), VALUES, VALUES), max_size=8),
)
def test_of_several_regions_the_least_hold(
    addresses: list[tuple[int, int, int, int]], regions: list[tuple[int, bool, bool, int | None, int | None]]
) -> None:
    """A client's memory may lie in any of them, so that only the least is never exceeded."""
    most, least, expected = "", "", dict[int, tuple[list[int], list[int]]]()
    for number, (which, is_long, is_upper, hard, soft) in enumerate(regions):
        ordinal = which % len(addresses)
        domain, bus, slot, function = addresses[ordinal]
        region = f"{domain:0{8 if is_long else 4}x}:{bus:02x}:{slot:02x}.{function}"
        region = f"drm/{region.upper() if is_upper else region}/vram{number}"
        most += f"{region} {'max' if hard is None else hard}\n"
        least += f"{region} {'max' if soft is None else soft}\n"
        hards, softs = expected.setdefault(ordinal, ([], []))
        hards += [] if hard is None else [hard]
        softs += [soft if soft is not None else MAX_MEMORY] if soft != 0 else []
    cgroup_limits = limits_in([_device(address) for address in addresses], [CgroupFiles("/a", most, least)])
    limits = {
        ordinal: limit(min(hards, default=None), min(softs, default=None))
        for ordinal, (hards, softs) in expected.items()
        if hards or softs
    }
    assert cgroup_limits == ({"/a": limits} if limits else {})


@given(st.text(), st.text())
def test_no_text_is_an_error(most: str, least: str) -> None:
    of_one(most, least)
    of_one(f"{ONE} {most}", f"{least} 4096")
