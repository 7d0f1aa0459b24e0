"""A client whose pipe directory is misspelt is told what there is, and never goes on without limits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect.discovery import NoDaemon
from pympsd_client._connect.handshake import connect_to_daemon


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe directory with server a, which has namespaces default and hi."""
    with ExitStack() as stack:
        for name in ("", "a", "a/default", "a/hi"):
            (tmp_path / name).mkdir(exist_ok=True)
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(os.path.relpath(tmp_path / name / "control"))
        (tmp_path / "a" / "empty").mkdir()
        (tmp_path / "file").touch()
        (tmp_path / "control_lock").touch()
        yield tmp_path


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("a/typo", "no namespace 'typo' on server 'a'; there are: default, hi"),
        ("a/empty", "no namespace 'empty' on server 'a'; there are: default, hi"),
        ("a/typo/", "no namespace 'typo' on server 'a'; there are: default, hi"),
        ("b", r"no server 'b', or one that has failed \(server list says\); there are: a"),
        ("b/hi", r"no server 'b', or one that has failed \(server list says\); there are: a"),
        ("file", r"no server 'file', or one that has failed \(server list says\); there are: a"),
    ],
)
def test_a_name_that_is_not_there(pipe: Path, place: str, said: str) -> None:
    with pytest.raises(CudaError, match=said) as refused:
        connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{pipe}/{place}"})
    assert refused.value.code == 805


def test_elsewhere_there_is_no_daemon(tmp_path: Path) -> None:
    for place in ("x", "x/y"):
        assert isinstance(connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/{place}"}), NoDaemon)
