"""The state of a machine: compute modes, complete and trusted, in a folder where every user can register."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices import state_folder
from pympsd.devices.machine import COMPUTE_MODES, BadMachine, describe
from pympsd.devices.registrations import list_registered
from pympsd.devices.state_folder import (
    MODES,
    StateFolder,
    apply_current_modes,
    read,
    replace,
    resolve,
    state_folder_of,
)

TOML = '[[device]]\ncompute_mode = "EXCLUSIVE_PROCESS"\n[[device]]\n'


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def folder(machine: Path) -> StateFolder:
    state_folder = state_folder_of(str(machine))
    assert state_folder is not None
    return state_folder


def modes(machine: Path) -> list[int]:
    devices = apply_current_modes(describe(str(machine)), str(machine))
    return [device.attributes["COMPUTE_MODE"] for device in devices]


def test_the_description_gives_the_modes_until_they_are_changed(machine: Path, folder: StateFolder) -> None:
    first, second = describe(str(machine))
    assert modes(machine) == [3, 0]
    folder.change_modes({second.uuid: "PROHIBITED"})
    assert modes(machine) == [3, 2]
    folder.change_modes({first.uuid: "DEFAULT"})
    assert modes(machine) == [0, 2]
    assert machine.read_text() == TOML, "the description itself is never written"


def test_only_the_modes_file_stays(folder: StateFolder) -> None:
    for mode in COMPUTE_MODES:
        folder.change_modes({"GPU-x": mode})
    assert os.listdir(folder.path) == [MODES]


def test_the_folder_has_the_mode_of_tmp_whatever_the_umask(folder: StateFolder) -> None:
    before = os.umask(0o077)
    try:
        folder.make()
        folder.make()
        assert os.umask(0o077) == 0o077, "the umask is unchanged"
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o1777


def test_all_users_can_read_the_modes(folder: StateFolder) -> None:
    before = os.umask(0o077)
    try:
        folder.change_modes({"GPU-x": "DEFAULT"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(f"{folder.path}/{MODES}").st_mode) == 0o644


def test_modes_that_another_user_wrote_are_ignored(machine: Path, folder: StateFolder) -> None:
    first, _ = describe(str(machine))
    folder.change_modes({first.uuid: "PROHIBITED"})
    os.chown(f"{folder.path}/{MODES}", 12345, 12345)
    assert modes(machine) == [3, 0]
    os.chown(machine, 12345, 12345)
    assert modes(machine) == [2, 0], "those of the description's owner count"


def squat_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "in it").touch()


def squat_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def squat_closed_file(path: Path) -> None:
    path.touch(mode=0o000)
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    "squat",
    [
        lambda path: path.symlink_to("x"),
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.mkdir(),
        os.mkfifo,
        squat_full_folder,
        squat_socket,
        squat_closed_file,
    ],
    ids=["dangling link", "link", "folder", "fifo", "full folder", "socket", "closed file"],
)
def test_anything_else_in_place_of_the_modes_file_is_ignored(
    machine: Path, folder: StateFolder, squat: Callable[[Path], None]
) -> None:
    first, _ = describe(str(machine))
    folder.make()
    squat(Path(folder.path, MODES))
    assert modes(machine) == [3, 0]
    folder.change_modes({first.uuid: "DEFAULT"})
    assert modes(machine) == [0, 0]
    assert Path("/etc/passwd").read_text().startswith("root:"), "nothing is written through a link"


def test_an_unreadable_modes_file_is_an_error_only_if_root_owns_it() -> None:
    with tempfile.TemporaryDirectory(prefix="pympsd-test-") as directory:
        os.chmod(directory, 0o755)
        machine = Path(directory, "node.toml")
        machine.write_text(TOML)
        folder = StateFolder(str(machine))
        folder.make()
        closed = Path(folder.path, MODES)
        squat_closed_file(closed)
        assert as_user(lambda: modes(machine)) == "[3, 0]"
        os.chown(closed, 0, 0)
        output = as_user(lambda: modes(machine))
        assert f"{closed}: Permission denied; root can make it readable for everybody (chmod 644)" in output


def as_user(look: Callable[[], object]) -> str:
    """Return the modes that user 1000 sees, or the error."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(1000)
            os.write(writer, str(look()).encode())
        except BadMachine as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        text = output.read()
    os.waitpid(child, 0)
    return text


