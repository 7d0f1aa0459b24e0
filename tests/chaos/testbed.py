"""The testbed of a soak: a root daemon on an emulated machine of small devices, its tools, its logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic as now
from typing import IO, Any, Final

import trio
from attrs import define, field
from fake_mps import install
from processes import PYMPSD, alive, children_of

from tests.chaos.history import FOR_EVER, History, Incident, Life
from tests.chaos.identity import NO_PROCESS, ProcessKey, key_of, open_pidfd, there
from tests.chaos.log_history import LogHistory, ServerHistory, read
from tests.chaos.schedule import DEVICES, PLAIN, USERS, Backend, ClientPlan, Containment, Kind, Setup

CLIENTS: Final = {
    Backend.EMULATED: str(Path(__file__).with_name("client.py")),
    Backend.VENDOR: str(Path(__file__).with_name("driver_client.py")),
}
MACHINE: Final = """fault_containment = "{containment}"

[[device]]
profile = "{profile}"
count = {count}
multiprocessors = 8
memory_mib = 8192
"""
TOOL_SECONDS: Final = 30.0
"""The longest time to an operator command's answer, whatever happens; the tool itself gives up after 10 s."""
CHOSEN_OUTSIDE: Final = ("PYMPSD_WORKER", "PYMPSD_LAUNCHES")
"""The variables for executing and packing records, which the soak's environment may set."""
KEEPER: Final = "pympsd-keeper"
OVERTAKING_SECONDS: Final = "2"
"""Seconds; users wait for each other only as long as the present clients live."""
SHARES: Final = "servers=4,namespaces=8,connections=300,buffers=4M"
"""Small ones, which hostile users use up within a round."""
OF_CLIENTS: Final = {"PYMPSD_REQUIRE_MPS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
ON_THE_DAEMON: Final = frozenset(
    {
        Kind.DAEMON_STOP,
        Kind.DAEMON_KILL,
        Kind.DAEMON_REPLACE,
        Kind.KEEPER_KILL,
        Kind.KEEPER_STOP,
        Kind.BOTH_KILL,
        Kind.DAEMON_TERM,
        Kind.QUIT,
    }
)


NEEDS_ITS_DAEMON: Final = frozenset({Kind.BOTH_KILL})
"""Without daemon and keeper, the driver's server waits for ever for a silent client (docs/decisions/013)."""
SILENT_SECONDS: Final = 3.0
"""Seconds within which a running daemon has freed its server from such a client."""


@define
class Tail:
    """Reads a log while it grows."""

    path: Path
    _offset: int = 0
    _rest: str = ""

    def more(self) -> str:
        """Return the complete lines since the last call."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        whole, newline, self._rest = (self._rest + content.decode(errors="replace")).rpartition("\n")
        return whole + newline


@define
class Testbed:
    """The state of a soak. Times are of the monotonic clock, which is the same one for all processes."""

    directory: Path
    uids: tuple[int, ...]
    journal: IO[str]
    setup: Setup = PLAIN
    history: History = field(factory=History)
    logs: LogHistory = field(factory=lambda: LogHistory(key_of))
    counts: Counter[str] = field(factory=Counter)
    problems: list[str] = field(factory=list)
    killed: set[ProcessKey] = field(factory=set)
    """Daemons, servers and executors that the soak killed, or that the daemon killed because of the soak."""
    forced: set[ProcessKey] = field(factory=set)
    """Servers that were ordered to end immediately."""
    misbehaving: set[ProcessKey] = field(factory=set)
    """The driver's servers that may have misbehaved."""
    is_misbehaving: bool = False
    """Whether the driver's servers that start now misbehave."""
    stdin: dict[int, Any] = field(factory=dict)
    """Client number -> its standard input, which takes commands."""
    daemon: ProcessKey = NO_PROCESS
    busy: bool = False
    """Whether an action ends, stops or starts the daemon at present."""
    began: float = 0.0
    _tails: tuple[Tail, Tail] = field(init=False)
    _rivals: list[int] = field(factory=list)
    _spawning: int = 0
    _own: set[int] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        log = self.directory / "log"
        self._tails = Tail(log / "control.log"), Tail(log / "server.log")
        self.history.containment = self.setup.containment
        self.history.backend = self.setup.backend
        self.logs.peers_hang_up = self.setup.backend is Backend.VENDOR

    # --- what is there

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of daemon, tools and clients."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.directory / "log"),
            "PYMPSD_BACKEND": str(self.setup.backend),
            "PYMPSD_EMULATED_DEVICES": str(self.directory / "machine.toml"),
            "PYMPSD_VENDOR_SERVER": str(self.directory / install.NAME),
            "PYMPSD_TURN_PATIENCE": OVERTAKING_SECONDS,
            "PYMPSD_LOG_DIALECT": self.setup.dialect,
            "PYMPSD_USER_SHARES": SHARES,
            **({"CUDA_MPS_PROTOCOL_VERSION": "3"} if self.setup.protocol == 3 else {}),
            "TMPDIR": str(self.directory / "tmp"),
            **{name: os.environ[name] for name in CHOSEN_OUTSIDE if name in os.environ},
        }

    def prepare(self) -> None:
        """Make the folders."""
        self.directory.chmod(0o755)
        for name in ("pipe", "log", "tmp"):
            (self.directory / name).mkdir()
        (self.directory / "tmp").chmod(0o1777)
        if self.setup.backend is Backend.VENDOR:
            install.install(self.directory, devices=DEVICES)
        else:
            (self.directory / "machine.toml").write_text(machine(self.setup.containment))

    def misbehave(self, **keys: object) -> None:
        """Set how the driver's servers that start from now on misbehave; without keys they do not."""
        self.is_misbehaving = bool(keys)
        install.misbehave(self.directory / install.NAME, devices=DEVICES, **keys)

    def keeper(self) -> ProcessKey | None:
        """Return the keeper: a child of the daemon that started it, then of this process, which adopts orphans."""
        for parent in (self.daemon.pid, os.getpid()):
            with suppress(FileNotFoundError):  # the daemon has ended
                for pid in children_of(parent):
                    if alive(pid) and _command_of(pid) == KEEPER:
                        return key_of(pid)
        return None

    def living(self) -> list[Life]:
        """Return the clients that run."""
        return [life for life in self.history.lives if life.ended == FOR_EVER]

    def has_silent_new_client(self) -> bool:
        """Whether the driver's server may be waiting for a client's first packet, which may not come."""
        return self.setup.backend is Backend.VENDOR and any(
            life.silent_until > now() or (life.plan.work == "unresponsive" and life.ended + SILENT_SECONDS > now())
            for life in self.history.lives
        )

    def server(self) -> ServerHistory | None:
        """Return the last running server in the log, if it exists."""
        return next((entry for entry in reversed(self.logs.running()) if there(entry.process)), None)

    # --- records

    def note(self, event: str, **fields: Any) -> None:
        """Write a line to the journal."""
        row = {"time": round(now() - self.began, 3), "what": event, **fields}
        self.journal.write(json.dumps(row) + "\n")
        self.journal.flush()

    def blame(self, problem: str) -> None:
        """Record a problem."""
        self.problems.append(problem)
        self.note("PROBLEM", problem=problem)
        print(f"PROBLEM: {problem}", file=sys.stderr, flush=True)

    @contextmanager
    def incident(self, kind: Kind, number: int, **details: Any) -> Iterator[Incident]:
        """Record an incident from now to the end of the block."""
        incident = Incident(kind, number, now(), **details)
        self.history.incidents.append(incident)
        self.counts[str(kind)] += 1
        self.note(str(kind), action=number, **details)
        try:
            yield incident
        finally:
            incident.ended = now()

    def troubled(self, since: float) -> bool:
        """Whether an action on the daemon was in progress at or after a time, so that it may not have answered."""
        return any(incident.kind in ON_THE_DAEMON and incident.ended >= since for incident in self.history.incidents)

    async def until(self, at: float) -> None:
        """Wait until that many seconds after the beginning."""
        await trio.sleep(max(0.0, self.began + at - now()))

    # --- processes

    async def spawn(self, command: list[str], **options: Any) -> trio.Process:
        """Start a process of the soak, which `reap` leaves alone."""
        self._spawning += 1
        try:
            process = await trio.lowlevel.open_process(command, **options)
            self._own.add(process.pid)
            return process
        finally:
            self._spawning -= 1

    async def start_client(self, plan: ClientPlan) -> tuple[Life, trio.Process]:
        """Start a client as its user."""
        uid = self.uids[plan.user]
        details = {"work": plan.work, "devices": plan.devices, "seconds": plan.seconds, "seed": plan.seed}
        process = await self.spawn(
            [sys.executable, CLIENTS[self.setup.backend], json.dumps(details)],
            env={**self.environment, **OF_CLIENTS, **dict(plan.settings)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            user=uid, group=uid, extra_groups=[], cwd="/",
        )  # fmt: skip
        life = Life(plan, process.pid, uid, now(), heard=now(), born=key_of(process.pid).started)
        self.history.lives.append(life)
        self.counts[f"client {plan.work}"] += 1
        self.note("client", number=plan.number, pid=process.pid, uid=uid, work=plan.work, devices=plan.devices)
        return life, process

    def release(self, pid: int) -> None:
        """Forget a process of the soak that has been reaped, because its PID may be reused."""
        self._own.discard(pid)

    async def tool(self, text: str, options: tuple[str, ...] = (), uid: int = 0) -> tuple[int | None, str]:
        """Run the command line tool; return its exit status (None: it took too long) and what it printed."""
        began = now()
        with trio.move_on_after(TOOL_SECONDS):
            self._spawning += 1
            try:
                done = await trio.run_process(
                    [PYMPSD, *options], stdin=text.encode(), capture_stdout=True, capture_stderr=True, check=False,
                    env=self.environment, user=uid, group=uid, extra_groups=[],
                )  # fmt: skip
            finally:
                self._spawning -= 1
            output = (done.stdout + done.stderr).decode(errors="replace")
            self.note("tool", text=text or " ".join(options), uid=uid, status=done.returncode, said=output[-300:])
            self.counts["tools"] += 1
            return done.returncode, output
        self.note("tool", text=text or " ".join(options), seconds=now() - began, status=None)
        return None, ""

    async def start_daemon(self, *more: str) -> None:
        """Start a daemon; raise AssertionError when that fails."""
        status, output = await self.tool("", ("-d", *more))
        pid_file = self.directory / "pipe" / "nvidia-cuda-mps-control.pid"
        assert status == 0, f"pympsd -d {' '.join(more)}: status {status}: {output}"
        self.daemon = key_of(int(pid_file.read_text()))
        self.note("daemon", pid=self.daemon.pid)

    # --- housekeeping

    def listen(self) -> None:
        """Read the new lines of the logs; the logs of protocol 3, one for each server, are not judged."""
        if self.setup.protocol == 3:
            return
        control, server = self._tails
        # Read in the other order, server.log could have lines of a server whose start has not been read.
        server_lines = server.more()
        for line in read(control.more()):
            self.logs.hear_control(line)
        for line in read(server_lines):
            self.logs.hear_server(line)
        for server in self.logs.running():
            server.lost = server.gone_on and not there(server.process)
        running = [server.pid for server in self.logs.running() if there(server.process)]
        if len(running) > 1 and running != self._rivals:
            self._rivals = running
            self.blame(f"the servers {running} run at the same time")

    def reap(self) -> None:
        """Reap orphans that have ended: daemons, and servers and executors whose parent was killed."""
        if self._spawning:
            return  # a process that is being spawned is not in _own yet
        for pid in set(children_of(os.getpid())) - self._own:
            if not alive(pid):
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    async def until_gone(self, process: ProcessKey, seconds: float) -> bool:
        """Wait for a process's end; return whether it ended in time."""
        with suppress(OSError), open_pidfd(process.pid) as watched, trio.move_on_after(seconds):
            if there(process):  # not a later process of this PID
                await trio.lowlevel.wait_readable(watched)
        return not there(process)

    async def until_so(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Poll for a condition that no descriptor signals; return whether it became true in time."""
        with trio.move_on_after(seconds):
            while not condition():
                await trio.sleep(0.02)
            return True
        return False


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""  # it has ended


def machine(containment: Containment) -> str:
    """Return the description of a machine whose faults reach that far."""
    before_volta = containment is Containment.SERVER
    return MACHINE.format(
        containment=Containment.DEVICE if before_volta else containment,
        profile="P100" if before_volta else "H200",
        count=DEVICES,
    )


def users() -> tuple[int, ...]:
    """Return uids that no other run has."""
    base = 1_000_000 + 10 * os.getpid()
    return tuple(base + index for index in range(USERS))
