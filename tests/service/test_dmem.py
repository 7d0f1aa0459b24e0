"""The kernel's dmem files of a client's cgroup, as they are read when it sends its hello."""

from __future__ import annotations

from pathlib import Path

import pytest

from pympsd.devices.machine import describe
from pympsd.service.files.cgroups import MAX_LEVELS, has_dmem, kernel_limits
from pympsd.vocabulary.limits import CgroupLimit, PinnedMemory

DEVICES = describe("2xH200")
REGION = "drm/0000:00:06.0/vram0"


def write(root: Path, path: str, **files: object) -> None:
    """Write files of a cgroup with a line each."""
    folder = root / path.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / f"dmem.{name}").write_text(f"{REGION} {value}\n")


def hard(count: int) -> dict[int, CgroupLimit]:
    """Return a hard limit of the first device."""
    return {0: CgroupLimit(PinnedMemory(count))}


def test_the_controller_is_there_if_the_root_has_its_capacity(tmp_path: Path) -> None:
    assert not has_dmem(tmp_path)
    write(tmp_path, "/", capacity=1 << 37)
    assert has_dmem(tmp_path)


def test_the_files_of_the_cgroup_and_of_those_above_are_read(tmp_path: Path) -> None:
    write(tmp_path, "/pod", max=9, min=4)
    write(tmp_path, "/pod/box", max=5)
    write(tmp_path, "/pod/box/deeper", max=1)
    write(tmp_path, "/other", max=1)
    limits = {"/pod": {0: CgroupLimit(PinnedMemory(9), PinnedMemory(4))}, "/pod/box": hard(5)}
    assert kernel_limits(DEVICES, "/pod/box", tmp_path) == limits
    assert kernel_limits(DEVICES, "/pod/box/gone", tmp_path) == limits
    assert kernel_limits(DEVICES, "/", tmp_path) == kernel_limits(DEVICES, "", tmp_path) == {}


def test_what_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "/pod/box", max=5)
    (tmp_path / "pod" / "dmem.max").mkdir()
    (tmp_path / "pod" / "box" / "dmem.min").write_bytes(b"\xff\x00\n" + f"{REGION} 3\n".encode())
    assert kernel_limits(DEVICES, "/pod/box", tmp_path) == {"/pod/box": {0: CgroupLimit(*map(PinnedMemory, (5, 3)))}}
    assert kernel_limits(DEVICES, "/pod/\0", tmp_path) == {}
    assert kernel_limits(DEVICES, f"/{'n' * 300}", tmp_path) == {}


@pytest.mark.parametrize("path", ["/../out", "/..", "/pod/../../out"])
def test_a_cgroup_outside_of_the_namespace_is_not_looked_for(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    write(root, "/pod", max=5)
    write(tmp_path, "/out", max=5)
    assert kernel_limits(DEVICES, path, root) == {}


def test_the_depth_is_bounded(tmp_path: Path) -> None:
    """Users make cgroups as deep as they like, and each with a limit is sent to the server."""
    path = ""
    for depth in range(MAX_LEVELS + 2):
        path += "/a"
        write(tmp_path, path, max=1000 - depth)
    assert len(kernel_limits(DEVICES, path, tmp_path)) == MAX_LEVELS


def test_a_name_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    write(tmp_path, "/\udcff", max=5)
    assert kernel_limits(DEVICES, "/\udcff", tmp_path) == {"/\udcff": hard(5)}
