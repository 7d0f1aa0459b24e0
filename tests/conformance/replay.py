"""Plays the steps of a recorded session against live daemons, servers and clients, and says where we differ."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from attrs import define, field
from processes import SECONDS, ClientProcess, DaemonProcess, alive, wait_until

from . import logs
from .correspondence import Correspondence

CLIENT: Final = str(Path(__file__).with_name("stepwise_client.py"))
SETTLES: Final = 10.0
"""Seconds a log is given to say what it should."""
ELIDED: Final = "(usage text"
NAMESPACE: Final = "4026531836"


class ReplayDaemon(DaemonProcess):
    """A daemon whose tools run in its own folder, so that relative paths mean it."""

    def run(self, arguments: list[str], text: str = "", uid: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command line tool; an argument of several words is several."""
        return subprocess.run(
            [self.command, *(word for argument in arguments for word in argument.split())],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            user=(self.uid if uid is None else uid) or None,
            cwd=self.directory,
        )


@define
class Replay:
    """One replay: a stretch of steps that begins without a daemon."""

    plan: dict[str, Any]
    make_daemon: Callable[..., ReplayDaemon]
    known: Correspondence
    daemons: dict[int, ReplayDaemon] = field(factory=dict)
    clients: dict[int, ClientProcess] = field(factory=dict)
    background: list[subprocess.Popen[str]] = field(factory=list)
    shown: dict[tuple[int, str], int] = field(factory=dict)
    commands: dict[int, list[str]] = field(factory=dict)

    def daemon(self, at: int) -> ReplayDaemon:
        """Return the daemon of a place; a place is a pipe directory and a log directory."""
        if at not in self.daemons:
            uid = self.plan.get("uids", {}).get(str(at), 0)
            self.daemons[at] = self.make_daemon(self.plan.get("machine", "one-h200"), uid, **self.plan.get("env", {}))
        return self.daemons[at]

    def play(self, step: dict[str, Any]) -> str:
        """Do a step; return how ours differs from what is recorded, nothing when it does not."""
        for action in self.plan.get("before", {}).get(str(step["number"]), []):
            self._unshown(*action.split(maxsplit=1))
        kinds = {"run": self._run, "client": self._client, "listing": self._listing}
        if step["do"].endswith(".log"):
            return self._log(step)
        return kinds[step["do"]](step)

    # --- what the recorder did without showing it

    def _unshown(self, verb: str, rest: str = "") -> None:
        if verb == "end":
            for pid in map(int, rest.split()):
                self._end(self.clients.pop(pid))
        elif verb == "run":
            done = self.daemon(0).run([], f"{self.known.translated(rest)}\n")
            assert done.returncode == 0
            self._settled(rest)
        elif verb == "client":
            pid, _, words = rest.partition(" ")
            assert "CUDA_SUCCESS" in self._do(int(pid), words, {})
        elif verb == "server":
            (server,) = self.daemon(0).servers()
            assert self.known.bind(int(rest), server)
        elif verb == "start":
            assert self.daemon(0).start().returncode == 0
        elif verb == "wait":
            wait_until(lambda: self.known.translated(rest) in self.daemon(0).log(), rest)
        elif verb == "sigkill":
            os.kill(self.daemon(0).pid, signal.SIGKILL)
            wait_until(lambda: not alive(self.daemon(0).pid), "the daemon's end")
        elif verb == "hang-up":
            for process in self.background:
                process.kill()
                process.communicate(timeout=SECONDS)
            self.background.clear()
        else:
            assert verb == "shown", verb
            for name in ("control.log", "server.log"):
                self.shown[0, name] = len(self._lines(0, name))
            self.commands[0] = []

    def _end(self, client: ClientProcess) -> None:
        client.end()
        said = f"Client process {client.pid} disconnected"
        wait_until(lambda: said in self.daemon(0).log("server.log"), "the client's end in server.log")

    # --- the steps

    def _run(self, step: dict[str, Any]) -> str:
        at, stdin = step.get("at", 0), self.known.translated(step["stdin"])
        daemon = self.daemon(at)
        self.commands.setdefault(at, []).extend(stdin.splitlines())
        if step.get("background"):
            return self._run_aside(daemon, stdin)
        if "-d" in step["arguments"] and step["status"] == 0:
            done = daemon.start(" ".join(step["arguments"]))
        else:
            done = daemon.run(step["arguments"], stdin, step["uid"])
        self._settled(stdin, at)
        ours = [line for line in done.stdout.split("\n") if line]
        recorded = step.get("stdout", [])
        if recorded and ELIDED in recorded[-1]:
            recorded, ours = recorded[:-1], ours[: len(recorded) - 1]
        wrong = [] if done.returncode == step["status"] else [f"status {done.returncode}, not {step['status']}"]
        wrong += self._compared("stdout", recorded, ours)
        complaints = done.stderr.splitlines()
        # Where the vendor says nothing on standard error, ours may say in one line what was refused.
        if step.get("stderr") or len(complaints) > 1:
            wrong += self._compared("stderr", step.get("stderr", []), complaints)
        return "\n".join(wrong)

    def _run_aside(self, daemon: ReplayDaemon, stdin: str) -> str:
        process = subprocess.Popen(
            [daemon.command], env=daemon.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.background.append(process)
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        wait_until(lambda: any("will not shutdown" in line for line in daemon.log()), "the quit's refusal")
        return "" if process.poll() is None else "it ended, and did not wait"

    def _settled(self, stdin: str, at: int = 0) -> None:
        """Wait for what a command begins: the vendor's daemon answers nobody meanwhile."""
        daemon = self.daemon(at)
        if stdin.startswith("start_server"):
            wait_until(lambda: self._counted(daemon, "Starting new server") == self._counted(daemon, "NEW SERVER"))
        elif stdin.startswith("quit") and daemon.log()[-1:] == ["Exit with status 0"]:
            wait_until(lambda: not alive(daemon.pid), "the daemon's end")

    def _counted(self, daemon: ReplayDaemon, beginning: str) -> int:
        return sum(line.startswith(beginning) for line in daemon.log())

    def _client(self, step: dict[str, Any]) -> str:
        ours = self._do(step["pid"], step["step"], step)
        return "\n".join(self._compared("result", [step["result"]], [ours]))

    def _do(self, pid: int, words: str, step: dict[str, Any]) -> str:
        if pid not in self.clients:
            self.clients[pid] = self._new_client(step)
            assert self.known.bind(pid, self.clients[pid].pid)
        return self.clients[pid].do(words)

    def _new_client(self, step: dict[str, Any]) -> ClientProcess:
        environment = {**self.daemon(0).environment, "PYMPSD_REQUIRE_MPS": "1", **step.get("environment", {})}
        if "CUDA_VISIBLE_DEVICES" not in step.get("environment", {}):
            # What the daemon was told is not for its clients.
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        pipe = subprocess.PIPE
        command, user = [sys.executable, CLIENT], step.get("uid", 0) or None
        return ClientProcess(
            subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, user=user)
        )

    def _listing(self, step: dict[str, Any]) -> str:
        directory = self.daemon(step.get("at", 0)).directory
        ours = [_listed(path) for path in sorted((directory / "pipe").iterdir())]
        ours += [f"log dir: {_listed(path)}" for path in sorted((directory / "log").iterdir())]
        # Sizes of logs and PIDs are as long as paths and numbers happen to be.
        recorded = [re.sub(r"size=\d+", "size=", line).strip() for line in step.get("lines", [])]
        return "\n".join(self._compared("listing", recorded, ours))

    # --- the logs

    def _lines(self, at: int, name: str) -> list[str]:
        path = self.daemon(at).directory / "log" / name
        return path.read_text("utf-8", "surrogateescape").splitlines() if path.exists() else []

    def _log(self, step: dict[str, Any]) -> str:
        at, name = step.get("at", 0), step["do"]
        give_up = time.monotonic() + SETTLES
        start = self.shown.get((at, name), 0)
        while True:
            lines = self._lines(at, name)
            wrong = self._log_differs(name, step.get("lines", []), lines[start:], self.commands.get(at, []))
            if not wrong or time.monotonic() > give_up or step["mark"] == "different":
                break
            os.sched_yield()
        self.shown[at, name] = len(lines)
        if name == "control.log":
            self.commands[at] = []
        return wrong

    def _log_differs(self, name: str, recorded: list[str], ours: list[str], commands: list[str]) -> str:
        theirs = logs.without_vendors_only(logs.entries(recorded))
        voices = logs.control_voices if name == "control.log" else logs.server_voices
        expected = voices(theirs if name == "control.log" else logs.without_garbage(theirs))
        given = voices(logs.entries(ours))
        if name == "control.log":
            shown = [self.known.original(command) for command in commands]
            expected["operators"] = logs.without_unshown(expected["operators"], shown)
        else:
            given = {self._voice(voice): said for voice, said in given.items()}
        wrong: list[str] = []
        for voice in sorted(expected.keys() | given.keys()):
            wrong += self._said(voice, expected.get(voice, []), given.get(voice, []))
        return "\n".join(wrong)

    def _voice(self, voice: str) -> str:
        return str(self.known.theirs.get(int(voice), voice)) if voice.isdecimal() else voice

    def _said(self, voice: str, recorded: list[logs.Entry], ours: list[logs.Entry]) -> list[str]:
        def shown(entry: logs.Entry) -> str:
            return f"{entry.who} {entry.pid}] {entry.text}"

        return self._compared(f"the {voice}'s lines", [*map(shown, recorded)], [*map(shown, ours)])

    def _compared(self, what: str, recorded: list[str], ours: list[str]) -> list[str]:
        wrong = []
        for place in range(max(len(recorded), len(ours))):
            expected = recorded[place] if place < len(recorded) else None
            given = ours[place] if place < len(ours) else None
            if expected is None or given is None or not self.known.agrees(expected, given):
                wrong.append(f"{what}, {place}: ours is {given!r}, recorded {expected!r}")
        return wrong

    def close(self) -> None:
        """End every client and command of the replay."""
        self._unshown("hang-up")
        for client in self.clients.values():
            if client.process.poll() is None:
                client.process.kill()
            client.process.communicate()


def _listed(path: Path) -> str:
    status = path.lstat()
    text = f"{stat.filemode(status.st_mode)} uid={status.st_uid} size= {path.name}"
    return f"{text} '{path.read_text()}'" if path.suffix == ".pid" else text
