"""docs/samples/Containerfile: the image, built and run as docs/containers.md has it.

Daemon and clients are in containers of their own, with PID, IPC and network namespaces apart; they share the pipe
directory, a volume.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_mps.install import install

from .podman import IMAGE, SAMPLES, SUPPORT, Podman

CONFIGURATION = "/etc/pympsd/mps.toml"
PROTOCOL_3 = "--env=CUDA_MPS_PROTOCOL_VERSION=3"
SMS = {"quarter": "32", "half": "66"}
"""Of the 132 of an H200."""
MEMORY_MIB = {"quarter": 32 << 10, "half": 64 << 10}
MAX_BYTES = 150 << 20
"""What the image may add to its base and Debian's Python."""

pytestmark = pytest.mark.long


@pytest.fixture
def volume(podman: Podman) -> Iterator[str]:
    """The pipe directory of a daemon and its clients."""
    name = podman.run("volume", "create").strip()
    yield name
    podman.run("volume", "rm", "--force", name)


@pytest.fixture
def shares(podman: Podman) -> Iterator[dict[str, str]]:
    """A volume for each namespace of the sample."""
    names = {namespace: podman.run("volume", "create").strip() for namespace in SMS}
    yield names
    podman.run("volume", "rm", "--force", *names.values())


def mounts(shares: dict[str, str]) -> list[str]:
    return [f"--volume={volume}:/run/nvidia-mps/shared/{namespace}" for namespace, volume in shares.items()]


def client_options(volume: str) -> list[str]:
    return ["--user=1000", f"--volume={volume}:/mps", "--env=CUDA_MPS_PIPE_DIRECTORY=/mps"]


def test_under_the_vendors_names_clients_have_their_own_limits(podman: Podman, volume: str) -> None:
    mount = f"--volume={volume}:/tmp/nvidia-mps"
    with podman.container(mount, command=("nvidia-cuda-mps-control", "-f")) as daemon:
        daemon.wait_until_healthy()
        assert daemon.command("get_server_list") == ""
        quarter = podman.client(mount, "--env=CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25")
        half = podman.client(mount, "--env=CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50")
        with quarter as first, half as second:
            assert [client.connect().call("sm") for client in (first, second)] == list(SMS.values())
            assert [client.call("add").split()[0] for client in (first, second)] == ["CUDA_SUCCESS"] * 2
            (server,) = daemon.command("get_server_list").split()
            assert daemon.command(f"get_server_status {server}") == "ACTIVE\n"
            assert daemon.inspect(".State.Health.Status") == "healthy"
            rows = [line.split() for line in daemon.command("ps").splitlines()[1:]]
            assert [row[0] for row in rows] == ["0", "0"], "their PIDs are not visible in the daemon's namespace"
            namespaces = {row[4] for row in rows}
            assert len(namespaces) == 2
            assert str(os.stat("/proc/self/ns/pid").st_ino) not in namespaces
        assert daemon.kill("TERM") == 0
        assert "Exit with status 0" in daemon.log()


def test_namespaces_limit_whoever_is_given_their_directory(podman: Podman, shares: dict[str, str]) -> None:
    sample = f"--volume={SAMPLES / 'mps.toml'}:{CONFIGURATION}:ro"
    command = ("pympsd", "-f", "--multiuser", "--apply", CONFIGURATION)
    with podman.container(*mounts(shares), sample, PROTOCOL_3, command=command) as daemon:
        daemon.wait_until_healthy()
        for namespace, volume in shares.items():
            with podman.client(*client_options(volume), "--env=CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100") as client:
                assert client.connect().call("sm") == SMS[namespace]
                assert int(client.call("mem").split()[1]) == MEMORY_MIB[namespace]
                rows = json.loads(daemon.run("pympsd", "client", "list", "--format=json"))
                assert [row["namespace"] for row in rows] == [namespace]
            # Root in that container cannot lift the limit.
            options = ["--rm", f"--volume={volume}:/mps", "--env=CUDA_MPS_PIPE_DIRECTORY=/mps"]
            lift = f"pympsd namespace set {namespace} --server=shared --active-thread-percentage=100"
            podman.run("run", *options, IMAGE, *lift.split(), status=1)
        # A container that was killed leaves its sockets in the volumes.
        for signal, status in (("KILL", 137), ("TERM", 0)):
            assert daemon.kill(signal) == status
            podman.run("start", daemon.name)
            daemon.wait_until_healthy()
            with podman.client(*client_options(shares["half"])) as client:
                assert client.connect().call("sm") == SMS["half"]


