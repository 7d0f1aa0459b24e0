"""Slurm's prolog as it is installed, run by hand: it finds its pympsd, and reports what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import SECONDS, ClientProcess, kill_after

from pympsd.cli import extras
from pympsd.devices.machine import describe

BIN = Path(sys.executable).parent


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return the folder of the scripts, installed by a pympsd that is not in PATH; their paths are below tmp_path."""
    return install(tmp_path, BIN)


def install(tmp_path: Path, launchers: Path) -> Path:
    extras.install(tmp_path / "prefix", launchers)
    folder = tmp_path / "prefix/share/pympsd/slurm"
    for script in folder.iterdir():
        text = script.read_text().replace("/etc/pympsd/", f"{tmp_path}/etc/")
        script.write_text(text.replace("/run/pympsd-slurm-jobs", f"{tmp_path}/jobs"))
    (tmp_path / "etc").mkdir()
    configure(tmp_path)
    return folder


def configure(tmp_path: Path, **settings: str) -> Path:
    """Write the settings; return their file."""
    environment = {
        "MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe",
        "MPS_LOG_DIRECTORY": f"{tmp_path}/log",
        "PYMPSD_EMULATED_DEVICES": "H200",
        "PYMPSD_STATE_DIRECTORY": str(tmp_path),
        **settings,
    }
    file = tmp_path / "etc/slurm.env"
    file.write_text("".join(f"{name}='{value}'\n" for name, value in environment.items()))
    return file


def run(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the variables that Slurm sets, which has no PATH."""
    environment = {"SLURM_JOB_ID": "7", **variables}
    return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def daemon_ends(tmp_path: Path) -> Iterator[None]:
    """End the daemon that a prolog starts."""
    yield
    environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe"}
    subprocess.run([BIN / "pympsd", "quit", "-t", "0"], env=environment, timeout=SECONDS, capture_output=True)


@pytest.mark.usefixtures("daemon_ends")
def test_the_prolog_starts_the_daemon_of_its_installation_once(installed: Path, tmp_path: Path) -> None:
    pids = []
    for _ in range(2):
        done = run(installed / "prolog")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        pids.append((tmp_path / "pipe/nvidia-cuda-mps-control.pid").read_text())
    assert pids[0] == pids[1]
    assert list((tmp_path / "jobs").iterdir()) == [], "the job has no part of a GPU"


def exports(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    lines = [line.removeprefix("export ").partition("=") for line in done.stdout.splitlines()]
    return {name: value for name, _, value in lines}


@pytest.mark.usefixtures("daemon_ends")
def test_a_task_gets_what_the_prolog_has_recorded(installed: Path, tmp_path: Path) -> None:
    part = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}
    done = run(installed / "prolog", **part)
    assert (done.returncode, done.stderr) == (0, "")
    device = describe("H200")[0]
    memory = (device.memory_bytes + device.reserved_bytes) >> 20  # as nvidia-smi and pympsd-smi report it
    expected = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory // 2}M",
        "CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe",
        "PYMPSD_REQUIRE_MPS": "1",
    }
    for own in ({}, part, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "MPS_PIPE_DIRECTORY": "/x", "PATH": "/x"}):
        done = run(installed / "task-prolog", **own)
        assert (done.returncode, done.stderr) == (0, "")
        assert exports(done) == expected
    less = exports(run(installed / "task-prolog", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10"))
    assert less["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={memory // 10}M", "a step with less than its job"
    assert exports(run(installed / "task-prolog", SLURM_JOB_ID="8", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="9")) == {}
    assert run(installed / "epilog").returncode == 0
    assert exports(run(installed / "task-prolog", **part)) == {}


@pytest.fixture
def job_cgroup() -> Iterator[Path]:
    """Make the cgroup of job 7 as Slurm does, with a hierarchy of version 1 or with version 2."""
    root = Path("/sys/fs/cgroup")
    mount = root if (root / "cgroup.controllers").exists() else root / "pids"
    folder = Path(mount, f"slurm_test{os.getpid()}", "uid_0", "job_7")
    folder.mkdir(parents=True)
    yield folder
    for entry in (folder, folder.parent, folder.parent.parent):
        entry.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a job's cgroup")
@pytest.mark.usefixtures("daemon_ends")
def test_the_epilog_drains_what_the_job_has_left(installed: Path, tmp_path: Path, job_cgroup: Path) -> None:
    assert run(installed / "prolog").returncode == 0
    with (tmp_path / "etc/slurm.env").open("a") as settings:
        settings.write("MPS_DRAIN_SECONDS=0.1\n")
    environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe", "PYMPSD_REQUIRE_MPS": "1"}
    of_job, other = (ClientProcess.start(environment, 0).connect() for _ in range(2))
    with kill_after(of_job.process), kill_after(other.process):
        (job_cgroup / "cgroup.procs").write_text(str(of_job.pid))
        done = run(installed / "epilog")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert of_job.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
        assert other.call("sync") == "CUDA_SUCCESS"
        listed = subprocess.run(
            [BIN / "pympsd", "get_drain_list"], env=environment, capture_output=True, timeout=SECONDS
        )
        assert (listed.returncode, listed.stdout) == (0, b""), "the next job is served"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another user's file")
@pytest.mark.parametrize("whose", ["another user's", "all may write", "a group may write", "the folder"])
def test_settings_that_are_not_roots_alone_are_refused(installed: Path, tmp_path: Path, whose: str) -> None:
    file = configure(tmp_path)
    file.write_text(f"touch {tmp_path}/injected\n")
    if whose == "another user's":
        os.chown(file, 10001, 10001)
    elif whose == "the folder":
        file = file.parent
        file.chmod(0o777)
    else:
        file.chmod(0o666 if whose == "all may write" else 0o664)
    done = run(installed / "prolog")
    assert done.returncode == 1
    assert f"{file} has to be root's, and writable by root only: chown root, chmod go-w" in done.stderr
    assert not (tmp_path / "injected").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another user's file")
def test_a_record_that_is_not_roots_is_refused(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/7").write_text(f"100 999999 {tmp_path}/pipe\n")
    os.chown(tmp_path / "jobs/7", 10001, 10001)
    done = run(installed / "task-prolog", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert done.returncode == 1
    assert "jobs/7 has to be root's" in done.stdout
    assert "export CUDA_VISIBLE_DEVICES=\n" in done.stdout


def test_a_node_without_a_prolog_is_reported(installed: Path) -> None:
    done = run(installed / "task-prolog", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert done.returncode == 1
    assert done.stdout.startswith("print pympsd: no GPU for this task: prolog has not run on this node")
    assert exports(run(installed / "task-prolog")) == {}, "a job without a share"


def test_a_pympsd_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(install(tmp_path, tmp_path / "none") / "prolog")
    assert done.returncode == 1
    assert str(tmp_path / "none/pympsd") in done.stderr


@pytest.mark.usefixtures("daemon_ends")
def test_memory_that_is_not_known_is_reported(installed: Path) -> None:
    done = run(installed / "prolog", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50", SLURM_JOB_GPUS="5")
    assert done.returncode == 1
    assert "does not report the memory of GPU 5" in done.stderr


def test_a_daemon_that_does_not_start_reports_why(installed: Path, tmp_path: Path) -> None:
    configure(tmp_path, PYMPSD_EMULATED_DEVICES="nonsense")
    done = run(installed / "prolog")
    assert done.returncode == 1
    assert done.stderr.startswith("pympsd prolog: the daemon does not start: ")
    assert "nonsense" in done.stderr
