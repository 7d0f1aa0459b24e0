"""Podman with a storage of its own, and the image of this checkout in it.

Nothing comes from a registry of images: the base image is made of Debian's packages and imported under the name that
the argument BASE of the Containerfile gets. The image is built as a user builds it, except that its commands run
under chroot, because a container of the build needs no isolation here.

Containers have no network, and limits of their own below this process's, because podman raises them to its defaults
otherwise, which not even root of a machine without CAP_SYS_RESOURCE may do. runc runs them, because crun refuses a
machine whose cgroups are of both versions.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import field, frozen
from processes import ClientProcess, wait_until

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "docs/samples"
SUPPORT = ROOT / "tests/support"
PROGRAMS = ("podman", "runc", "mmdebstrap", "catatonit")
IMAGE = "localhost/pympsd"
BASE = "localhost/debian:base"
SUITE = "bookworm"
BUILD_SECONDS = 1200.0
SECONDS = 60.0
PROGRAM = ("python3", "/support/client_program.py")
"""The command of a client of pympsd's own server."""


def find_missing() -> list[str]:
    """Return what is missing for an image to be built and run; nothing: it can be."""
    missing = [] if os.geteuid() == 0 else ["root"]
    return missing + [name for name in PROGRAMS if shutil.which(name) is None]


@frozen
class Podman:
    """Runs commands of podman with the storage and settings below ``folder``."""

    folder: Path
    environment: dict[str, str] = field()

    @environment.default
    def _(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def configure(self) -> None:
        """Write the settings."""
        limits = {
            name: min(resource.getrlimit(number)[1], 10_000)
            for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))
        }
        ulimits = ", ".join(f'"{name}={limit}:{limit}"' for name, limit in limits.items())
        (self.folder / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = [{ulimits}]\nnetns = "none"\nlog_driver = "k8s-file"\n'
            f'[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'tmp_dir = "{self.folder}/tmp"\n'
        )
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/images"\nrunroot = "{self.folder}/run"\n'
        )

    def run(self, *words: object, status: int = 0, seconds: float = SECONDS) -> str:
        """Run a command of podman, which has to have a status; return its standard output."""
        done = subprocess.run(
            ["podman", *map(str, words)], env=self.environment, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start a command of podman, with pipes for its streams; return its process."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = ["podman", *map(str, words)]
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]

    def make_image(self) -> None:
        """Make the base of Debian's packages, and build the image on it."""
        tar = self.folder / "base.tar"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", SUITE, tar],
            check=True,
            timeout=BUILD_SECONDS,
        )
        self.run("import", tar, BASE, seconds=BUILD_SECONDS)
        tar.unlink()
        options = ["--isolation=chroot", "--network=host", "--format=docker", f"--build-arg=BASE={BASE}"]
        if certificates := os.environ.get("PIP_CERT"):  # this machine's mirror of packages has its own
            options += [f"--volume={certificates}:/etc/ssl/mirror.crt:ro", "--env=PIP_CERT=/etc/ssl/mirror.crt"]
        self.run("build", *options, "--tag", IMAGE, "--file", SAMPLES / "Containerfile", ROOT, seconds=BUILD_SECONDS)

    @contextmanager
    def container(self, *options: object, command: Sequence[str] = ()) -> Iterator[Container]:
        """Run a container of the image in the background, and remove it afterwards."""
        name = self.run("run", "--detach", *options, IMAGE, *command).strip()
        try:
            yield Container(self, name)
        finally:
            self.run("rm", "--force", "--time=0", name)

    @contextmanager
    def client(self, *options: object, program: Sequence[str] = PROGRAM) -> Iterator[ClientProcess]:
        """Run one of the tests' client programs in a container of its own, which ends with its input."""
        mount = f"--volume={SUPPORT}:/support:ro"
        with self.start("run", "--rm", "--interactive", mount, *options, IMAGE, *program) as process:
            try:
                yield ClientProcess(process)
            finally:
                process.communicate(timeout=SECONDS)

    def remove_all(self) -> None:
        """Remove every container, volume and image, and the storage."""
        for words in (("rm", "-fa", "-t0"), ("volume", "prune", "-f"), ("rmi", "-fa")):
            self.run(*words)
        for mounted in (self.folder / "images/overlay", self.folder / "run"):
            subprocess.run(["umount", "--lazy", mounted], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder)


@frozen
class Container:
    """A container of the image whose command is a daemon."""

    podman: Podman
    name: str

    def run(self, *command: str, status: int = 0) -> str:
        """Run a command in the container; return what it prints."""
        return self.podman.run("exec", self.name, *command, status=status)

    def command(self, line: str) -> str:
        """Give the daemon a line under the vendor's name, as scripts do."""
        return self.run("sh", "-c", f"echo {line} | nvidia-cuda-mps-control")

    def is_healthy(self) -> bool:
        """Run the health check; return whether it succeeded."""
        command = ["podman", "healthcheck", "run", self.name]
        done = subprocess.run(command, env=self.podman.environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0

    def wait_until_healthy(self) -> None:
        """Wait until the health check succeeds, as an orchestrator does before it starts clients."""
        wait_until(self.is_healthy, f"a healthy daemon: {self.log()}")

    def log(self) -> str:
        """Return what the container has written until now."""
        return self.podman.run("logs", self.name)

    def inspect(self, template: str) -> str:
        """Return a field of what podman knows of the container."""
        return self.podman.run("inspect", "--format", f"{{{{{template}}}}}", self.name).strip()

    def kill(self, signal: str) -> int:
        """Send its PID 1 a signal; wait for its end and return the exit status."""
        self.podman.run("kill", f"--signal={signal}", self.name)
        return int(self.podman.run("wait", self.name))
