"""The file that a command names: what is not read, and never waited for."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from pympsd.channel.attached_file import hash_expected_file, text_of
from pympsd.wire import frames

ROOT = os.geteuid() == 0
NEEDS_ROOT = pytest.mark.skipif(not ROOT, reason="only root is asked to be careful")


def _problem(path: Path | str) -> str:
    with pytest.raises(LookupError) as refused:
        text_of([str(path)])
    return str(refused.value.args[0])


def test_the_first_word_that_is_not_an_option_names_the_attached_file(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_bytes(b"x")
    assert text_of(["--check", str(file), "y"]) == b"x"
    assert text_of(["--check"]) == b""
    file.write_bytes(b"x" * (frames.MAX_BODY + 1))
    assert _problem(file) == f"{file}: a configuration file has at most {frames.MAX_BODY} bytes"


def test_a_file_that_is_not_regular_is_refused_immediately(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    text = "a configuration file must be a regular file, not"
    assert _problem(tmp_path / "fifo") == f"{tmp_path}/fifo: {text} a FIFO; write the text to a regular file first"
    assert _problem("/dev/zero") == f"/dev/zero: {text} a device; write the text to a regular file first"
    assert _problem(tmp_path) == f"{tmp_path}: Is a directory"
    assert _problem(tmp_path / "none") == f"{tmp_path}/none: No such file or directory"


def test_only_root_minds_who_can_write_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.touch()
    file.chmod(0o666)
    if ROOT:
        assert (
            _problem(file)
            == f"{file}: root does not read a file that everybody can write to; remove that right with chmod o-w"
        )
    else:
        assert text_of([str(file)]) == b""


@NEEDS_ROOT
def test_root_reads_no_file_that_another_user_has_put_where_everybody_can(tmp_path: Path) -> None:
    public, link, file = tmp_path / "public", tmp_path / "link", tmp_path / "public" / "m.toml"
    public.mkdir()
    public.chmod(0o1777)
    file.touch(0o644)
    link.symlink_to(file)
    assert text_of([str(file)]) == text_of([str(link)]) == b""
    os.chown(file, 10001, 10001)
    for path in (file, link):
        assert _problem(path) == (
            f"{path}: root does not read a file of user 10001 in a directory where everybody can put files; "
            "copy the file to a directory of root's"
        )
    public.chmod(0o755)
    assert text_of([str(file)]) == b""


def test_an_expected_file_is_replaced_by_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_bytes(b"x")
    option = f"--expect={sha256(b'x').hexdigest()}"
    assert hash_expected_file(["config", "status", f"--expect={file}", "--json"]) == [
        "config",
        "status",
        option,
        "--json",
    ]
    assert hash_expected_file(["config", "status", "--expect", str(file)]) == ["config", "status", option]
    for words in (["--expect"], ["--expect=3"], ["--expect", "abcdef012345"], ["/a"]):
        assert hash_expected_file(words) == (words if len(words) == 1 else [f"--expect={words[1]}"])
    file.unlink()
    with pytest.raises(LookupError, match="No such file or directory"):
        hash_expected_file([f"--expect={file}"])
