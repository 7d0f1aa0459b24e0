"""What a machine remembers: compute modes, whole and trusted, in a folder that every user can register in."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import COMPUTE_MODES, BadMachine, describe
from pympsd.devices.state_folder import (
    MODES,
    StateFolder,
    read,
    replace,
    resolved,
    state_folder_of,
    with_current_modes,
)

TOML = '[[device]]\ncompute_mode = "EXCLUSIVE_PROCESS"\n[[device]]\n'


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def folder(machine: Path) -> StateFolder:
    found = state_folder_of(str(machine))
    assert found is not None
    return found


def modes(machine: Path) -> list[int]:
    devices = with_current_modes(describe(str(machine)), str(machine))
    return [device.attributes["COMPUTE_MODE"] for device in devices]


def test_the_description_says_the_modes_until_they_are_changed(machine: Path, folder: StateFolder) -> None:
    first, second = describe(str(machine))
    assert modes(machine) == [3, 0]
    folder.change_modes({second.uuid: "PROHIBITED"})
    assert modes(machine) == [3, 2]
    folder.change_modes({first.uuid: "DEFAULT"})
    assert modes(machine) == [0, 2]
    assert machine.read_text() == TOML, "the description itself is never written"


def test_nothing_but_the_modes_is_left_behind(folder: StateFolder) -> None:
    for mode in COMPUTE_MODES:
        folder.change_modes({"GPU-x": mode})
    assert os.listdir(folder.path) == [MODES]


def test_the_folder_is_like_tmp_whatever_the_umask_and_made_once(folder: StateFolder) -> None:
    before = os.umask(0o077)
    try:
        folder.make()
        folder.make()
        assert os.umask(0o077) == 0o077, "the umask is as it was"
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o1777


def test_the_modes_can_be_read_by_everybody(folder: StateFolder) -> None:
    before = os.umask(0o077)
    try:
        folder.change_modes({"GPU-x": "DEFAULT"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(f"{folder.path}/{MODES}").st_mode) == 0o644


def test_modes_that_a_stranger_wrote_do_not_count(machine: Path, folder: StateFolder) -> None:
    first, _ = describe(str(machine))
    folder.change_modes({first.uuid: "PROHIBITED"})
    os.chown(f"{folder.path}/{MODES}", 12345, 12345)
    assert modes(machine) == [3, 0]
    os.chown(machine, 12345, 12345)
    assert modes(machine) == [2, 0], "those of the description's owner do"


def test_a_link_or_a_pipe_in_the_place_of_the_modes_does_no_harm(machine: Path, folder: StateFolder) -> None:
    folder.make()
    path = Path(folder.path, MODES)
    os.mkfifo(path)
    assert modes(machine) == [3, 0]
    path.unlink()
    path.symlink_to(machine)
    with pytest.raises(BadMachine):
        modes(machine)


def test_a_line_that_is_no_mode_is_named(machine: Path, folder: StateFolder) -> None:
    folder.make()
    Path(folder.path, MODES).write_text("GPU-x SOMETHING\n")
    with pytest.raises(BadMachine, match=r"node\.toml\.state/modes: 'GPU-x SOMETHING' is no device and compute mode"):
        modes(machine)


def test_links_and_relative_paths_lead_to_one_state(
    machine: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = machine.with_name("link.toml")
    link.symlink_to(machine)
    assert state_folder_of(str(link)) == folder
    monkeypatch.chdir(machine.parent)
    assert state_folder_of("./node.toml") == folder
    assert resolved("node.toml") == str(machine.resolve())


def test_a_machine_in_short_form_remembers_nothing() -> None:
    assert state_folder_of("2xH200") is None
    assert resolved("2xH200") == "2xH200"
    assert with_current_modes(describe("2xH200"), "2xH200") == describe("2xH200")


@pytest.fixture(scope="module")
def opened() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as path:
        fd = os.open(path, os.O_RDONLY)
        yield fd
        os.close(fd)


@given(st.binary(max_size=1000))
def test_a_file_is_replaced_whole(opened: int, content: bytes) -> None:
    replace(opened, "x", content)
    assert read(opened, "x") == (content, os.geteuid())
    assert os.listdir(opened) == ["x"]
