"""A client at the directory of a server or a namespace never runs without limits; elsewhere it runs without MPS."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

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
    ("place", "message"),
    [
        ("a/typo", "no namespace 'typo' on server 'a'; there are: default, hi"),
        ("a/empty", "no namespace 'empty' on server 'a'; there are: default, hi"),
        ("a/typo/", "no namespace 'typo' on server 'a'; there are: default, hi"),
        ("b", "no server 'b', or it has failed (see server list); there are: a"),
        ("b/hi", "no server 'b', or it has failed (see server list); there are: a"),
        ("file", "no server 'file', or it has failed (see server list); there are: a"),
    ],
)
def test_a_name_that_is_not_there(pipe: Path, place: str, message: str) -> None:
    why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{pipe}/{place}"})
    assert isinstance(why, NoDaemon)
    assert why.limited
    assert why.reason.endswith(message)


@pytest.mark.parametrize(
    ("place", "limited"), [("a", True), ("a/hi", True), ("a/hi/", True), ("", False), (".", False), ("a/..", False)]
)
def test_a_dead_daemons_server_or_namespace_is_not_given_up_silently(pipe: Path, place: str, limited: bool) -> None:
    why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{pipe}/{place}"})
    assert isinstance(why, NoDaemon)
    assert (why.limited, "Connection refused" in why.reason) == (limited, True)


def test_a_namespace_that_is_mounted_alone_is_known_by_its_socket(pipe: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    os.rename(pipe / "a" / "hi" / "control", tmp_path / "mounted" / "control")
    (pipe / "control_lock").unlink()
    why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/mounted"})
    assert isinstance(why, NoDaemon)
    assert why.limited


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is hidden from root")
def test_a_directory_that_may_not_be_seen_may_be_a_namespaces(pipe: Path) -> None:
    pipe.chmod(0)
    why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{pipe}"})
    pipe.chmod(0o700)
    assert isinstance(why, NoDaemon)
    assert why.limited


@pytest.mark.parametrize("place", ["none", "none/", "none/below", "plain", "plain/below"])
@pytest.mark.parametrize("has_daemon", [True, False])
def test_below_a_daemon_without_named_servers_there_is_no_mps(tmp_path: Path, place: str, has_daemon: bool) -> None:
    (tmp_path / "control_lock").touch()
    (tmp_path / "plain").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(tmp_path / "control"))
        if not has_daemon:
            (tmp_path / "control").unlink()
        why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/{place}"})
    assert isinstance(why, NoDaemon)
    assert not why.limited
    assert "no server" not in why.reason


@pytest.mark.parametrize("place", ["none", "none/below", "plain", "plain/below"])
@pytest.mark.parametrize("has_daemon", [True, False])
def test_below_a_daemon_with_named_servers_nobody_is_without_limits(
    tmp_path: Path, place: str, has_daemon: bool
) -> None:
    (tmp_path / "control_lock").touch()
    (tmp_path / "pympsd.named-servers").touch()
    (tmp_path / "plain").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(tmp_path / "control"))
        if not has_daemon:
            (tmp_path / "control").unlink()
        why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/{place}"})
    assert isinstance(why, NoDaemon)
    assert why.limited


def test_elsewhere_there_is_no_daemon(tmp_path: Path) -> None:
    for place in ("x", "x/y"):
        why = connect_to_daemon({"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/{place}"})
        assert isinstance(why, NoDaemon)
        assert not why.limited
