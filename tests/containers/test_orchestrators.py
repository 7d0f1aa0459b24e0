"""docs/containers.md as a reader follows it, with its files for Compose (run by podman-compose) and Kubernetes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import BIN, wait_until

from .podman import ROOT, SAMPLES, SECONDS, Container, Podman

QUARTER, HALF = list(range(32)), list(range(66))
pytestmark = pytest.mark.long


def get_printed(sms: list[int]) -> str:
    """Return what the example prints."""
    return f"{len(sms)}\n{sms}\n"


def test_the_five_minutes_of_the_page(podman: Podman) -> None:
    page = (ROOT / "docs/containers.md").read_text()
    build, commands = (block.partition("```")[0] for block in page.split("```sh\n")[1:3])
    assert build == "docker build -t pympsd -f docs/samples/Containerfile .\n", "which the fixture has done"
    done = subprocess.run(
        ["sh", "-ec", f'docker() {{ podman "$@"; }}\n{commands}'],
        env=podman.environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert get_printed(QUARTER) in done.stdout
    assert podman.run("ps", "--all", "--quiet") == podman.run("volume", "ls", "--quiet") == ""


def test_the_compose_file_runs_as_documented(podman: Podman) -> None:
    pytest.importorskip("podman_compose", reason="needs podman-compose, of the extra named test")

    def compose(*words: str) -> str:
        command = [BIN / "podman-compose", "--file", SAMPLES / "compose.yaml", "--project-name", "sample", *words]
        done = subprocess.run(
            command,
            env={**podman.environment, "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ExitStack() as stack:
        stack.callback(compose, "down", "--volumes", "--timeout=0")
        compose("up", "--detach", "--no-build", "mps")
        Container(podman, "sample_mps_1").wait_until_healthy()
        for service, sms in (("quarter", QUARTER), ("half", HALF)):
            assert compose("run", "--rm", "--no-deps", "-T", service).endswith(get_printed(sms))


@pytest.fixture
def node() -> Iterator[Path]:
    """A folder that stands for /run/nvidia-mps of the node."""
    folder = Path(tempfile.mkdtemp(prefix="mps-", dir="/run"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_the_kubernetes_file_is_valid(podman: Podman, node: Path, tmp_path: Path) -> None:
    text = (SAMPLES / "kubernetes.yaml").read_text()
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    objects = {document["kind"]: document for document in documents}
    # This podman knows pods, but no daemon sets; the node is ours.
    template = objects["DaemonSet"]["spec"]["template"]
    daemon_pod = {"apiVersion": "v1", "kind": "Pod", **template}
    daemon_pod["metadata"]["name"] = "mps"
    for pod in (daemon_pod, objects["Pod"]):
        for volume in pod["spec"]["volumes"]:
            if path := volume.get("hostPath", {}).get("path"):
                volume["hostPath"]["path"] = path.replace("/run/nvidia-mps", str(node))
    daemon, program = tmp_path / "daemon.yaml", tmp_path / "program.yaml"
    daemon.write_text(yaml.safe_dump_all([objects["ConfigMap"], daemon_pod]))
    program.write_text(yaml.safe_dump(objects["Pod"]))
    with ExitStack() as stack:
        stack.callback(podman.run, "kube", "down", daemon)
        podman.run("kube", "play", "--network=none", daemon)
        container = Container(podman, "mps-mps")
        probe = template["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]

        def is_ready() -> bool:
            command = ["podman", "exec", container.name, *probe]
            return subprocess.run(command, env=podman.environment, capture_output=True).returncode == 0

        wait_until(is_ready, "a ready daemon", SECONDS)
        stack.callback(podman.run, "kube", "down", program)
        podman.run("kube", "play", "--network=none", program)
        assert podman.run("wait", "quarter-program") == "0\n"
        assert podman.run("logs", "quarter-program") == get_printed(QUARTER)
