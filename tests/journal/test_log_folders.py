"""The folders of deleted servers' logs: removed or bounded, and never what a daemon has not made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pympsd.journal.files import LogFile
from pympsd.journal.log_folders import MAX_KEPT
from pympsd.journal.setup import Journal

OWN = os.geteuid()
Delete = Callable[..., None]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a daemon whose log directory is ``log``."""
    folder = tmp_path / "log"
    folder.mkdir()
    control, server = LogFile(str(tmp_path / "control.log")), LogFile(str(tmp_path / "server.log"))
    yield Journal(control, server, folder=str(folder))
    control.close()
    server.close()


@pytest.fixture
def delete(journal: Journal) -> Delete:
    """Make a server, whose process writes a line or not, and delete it."""

    def make_and_delete(name: str, line: bool = True) -> None:
        own = journal.open_for_server(name, OWN, 7)
        if line:
            own.write_server("Server", 7, "server_exiting", {})
        journal.close_server_log(name)

    return make_and_delete


def folders(journal: Journal) -> set[str]:
    return {path.name for path in Path(journal.folder).iterdir()}


def test_a_folder_without_lines_goes_with_its_server(journal: Journal, delete: Delete) -> None:
    delete("empty", line=False)
    delete("full")
    assert folders(journal) == {"full"}


def test_the_oldest_folders_go_first_and_one_that_is_used_again_is_not_old(journal: Journal, delete: Delete) -> None:
    for number in range(MAX_KEPT):
        delete(f"s{number}")
    delete("s0")
    Path(journal.folder, "s2", "server.log.1").write_text("rotated")
    delete("new")
    delete("newer")
    names = {*(f"s{number}" for number in range(MAX_KEPT)), "new", "newer"}
    assert folders(journal) == names - {"s1", "s2"}


def test_a_folder_that_was_there_is_never_removed(journal: Journal, delete: Delete) -> None:
    Path(journal.folder, "mine").mkdir()
    delete("mine", line=False)
    for number in range(MAX_KEPT + 5):
        delete(f"s{number}")
    assert len(folders(journal)) == MAX_KEPT + 1
    assert "mine" in folders(journal)


@pytest.mark.parametrize("thing", ["a file", "a link", "a folder", "many logs"])
def test_what_a_user_put_there_stays_and_such_folders_are_bounded(
    journal: Journal, delete: Delete, tmp_path: Path, thing: str
) -> None:
    target = tmp_path / "target"
    target.write_text("another user's")
    for number in range(3 * MAX_KEPT):
        journal.open_for_server(f"s{number}", OWN)
        if (folder := Path(journal.folder, f"s{number}")).exists():
            match thing:
                case "a file":
                    (folder / "data").write_text("")
                case "a link":
                    (folder / "server.log.1").symlink_to(target)
                case "a folder":
                    (folder / "server.log.d").mkdir()
                case "many logs":
                    for index in range(100):
                        (folder / f"server.log.{index}").touch()
        journal.close_server_log(f"s{number}")
    assert len(folders(journal)) == MAX_KEPT + 1
    assert target.read_text() == "another user's"
    shared = Path(journal.folder).parent / "control.log"
    assert f"folders of {MAX_KEPT} deleted servers of user {OWN} there have other things than logs" in (
        shared.read_text()
    )


def test_a_folder_that_was_replaced_is_another_one(journal: Journal, delete: Delete, tmp_path: Path) -> None:
    journal.open_for_server("s", OWN)
    os.rename(Path(journal.folder, "s"), tmp_path / "moved")
    Path(journal.folder, "s").mkdir()
    journal.close_server_log("s")
    assert folders(journal) == {"s"}


def test_the_next_daemon_finds_the_folders_that_are_still_the_same(journal: Journal, delete: Delete) -> None:
    for number in range(MAX_KEPT):
        delete(f"s{number}")
    remaining = journal.folders.list_made()
    os.rename(Path(journal.folder, "s0"), Path(journal.folder, "moved"))
    Path(journal.folder, "s0").mkdir()
    following = Journal(journal.control, journal.server, folder=journal.folder)
    following.folders.take(remaining)
    for name in ("new", "newer"):
        own = following.open_for_server(name, OWN, 8)
        own.write_server("Server", 8, "server_exiting", {})
        following.close_server_log(name)
    assert folders(journal) == {"moved", "s0", *(f"s{number}" for number in range(2, MAX_KEPT)), "new", "newer"}
