"""A batch node's life: the prologue, a job and the epilogue, as the documents' Torque example has them.

All runs in a PID namespace of its own, because the epilogue looks at every process of its node. The vendor's names
are links to pympsd; ``logger`` and ``pbsnodes`` note how they were called.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define
from processes import BIN, CLIENT

ROOT = Path(__file__).parents[2]
PBS = ROOT / "scripts" / "pbs"
LIMIT = 120.0
PROLOGUE = f"{PBS}/prologue 17.node nobody nogroup name nodes=1 batch"
EPILOGUE = f"{PBS}/epilogue 17.node nobody nogroup name 4711 nodes=1 cput=1 batch"
AS_NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups"
JOB = f"printf 'init\\nctx 0\\nadd\\nexit\\n' | PYMPSD_REQUIRE_MPS=1 {AS_NOBODY} {sys.executable} {CLIENT}"
WORKED = ["CUDA_SUCCESS", "CUDA_SUCCESS", "CUDA_SUCCESS CUDA_SUCCESS wrong=0"]
SHOW = "nvidia-smi --query-gpu=compute_mode --format=csv,noheader | tr '\\n' ' '; echo"
LEFT = "ps -e -o stat= -o comm= | awk '$1 !~ /^Z/' | grep -c nvidia-cuda-mps"


@define
class BatchNode:
    """A node of two devices."""

    directory: Path

    @property
    def machine(self) -> Path:
        return self.directory / "node.toml"

    def run(self, *steps: str, **more: str) -> list[str]:
        """Run lines of shell as root on the node; return what they print. All that they leave running is killed."""
        environment = {
            "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
            "PYMPSD_EMULATED_DEVICES": str(self.machine),
            "CUDA_MPS_PIPE_DIRECTORY": f"{self.directory}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{self.directory}/log",
            **more,
        }
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "/bin/sh", "-c", "\n".join(steps)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert "unshare:" not in done.stderr, done.stderr
        return done.stdout.splitlines()

    def called(self) -> list[str]:
        """Return how logger and pbsnodes were called."""
        path = self.directory / "called"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def node() -> Iterator[BatchNode]:
    directory = Path(tempfile.mkdtemp(prefix="pympsd-test-"))
    directory.chmod(0o755)
    for name in ("bin", "pipe", "log"):
        (directory / name).mkdir()
    (directory / "node.toml").write_text("[[device]]\n[[device]]\n")
    for name in ("logger", "pbsnodes"):
        fake = directory / "bin" / name
        fake.write_text(f'#!/bin/sh\necho "{name} $*" >> {directory}/called\n')
        fake.chmod(0o755)
    linked = subprocess.run(
        [BIN / "pympsd", "--link-nvidia-names", directory / "bin"],
        capture_output=True,
        text=True,
    )
    assert (linked.returncode, linked.stderr) == (0, "")
    yield BatchNode(directory)
    shutil.rmtree(directory)


@pytest.mark.long(but=["MPS=true"])
@pytest.mark.parametrize("account", ["MPS=true", "project7,mps=TRUE"])
def test_a_job_with_mps(node: BatchNode, account: str) -> None:
    output = node.run(
        f"{PROLOGUE} {account}; echo prologue $?",
        SHOW,
        "echo get_server_list | nvidia-cuda-mps-control | wc -l",
        "nvidia-smi --query-compute-apps=process_name --format=csv,noheader",
        JOB,
        f"{EPILOGUE} {account} 0 > /dev/null; echo epilogue $?",
        SHOW,
        LEFT,
    )
    assert [line for line in output if "Set compute mode to EXCLUSIVE_PROCESS" in line] != []
    where = output.index("MPS control daemon started")
    assert output[where : where + 5] == [
        "MPS control daemon started",
        "MPS server started for nobody",
        "prologue 0",
        "Exclusive_Process Exclusive_Process ",
        "1",
    ]
    assert output[-6:] == [*WORKED, "epilogue 0", "Default Default ", "0"]
    assert node.called() == []


def test_a_job_without(node: BatchNode) -> None:
    output = node.run(
        f"{PROLOGUE} project7; echo prologue $?",
        SHOW,
        LEFT,
        f"{EPILOGUE} project7 0 > /dev/null; echo epilogue $?",
        SHOW,
        LEFT,
    )
    assert output == ["prologue 0", "Default Default ", "0", "epilogue 0", "Default Default ", "0"]
    assert node.called() == []


@pytest.mark.long
def test_the_next_job_finds_the_node_as_new(node: BatchNode) -> None:
    job = [f"{PROLOGUE} MPS=true > /dev/null; echo prologue $?", JOB, f"{EPILOGUE} MPS=true 0 > /dev/null"]
    assert node.run(*job, *job, SHOW) == ["prologue 0", *WORKED, "prologue 0", *WORKED, "Default Default "]
    assert node.called() == []


@pytest.mark.long
def test_a_client_that_the_job_leaves_behind_does_not_hold_the_node_up(node: BatchNode) -> None:
    fifo = f"{node.directory}/steps"
    output = node.run(
        f"{PROLOGUE} MPS=true > /dev/null",
        f"mkfifo {fifo}",
        f"{AS_NOBODY} {sys.executable} {CLIENT} < {fifo} > {node.directory}/answers &",
        f"exec 9> {fifo}",
        "printf 'init\\nctx 0\\nendless\\n' >&9",
        f"until grep -c . {node.directory}/answers | grep -q 3; do :; done",
        f"{EPILOGUE} MPS=true 0 > /dev/null; echo epilogue $?",
        SHOW,
        LEFT,
        PYMPSD_REQUIRE_MPS="1",
        MPS_PATIENCE="5",  # after which MPS has 5 s more to end
    )
    assert output[-3:] == ["epilogue 0", "Default Default ", "0"]
    assert node.called() == []


@pytest.mark.long
def test_a_node_whose_mps_does_not_quit_is_marked_offline(node: BatchNode) -> None:
    output = node.run(
        f"{PROLOGUE} MPS=true > /dev/null",
        f"kill -STOP $(cat {node.directory}/pipe/nvidia-cuda-mps-control.pid)",
        f"{EPILOGUE} MPS=true 0 > /dev/null; echo epilogue $?",
        SHOW,
        MPS_PATIENCE="1",
    )
    assert output == ["epilogue 0", "Default Default "]
    host = os.uname().nodename
    assert node.called() == [
        f"logger {host} epilogue: MPS did not quit! Marking offline",
        f"pbsnodes -o -N Epilogue check: MPS did not quit {host}",
    ]


def test_a_node_whose_devices_do_not_answer_is_marked_offline(node: BatchNode) -> None:
    node.machine.unlink()
    node.run(f"{EPILOGUE} none 0")
    host = os.uname().nodename
    assert node.called() == [
        f"logger {host} epilogue: nvidia-smi failed! Marking offline",
        f"pbsnodes -o -N Epilogue check: nvidia-smi failed {host}",
    ]


def test_a_job_whose_mps_cannot_start_goes_back_to_the_queue(node: BatchNode) -> None:
    output = node.run(f"{PROLOGUE} MPS=true; echo prologue $?", SHOW, LEFT, MPS_DEVICES="7")
    assert output[-3:] == ["prologue 2", "Default Default ", "0"]
    assert node.called() == [f"logger {os.uname().nodename} prologue: the MPS control daemon did not start"]


def scripts_with(node: BatchNode, settings: str) -> Path:
    """Return a folder of the scripts, which find these settings."""
    folder = node.directory / "scripts"
    folder.mkdir()
    (folder / "pbs.env").write_text(settings)
    for name in ("prologue", "epilogue"):
        (folder / name).write_text((PBS / name).read_text().replace("/etc/pympsd/", f"{folder}/"))
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.long
def test_settings_are_in_a_file_of_roots(node: BatchNode) -> None:
    folder = scripts_with(node, f"MPS_DEVICES=1\nMPS_PATIENCE=$(date > {node.directory}/read; echo 5)\n")
    output = node.run(
        f"{PROLOGUE.replace(str(PBS), str(folder))} MPS=true > /dev/null; echo prologue $?",
        "echo device_query --csv | nvidia-cuda-mps-control > /dev/null",
        f"tr '\\0' '\\n' < /proc/$(cat {node.directory}/pipe/nvidia-cuda-mps-control.pid)/environ | grep VISIBLE",
        f"rm {node.directory}/read",
        f"{EPILOGUE.replace(str(PBS), str(folder))} MPS=true 0 > /dev/null; echo epilogue $?",
        LEFT,
    )
    assert output == ["prologue 0", "CUDA_VISIBLE_DEVICES=1", "epilogue 0", "0"]
    assert (node.directory / "read").exists()


def test_settings_that_others_can_write_are_not_used(node: BatchNode) -> None:
    folder = scripts_with(node, f"date > {node.directory}/read\n")
    (folder / "pbs.env").chmod(0o666)
    output = node.run(
        f"{PROLOGUE.replace(str(PBS), str(folder))} MPS=true; echo prologue $?",
        f"{EPILOGUE.replace(str(PBS), str(folder))} MPS=true 0 > /dev/null; echo epilogue $?",
        LEFT,
    )
    assert output == ["prologue 2", "epilogue 0", "0"]
    assert not (node.directory / "read").exists()
    refused = f"{folder}/pbs.env has to be root's, and writable by root only: chown root, chmod go-w"
    host = os.uname().nodename
    assert node.called() == [
        f"logger {host} prologue: {refused}",
        f"logger {host} epilogue: {refused}! Marking offline",
        f"pbsnodes -o -N Epilogue check: {refused} {host}",
    ]


LISTED = "echo get_server_list | nvidia-cuda-mps-control"
ACTIVE = "echo get_server_status $(cat $CUDA_MPS_LOG_DIRECTORY/before) | nvidia-cuda-mps-control | grep -q ACTIVE"
RUNNING = [
    "nvidia-cuda-mps-control -d",
    "echo start_server -uid 0 | nvidia-cuda-mps-control",
    f"until {LISTED} > $CUDA_MPS_LOG_DIRECTORY/before && {ACTIVE}; do :; done",
    "nvidia-smi -i 1 -c PROHIBITED > /dev/null",  # not before: no server would start
]
STILL = f"{LISTED} | cmp - $CUDA_MPS_LOG_DIRECTORY/before && echo same"


@pytest.mark.long
def test_a_daemon_that_runs_already_is_left_alone(node: BatchNode) -> None:
    output = node.run(*RUNNING, f"{PROLOGUE} MPS=true > /dev/null; echo prologue $?", STILL, SHOW)
    assert output == ["prologue 2", "same", "Default Prohibited "]
    assert node.called() == [f"logger {os.uname().nodename} prologue: the MPS control daemon did not start"]


@pytest.mark.long
def test_a_user_that_is_not_there_changes_nothing(node: BatchNode) -> None:
    unknown = PROLOGUE.replace("nobody", "no-such-user")
    output = node.run(*RUNNING, f"{unknown} MPS=true; echo prologue $?", STILL, SHOW)
    assert output == ["prologue 2", "same", "Default Prohibited "]
    assert node.called() == [
        f"logger {os.uname().nodename} prologue: MPS was not started: there is no user no-such-user"
    ]


@pytest.mark.long
def test_a_job_whose_server_cannot_start_goes_back_to_the_queue(node: BatchNode) -> None:
    """Another daemon's server has the device."""
    other = f"CUDA_MPS_PIPE_DIRECTORY={node.directory}/other CUDA_MPS_LOG_DIRECTORY={node.directory}/other"
    output = node.run(
        f"mkdir {node.directory}/other",
        f"{other} nvidia-cuda-mps-control -d",
        f"echo start_server -uid 0 | {other} nvidia-cuda-mps-control",
        f"until echo get_server_list | {other} nvidia-cuda-mps-control > {node.directory}/one &&"
        f" echo get_server_status $(cat {node.directory}/one) | {other} nvidia-cuda-mps-control | grep -q ACTIVE;"
        " do :; done",
        f"{PROLOGUE} MPS=true > /dev/null; echo prologue $?",
        "nvidia-cuda-mps-control get_server_list 2>&1 | head -n 1",
        f"echo get_server_list | {other} nvidia-cuda-mps-control | cmp - {node.directory}/one && echo same",
        SHOW,
    )
    assert output == ["prologue 2", "Cannot find MPS control daemon process", "same", "Default Default "]
    (called,) = node.called()
    assert "no MPS server for nobody became ready" in called
    assert f"{node.directory}/log/server.log says why" in called
    assert "uses it" in (node.directory / "log" / "server.log").read_text()


