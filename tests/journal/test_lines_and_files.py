"""The format of a log line, sanitised foreign text, the files, and the two loggers."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from pympsd.journal.files import LogFile
from pympsd.journal.line_format import line, sanitise
from pympsd.journal.setup import Journal, control_logger, link_logger

FORM = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (Control|Server|Other) ( {0,4}\d+)\] (.*)\n")


@given(st.floats(0, 4e9), st.integers(1, 1 << 22), st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_a_line_has_the_documented_form(when: float, pid: int, text: str) -> None:
    match = FORM.fullmatch(line(when, "Control", pid, text))
    assert match is not None
    assert match[2] == str(pid).rjust(5).encode()
    assert match[3] == text.encode()


def test_milliseconds_are_truncated_and_short_pids_padded() -> None:
    assert line(0.9999, "Other", 7, "x").endswith(b".999 Other     7] x\n")
    assert b" Server 1234567] " in line(0, "Server", 1234567, "x")


def test_undecodable_bytes_are_preserved() -> None:
    text = b"\xff\xfe name".decode("utf-8", "surrogateescape")
    assert line(0, "Control", 1, text).endswith(b"] \xff\xfe name\n")


@given(st.binary(max_size=3000), st.integers(0, 2000))
def test_foreign_bytes_become_printable_text(data: bytes, limit: int) -> None:
    text = sanitise(data, limit)
    assert text.isprintable()
    assert len(text) <= limit
    assert sanitise(text.encode(), limit) == text


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=100))
def test_printable_text_is_not_changed(text: str) -> None:
    assert sanitise(text.encode()) == text


def test_line_ends_and_escapes_cannot_forge_a_line() -> None:
    assert sanitise(b"a\n[2026] b\r\x1b[31m\xe2\x80\xa8c\xe2\x80\xaed") == "a [2026] b  [31m c d"


def test_a_line_on_a_terminal_has_no_control_sequences() -> None:
    text = b"Cmd:\x1b[2J\x9b1m\xc2\x9b2m\x07\x08\x7f\tend\xe9\n second line"
    shown = line(0, "Control", 1, text.decode("utf-8", "surrogateescape")).partition(b"] ")[2]
    assert shown == b"Cmd:\\x1b[2J\\x9b1m\\x9b2m\\x07\\x08\\x7f\tend\xe9\n second line\n"


@given(st.binary(max_size=100))
def test_any_bytes_make_a_line_without_control_characters(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    shown = line(0, "Control", 1, text).decode("utf-8", "surrogateescape")
    assert not any(0x7F <= ord(char) < 0xA0 or 0xDC80 <= ord(char) < 0xDCA0 for char in shown)
    assert {char for char in shown if ord(char) < 0x20} <= {"\t", "\n"}


# --- files


def test_lines_are_appended_and_the_inode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "control.log"
    path.write_bytes(b"before\n")
    inode = path.stat().st_ino
    file = LogFile(str(path))
    file.write(b"one\n")
    file.write(b"two\n")
    assert path.read_bytes() == b"before\none\ntwo\n"
    assert (path.stat().st_ino, path.stat().st_mode & 0o777) == (inode, 0o644)
    file.close()


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        file = LogFile(str(tmp_path / "log"))
    finally:
        os.umask(before)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o644
    file.close()


def test_reopen_closes_a_file_that_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "control.log"
    file = LogFile(str(path))
    file.write(b"old\n")
    path.rename(tmp_path / "control.log.1")
    file.write(b"still old\n")
    file.reopen()
    file.write(b"new\n")
    assert (tmp_path / "control.log.1").read_bytes() == b"old\nstill old\n"
    assert path.read_bytes() == b"new\n"
    file.close()


def test_a_reopen_that_fails_keeps_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogFile(str(folder / "control.log"))
    folder.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        file.reopen()
    file.write(b"kept\n")
    assert (tmp_path / "moved" / "control.log").read_bytes() == b"kept\n"
    file.close()


@pytest.mark.parametrize("name", ["missing/control.log", "."])
def test_a_file_that_cannot_be_opened_is_an_os_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"No such file|Is a directory"):
        LogFile(str(tmp_path / name))


def test_a_line_that_cannot_be_written_is_dropped_and_counted(tmp_path: Path) -> None:
    file = LogFile("/dev/full")
    file.write(b"one\n")
    file.write(b"two\n")
    assert file.dropped == 2
    file.close()
    file.write(b"after the end\n")
    assert file.dropped == 3


def test_without_a_path_lines_go_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    file = LogFile(None)
    file.write(b"shown\n")
    file.reopen()
    file.write(b"shown too\n")
    file.close()
    assert capfd.readouterr().out == "shown\nshown too\n"


# --- loggers


@pytest.fixture(autouse=True)
def _own_structlog() -> object:
    """Restore structlog's configuration after each test."""
    yield
    structlog.reset_defaults()