def test_healthy_means_that_the_mounted_file_is_in_force(podman: Podman, tmp_path: Path) -> None:
    # As kubelet mounts a ConfigMap: a directory that everybody may write to, and a link that is replaced.
    tmp_path.chmod(0o777)
    for version, percentage in (("1", 25), ("2", 10)):
        (tmp_path / version).mkdir()
        text = f'schema_version = "1.0"\n[servers.a.namespaces.b]\nactive_thread_percentage = "{percentage}"\n'
        (tmp_path / version / "mps.toml").write_text(text)
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "mps.toml").symlink_to("..data/mps.toml")
    probe = f"pympsd config status --expect={CONFIGURATION}"
    options = [f"--volume={tmp_path}:/etc/pympsd:ro", PROTOCOL_3, f"--health-cmd={probe}"]
    with podman.container(*options) as daemon:
        daemon.wait_until_healthy()
        (tmp_path / "next").symlink_to("2")
        (tmp_path / "next").rename(tmp_path / "..data")
        assert not daemon.is_healthy(), "the file is another one now"
        daemon.run("pympsd", "config", "apply", CONFIGURATION)
        assert daemon.is_healthy()
        daemon.run("pympsd", "namespace", "set", "b", "--server=a", "--active-thread-percentage=50")
        assert not daemon.is_healthy(), "an operator has changed it"


def test_a_wrong_file_ends_the_container(podman: Podman, tmp_path: Path) -> None:
    (tmp_path / "mps.toml").write_text("[servers.a]\npercentage = 3\n")
    with podman.container(f"--volume={tmp_path}:/etc/pympsd:ro", PROTOCOL_3) as daemon:
        assert int(podman.run("wait", daemon.name)) == 1


def test_the_image_runs_as_any_user(podman: Podman, volume: str) -> None:
    mount = f"--volume={volume}:/tmp/nvidia-mps"
    with podman.container("--user=1000", "--cap-drop=all", "--read-only", mount) as daemon:
        daemon.wait_until_healthy()
        with podman.client("--user=1000", mount) as client:
            assert client.connect().call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
        assert daemon.kill("TERM") == 0


def test_the_drivers_own_server(podman: Podman, volume: str, tmp_path: Path) -> None:
    launcher = install(tmp_path)
    _, code = launcher.read_text().split("\n", 1)
    launcher.write_text(f"#!/usr/bin/python3 -IBS\n{code.replace(str(SUPPORT), '/support')}")
    tmp_path.chmod(0o755)
    # NVIDIA's container toolkit mounts the driver's programs into /usr/bin.
    toolkit = [
        f"--volume={launcher}:/usr/bin/{launcher.name}:ro",
        f"--volume={tmp_path}:{tmp_path}:ro",
        f"--volume={SUPPORT}:/support:ro",
    ]
    mount = f"--volume={volume}:/tmp/nvidia-mps"
    code = "import sys; sys.path.insert(0, '/support'); from fake_mps.client import main; sys.exit(main([]))"
    with podman.container(*toolkit, mount, "--env=PYMPSD_BACKEND=vendor") as daemon:
        daemon.wait_until_healthy()
        daemon.command("set_default_active_thread_percentage 25")
        with podman.client(mount, program=("python3", "-IBSc", code)) as client:
            assert [client.call(step) for step in ("init", "ctx 0")] == ["init CUDA_SUCCESS", "ctx CUDA_SUCCESS"]
            (server,) = daemon.command("get_server_list").split()
            assert daemon.command(f"get_active_thread_percentage {server}") == "25.0\n"
        assert daemon.kill("TERM") == 0


def test_the_image_is_small_and_complete(podman: Podman) -> None:
    (image,) = json.loads(podman.run("inspect", IMAGE))
    assert image["Labels"]["org.opencontainers.image.title"] == "pympsd"
    installed = podman.run("run", "--rm", IMAGE, "du", "-sb", "/opt/pympsd").split()[0]
    assert int(installed) < MAX_BYTES
    report = podman.run("run", "--rm", IMAGE, "python3", "-m", "pympsd_client", status=1)  # no daemon
    assert "compiled:      _entry_points, _kernels, _launches, _pages, _worker" in report


def test_a_native_program_runs_in_the_image(podman: Podman, tmp_path: Path) -> None:
    source = """#include <dlfcn.h>
    int main(void) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        int (*cuInit)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : 0;
        return cuInit ? cuInit(0) : 99;
    }"""
    subprocess.run(
        ["cc", "-x", "c", "-w", "-o", tmp_path / "native", "-", "-ldl"], input=source, text=True, check=True
    )
    podman.run("run", "--rm", f"--volume={tmp_path}:/programs:ro", IMAGE, "pympsd-run", "/programs/native")