@pytest.mark.long
def test_a_server_that_hangs_is_not_waited_for_for_ever(node: BatchNode) -> None:
    """A daemon that never reports ACTIVE, as a drop-in: it takes commands from standard input only."""
    fake = node.directory / "bin" / "nvidia-cuda-mps-control"
    fake.unlink()
    answers = "case $line in get_server_list) echo 7;; get_server_status*) echo INITIALIZING;; esac"
    fake.write_text(f'#!/bin/sh\n[ "$1" = -d ] && exit 0\nread line\n{answers}\n')
    fake.chmod(0o755)
    output = node.run(f"{PROLOGUE} MPS=true > /dev/null; echo prologue $?", SHOW)
    assert output == ["prologue 2", "Default Default "]
    (called,) = node.called()
    assert "no MPS server for nobody became ready" in called


def test_a_node_whose_compute_mode_stays_is_marked_offline(node: BatchNode) -> None:
    smi = node.directory / "bin" / "nvidia-smi"
    smi.unlink()
    smi.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 255\nexec {BIN}/pympsd-smi "$@"\n')
    smi.chmod(0o755)
    assert node.run(f"{EPILOGUE} none 0; echo epilogue $?") == ["epilogue 0"]
    host = os.uname().nodename
    assert node.called() == [
        f"logger {host} epilogue: the compute mode could not be reset! Marking offline",
        f"pbsnodes -o -N Epilogue check: the compute mode could not be reset {host}",
    ]