def test_the_control_logger_writes_the_catalogues_line(tmp_path: Path) -> None:
    journal = Journal(LogFile(str(tmp_path / "c")), LogFile(str(tmp_path / "s")))
    assert journal.control is not None
    assert journal.server is not None
    control_logger(journal).info("server_ready", server=847)
    journal.write_server("Other", 9, "fifo_line", {"text": "hello"}, 0.5)
    match = FORM.fullmatch((tmp_path / "c").read_bytes())
    assert match is not None
    assert (match[1], int(match[2]), match[3]) == (b"Control", os.getpid(), b"NEW SERVER 847: Ready")
    assert (tmp_path / "s").read_bytes().endswith(b".500 Other     9] hello\n")
    assert journal.reopen() == []
    journal.control.close()
    journal.server.close()


def test_a_journal_without_files_writes_nothing() -> None:
    journal = Journal(None, None)
    assert control_logger(journal).info("ui_connected") is None
    journal.write_server("Server", 1, "server_startup", {})
    assert journal.reopen() == ["There are no log files: they could not be opened when the daemon started."]


def test_a_server_sends_events_and_fields_unchanged() -> None:
    sent: list[tuple[str, dict[str, str | int | float], float]] = []
    logger = link_logger(lambda event, fields, when: sent.append((event, fields, when)))
    logger.info("client_connected", pid=7)
    logger.error("server_failed")
    assert [(event, fields) for event, fields, _ in sent] == [("client_connected", {"pid": 7}), ("server_failed", {})]
    assert sent[0][2] <= sent[1][2]


def test_an_unknown_event_raises() -> None:
    journal = Journal(LogFile("/dev/null"), None)
    with pytest.raises(KeyError):
        control_logger(journal).info("no_such_event")
    assert journal.control is not None
    journal.control.close()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes files of several users")


@as_root
def test_a_log_that_another_user_has_linked_is_not_written(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "log"
    secret.write_text("x")
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    symbolic, replaceable, hard = folder / "control.log", folder / "link", folder / "server.log"
    symbolic.symlink_to(secret)
    os.lchown(symbolic, 12345, 12345)
    replaceable.symlink_to(secret)
    os.link(secret, hard)
    inside = tmp_path / "link"
    inside.symlink_to(folder)
    os.lchown(inside, 12345, 12345)
    for path, reason in (
        (symbolic, "a symbolic link to .* that user 12345 made"),
        (replaceable, "a symbolic link to .* that user 12345 can replace"),
        (hard, "2 names"),
    ):
        with pytest.raises(OSError, match=reason) as caught:
            LogFile(str(path))
        assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="that user 12345 made") as caught:
        LogFile(str(inside / "other.log"))
    assert caught.value.filename == str(inside)
    own = tmp_path / "own.log"
    own.symlink_to(symbolic)
    for path, link in ((own, symbolic), (f"{inside}/../other.log", inside)):  # a chain of links; .. behind a link
        with pytest.raises(OSError, match="that user 12345 made") as caught:
            LogFile(str(path))
        assert caught.value.filename == str(link)
    assert secret.read_text() == "x"


