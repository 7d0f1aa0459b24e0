"""The steps by which Kubernetes' device plugin and DRA driver manage MPS, on a node whose GPU is emulated.

The device plugin runs the tools by the vendor's names with an environment of the two directories alone (its
cmd/mps-control-daemon/mps/daemon.go); the DRA driver by a shell script (its templates/mps-control-daemon.tmpl.yaml).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from processes import BIN, SECONDS, DaemonProcess, kill_after, wait_until

from pympsd.devices.machine import describe

DEVICE = describe("H200")[0]
REPLICAS = 4
SHARE = DEVICE.memory_bytes // REPLICAS // (1 << 20)


@pytest.fixture
def names(directory: Path) -> Path:
    """A folder with the tools under the vendor's names."""
    folder = directory / "names"
    folder.mkdir()
    subprocess.run([BIN / "pympsd", "--link-nvidia-names", folder], check=True)
    return folder


@pytest.mark.long
def test_the_device_plugin_s_manager(make_daemon: Callable[..., DaemonProcess], names: Path) -> None:
    daemon = make_daemon(PYMPSD_STATE_DIRECTORY=str(names.parent))
    daemon.command = str(names / "nvidia-cuda-mps-control")

    def set_mode(mode: str) -> None:
        command = [names / "nvidia-smi", "-i", DEVICE.uuid, "-c", mode]
        done = subprocess.run(command, env=daemon.environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout

    for _ in range(2):  # its pod is started again
        set_mode("EXCLUSIVE_PROCESS")
        assert daemon.start().returncode == 0
        # Without an end of line, as it writes them.
        assert daemon.run_command(f"set_default_device_pinned_mem_limit 0 {SHARE}M") == ""
        assert daemon.run_command(f"set_default_active_thread_percentage {100 // REPLICAS}") == "25.0\n"
        log = str(daemon.directory / "log" / "control.log")
        with kill_after(subprocess.Popen(["tail", "-n", "+1", "-f", log], stdout=subprocess.PIPE)) as tail:
            assert daemon.run_command("get_default_active_thread_percentage") == "25.0\n", (
                "so it asks whether it lives"
            )
            client = daemon.client().connect()
            assert int(client.call("mem").split()[1]) == SHARE
            client.end()
            assert tail.stdout is not None
            assert any(b"NEW CLIENT" in line for line in iter(tail.stdout.readline, b""))
        assert daemon.run_command("quit") == ""
        daemon.await_end()
        set_mode("DEFAULT")


def test_the_dra_driver_s_script(make_daemon: Callable[..., DaemonProcess], names: Path) -> None:
    daemon = make_daemon(CUDA_VISIBLE_DEVICES=DEVICE.uuid, PYMPSD_EMULATED_DEVICES="2xH200")
    started = daemon.directory / "startup.log"
    script = f"""
    set -e
    nvidia-cuda-mps-control -d
    echo set_default_active_thread_percentage 50 | nvidia-cuda-mps-control
    echo set_default_device_pinned_mem_limit {DEVICE.uuid} {SHARE}M | nvidia-cuda-mps-control
    echo "startup complete" > {started}
    exec tail -n +1 -f {daemon.directory}/log/control.log
    """
    environment = {**daemon.environment, "PATH": f"{names}:/usr/bin:/bin"}
    shell = subprocess.Popen(["sh", "-c", script], env=environment, stdout=subprocess.DEVNULL)
    with kill_after(shell):
        wait_until(started.exists, "the end of the script")
        daemon.attach(int((daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text()))
        client = daemon.client(CUDA_VISIBLE_DEVICES=DEVICE.uuid).connect()
        assert int(client.call("mem").split()[1]) == SHARE
        client.end()
        assert daemon.run_command("quit") == ""


def test_the_pre_stop_command_of_the_sample_drains(daemon: DaemonProcess) -> None:
    text = (Path(__file__).parents[2] / "docs/samples/kubernetes.yaml").read_text()
    pod = next(doc for doc in yaml.safe_load_all(text) if doc["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    words = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    grace = pod["terminationGracePeriodSeconds"]
    (timeout,) = (int(word.removeprefix("--timeout=")) for word in words if word.startswith("--timeout="))
    assert timeout < grace
    client = daemon.client().connect()
    with kill_after(client.process):
        begun = subprocess.Popen(
            [BIN / words[0], *words[1:]], env=daemon.environment, stdout=subprocess.PIPE, text=True
        )
        with kill_after(begun):
            assert begun.stdout is not None
            assert begun.stdout.readline().startswith("Draining --all: 1 client is running")
            client.end()
            assert begun.communicate(timeout=SECONDS)[0].endswith("Drained --all: no clients remain.\n")
            assert begun.returncode == 0


def test_the_vendors_command_drains_too(daemon: DaemonProcess, names: Path) -> None:
    daemon.command = str(names / "nvidia-cuda-mps-control")
    lines = (("drain --all", "Drained --all: no clients remain."), ("undrain", "No longer draining --all."))
    for words, end in lines:
        done = daemon.run(words.split())
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == end
