"""Sequences of commands, clients and their ends as data, replayed on a daemon (tests/flows/protocol*.toml).

In texts {P} is the pipe directory, {L} the log directory, {ME} the user; {U0}, {U1} are the devices' UUIDs, {u0},
{u1} their first 12 characters, {PCI0} their PCI addresses, {MODEL0} their names; {NAME} is the PID of the client
NAME, or the id of the partition that a step with ``id = "NAME"`` has made; {SERVER} is the PID of the only server.
What else there is stands at the head of each file.

Steps: ``ctl`` is a command line, ``in`` its standard input, or alone what the tool is given there. ``out`` and
``err`` are what it prints, exactly, with ``out_like`` and ``err_like`` as regular expressions, with ``words`` line
by line but for the blanks (nothing, if they are not given). ``exit`` is the status (0). With ``wait`` it is given
again until all is so. ``client`` starts one with its pipe directory ``at``, which ``fails`` with a result or has a
context; ``do`` has it do a step, and ``says`` is the answer. ``process`` is the daemon's command line as others
read it. ``there`` and ``gone`` name files; what a ctl prints is kept in a file with ``keep``, or has to be the
``same`` as one.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, evolve, field
from cgroups import Cgroups
from fake_mps import devices as driver_devices
from fake_mps.programs import DriverClient
from processes import ClientProcess, DaemonProcess, wait_until
from tested_machine import gpus, on_gpu, on_real_gpu

from pympsd.devices.machine import describe
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.files import MAX_LIBCUDA_SOCKET_PATH, MAX_SOCKET_PATH
from tests.gpu.cuda_programs import running

MACHINE = "2xH200"
VENDOR = "vendor"
MARKS = {"doc", "field", "ours"}
_ANSWER = {"out", "out_like", "words", "err", "err_like", "exit", "as", "keep", "same", "wait", "id"}
KEYS: dict[str, set[str]] = {
    "ctl": {"env", "in", *_ANSWER},
    "in": {"env", *_ANSWER},
    "client": {"at", "env", "as", "fails", "cgroup"},
    "kill": set(),
    "rmdir": set(),
    "hold": set(),
    "rows": {"count"},
    "owner": {"is"},
    "log": {"lines_like", "lacks_like"},
    "write": {"text"},
    "inode": set(),
    "do": {"says", "says_like"},
    "there": set(),
    "gone": set(),
    "process": set(),
}
DRIVER_PROGRAM_COMMANDS = {"sm": "sms"}
"""The commands of client_program whose names differ in the unmodified CUDA programs of the tests."""


@define
class VendorProgram:
    """An unmodified CUDA program, or a fake one, which executes some of client_program's commands."""

    client: DriverClient

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Its process."""
        return self.client.process

    @property
    def pid(self) -> int:
        """Its PID."""
        return self.client.pid

    def call(self, step: str) -> str:
        """Execute a step; return its result."""
        name, blank, rest = step.partition(" ")
        return self.client.call(DRIVER_PROGRAM_COMMANDS.get(name, name) + blank + rest).partition(" ")[2]

    def connect(self) -> VendorProgram:
        """Make it a client with a context."""
        self.client.connect()
        return self

    def end(self, number: int) -> None:
        """End it by a signal, and reap it."""
        self.process.send_signal(number)
        self.process.communicate()


def on_gpus(machine: str) -> bool:
    """Whether the devices of our daemon with this machine are GPUs, or stand for GPUs."""
    return on_gpu() and machine == MACHINE


def settings_of(backend: str, machine: str, directory: Path) -> dict[str, str]:
    """Return the settings of a daemon."""
    if backend == VENDOR:
        return running.settings(directory)
    if on_gpus(machine):
        # With fewer connections a context is made sooner, which takes seconds while others are.
        few = {"PYMPSD_DEVICE_CONNECTIONS": "8"}
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(gpus()[:2])))), **few}
    return {"PYMPSD_EMULATED_DEVICES": machine}


@define
class Replay:
    """A sequence that is being replayed: its daemon, its clients, and the values of the names in its texts."""

    daemon: DaemonProcess
    backend: str = "emulated"
    machine: str = MACHINE
    protocol: int = 3
    clients: dict[str, ClientProcess | VendorProgram] = field(factory=dict)
    inodes: dict[str, int] = field(factory=dict)
    ids: dict[str, str] = field(factory=dict)
    """The ids of protocol 2's partitions, by the names that steps have given them."""
    partition: str = ""
    """The last CUDA_MPS_SM_PARTITION that was printed."""
    cgroups: Cgroups = field(factory=Cgroups)
    held: int = -1
    """A descriptor that keeps a directory open, as a container's mount does."""

    def text(self, text: str) -> str:
        """Replace the names in a text by their values."""
        values: dict[str, object] = {"P": self.daemon.directory / "pipe", "L": self.daemon.directory / "log"}
        most = MAX_LIBCUDA_SOCKET_PATH if self.backend == VENDOR else MAX_SOCKET_PATH
        name = "n" * (most - len(f"{values['P']}/a//control"))
        values |= {"LONGEST": name, "TOO_LONG": f"{name}n", "MOST": most, "OVER": most + 1}
        values["HELD"] = f"/proc/{os.getpid()}/fd/{self.held}"
        for ordinal, device in enumerate(self._devices()):
            values |= {
                f"U{ordinal}": device.uuid,
                f"u{ordinal}": device.uuid[:12],
                f"PCI{ordinal}": device.pci,
                f"MODEL{ordinal}": device.name,
            }
        values |= {"C": self.cgroups.path, "ME": os.geteuid(), "PARTITION": self.partition}
        values |= self.ids | {name: client.pid for name, client in self.clients.items()}
        if "{SERVER}" in text:
            (values["SERVER"],) = self.daemon.servers()
        for name, value in values.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def _devices(self) -> Sequence[DeviceProperties]:
        if self.backend == VENDOR and not on_real_gpu():
            return [evolve(describe("H200")[0], uuid=driver_devices.uuid_text(0))]
        if self.backend == VENDOR or on_gpus(self.machine):
            return gpus()
        return describe(self.machine)

    def step(self, step: dict[str, Any]) -> None:
        """Execute one step, and compare the results."""
        if step.get("wait"):
            wait_until(lambda: self._goes(step), f"the answer of {step}")
        elif "ctl" in step or "in" in step:
            self._ctl(step)
        elif "client" in step:
            self._connect(step)
        elif "do" in step:
            name, _, words = step["do"].partition(" ")
            self._compare(self.clients[name].call(self.text(words)), step, "says")
        elif "log" in step:
            for pattern in map(self.text, step["lines_like"]):
                wait_until(lambda like=pattern: self._logged(step["log"], like), f"a line like {pattern}")
            for pattern in map(self.text, step.get("lacks_like", ())):
                assert not self._logged(step["log"], pattern), pattern
        elif "process" in step:
            self._check_process(step["process"].split())
        elif "kill" in step:
            self._kill(*step["kill"].split())
        elif "hold" in step:
            self.held = os.open(self.text(step["hold"]), os.O_PATH | os.O_DIRECTORY)
        elif "rows" in step:
            self._count(step["rows"], step["count"])
        elif "owner" in step:
            assert os.stat(self.text(step["owner"])).st_uid == step["is"], step
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

    def _goes(self, step: dict[str, Any]) -> bool:
        """Give a command; return whether all results are as required."""
        try:
            self._ctl(step)
        except AssertionError:
            return False
        return True

    def _ctl(self, step: dict[str, Any]) -> None:
        words = shlex.split(self.text(step.get("ctl", "")))
        settings = self.daemon.settings
        added = {name: self.text(value) for name, value in step.get("env", {}).items()}
        self.daemon.settings = {**settings, **added}
        try:
            starts = not {"-d", "--daemon"}.isdisjoint(words)
            done = (
                self.daemon.start(*words)
                if starts
                else self.daemon.run(words, self.text(step.get("in", "")), step.get("as"))
            )
        finally:
            self.daemon.settings = settings
        assert done.returncode == step.get("exit", 0), (step, done)
        if "id" in step:
            self.ids[step["id"]] = done.stdout.removesuffix(" created\n").partition("/")[2]
        self.partition = done.stdout.partition("CUDA_MPS_SM_PARTITION=")[2].strip() or self.partition
        if "keep" in step:
            Path(self.text(step["keep"])).write_text(done.stdout)
        elif "same" in step:
            kept = Path(self.text(step["same"])).read_text()
            assert done.stdout == kept, (step, kept, done.stdout)
        elif "words" in step:
            rows = [line.split() for line in done.stdout.splitlines()]
            assert rows == [self.text(line).split() for line in step["words"]], (step, done)
        else:
            self._compare(done.stdout, step, "out", done.stderr)
        self._compare(done.stderr, step, "err", done.stdout)

    def _logged(self, server: str, pattern: str) -> bool:
        return any(re.fullmatch(pattern, line) for line in self.daemon.log(f"{server}/server.log"))

    def _connect(self, step: dict[str, Any]) -> None:
        environment = {name: self.text(value) for name, value in step.get("env", {}).items()}
        environment["CUDA_MPS_PIPE_DIRECTORY"] = self.text(step.get("at", "{P}"))
        client = self.clients[step["client"]] = self._start(step.get("as"), environment)
        if "cgroup" in step:
            self.cgroups.move(client.pid, step["cgroup"])
        if "fails" in step:
            output = client.call("init")
            output = client.call("ctx 0") if output == "CUDA_SUCCESS" else output
            assert output == step["fails"], (step, client.call("error"))
        else:
            client.connect()

    def _start(self, uid: int | None, environment: dict[str, str]) -> ClientProcess | VendorProgram:
        if self.backend != VENDOR:
            return self.daemon.client(uid, **environment)
        return VendorProgram(running.client(self.daemon, uid=uid, settings=environment))

    def _kill(self, kind: str, name: str = "") -> None:
        if kind == "daemon":
            self.daemon.kill()
        elif kind == "client":
            client = self.clients.pop(name)
            client.end(signal.SIGKILL)
            # The server frees what it held only then.
            wait_until(lambda: not self._listed(client.pid), f"the end of client {name}")
        else:
            find = ["server", "get", name, "pid"] if self.protocol == 3 else ["get_server_list"]
            pid = self.daemon.run(find).stdout
            os.kill(int(pid), signal.SIGKILL)
            wait_until(lambda: self.daemon.run(find).stdout != pid, f"the end of {kind} {name}")

    def _listed(self, pid: int) -> bool:
        if self.protocol == 3:
            rows = self.daemon.run(["client", "list", "--format=csv,noheader"]).stdout.splitlines()
            return any(row.startswith(f"{pid},") for row in rows)
        lists = (self.daemon.run_command(f"get_client_list {server}") for server in self.daemon.servers())
        return any(str(pid) in listed.split() for listed in lists)

    def _check_process(self, words: list[str]) -> None:
        """Compare what other processes see of the daemon: its command line in ps and /proc, and its environment."""
        pid = int((self.daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
        shown = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True)
        assert shown.stdout.split() == words
        assert Path(f"/proc/{pid}/cmdline").read_text() == "".join(f"{word}\0" for word in words)
        assert f"CUDA_MPS_PIPE_DIRECTORY={self.text('{P}')}" in Path(f"/proc/{pid}/environ").read_text().split("\0")

    def _compare(self, text: str, step: dict[str, Any], key: str, context: str = "") -> None:
        text = text.removesuffix("\n")
        if f"{key}_like" in step:
            pattern = self.text(step[f"{key}_like"])
            assert re.fullmatch(pattern, text), (step, text, context)
        else:
            assert text == self.text(step.get(key, "")), (step, context)

    def _count(self, words: str, count: int) -> None:
        """Compare the numbers of rows that a list has in JSON and in CSV."""
        command = self.text(words).split()
        in_json = json.loads(self.daemon.run([*command, "--format=json"]).stdout)
        in_csv = self.daemon.run([*command, "--format=csv"]).stdout.splitlines()
        assert (len(in_json), len(list(csv.DictReader(in_csv)))) == (count, count), words

    def end(self) -> None:
        """End the clients, and delete the servers."""
        if self.held >= 0:
            os.close(self.held)
        for client in self.clients.values():
            client.process.kill()
            client.process.communicate()
        self.clients.clear()
        self.cgroups.remove()


def check_steps(sequences: list[dict[str, Any]]) -> None:
    """Fail if a step has a key that no step of its kind uses."""
    for sequence in sequences:
        assert sequence.keys() - {"on", "machine"} == {"id", "mark", "daemon", "steps"}
        assert set(sequence.get("on", ())) <= {"emulated", VENDOR}
        assert sequence["mark"] in MARKS
        for step in sequence["steps"]:
            kind = next(kind for kind in KEYS if kind in step)
            assert step.keys() - {kind} <= KEYS[kind], (sequence["id"], step)
