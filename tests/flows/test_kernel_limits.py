"""Limits in the kernel's dmem files hold for clients: a daemon whose /sys/fs/cgroup is a folder of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cgroups import Cgroups
from processes import PYMPSD, ClientProcess, DaemonProcess, clients_of, wait_until
from protocol3 import ctl, pipe, start

GIB = 1 << 30
REGION = "drm/0000:00:06.0/vram0"
"""Of the first emulated device."""


def _mounts() -> bool:
    """Whether a process can have mounts of its own here."""
    try:
        return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], timeout=30).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not _mounts(), reason="only root mounts, with unshare")


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    """Real cgroups, for clients to be in."""
    cgroups = Cgroups()
    yield cgroups
    cgroups.remove()


@pytest.fixture
def root(directory: Path) -> Path:
    """The folder that the daemon takes for cgroup v2."""
    folder = directory / "cgroup"
    folder.mkdir()
    (folder / "dmem.capacity").write_text(f"{REGION} {128 * GIB}\n")
    return folder


@pytest.fixture
def write(root: Path, cgroups: Cgroups) -> Callable[..., None]:
    """Write the limits of a cgroup of the test, in GiB."""

    def file(name: str = "", **limits: int) -> None:
        folder = root / cgroups.path.strip("/") / name
        folder.mkdir(parents=True, exist_ok=True)
        for kind, limit in limits.items():
            (folder / f"dmem.{kind}").write_text(f"{REGION} {limit * GIB}\n")

    return file


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess], directory: Path, root: Path) -> DaemonProcess:
    """A daemon that can be started, to see the folder."""
    script = directory / "pympsd"
    inside = 'mount --bind "$0" /sys/fs/cgroup && exec "$@"'
    script.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{inside}' {root} {PYMPSD} \"$@\"\n")
    script.chmod(0o755)
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200")
    daemon.command = str(script)
    return daemon


@pytest.fixture
def join(daemon: DaemonProcess, cgroups: Cgroups) -> Iterator[Callable[..., ClientProcess]]:
    """Start clients in a cgroup that connect to a server."""
    with clients_of(daemon) as make:

        def client(name: str, server: str = "a") -> ClientProcess:
            cuda_context = make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, server)))
            cgroups.move(cuda_context.pid, name)
            return cuda_context.connect()

        yield client


def limits(daemon: DaemonProcess, client: ClientProcess) -> tuple[int | None, int | None]:
    """Return the soft and the hard limit that ``client list`` shows of a client on the first device."""
    rows = json.loads(ctl(daemon, "client list --all --format=json"))
    (row,) = (row for row in rows if row["pid"] == client.pid and row["pci-id"] == "0000:00.06.00")
    return row["memory_soft_limit"], row["memory_hard_limit"]


def total(client: ClientProcess) -> int:
    """Return the total that cuMemGetInfo shows, in GiB."""
    return int(client.call("mem").split()[1]) >> 10


@pytest.mark.long
def test_the_kernels_limits_hold(
    daemon: DaemonProcess, join: Callable[..., ClientProcess], write: Callable[..., None], cgroups: Cgroups
) -> None:
    write(max=8, min=1)
    write("one", max=2, min=4)
    start(daemon)
    ctl(daemon, "server create a")
    first = join("one")
    assert total(first) == 2
    assert limits(daemon, first) == (GIB, 2 * GIB), "nobody guarantees it more than its parent has"
    assert first.call(f"alloc {GIB}").split()[0] == "CUDA_SUCCESS"
    assert first.call(f"alloc {GIB}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert f"the clients of cgroup {cgroups.path}/one have" in first.call("error")
    second = join("other")
    assert (total(second), limits(daemon, second)) == (8, (GIB, 8 * GIB)), "its parent's"
    assert second.call(f"alloc {7 * GIB}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY", "one holds some of it"
    assert first.call("ctx 1") == "CUDA_SUCCESS"
    assert total(first) > 100, "the second device has no limit"
    assert ctl(daemon, "memacct list --format=csv,noheader") == ""
    daemon.kill()
    start(daemon)
    assert limits(daemon, first) == (GIB, 2 * GIB)


@pytest.mark.long
def test_limits_of_kernel_and_daemon_hold_for_later_clients(
    daemon: DaemonProcess, join: Callable[..., ClientProcess], write: Callable[..., None], cgroups: Cgroups
) -> None:
    start(daemon)
    ctl(daemon, "server create a")
    before = join("one")
    write("one", max=20)
    ctl(daemon, f"memacct limit {cgroups.path}/one --hard-limit=40G")
    assert (total(before) > 100, total(join("one"))) == (True, 20), "the kernel's is lower"
    write("one", max=30)
    ctl(daemon, f"memacct limit {cgroups.path}/one --hard-limit=10G")
    assert total(join("one")) == 10, "the daemon's own is lower"
    ctl(daemon, f"memacct limit {cgroups.path}/one --hard-limit=unlimited")
    assert total(join("one")) == 30
    ctl(daemon, "feature disable memacct")
    free = join("one")
    assert (total(free) > 100, limits(daemon, free)) == (True, (None, None))


@pytest.mark.long
def test_what_is_held_in_another_server_counts_over_a_restart_too(
    daemon: DaemonProcess, join: Callable[..., ClientProcess], write: Callable[..., None]
) -> None:
    write("one", max=30)
    start(daemon)
    for name in "ab":
        ctl(daemon, f"server create {name}")
    first, second = join("one", "a"), join("one", "b")
    assert first.call(f"alloc {20 * GIB}").split()[0] == "CUDA_SUCCESS"

    def free() -> int:
        return int(second.call("mem").split()[0]) >> 10

    wait_until(lambda: free() < 10, "the memory of the other server")
    daemon.kill()
    start(daemon)
    assert first.call(f"alloc {5 * GIB}").split()[0] == "CUDA_SUCCESS"
    wait_until(lambda: free() < 5, "what it has taken since")
    first.end(signal.SIGKILL)
    wait_until(lambda: free() >= 28, "the memory that is free again")
    assert second.call(f"alloc {20 * GIB}").split()[0] == "CUDA_SUCCESS"


def test_without_the_controller_nothing_is_read(
    daemon: DaemonProcess, join: Callable[..., ClientProcess], write: Callable[..., None], root: Path
) -> None:
    write("one", max=2)
    (root / "dmem.capacity").unlink()
    start(daemon)
    ctl(daemon, "server create a")
    assert total(join("one")) > 100
