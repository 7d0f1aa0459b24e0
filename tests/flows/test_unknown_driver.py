"""A driver whose MPS server speaks otherwise than is known: refused by name, and `auto` takes another backend."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_mps.install import misbehave
from fake_mps.programs import DriverClient
from processes import DaemonProcess, alive, wait_until

REFUSED = "init CUDA_ERROR_MPS_CONNECTION_FAILED"
UNKNOWN = r"MPS server \d+ of driver of unknown version does not use the protocol of driver 580"
CHANGED = "The backend is cuda: the driver finds 1 device, and its MPS server does not use a known protocol"
SOURCE = Path(__file__).parents[1] / "support" / "fake_mps" / "fake_libcuda.c"

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="the fake driver's library takes a compiler"),
    pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="a driver is here"),
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libcuda with which the daemon finds a device."""
    folder = tmp_path_factory.mktemp("driver")
    folder.chmod(0o755)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", SOURCE], check=True, timeout=60)
    return folder


@pytest.fixture
def start(make_daemon: Callable[..., DaemonProcess], launcher: Path, library: Path) -> Callable[..., DaemonProcess]:
    """Start daemons on a machine with a GPU and its MPS server, which behaves as the keys say."""

    def start(backend: str, **keys: object) -> DaemonProcess:
        misbehave(launcher, **keys)
        settings = {"PYMPSD_VENDOR_SERVER": str(launcher), "LD_LIBRARY_PATH": str(library)}
        running = make_daemon(PYMPSD_BACKEND=backend, **settings)
        done = running.start()
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert any(line.startswith("The backend is vendor: ") for line in running.log())
        return running

    return start


def pipe(daemon: DaemonProcess) -> Path:
    return daemon.directory / "pipe"


def has_logged(daemon: DaemonProcess, text: str) -> Callable[[], bool]:
    """Return a condition: control.log has a line that matches."""
    return lambda: any(re.search(text, line) for line in daemon.log())


@pytest.mark.parametrize("keys", [{"wrong_hello": True}, {"wrong_role": True}, {"wrong_registration": True}])
def test_auto_takes_another_backend(start: Callable[..., DaemonProcess], keys: dict[str, object]) -> None:
    daemon = start("auto", **keys)
    daemon.run_command("set_default_active_thread_percentage 40")
    with DriverClient.start(pipe(daemon)) as client:
        assert client.call("init") == REFUSED
    wait_until(has_logged(daemon, CHANGED))
    assert has_logged(daemon, UNKNOWN)()
    assert has_logged(daemon, "Refusing client .* is not known to pympsd: .* takes another backend")()
    # It is the same process, with what commands had set, and serves.
    assert alive(daemon.pid)
    wait_until(lambda: daemon.run([], "get_default_active_thread_percentage\n").stdout == "40.0\n")
    daemon.run_command("start_server -uid 0")
    wait_until(lambda: bool(daemon.servers()))
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n")
    assert daemon.run_command("quit") == ""
    wait_until(lambda: not alive(daemon.pid))
    assert not any("internal error" in line for line in daemon.log())


def test_a_wrong_answer_after_the_first_client(start: Callable[..., DaemonProcess]) -> None:
    """The client may have what it wanted by then; it is lost."""
    daemon = start("auto", wrong_size=17)
    with DriverClient.start(pipe(daemon)) as client:
        client.call("init")
        wait_until(has_logged(daemon, CHANGED))
        assert client.call("ctx 0") != "ctx CUDA_SUCCESS"


def test_the_backend_stays_that_has_served_somebody(start: Callable[..., DaemonProcess], launcher: Path) -> None:
    daemon = start("auto")
    with DriverClient.start(pipe(daemon)) as client:
        client.connect()
        daemon.run_command("ps")
    misbehave(launcher, wrong_hello=True)
    (server,) = daemon.servers()
    daemon.run_command(f"shutdown_server {server} -f")
    wait_until(lambda: not daemon.servers())
    with DriverClient.start(pipe(daemon)) as client:
        assert client.call("init") == REFUSED
    assert not has_logged(daemon, CHANGED)()


def test_a_backend_that_is_set_stays(start: Callable[..., DaemonProcess]) -> None:
    daemon = start("vendor", wrong_hello=True)
    with DriverClient.start(pipe(daemon)) as client:
        assert client.call("init") == REFUSED
    assert has_logged(daemon, UNKNOWN)()
    assert has_logged(daemon, r"Giving up after .* is not known to pympsd: b'OUTBCRE2\\x00' where")()
    assert not has_logged(daemon, CHANGED)()
    assert daemon.run_command("get_server_list") == ""
