"""Whether another user can reach a file: the computed result is what the kernel then allows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.process.files import unreachable_folder

UID, GID, OTHER_GID = 12345, 23456, 23457
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can access files as another user")


@pytest.fixture
def tree() -> Iterator[Path]:
    """A folder that every user may search (pytest's own is root's)."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def _reachable_as(path: Path, uid: int, gid: int, groups: list[int]) -> bool:
    # stat(1) needs search permission on the folders, and none on the file itself.
    ran = subprocess.run(
        ["/usr/bin/stat", "-L", str(path)], user=uid, group=gid, extra_groups=groups, cwd="/", capture_output=True,
        timeout=30, check=False,
    )  # fmt: skip
    return ran.returncode == 0


def test_root_reaches_every_file(tree: Path) -> None:
    tree.chmod(0)
    assert unreachable_folder(str(tree / "file"), 0, frozenset()) is None
    tree.chmod(0o755)


def test_the_first_closed_folder_is_named(tree: Path) -> None:
    (tree / "home" / "inner").mkdir(parents=True)
    (tree / "home").chmod(0o700)
    (tree / "home" / "inner").chmod(0o700)
    assert unreachable_folder(str(tree / "home" / "inner" / "python"), UID, frozenset()) == str(tree / "home")
    (tree / "home").chmod(0o711)
    assert unreachable_folder(str(tree / "home" / "inner" / "python"), UID, frozenset()) == str(
        tree / "home" / "inner"
    )


def test_a_link_is_followed_to_the_closed_folder(tree: Path) -> None:
    (tree / "closed").mkdir(mode=0o700)
    (tree / "closed" / "python").write_text("")
    (tree / "open").mkdir(mode=0o755)
    (tree / "open" / "python").symlink_to("../closed/python")
    assert unreachable_folder(str(tree / "open" / "python"), UID, frozenset()) == str(tree / "closed")


@as_root
def test_a_folder_without_the_owners_bit_is_closed_to_its_owner(tree: Path) -> None:
    folder = tree / "odd"
    folder.mkdir()
    os.chown(folder, UID, GID)
    folder.chmod(0o077)
    assert unreachable_folder(str(folder / "file"), UID, frozenset({GID})) == str(folder)
    assert unreachable_folder(str(folder / "file"), UID + 1, frozenset({GID})) is None


MODES = st.sampled_from([0o700, 0o710, 0o701, 0o711, 0o755, 0o750, 0o077, 0o000])
OWNERS = st.sampled_from([(0, 0), (UID, GID), (0, GID), (0, OTHER_GID), (UID, 0)])


@pytest.mark.long
@as_root
@settings(max_examples=40)
@given(
    folders=st.lists(st.tuples(MODES, OWNERS), min_size=1, max_size=3),
    link=st.sampled_from([None, "file", "folder", "chain"]),
    groups=st.sampled_from([[], [GID], [OTHER_GID]]),
)
def test_the_result_is_what_the_kernel_allows(
    folders: list[tuple[int, tuple[int, int]]], link: str | None, groups: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        place = top / "way"
        created = []
        for number, _ in enumerate(folders):
            place = place / str(number)
            created.append(place)
        place.mkdir(parents=True)
        (place / "file").write_text("")
        (top / "way").chmod(0o755)
        path = _make_linked(top, place, link)
        for folder, (mode, (uid, gid)) in zip(created, folders, strict=True):
            os.chown(folder, uid, gid)
            folder.chmod(mode)
        computed = unreachable_folder(str(path), UID, frozenset({GID + 9, *groups}))
        assert (computed is None) == _reachable_as(path, UID, GID + 9, groups)
        assert computed is None or Path(computed).resolve() in created


def _make_linked(top: Path, place: Path, link: str | None) -> Path:
    sibling = top / "beside"
    sibling.mkdir(mode=0o755)
    if link == "file":
        (sibling / "file").symlink_to(os.path.relpath(place / "file", sibling))
        return sibling / "file"
    if link == "folder":
        (sibling / "folder").symlink_to(place)
        return sibling / "folder" / "file"
    if link == "chain":
        (sibling / "a").symlink_to(place)
        (sibling / "b").symlink_to("a")
        return sibling / "b" / "file"
    return place / "file"


def test_a_loop_of_links_ends(tree: Path) -> None:
    (tree / "a").symlink_to("b")
    (tree / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        unreachable_folder(str(tree / "a" / "file"), UID, frozenset())


def test_a_missing_folder_is_an_os_error(tree: Path) -> None:
    with pytest.raises(FileNotFoundError):
        unreachable_folder(str(tree / "missing" / "file"), UID, frozenset())


def test_this_interpreter_is_reachable_by_root() -> None:
    assert unreachable_folder(sys.executable, 0, frozenset()) is None