def test_a_directory_that_comes_back_is_an_error_with_a_remedy(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make()
    Path(folder.path, MODES).mkdir()
    monkeypatch.setattr(state_folder, "_move_away", lambda *_: None)
    with pytest.raises(IsADirectoryError) as raised:
        folder.change_modes({"GPU-x": "DEFAULT"})
    assert f"{folder.path}/modes: a folder is in the place of this file" in folder.explain(raised.value)
    assert os.listdir(folder.path) == [MODES], "no new file is left"


def test_an_invalid_line_is_named(machine: Path, folder: StateFolder) -> None:
    folder.make()
    Path(folder.path, MODES).write_text("GPU-x SOMETHING\n")
    with pytest.raises(
        BadMachine, match=r"node\.toml\.state/modes: 'GPU-x SOMETHING' is not a device and compute mode"
    ):
        modes(machine)


def test_links_and_relative_paths_have_one_state(
    machine: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = machine.with_name("link.toml")
    link.symlink_to(machine)
    assert state_folder_of(str(link)) == folder
    monkeypatch.chdir(machine.parent)
    assert state_folder_of("./node.toml") == folder
    assert resolve("node.toml") == str(machine.resolve())


def test_machines_in_short_form_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_STATE_DIRECTORY", str(tmp_path))
    assert state_folder_of("2xH200") == state_folder_of("P100")
    assert state_folder_of("2xH200").path == str(tmp_path / "pympsd-devices.state")
    assert resolve("2xH200") == "2xH200"
    devices = describe("2xH200")
    assert apply_current_modes(devices, "2xH200") == devices
    state_folder_of("2xH200").change_modes({devices[1].uuid: "PROHIBITED"})
    assert [mode.attributes["COMPUTE_MODE"] for mode in apply_current_modes(devices, "2xH200")] == [0, 2]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return folders that stand for / with its run, tmp and etc, where another user has taken a name in tmp."""
    with tempfile.TemporaryDirectory(prefix="pympsd-test-") as path:
        root = Path(path)
        root.chmod(0o755)
        for name in ("run", "tmp", "etc"):
            (root / name).mkdir()
        monkeypatch.delenv("PYMPSD_STATE_DIRECTORY", raising=False)
        monkeypatch.setattr(state_folder, "SYSTEM_DIRECTORY", f"{root}/run/pympsd")
        monkeypatch.setattr(state_folder, "TEMPORARY_DIRECTORY", f"{root}/tmp")
        monkeypatch.setattr(state_folder, "CONFIGURATION", f"{root}/etc/")
        taken = root / "tmp" / "pympsd-devices.state"
        taken.mkdir(mode=0o700)
        os.chown(taken, 1234, 1234)
        yield root


def current_modes(machine: str) -> list[int]:
    return [mode.attributes["COMPUTE_MODE"] for mode in apply_current_modes(describe(machine), machine)]


def test_a_name_that_another_user_takes_in_tmp_stops_no_server_and_not_root(system: Path) -> None:
    assert as_user(lambda: current_modes("H200")) == "[0]", "a server can start"
    output = as_user(lambda: list_registered(state_folder_of("H200"), "GPU-x"))
    taken = f"{system}/tmp/pympsd-devices.state"
    assert f"{taken}: Permission denied: the folder is user 1234's, and not for everybody" in output
    assert "set PYMPSD_STATE_DIRECTORY to another" in output
    (device,) = describe("H200")
    state_folder_of("H200").change_modes({device.uuid: "PROHIBITED"})
    assert os.listdir(taken) == []
    assert as_user(lambda: current_modes("H200")) == "[2]"


def test_a_system_folder_that_others_may_write_to_is_not_taken(system: Path) -> None:
    (system / "run/pympsd").mkdir()
    (system / "run/pympsd").chmod(0o777)
    assert state_folder_of("H200").path == f"{system}/tmp/pympsd-devices.state"


def test_nothing_is_written_next_to_a_machine_file_in_etc(system: Path) -> None:
    machine = system / "etc" / "machine.toml"
    machine.write_text(TOML)
    first, _ = describe(str(machine))
    state_folder_of(str(machine)).change_modes({first.uuid: "PROHIBITED"})
    assert os.listdir(system / "etc") == ["machine.toml"]
    assert as_user(lambda: current_modes(str(machine))) == "[2, 0]"
    assert state_folder_of(str(machine)).path.startswith(f"{system}/run/pympsd/")


@pytest.fixture(scope="module")
def opened() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as path:
        fd = os.open(path, os.O_RDONLY)
        yield fd
        os.close(fd)


@given(st.binary(max_size=1000))
def test_a_file_is_replaced_atomically(opened: int, content: bytes) -> None:
    replace(opened, "x", content)
    assert read(opened, "x") == (content, os.geteuid())
    assert os.listdir(opened) == ["x"]