@pytest.mark.long
def test_the_documents_own_uses_of_nvidia_smi(node: BatchNode) -> None:
    """Chapter 4.1.3 and 5.1.1.1, line by line."""
    output = node.run(
        "nvidia-smi -L | wc -l",
        "nvidia-smi -q > /dev/null && echo fine",
        "nvidia-smi -q -d compute | grep -c 'Compute Mode'",
        "export CUDA_VISIBLE_DEVICES=0",
        "nvidia-smi -i 0 -c EXCLUSIVE_PROCESS",
        "nvidia-smi -i 0 -r",
        "nvidia-cuda-mps-control -d",
        "echo quit | nvidia-cuda-mps-control",
        "nvidia-smi -i 0 -c DEFAULT",
        "nvidia-smi -i 0,1 -c EXCLUSIVE_PROCESS | tail -1",
        "nvidia-smi -i 0,1 -c 0 | tail -1",
        SHOW,
    )
    bus = "00000000:00:06.0"
    assert output == [
        "2",
        "fine",
        "2",
        f"Set compute mode to EXCLUSIVE_PROCESS for GPU {bus}.",
        "All done.",
        f"GPU {bus} was successfully reset.",
        "All done.",
        f"Set compute mode to DEFAULT for GPU {bus}.",
        "All done.",
        "All done.",
        "All done.",
        "Default Default ",
    ]
