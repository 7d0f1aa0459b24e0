"""pympsd-smi memory-limits: limits of cgroups, at a daemon."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_node import SMI
from processes import SECONDS

from pympsd.control import Daemon

MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(machine="2xH200", protocol=3) as started:
        yield started


def smi(pipe: str, *words: str, user: int | None = None) -> tuple[int, str]:
    """Run the command; return its exit status and what it prints."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "PATH": os.environ["PATH"]}
    command = [SMI, "memory-limits", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, user=user)
    printed, nothing = (done.stderr, done.stdout) if done.returncode else (done.stdout, done.stderr)
    assert not nothing
    return done.returncode, printed


def limits(daemon: Daemon) -> list[tuple[str, int | None, int | None]]:
    rows = daemon.listing("memacct list --device=1")
    return [(row["cgroup"], row["soft-limit"], row["hard-limit"]) for row in rows]


def test_limits_are_set_and_shown(daemon: Daemon) -> None:
    cgroup, device = "/sys/fs/cgroup/job", ("-i", "1")
    options = ("--set", *device, "-n", cgroup, "--soft-limit", "4096", "--hard-limit", "8192")
    assert smi(daemon.pipe_directory, *options) == (0, "")
    assert limits(daemon) == [("/job", 4096 * MIB, 8192 * MIB)]
    assert not daemon.listing("memacct list --device=0"), "it is of one device"
    text = f"namespace: {cgroup}\nsoft limit: 4096 MiB\nhard limit: 8192 MiB\ncurrent used: 0 MiB\n"
    assert smi(daemon.pipe_directory, "--get", *device, "-n", cgroup) == (0, text)
    assert smi(daemon.pipe_directory, "--get", *device, "--namespace", "/job/step") == (0, text), "the nearest above"
    none = "Unable to get memory limit: neither /jobs nor a cgroup above it has one\n"
    assert smi(daemon.pipe_directory, "--get", *device, "-n", "/jobs") == (3, none)
    assert smi(daemon.pipe_directory, *device, "-n", "/job", "--hard-limit", "max", "--soft-limit=max") == (0, "")
    text = f"namespace: {cgroup}\nsoft limit: max\nhard limit: max\ncurrent used: 0 MiB\n"
    assert smi(daemon.pipe_directory, "--get", *device, "-n", cgroup) == (0, text)
    assert smi(daemon.pipe_directory, *device, "-n", "/job", "--soft-limit", "0", "--hard-limit=default") == (0, "")
    assert limits(daemon) == []


def test_the_greatest_soft_limit_is_the_hard_one_that_is_set(daemon: Daemon) -> None:
    at = ("-i", "1", "-n", "/job")
    for words in (("--hard-limit", "4096"), ("--soft-limit", "max")):
        assert smi(daemon.pipe_directory, *at, *words) == (0, "")
    assert limits(daemon) == [("/job", 4096 * MIB, 4096 * MIB)]
    assert smi(daemon.pipe_directory, *at, "--hard-limit", "max", "--soft-limit", "default") == (0, "")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("-i 0 -n /x --soft-limit 1.5", 2, "--soft-limit must be a non-negative MebiByte value, max or default"),
        ("-i 0 -n /x --hard-limit 0", 2, "--hard-limit must be a MebiByte value above 0, max or default, not '0'"),
        ("-i 0 -n /x", 2, "--get, or --soft-limit, --hard-limit or both"),
        ("--get -i 0 -n /x --hard-limit 5", 2, "--get, or --soft-limit, --hard-limit or both"),
        ("-n /x --hard-limit 5", 2, "the following arguments are required: -i/--id"),
        ("-i 7 -n /x --hard-limit 5", 3, "Unable to set memory limit: "),
        ("-i 0 -n x --hard-limit 5", 3, "A cgroup is named by its full path"),
        ("--get -i 0 -n x", 3, "A cgroup is named by its full path"),
        ("--get -i 0 -n /sys/fs/cgroup/x/..", 3, "A cgroup is named by its full path"),
        (
            "-i 0 -n /x --hard-limit 5 --soft-limit 6",
            3,
            "The soft limit of a cgroup must be at most its hard limit, 5M",
        ),
    ],
)
def test_wrong_memory_limits_are_refused(daemon: Daemon, words: str, status: int, message: str) -> None:
    code, printed = smi(daemon.pipe_directory, *words.split())
    assert code == status
    assert message in printed
    assert not limits(daemon)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_limits_are_set_by_who_started_the_daemon_and_seen_by_all(daemon: Daemon) -> None:
    code, printed = smi(daemon.pipe_directory, "-i", "0", "-n", "/x", "--hard-limit", "5", user=60000)
    assert (code, "Insufficient privileges for UID 60000" in printed) == (4, True)
    code, printed = smi(daemon.pipe_directory, "--get", "-i", "0", "-n", "/x", user=60000)
    assert (code, printed.startswith("Unable to get memory limit: neither")) == (3, True)


def test_memory_limits_without_a_daemon_explain_what_to_check(tmp_path: Path) -> None:
    code, printed = smi(str(tmp_path), "--get", "-i", "0", "-n", "/x")
    assert code == 3
    assert "check CUDA_MPS_PIPE_DIRECTORY" in printed
