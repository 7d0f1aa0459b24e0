"""A node with emulated GPUs that a file describes: the file, pympsd-smi on it, and daemons that share it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from attrs import define, field
from processes import BIN, SECONDS, ClientProcess, DaemonProcess

SMI = str(BIN / "pympsd-smi")


@define
class Node:
    """A node. ``directory``: a folder that every user can reach."""

    directory: Path
    text: str = "[[device]]\n"
    variables: dict[str, str] = field(factory=dict, init=False)
    """For pympsd-smi, next to the machine's."""
    _daemons: list[DaemonProcess] = field(factory=list, init=False)
    _clients: list[ClientProcess] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.machine.write_text(self.text)

    @property
    def machine(self) -> Path:
        """The description."""
        return self.directory / "node.toml"

    def smi(self, *arguments: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        """Run pympsd-smi."""
        return subprocess.run(
            [SMI, *arguments],
            env={"PYMPSD_EMULATED_DEVICES": str(self.machine), **self.variables},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            user=uid or None,
        )

    def set_mode(self, mode: str) -> None:
        """Set the compute mode of all devices."""
        done = self.smi("-c", mode)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout

    def daemon(self, name: str, uid: int = 0, **settings: str) -> DaemonProcess:
        """Start a daemon with folders of its own."""
        folder = self.directory / name
        folder.mkdir()
        for part in ("pipe", "log"):
            (folder / part).mkdir()
            os.chown(folder / part, uid, -1)
        daemon = DaemonProcess(folder, {"PYMPSD_EMULATED_DEVICES": str(self.machine), **settings}, uid)
        self._daemons.append(daemon)
        done = daemon.start()
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return daemon

    def client(self, daemon: DaemonProcess, uid: int | None = None, **more: str) -> ClientProcess:
        """Start a client of a daemon; it sees all devices of the daemon."""
        environment = {name: value for name, value in daemon.environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        client = ClientProcess.start({**environment, "PYMPSD_REQUIRE_MPS": "1", **more}, uid or daemon.uid)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """End all started processes."""
        for client in self._clients:
            if client.process.poll() is None:
                client.process.kill()
            client.process.communicate(timeout=SECONDS)
        for daemon in self._daemons:
            daemon.stop()
