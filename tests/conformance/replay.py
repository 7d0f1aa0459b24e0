"""Plays the steps of a recorded session with running daemons, servers and clients, and returns the differences."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from attrs import define, field
from processes import BIN, POLL_SECONDS, SECONDS, ClientProcess, DaemonProcess, alive, wait_until

from pympsd.cli.options import DROP_IN_NAME
from tests.conformance.comparison import Comparison
from tests.conformance.correspondence import Correspondence
from tests.conformance.this_machine import CLIENT, LEADS, as_here, clients_settings

SETTLES: Final = 4.0 if LEADS else SECONDS
"""The seconds in which a log must have the expected lines, and a repeated step the expected result."""
NOT_FOUND: Final = "Cannot find MPS control daemon process"
ELIDED: Final = "(usage text"
UNRECOGNIZED: Final = "Unrecognized option "
OURS_ONLY: Final = {
    "pympsd.nvml": "the devices and who uses them, for libnvidia-ml.so.1",
    "pympsd.state": "what another daemon needs to take the servers in if this one is killed",
    "pympsd.control": "the socket of our own tools and clients where control is libcuda's",
    "pympsd.keeper": "where another daemon gets what this one's keeper holds",
}
"""Files in the pipe directory that the vendor's daemon does not have, each with its purpose."""
NAMESPACE: Final = "4026531836"


