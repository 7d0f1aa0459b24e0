"""The sequences of protocol3.toml, replayed on daemons with two emulated H200."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from cgroups import Cgroups
from processes import ClientProcess, DaemonProcess, wait_until

from pympsd.devices.machine import describe

MACHINE = {"PYMPSD_EMULATED_DEVICES": "2xH200"}
SEQUENCES = tomllib.loads(Path(__file__).with_name("protocol3.toml").read_text())["sequence"]
MARKS = {"doc", "field", "ours"}
KEYS = {
    "ctl": {"env", "in", "out", "out_like", "err", "err_like", "exit", "as", "keep", "same"},
    "in": {"out", "out_like", "err", "err_like", "exit", "as"},
    "client": {"at", "env", "as", "fails", "cgroup"},
    "kill": set(),
    "rmdir": set(),
    "log": {"lines_like", "lacks_like"},
    "write": {"text"},
    "inode": set(),
    "do": {"says", "says_like"},
    "there": set(),
    "gone": set(),
}
WITH_CLIENTS = ("T22", "T30", "T33", "T38", "T42", "T50")
"""Sequences with clients that stand for the others when long tests are left out."""
SHORT = [
    each["id"]
    for each in SEQUENCES
    if each["id"] in WITH_CLIENTS or not any("client" in step for step in each["steps"])
]


@define
class Replay:
    """A sequence that is being replayed: its daemon, its clients, and what its texts stand for."""

    daemon: DaemonProcess
    clients: dict[str, ClientProcess] = field(factory=dict)
    inodes: dict[str, int] = field(factory=dict)
    partition: str = ""
    """The last CUDA_MPS_SM_PARTITION that was printed."""
    cgroups: Cgroups = field(factory=Cgroups)

    def text(self, text: str) -> str:
        """Fill in what a text stands for."""
        first, second = (device.uuid for device in describe(MACHINE["PYMPSD_EMULATED_DEVICES"]))
        known = {"P": self.daemon.directory / "pipe", "L": self.daemon.directory / "log", "U0": first, "U1": second}
        known |= {"C": self.cgroups.path, "ME": os.geteuid(), "PARTITION": self.partition}
        known |= {name: client.pid for name, client in self.clients.items()}
        for name, value in known.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def step(self, step: dict[str, Any]) -> None:
        """Do one step, and compare."""
        if "ctl" in step or "in" in step:
            self._ctl(step)
        elif "client" in step:
            self._connect(step)
        elif "do" in step:
            name, _, words = step["do"].partition(" ")
            self._compare(self.clients[name].do(self.text(words)), step, "says")
        elif "log" in step:
            for pattern in map(self.text, step["lines_like"]):
                wait_until(lambda like=pattern: self._logged(step["log"], like), f"a line like {pattern}")
            for pattern in map(self.text, step.get("lacks_like", ())):
                assert not self._logged(step["log"], pattern), pattern
        elif "kill" in step:
            self._kill(*step["kill"].split())
        elif "rmdir" in step:
            self.cgroups.remove_one(step["rmdir"])
        elif "write" in step:
            Path(self.text(step["write"])).write_text(self.text(step["text"]))
        elif "inode" in step:
            inode = os.stat(self.text(step["inode"])).st_ino
            assert self.inodes.setdefault(step["inode"], inode) == inode, step
        for path in step.get("there", ()):
            assert os.path.exists(self.text(path)), path
        for path in step.get("gone", ()):
            assert not os.path.exists(self.text(path)), path

    def _ctl(self, step: dict[str, Any]) -> None:
        words = shlex.split(self.text(step.get("ctl", "")))
        settings = self.daemon.settings
        added = {name: self.text(value) for name, value in step.get("env", {}).items()}
        self.daemon.settings = {**settings, **added}
        try:
            starts = not {"-d", "--daemon"}.isdisjoint(words)
            done = self.daemon.start(*words) if starts else self.daemon.run(words, step.get("in", ""), step.get("as"))
        finally:
            self.daemon.settings = settings
        assert done.returncode == step.get("exit", 0), (step, done)
        self.partition = done.stdout.partition("CUDA_MPS_SM_PARTITION=")[2].strip() or self.partition
        if "keep" in step:
            Path(self.text(step["keep"])).write_text(done.stdout)
        elif "same" in step:
            assert done.stdout == Path(self.text(step["same"])).read_text(), step
        else:
            self._compare(done.stdout, step, "out", done.stderr)
        self._compare(done.stderr, step, "err", done.stdout)

    def _logged(self, server: str, pattern: str) -> bool:
        return any(re.fullmatch(pattern, line) for line in self.daemon.log(f"{server}/server.log"))

    def _connect(self, step: dict[str, Any]) -> None:
        environment = {name: self.text(value) for name, value in step.get("env", {}).items()}
        environment["CUDA_MPS_PIPE_DIRECTORY"] = self.text(step["at"])
        client = self.clients[step["client"]] = self.daemon.client(step.get("as"), **environment)
        if "cgroup" in step:
            self.cgroups.move(client.pid, step["cgroup"])
        if "fails" in step:
            said = client.do("init")
            said = client.do("ctx 0") if said == "CUDA_SUCCESS" else said
            assert said == step["fails"], (step, client.do("error"))
        else:
            client.connect()

    def _kill(self, kind: str, name: str = "") -> None:
        if kind == "daemon":
            self.daemon.kill()
        elif kind == "client":
            client = self.clients.pop(name)
            client.end(signal.SIGKILL)
            # The server frees what it held only then.
            wait_until(lambda: not self._listed(client.pid), f"the end of client {name}")
        else:
            os.kill(int(self.daemon.run(["server", "get", name, "pid"]).stdout), signal.SIGKILL)

    def _listed(self, pid: int) -> bool:
        rows = self.daemon.run(["client", "list", "--format=csv,noheader"]).stdout.splitlines()
        return any(row.startswith(f"{pid},") for row in rows)

    def _compare(self, said: str, step: dict[str, Any], key: str, beside: str = "") -> None:
        said = said.removesuffix("\n")
        if f"{key}_like" in step:
            pattern = self.text(step[f"{key}_like"])
            assert re.fullmatch(pattern, said), (step, said, beside)
        else:
            assert said == self.text(step.get(key, "")), (step, beside)

    def end(self) -> None:
        """End the clients, and delete the servers."""
        for client in self.clients.values():
            client.process.kill()
            client.process.communicate()
        self.clients.clear()
        self.cgroups.remove()


@pytest.fixture(scope="module")
def daemons() -> Iterator[dict[str, DaemonProcess]]:
    """A daemon of each protocol, which the sequences that do not end it share."""
    root = Path(tempfile.mkdtemp(prefix="pympsd-p3-"))
    root.chmod(0o755)
    made = {}
    for protocol in sorted({each["daemon"] for each in SEQUENCES} - {"none"}):
        for name in ("pipe", "log"):
            (root / protocol / name).mkdir(parents=True)
        made[protocol] = DaemonProcess(root / protocol, dict(MACHINE))
    try:
        for protocol, daemon in made.items():
            done = daemon.start("-d", "-p", protocol)
            assert (done.returncode, done.stderr) == (0, "")
        yield made
    finally:
        for daemon in made.values():
            daemon.stop()
        shutil.rmtree(root)


@pytest.fixture
def replay(request: pytest.FixtureRequest, daemons: dict[str, DaemonProcess], directory: Path) -> Iterator[Replay]:
    """Replay on the daemon that a sequence asks for, and leave it without servers and clients."""
    replay = Replay(daemons.get(request.param) or DaemonProcess(directory, dict(MACHINE)))
    try:
        yield replay
    finally:
        replay.end()
        if request.param == "none":
            replay.daemon.stop()
        elif request.param == "3":
            rows = replay.daemon.run(["server", "list", "--format=csv,noheader"]).stdout.splitlines()
            for name in (row.partition(",")[0] for row in rows):
                done = replay.daemon.run(["server", "delete", name, "--force"])
                assert done.returncode == 0, done


@pytest.mark.long(but=SHORT)
@pytest.mark.parametrize(
    ("replay", "steps"),
    [pytest.param(each["daemon"], each["steps"], id=each["id"]) for each in SEQUENCES],
    indirect=["replay"],
)
def test_a_sequence(replay: Replay, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        replay.step(step)


def test_the_table_has_only_what_is_compared() -> None:
    for each in SEQUENCES:
        assert each.keys() == {"id", "mark", "daemon", "steps"}
        assert each["mark"] in MARKS
        for step in each["steps"]:
            kind = next(kind for kind in KEYS if kind in step)
            assert step.keys() - {kind} <= KEYS[kind], (each["id"], step)
