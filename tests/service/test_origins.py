"""What is read of a process for rules and for limits of cgroups."""

from __future__ import annotations

import os

import pytest

from pympsd.service.sessions.origins import cgroups_in, origin_of_pid


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (b"0::/user.slice/a\n", ("/user.slice/a",)),
        (b"0::/\n", ("/",)),
        (b"", ()),
        (b"9:name=systemd:/\n4:memory:/job\n1:cpu:/\n0::/\n", ("/job", "/")),
        (b"4:memory:/job\n0::/box:1\n", ("/job", "/box:1")),
        (b"0::/gone (deleted)\n", ("/gone",)),
        (b"0::/a\r0::/b\x0c0::/c\n", ("/a\r0::/b\x0c0::/c",)),
        (b"0::/\xe2\x80\xa80::/c\n", ("/\u20280::/c",)),
        (b"0::/\xff\n", ("/\udcff",)),
    ],
)
def test_a_line_has_one_path_and_the_last_is_that_of_cgroup_v2(text: bytes, paths: tuple[str, ...]) -> None:
    """Users name the cgroups below theirs: whatever a name has in it, it makes no other line."""
    assert cgroups_in(text) == paths


def test_a_process_that_is_there_has_cgroups() -> None:
    origin = origin_of_pid(os.getpid())
    assert origin is not None
    assert origin.uid == os.geteuid()
    assert origin.cgroups
    assert all(path.startswith("/") for path in origin.cgroups)