@as_root
def test_ones_own_links_are_followed(tmp_path: Path) -> None:
    target, symbolic, hard = tmp_path / "target", tmp_path / "control.log", tmp_path / "server.log"
    target.touch()
    symbolic.symlink_to(target)
    os.link(target, hard)
    for path in (symbolic, hard):
        file = LogFile(str(path))
        file.write(b"line\n")
        file.close()
    assert target.read_text() == "line\nline\n"


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
USER, OTHER = 1000, 2000


def _owners(log: Path) -> list[int]:
    return [path.stat().st_uid for path in (log.parent, log)]


@ROOT
@pytest.mark.parametrize("before", [None, 0, USER])
def test_the_log_of_a_users_server_is_the_users(tmp_path: Path, before: int | None) -> None:
    log = tmp_path / "b" / "server.log"
    if before is not None:
        log.parent.mkdir()
        log.write_bytes(b"earlier\n")
        for path in (log, log.parent):
            os.chown(path, before, -1)
    earlier = os.umask(0o077)
    try:
        file = LogFile(str(log), USER)
    finally:
        os.umask(earlier)
    file.write(b"later\n")
    log.rename(log.with_name("server.log.1"))
    file.reopen()
    file.write(b"anew\n")
    file.close()
    assert log.with_name("server.log.1").read_bytes().endswith(b"later\n")
    assert (_owners(log), log.read_bytes()) == ([USER, USER], b"anew\n")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (log.parent, log)]
    assert before is not None or modes == [0o755, 0o644]


@ROOT
@pytest.mark.parametrize(("owner", "other"), [(OTHER, None), (OTHER, "access.log"), (0, "access.log")])
def test_no_folder_of_others_becomes_a_users(tmp_path: Path, owner: int, other: str | None) -> None:
    log = tmp_path / "nginx" / "server.log"
    log.parent.mkdir()
    if other is not None:
        (log.parent / other).touch()
    os.chown(log.parent, owner, -1)
    with pytest.raises(OSError, match=f"the log's folder is user {owner}'s"):
        LogFile(str(log), USER)
    assert log.parent.stat().st_uid == owner
    assert not log.exists()


@ROOT
@pytest.mark.parametrize("kind", ["link", "hard link", "file", "fifo", "folder"])
def test_a_user_has_root_write_nowhere_else(tmp_path: Path, kind: str) -> None:
    log, roots = tmp_path / "b" / "server.log", tmp_path / "roots"
    roots.write_bytes(b"mine\n")
    log.parent.mkdir()
    match kind:
        case "link":
            log.symlink_to(roots)
        case "hard link":
            log.hardlink_to(roots)
        case "file":
            roots.rename(log)
            roots.symlink_to(log)
        case "fifo":
            os.mkfifo(log)
            os.chown(log, USER, -1)
        case "folder":
            log.parent.rmdir()
            (tmp_path / "c").mkdir()
            log.parent.symlink_to(tmp_path / "c")
    os.chown(log.parent, USER, -1, follow_symlinks=False)
    with contextlib.ExitStack() as stack:
        if kind == "fifo":
            stack.enter_context(open(log, "rb+", buffering=0))
        stack.enter_context(pytest.raises(OSError, match=r"a regular file of user|Not a directory|Too many levels"))
        LogFile(str(log), USER)
    assert (roots.read_bytes(), roots.stat().st_uid) == (b"mine\n", 0)
    assert not (tmp_path / "c" / "server.log").exists()


def test_a_late_file_comes_with_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "log" / "server.log"
    file = LogFile(str(path), late=True)
    file.reopen()
    file.write(b"lost\n")
    assert (file.dropped, file.reason) == (1, "No such file or directory")
    path.parent.mkdir()
    file.reopen()
    assert not path.exists()
    file.write(b"one\n")
    file.write(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    path.rename(tmp_path / "moved")
    file.reopen()
    file.write(b"three\n")
    file.close()
    assert path.read_bytes() == b"three\n"
