"""A real Slurm of one node whose jobs of two users share an emulated GPU; skipped where Slurm is not installed."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from processes import wait_until

from pympsd.cli import extras
from pympsd.devices.machine import describe

PROGRAMS = ("slurmctld", "slurmd", "srun", "scancel", "munged")
DOCUMENT = Path(__file__).parents[2] / "docs/clusters.md"
SECONDS = 60
USERS = ("nobody", "games")
JOB = """
import json, os, sys
from pympsd_client import driver
sys.path.insert(0, {folder!r})
from worker_program import use_gpu
print(json.dumps({{"uid": os.getuid(), **use_gpu()}}), flush=True)
sys.stdin.readline()
"""
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in PROGRAMS),
    reason="needs root and Slurm (Debian: slurm-wlm)",
)


@frozen
class Slurm:
    """A node."""

    folder: Path
    environment: dict[str, str]

    def run(self, user: str, *command: str) -> subprocess.Popen[str]:
        """Begin a job of a user, with its pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            ["srun", "-n1", "--unbuffered", "--chdir=/", *command],
            env=self.environment,
            text=True,
            user=user,
            group=pwd.getpwnam(user).pw_gid,
            **pipes,
        )

    def output(self, user: str, *command: str, **variables: str) -> str:
        """Return what a job prints that has variables of its user's."""
        assignments = [f"{name}={value}" for name, value in variables.items()]
        job = self.run(user, *command[:-1], f"--export=ALL,{','.join(assignments)}", command[-1])
        return job.communicate(timeout=SECONDS)[0]

    def gpu_job(self, user: str, share: int) -> subprocess.Popen[str]:
        """Begin a job that uses a share of the GPU until it gets a line."""
        program = JOB.format(folder=str(self.folder))
        return self.run(user, f"--gres=mps:{share}", sys.executable, "-c", program)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _configure(folder: Path, host: str) -> None:
    (folder / "slurm.conf").write_text(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={_port()}
SlurmdPort={_port()}
SlurmUser=root
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,mps
Prolog={folder}/extras/share/pympsd/slurm/prolog
TaskProlog={folder}/extras/share/pympsd/slurm/task-prolog
Epilog={folder}/extras/share/pympsd/slurm/epilog
PrologFlags=Alloc
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:1,mps:100 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES
""")
    documented = DOCUMENT.read_text().partition("# gres.conf\n")[2].partition("```")[0]
    assert "NodeName=emulated[1-2] Name=gpu" in documented
    (folder / "gres.conf").write_text(documented.replace("emulated[1-2]", host))
    (folder / "etc").mkdir()
    (folder / "etc/slurm.env").write_text(
        f"MPS_PIPE_DIRECTORY={folder}/pipe\nMPS_LOG_DIRECTORY={folder}/log\n"
        f"PYMPSD_EMULATED_DEVICES=H200\nPYMPSD_STATE_DIRECTORY={folder}/state\n"
    )
    for script in (folder / "extras/share/pympsd/slurm").iterdir():
        text = script.read_text().replace("/etc/pympsd/", f"{folder}/etc/")
        script.write_text(text.replace("/run/pympsd-slurm-jobs", f"{folder}/jobs"))


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """Run a node; its daemon is the prolog's."""
    host = socket.gethostname().partition(".")[0]
    folder = Path("/tmp", f"slurm-{secrets.token_hex(4)}")  # its users have to reach it
    with ExitStack() as stack:
        folder.mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir()
        extras.install(folder / "extras", Path(sys.executable).parent)
        shutil.copy(Path(__file__).with_name("worker_program.py"), folder)
        key = folder / "munge/key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        _configure(folder, host)
        environment = {
            "SLURM_CONF": f"{folder}/slurm.conf",
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
        }
        munge = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "seed", "log")]
        for command in (
            ["munged", "--foreground", "--force", f"--socket={folder}/munge/socket", *munge],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", host],
        ):
            output = stack.enter_context((folder / f"{command[0]}.out").open("w"))
            started = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            stack.callback(started.wait, SECONDS)
            stack.callback(started.terminate)
        stack.callback(_quit, folder)
        wait_until(lambda: _state(environment) == "idle", "a node that is idle", SECONDS)
        yield Slurm(folder, environment)


def _state(environment: dict[str, str]) -> str:
    command = ["sinfo", "-h", "-o", "%T"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS).stdout.strip()


def _quit(folder: Path) -> None:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe"}
    command = [sys.executable, "-P", "-m", "pympsd", "quit", "-t", "0"]
    subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS)


def _answer(job: subprocess.Popen[str]) -> dict[str, Any]:
    assert job.stdout is not None
    line = job.stdout.readline()
    if not line:
        raise AssertionError(job.communicate(timeout=SECONDS)[1])
    answer: dict[str, Any] = json.loads(line)
    return answer


def test_jobs_of_two_users_share_a_gpu_and_give_it_back(slurm: Slurm) -> None:
    (device,) = describe("H200")
    jobs = [slurm.gpu_job(user, 50) for user in USERS]
    try:
        answers = [_answer(job) for job in jobs]
        assert [answer["uid"] for answer in answers] == [pwd.getpwnam(user).pw_uid for user in USERS]
        assert {answer["sms"] for answer in answers} == {device.multiprocessors // 2}
        assert {answer["refused"] for answer in answers} == {"CUDA_ERROR_OUT_OF_MEMORY"}
        assert all(0 <= device.memory_bytes / 2 - answer["total"] < 1 << 20 for answer in answers)
        # A job that is killed leaves nothing behind.
        subprocess.run(["scancel", "--signal=KILL", "--user", USERS[0]], env=slurm.environment, timeout=SECONDS)
        jobs[0].communicate(timeout=SECONDS)
        jobs.append(slurm.gpu_job(USERS[0], 25))
        assert _answer(jobs[-1])["sms"] == device.multiprocessors // 4 - 1
    finally:
        for job in jobs:
            if job.poll() is None:
                job.communicate("\n", timeout=SECONDS)


USERS_OWN = {
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=100G",
    "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine",
    "MPS_PIPE_DIRECTORY": "/tmp/mine",
    "PYMPSD_EMULATED_DEVICES": "V100",
    "PYMPSD_REQUIRE_MPS": "0",
    "SLURM_JOB_GPUS": "7",
    "SLURM_STEP_GPUS": "7",
}


def test_a_users_variables_do_not_change_the_share(slurm: Slurm) -> None:
    (device,) = describe("H200")
    lines = slurm.output(USERS[0], "--gres=mps:25", "env", **USERS_OWN).splitlines()
    memory = device.memory_bytes // (1 << 20) // 4
    assert {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
        f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={memory}M",
        f"CUDA_MPS_PIPE_DIRECTORY={slurm.folder}/pipe",
        "PYMPSD_REQUIRE_MPS=1",
    } <= set(lines)
    wait_until(lambda: not list((slurm.folder / "jobs").iterdir()), "the epilog", SECONDS)
    without = slurm.output(USERS[0], "env", **USERS_OWN).splitlines()
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/mine" in without, "no share, nothing is changed"


def test_a_job_without_a_share_does_not_find_the_daemon(slurm: Slurm) -> None:
    done = slurm.run(USERS[0], "env").communicate(timeout=SECONDS)[0]
    assert "CUDA_MPS" not in done
    assert "PYMPSD" not in done
