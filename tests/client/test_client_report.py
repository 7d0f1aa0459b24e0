"""``python -m pympsd_client``: what a program sees here, what is wrong, and what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import SECONDS, suspend

import pympsd_client
import pympsd_server
from pympsd.control import Daemon
from pympsd.process.version import VERSION


def report(tmp_path: Path, *arguments: str, **settings: str) -> tuple[int, str, str]:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "PYMPSD_EMULATED_DEVICES": "2xA100", **settings}
    command = [sys.executable, "-m", "pympsd_client", *arguments]
    # Elsewhere than in a checkout, whose sources Python would find first: nothing is compiled there.
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def test_the_report_without_a_daemon_explains_what_to_do(tmp_path: Path) -> None:
    status, output, errors = report(tmp_path)
    assert (status, errors) == (1, "")
    assert VERSION in output
    assert f"at {tmp_path}/control: no daemon (No such file or directory)" in output
    assert "a private executor, without MPS" in output
    assert "backend:       emulated" in output
    assert output.count("NVIDIA A100") == 2
    (wrong,) = [line for line in output.splitlines() if line.startswith("wrong: ")]
    assert "start a daemon (pympsd -d)" in wrong


@pytest.mark.long
def test_a_daemon_elsewhere_is_named(tmp_path: Path) -> None:
    """As with the unit of a user's own daemon; that of root's is at /run/nvidia-mps."""
    with Daemon(machine="2xA100") as daemon:
        (tmp_path / "nvidia-mps").symlink_to(daemon.pipe_directory)
        status, output, _ = report(tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
        assert status == 1
        (wrong,) = [line for line in output.splitlines() if line.startswith("wrong: ")]
        assert wrong == (
            f"wrong: this program runs without MPS, but a daemon runs at {tmp_path}/nvidia-mps: "
            f"set CUDA_MPS_PIPE_DIRECTORY={tmp_path}/nvidia-mps"
        )
        settings = {"XDG_RUNTIME_DIR": str(tmp_path), "CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/nvidia-mps"}
        assert report(tmp_path, **settings)[0] == 0


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_roots_daemon_of_the_systemd_unit_is_named_and_login_shells_find_it(tmp_path: Path) -> None:
    start = f"{Path(sys.executable).parent}/pympsd -d"
    profile = Path(__file__).parents[2] / "docs/profile.d/pympsd.sh"
    script = f"""
    mount -t tmpfs none /run && mkdir /run/nvidia-mps || exit 9
    . {profile}; echo before: $CUDA_MPS_PIPE_DIRECTORY
    CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps {start} || exit 9
    {sys.executable} -m pympsd_client
    echo $?
    CUDA_MPS_PIPE_DIRECTORY=/elsewhere; . {profile}; echo kept: $CUDA_MPS_PIPE_DIRECTORY
    unset CUDA_MPS_PIPE_DIRECTORY; . {profile}; echo after: $CUDA_MPS_PIPE_DIRECTORY
    {sys.executable} -m pympsd_client >/dev/null; echo $?
    {start[:-3]} quit
    """
    settings = {
        "PYMPSD_EMULATED_DEVICES": "A100",
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path),
        "PATH": os.environ["PATH"],
    }
    command = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    lines = done.stdout.splitlines()
    assert lines[0] == "before:", done.stderr
    hint = "but a daemon runs at /run/nvidia-mps: set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"
    assert [line for line in lines if line.startswith("wrong: ")] == [f"wrong: this program runs without MPS, {hint}"]
    assert lines[-4:] == ["1", "kept: /elsewhere", "after: /run/nvidia-mps", "0"]


def test_what_cuinit_refuses_is_reported(tmp_path: Path) -> None:
    status, output, errors = report(tmp_path, PYMPSD_REQUIRE_MPS="1")
    assert (status, errors) == (1, "")
    assert "CUDA_ERROR_MPS_CONNECTION_FAILED" in output
    assert "PYMPSD_REQUIRE_MPS=1 asks for one" in output.splitlines()[-1]


@pytest.mark.long(but=["broken---help-buffered", "closed--unbuffered", "full--buffered"])
@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("option", ["", "--help"])
@pytest.mark.parametrize(
    ("shell", "reason"),
    [
        ("{} > /dev/full", "No space left on device"),
        ("{} >&-", "Bad file descriptor"),
        ("{{ sleep 0.1; {}; }} | true; exit ${{PIPESTATUS[0]}}", "Broken pipe"),
    ],
    ids=["full", "closed", "broken"],
)
def test_a_report_that_cannot_be_printed(
    tmp_path: Path, shell: str, reason: str, option: str, unbuffered: dict[str, str]
) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "PYMPSD_REQUIRE_MPS": "1", **unbuffered}
    command = ["/bin/bash", "-c", shell.format(f"{sys.executable} -m pympsd_client {option}")]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **environment}, cwd=tmp_path, capture_output=True, text=True,
        timeout=SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (74, f"standard output: {reason}: not all could be printed\n")


def test_what_is_compiled_is_listed(tmp_path: Path) -> None:
    output = report(tmp_path)[1]
    (compiled,) = [line for line in output.splitlines() if line.startswith("compiled:")]
    built = [path.name.partition(".")[0] for path in Path(pympsd_client.__path__[0]).glob("native/*.so")]
    built += [path.name.partition(".")[0] for path in Path(pympsd_server.__path__[0]).glob("native/*.so")]
    assert compiled.split()[1:] == [f"{name}," for name in sorted(built)][:-1] + sorted(built)[-1:]


def test_the_report_explains_and_refuses_arguments(tmp_path: Path) -> None:
    status, output, errors = report(tmp_path, "--help")
    assert (status, errors) == (0, "")
    assert output.startswith("usage: python -m pympsd_client")
    status, output, errors = report(tmp_path, "nonsense")
    assert (status, output) == (2, "")
    assert errors == "python -m pympsd_client: unrecognized arguments: nonsense\n"
    status, output, errors = report(tmp_path, "--hepl")
    assert (status, output) == (2, "")
    assert errors == "python -m pympsd_client: there is no option --hepl; did you mean --help?\n"


def test_a_vendors_server_that_is_not_there_is_reported(tmp_path: Path) -> None:
    status, output, _ = report(tmp_path, PYMPSD_BACKEND="vendor", PATH=str(tmp_path))
    assert status == 1
    assert "wrong: PYMPSD_BACKEND=vendor: no nvidia-cuda-mps-server is in PATH; name the driver's in" in output


@pytest.mark.long
def test_a_stopped_daemon_is_reported(tmp_path: Path) -> None:
    with Daemon(machine="H200") as daemon:
        suspend(daemon.pid)
        try:
            status, output, errors = report(tmp_path, CUDA_MPS_PIPE_DIRECTORY=daemon.pipe_directory)
            assert (status, errors) == (1, "")
            assert f"if the daemon is stopped, continue it: kill -CONT {daemon.pid}" in output.splitlines()[-1]
            assert output.splitlines()[-1].startswith("wrong: the daemon does not answer")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        status, output, _ = report(tmp_path, CUDA_MPS_PIPE_DIRECTORY=daemon.pipe_directory)
        assert status == 0, output