class ReplayDaemon(DaemonProcess):
    """A daemon whose command line tools run in its folder, so that relative paths start there."""

    @property
    def tools_directory(self) -> Path:
        """The daemon's folder."""
        return self.directory

    def run(
        self, arguments: list[str], text: str = "", uid: int | None = None, tool: str = "pympsd"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command line tool; an argument is split at its spaces."""
        return subprocess.run(
            [str(BIN / tool), *(word for argument in arguments for word in argument.split())],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            user=(self.uid if uid is None else uid) or None,
            cwd=self.tools_directory,
        )

    def run_as_vendors(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        """Run pympsd under the name of the vendor's command line tool."""
        link = self.directory / DROP_IN_NAME
        if not link.is_symlink():
            link.symlink_to(BIN / "pympsd")
        return self.run(arguments, tool=str(link))


Said = Callable[[dict[str, Any]], str]
"""Returns how what our programs did differs from a step, and an empty text if it does not."""
DECISIONS: Final = {"ours", "lacks", "adds", "reordered"}
"""Keys of a step marked ``different`` that give the exact difference; without one of them, any is accepted."""


def _instead(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step with the answer of pympsd, if the review has one, in place of the recorded answer."""
    if "ours" not in step:
        return step
    output = "result" if step["do"] == "client" else "stdout"
    return step | {output: step["ours"], "status": step.get("ours_status", step.get("status"))}


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
    repeated: list[str] = field(factory=list)

    def daemon(self, at: int) -> ReplayDaemon:
        """Return the daemon with a number, made at the first call; each has its own pipe and log directory."""
        if at not in self.daemons:
            uid = self.plan.get("uids", {}).get(str(at), 0)
            settings = {name: as_here(value) for name, value in self.plan.get("env", {}).items()}
            self.daemons[at] = self.make_daemon(self.plan.get("machine", "one-h200"), uid, **settings)
        return self.daemons[at]

    def play(self, step: dict[str, Any]) -> str:
        """Play a step; return how our programs differ from what the review expects, an empty text if they do not."""
        for action in self.plan.get("before", {}).get(str(step["number"]), []):
            self._unshown(*action.split(maxsplit=1))
        if step["mark"] == "not_replayable":
            return ""
        kinds = {"run": self._run, "client": self._client, "listing": self._listing}
        differs = self._log if step["do"].endswith(".log") else kinds[step["do"]]
        output = differs(step)
        wrong = output({name: value for name, value in step.items() if name not in DECISIONS})
        if step["mark"] != "different":
            return wrong
        if not wrong and step.get("either"):
            return ""
        if not wrong:
            return "equal now: the mark is not needed any more"
        return output(_instead(step)) if DECISIONS & step.keys() else ""

    # --- what the recorder did without showing it

    def _unshown(self, verb: str, rest: str = "") -> None:
        if verb == "end":
            for pid in map(int, rest.split()):
                self._end(self.clients.pop(pid))
        elif verb == "kill":
            self._end(self.clients.pop(int(rest)), signal.SIGKILL)
        elif verb == "kill-server":
            server = self.known.ours[int(rest)]
            os.kill(server, signal.SIGKILL)
            message = f"Server {server} exited"
            wait_until(lambda: any(line.startswith(message) for line in self.daemon(0).log()), message)
        elif verb == "reap":
            # No line of a log follows: the client's server is gone, or the process was not a client.
            self.clients.pop(int(rest)).end()
        elif verb == "gone":
            self._await_count("Client process", int(rest))
        elif verb == "begin":
            pid, _, words = rest.partition(" ")
            self._of(int(pid), {}).send(words)
        elif verb == "begin-as":
            uid, pid, words = rest.split(maxsplit=2)
            self._of(int(pid), {"uid": int(uid)}).send(words)
        elif verb == "done":
            wait_until(self.clients[int(rest)].has_result, f"the end of what {rest} has begun")
        elif verb == "run":
            done = self.daemon(0).run([], f"{self.known.translated(rest)}\n")
            assert done.returncode == 0
            self._wait_until_settled(rest)
        elif verb == "ask":
            assert self._ask(f"{rest}\n").returncode == 0
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
        elif verb == "wait-server":
            text = self.known.translated(rest)
            wait_until(lambda: text in "\n".join(self.daemon(0).log("server.log")), text)
        elif verb == "read-only":
            (self.daemon(0).directory / rest).chmod(0o555)
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
            wait_until(self._hung_up, "the end of what was asked so far in control.log")
            for name in ("control.log", "server.log"):
                self.shown[0, name] = len(self._lines(0, name))
            self.commands[0] = []

    def _hung_up(self) -> bool:
        """Whether the daemon's log has the end of each operator's session, but for those in the background."""
        daemon = self.daemon(0)
        return self._counted(daemon, "NEW UI") - self._counted(daemon, "UI closed") <= len(self.background)

    def _end(self, client: ClientProcess, number: int = 0) -> None:
        client.end(number)
        text = f"Client process {client.pid} disconnected"
        wait_until(lambda: text in self.daemon(0).log("server.log"), "the client's end in server.log")

    # --- the steps

    def _run(self, step: dict[str, Any]) -> Said:
        at, stdin = step.get("at", 0), self.known.translated(step["stdin"])
        daemon = self.daemon(at)
        self.commands.setdefault(at, []).extend(stdin.splitlines())
        if step.get("background"):
            return self._run_aside(daemon, stdin)
        if "".join(step.get("ours") or ()).startswith(UNRECOGNIZED):
            # pympsd answers an unknown option as recorded only if it runs under the vendor's name.
            done = daemon.run_as_vendors(step["arguments"])
        elif "-d" in step["arguments"] and step["status"] == 0:
            done = daemon.start(*step["arguments"])
        else:
            # The vendor's tool sends all commands also to another user's daemon.
            trusting = [] if step["arguments"] else ["--trust-daemon"]
            done = daemon.run([*trusting, *step["arguments"]], stdin, step["uid"], step.get("tool", "pympsd"))
        give_up = time.monotonic() + SETTLES
        while step.get("until") and self._ran_otherwise(_instead(step), done) and time.monotonic() < give_up:
            self.repeated.append(stdin.strip())
            done = daemon.run(step["arguments"], stdin, step["uid"])
        self._wait_until_settled(stdin, at)
        return lambda decided: self._ran_otherwise(decided, done)

    def _ran_otherwise(self, step: dict[str, Any], done: subprocess.CompletedProcess[str]) -> str:
        ours = [line for line in done.stdout.split("\n") if line]
        if "rows" in step:
            return "" if len(ours) == step["rows"] else f"{len(ours)} rows, not {step['rows']}"
        if "row" in step:
            ours = ours[step["row"] : step["row"] + 1]
        recorded = step.get("stdout", [])
        if recorded and ELIDED in recorded[-1]:
            recorded, ours = recorded[:-1], ours[: len(recorded) - 1]
        wrong = [] if done.returncode == step["status"] else [f"status {done.returncode}, not {step['status']}"]
        wrong += self._compared.differences("stdout", recorded, ours)
        # Our tool warns root, too, of a daemon that another user runs.
        complaints = [line for line in done.stderr.splitlines() if not line.endswith(", neither root nor you")]
        if complaints[:1] == [NOT_FOUND]:
            # Our tool adds a line that names the socket, and what is wrong with it.
            complaints = complaints[:1] + complaints[2:]
        # Where the vendor's tool writes nothing to standard error, ours may write one line, about what was refused.
        if step.get("stderr") or len(complaints) > 1:
            wrong += self._compared.differences("stderr", step.get("stderr", []), complaints)
        return "\n".join(wrong)

    def _ask(self, stdin: str) -> subprocess.CompletedProcess[str]:
        """Give a command that the recording shows only in the log."""
        self.commands.setdefault(0, []).extend(stdin.splitlines())
        return self.daemon(0).run([], stdin)

    def _run_aside(self, daemon: ReplayDaemon, stdin: str) -> Said:
        process = subprocess.Popen(
            [daemon.command], env=daemon.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.background.append(process)
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        wait_until(lambda: any("will not shutdown" in line for line in daemon.log()), "the quit's refusal")
        wrong = "" if process.poll() is None else "it ended, and did not wait"
        return lambda _: wrong

    def _wait_until_settled(self, stdin: str, at: int = 0) -> None:
        """Wait until the server that ``start_server`` starts is there, or until the daemon that quits has ended."""
        daemon = self.daemon(at)
        if stdin.startswith("start_server"):
            wait_until(lambda: self._counted(daemon, "Starting new server") == self._counted(daemon, "NEW SERVER"))
        elif stdin.startswith("quit") and daemon.log()[-1:] == ["Exit with status 0"]:
            wait_until(lambda: not alive(daemon.pid), "the daemon's end")

    def _await_count(self, beginning: str, count: int) -> None:
        """Wait until ``count`` different lines of server.log begin so; the driver's server writes some twice."""

        def counted() -> int:
            return len({line for line in self.daemon(0).log("server.log") if line.startswith(beginning)})

        try:
            wait_until(lambda: counted() == count, f"{count} lines {beginning!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {counted()}") from None

    def _counted(self, daemon: ReplayDaemon, beginning: str, name: str = "control.log") -> int:
        return sum(line.startswith(beginning) for line in daemon.log(name))

    def _client(self, step: dict[str, Any]) -> Said:
        ours = self._do(step["pid"], step["step"], step)
        give_up = time.monotonic() + SETTLES
        while step.get("until") and ours != _instead(step)["result"] and time.monotonic() < give_up:
            ours = self._do(step["pid"], step["step"], step)
        return lambda decided: "\n".join(self._compared.differences("result", [decided["result"]], [ours]))

    def _do(self, pid: int, words: str, step: dict[str, Any]) -> str:
        client = self._of(pid, step)
        if words == "awaited":
            return client.result()
        if words == "so far":
            return client.result() if client.has_result() else "<timeout>"
        return " | ".join(client.call(command) for command in words.split("; "))

    def _of(self, pid: int, step: dict[str, Any]) -> ClientProcess:
        if pid not in self.clients:
            self.clients[pid] = self._new_client(step)
            assert self.known.bind(pid, self.clients[pid].pid)
        return self.clients[pid]

    def _new_client(self, step: dict[str, Any]) -> ClientProcess:
        environment = {**self.daemon(0).environment, "PYMPSD_REQUIRE_MPS": "1", **clients_settings()}
        environment |= step.get("environment", {})
        if "CUDA_VISIBLE_DEVICES" not in step.get("environment", {}):
            # The daemon's own setting must not choose the devices of its clients.
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        return ClientProcess.start(environment, step.get("uid", 0), CLIENT)

    def _listing(self, step: dict[str, Any]) -> Said:
        directory = self.daemon(step.get("at", 0)).directory
        paths = sorted(path for path in (directory / "pipe").iterdir() if path.name not in OURS_ONLY)
        ours = [_describe_file(path) for path in paths]
        ours += [f"log dir: {_describe_file(path)}" for path in sorted((directory / "log").iterdir())]
        # The sizes of logs and pid files depend on the lengths of paths and PIDs.
        recorded = [re.sub(r"size=\d+", "size=", line).strip() for line in step.get("lines", [])]
        # Under its own name, pympsd makes a pid file that no other user may write.
        recorded = [re.sub(r"^-rw-rw-rw-(.*\.pid )", r"-rw-r--r--\1", line) for line in recorded]
        return lambda _: "\n".join(self._compared.differences("listing", recorded, ours))

    # --- the logs

    @property
    def _compared(self) -> Comparison:
        return Comparison(self.known)

    def _lines(self, at: int, name: str) -> list[str]:
        path = self.daemon(at).directory / "log" / name
        return path.read_text("utf-8", "surrogateescape").splitlines() if path.exists() else []

    def _log(self, step: dict[str, Any]) -> Said:
        at, name = step.get("at", 0), step["do"]
        decided = _instead(step)
        give_up = time.monotonic() + SETTLES
        start = self.shown.get((at, name), 0)
        commands = self.commands.get(at, [])
        repeated = [self.known.translated(text) for text in self.repeated]
        # If the review does not give the exact difference, there is nothing to wait for.
        anyhow = step["mark"] == "different" and not DECISIONS & step.keys()
        while True:
            lines = self._lines(at, name)
            wrong = self._compared.of_log(decided, lines[start:], commands, repeated)
            if not wrong or time.monotonic() > give_up or anyhow:
                break
            time.sleep(POLL_SECONDS)
        self.shown[at, name] = len(lines)
        if name == "control.log":
            self.commands[at] = []
            self.repeated.clear()
        return lambda expected: self._compared.of_log(expected, lines[start:], commands, repeated)

    def close(self) -> None:
        """End all clients and background commands of the replay."""
        self._unshown("hang-up")
        for client in self.clients.values():
            if client.process.poll() is None:
                client.process.kill()
            client.process.communicate()


def _describe_file(path: Path) -> str:
    status = path.lstat()
    text = f"{stat.filemode(status.st_mode)} uid={status.st_uid} size= {path.name}"
    return f"{text} '{path.read_text()}'" if path.suffix == ".pid" else text
