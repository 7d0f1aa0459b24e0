"""Daemons as objects: `RunningDaemon` for one that runs, `Daemon` for one that lives as long as a ``with`` block.

>>> with Daemon(machine="2xH200") as daemon:
...     daemon.command("set_default_active_thread_percentage 50")
...     len(daemon.devices()), daemon.servers(), daemon.waiting()
'50.0\\n'
(2, (), ())
"""

import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pympsd.cli import daemon_connection
from pympsd.control.connection import CannotAsk, Control
from pympsd.control.records import Client, Device, Drain, Drained, Machine, Server, Waiting, convert
from pympsd.errors import StartError
from pympsd.vocabulary import files

START_SECONDS: Final = 60.0
"""Seconds that a daemon has to be ready: a GPU's driver may take long to list its devices."""
END_SECONDS: Final = 30.0
"""Seconds that a daemon has to end with its servers, before it is killed."""
OWN_VARIABLES: Final = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES", "PYMPSD_", "NOTIFY_SOCKET", "WATCHDOG_")
"""The prefixes of the variables that a new daemon does not inherit."""


class CannotStart(StartError):
    """A daemon did not start; the message is what it printed on standard error.

    Raised by `Daemon`. If the daemon printed nothing, the message states that it was not ready within START_SECONDS,
    or which system call on its directories failed.
    """


class RunningDaemon:
    """A daemon that runs already, such as the system's.

    Each call opens a connection of its own, so another daemon may take over between two calls. Every call that asks
    the daemon raises CannotAsk if there is no daemon or it refuses, and its subclass Silent if the daemon does not
    respond within 10 s.

    Args:
        pipe_directory: Its pipe directory. Empty: CUDA_MPS_PIPE_DIRECTORY, or the default directory.
        trust_daemon: Give commands that change something also to a daemon that is neither root's nor this user's.

    >>> with Daemon(machine="H200") as started:
    ...     RunningDaemon(started.pipe_directory).devices() == started.devices()
    True
    """

    def __init__(self, pipe_directory: str = "", trust_daemon: bool = False) -> None:
        self._trust_daemon = trust_daemon
        self.pipe_directory: Final = pipe_directory or os.fsdecode(daemon_connection.pipe_directory())

    def devices(self) -> tuple[Device, ...]:
        """Return the daemon's devices, in the order of their CUDA ordinals.

        These are the devices that the daemon's clients may use, not all of the machine: the daemon's own
        CUDA_VISIBLE_DEVICES leaves some out.

        >>> with Daemon(machine="2xH200") as daemon:
        ...     [(device.ordinal, device.multiprocessors) for device in daemon.devices()]
        [(0, 132), (1, 132)]
        """
        return convert(Machine, self._query("device_query")).devices

    def servers(self) -> tuple[Server, ...]:
        """Return the servers that run: each with its clients, and each client with its contexts.

        Each server is asked first, so the answer is up to date; a server that does not respond is listed as it last
        reported itself. Named servers without a process are not listed.
        """
        return convert(tuple[Server, ...], self._query("get_server_list"))

    def ps(self) -> tuple[Client, ...]:
        """Return the clients that have a context, of all servers.

        The same as the command ``ps``. A client without a context, which has called cuInit only, is in `servers` and
        not here.
        """
        return tuple(client for server in self.servers() for client in server.clients if client.contexts)

    def waiting(self) -> tuple[Waiting, ...]:
        """Return the clients and start requests that wait for a server; the first in the queue comes first.

        Clients wait while their server starts, while another user has the turn, or until a server has ended because
        the maximum number of servers is reached.
        """
        return convert(tuple[Waiting, ...], self._query("get_waiting_list"))

    def listing(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query of protocol 3, a dict for each with the columns as keys.

        Args:
            query: ``MODULE list`` or ``MODULE describe`` with its options, such as ``namespace list``.

        >>> with Daemon(machine="H200", protocol=3) as daemon:
        ...     _ = daemon.command("server create a")
        ...     [row["name"] for row in daemon.listing("server list")]
        ['a']
        """
        with Control(self.pipe_directory) as control:
            return control.listing(query)

    def command(self, line: str) -> str:
        """Give the daemon a command and return what it prints, with line ends.

        Args:
            line: The command and its arguments as `pympsd` takes them.

        Raises:
            CannotAsk: The daemon refused the command; the message is its explanation.

        >>> with Daemon(machine="H200") as daemon:
        ...     daemon.command("set_default_active_thread_percentage 400")
        Traceback (most recent call last):
        pympsd.control.connection.CannotAsk: set_default_active_thread_percentage 400: ...
        """
        with Control(self.pipe_directory, trust_daemon=self._trust_daemon) as control:
            return control.command(line)

    def drains(self) -> tuple[Drain, ...]:
        """Return the drains in force, the oldest first.

        Raises:
            CannotAsk: There is no daemon, or its answer is not one that a daemon gives.

        >>> with Daemon(machine="H200") as daemon:
        ...     daemon.drains()
        ()
        """
        return convert(tuple[Drain, ...], self._query("get_drain_list"))

    def drain(
        self,
        client: int | None = None,
        *,
        server: str = "",
        namespace: str = "",
        cgroup: str = "",
        user: int | None = None,
        device: str = "",
        everything: bool = False,
        timeout: float | None = None,
        then: str = "terminate",
        new_clients: str = "wait",
        release: bool = False,
    ) -> Drained:
        """Let the running clients of one target finish and hold its new clients; return the clients that ended and
        those that remain.

        Args:
            client: The PID of a client process; or one of ``server`` (its name), ``namespace``
                (``server/namespace``), ``cgroup`` (its path), ``user`` (a uid), ``device`` (index or UUID),
                ``everything``.
            timeout: Seconds until the remaining clients are terminated. None means without a limit.
            then: ``terminate``, or ``fail``: nothing is terminated.
            new_clients: ``wait`` until undrain, or ``refuse``.
            release: End all servers too, so that the driver can be replaced (with ``everything``).

        Raises:
            CannotAsk: The daemon refused; the drain is not in force.

        >>> with Daemon(machine="H200") as daemon:
        ...     daemon.drain(everything=True, timeout=5).drained, daemon.drains()[0].target
        ...     daemon.undrain(everything=True)
        (True, '--all')
        """
        words = ["drain", *_target(client, server, namespace, cgroup, user, device, everything)]
        words.append(f"--new-clients={new_clients}")
        if timeout is not None:
            words += [f"--timeout={timeout:f}", f"--then={then}"]
        words += ["--release"] * release
        with Control(self.pipe_directory, trust_daemon=self._trust_daemon) as control:
            records = control.report(" ".join(words))
        ends = [record for record in records if record["event"] == "ended"]
        return convert(Drained, {**records[-1], "ends": ends})

    def undrain(
        self,
        client: int | None = None,
        *,
        server: str = "",
        namespace: str = "",
        cgroup: str = "",
        user: int | None = None,
        device: str = "",
        everything: bool = False,
    ) -> None:
        """End the drain of one target, given as for `drain`; without a target, end all drains. Held clients are then
        served.

        Raises:
            CannotAsk: The target is not being drained, or is another user's.
        """
        self.command(" ".join(("undrain", *_target(client, server, namespace, cgroup, user, device, everything))))

    def environment(self, server: str = "", namespace: str = "") -> dict[str, str]:
        """Return the environment variables that make a program a client of this daemon.

        With them a program fails if the daemon is gone, instead of running without MPS.

        Args:
            server: The name of a server (protocol 3). Empty: the daemon chooses.
            namespace: The name of a namespace of that server. Empty: its default namespace.

        >>> RunningDaemon("/run/mps").environment("a", "low")["CUDA_MPS_PIPE_DIRECTORY"]
        '/run/mps/a/low'
        """
        folder = os.path.join(self.pipe_directory, server, namespace) if server else self.pipe_directory
        return {"CUDA_MPS_PIPE_DIRECTORY": folder, "PYMPSD_REQUIRE_MPS": "1"}

    def _query(self, query: str) -> Any:
        with Control(self.pipe_directory) as control:
            return control.query(query)[0]


class Daemon(RunningDaemon):
    """A daemon that runs during a ``with`` block, in temporary directories, and ends with its servers after it.

    Args:
        machine: Its emulated machine, as PYMPSD_EMULATED_DEVICES describes one. Empty: this machine's GPUs.
        protocol: 2 (a server for each user) or 3 (named servers with namespaces).
        users: ``in-turn`` or ``together``, as ``--users``.
        options: More options of the command line.
        settings: Environment variables of the daemon. It inherits none of CUDA's and pympsd's own.

    Raises:
        CannotStart: On entry, or by `start`; nothing is left behind.

    Some Unix signals kill a daemon as they kill any process; `start` then starts another in the same directories,
    which takes over its servers.
    """

    def __init__(
        self,
        machine: str = "",
        protocol: int = 2,
        users: str = "in-turn",
        options: tuple[str, ...] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._machine, self._settings = machine, dict(settings or {})
        self._arguments = ("-f", "--protocol", str(protocol), "--users", users, *options)
        self._folder = Path(tempfile.gettempdir(), f"pympsd-{secrets.token_hex(8)}")
        self._process: subprocess.Popen[bytes] | None = None
        self.log_directory: Final = str(self._folder / "log")
        super().__init__(str(self._folder / "pipe"))

    @property
    def pid(self) -> int:
        """The daemon's PID; 0 if it does not run.

        It changes when `start` starts another daemon after a crash. A daemon that was killed is noticed immediately;
        one that is stopped (SIGSTOP) still runs.
        """
        return 0 if self._process is None or self._process.poll() is not None else self._process.pid

    def log(self) -> str:
        """Return the text of its control.log and of all server.log files, undecodable bytes replaced.

        Lines of named servers (protocol 3) come after those of the shared files, by the server's name. The text is
        gone after `stop`, which removes the directories; "" if nothing was logged.
        """
        folder = Path(self.log_directory)
        paths = (folder / "control.log", folder / "server.log", *sorted(folder.glob("*/server.log")))
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def start(self) -> Self:
        """Start the daemon, or after a crash another one; return it when it accepts clients.

        Waits up to 60 s: the driver of a GPU may take long to report its devices.

        Raises:
            CannotStart: The daemon runs already, did not start, or was not ready in time.
        """
        if self.pid:
            raise CannotStart(f"the daemon is already running, as process {self.pid}")
        is_new = not self._folder.exists()
        try:
            for folder in (self._folder, self.pipe_directory, self.log_directory) if is_new else ():
                os.mkdir(folder)
                os.chmod(folder, 0o755)  # other users may have clients
            self._begin()
        except (OSError, CannotStart) as error:
            if is_new:
                self._remove()
            if isinstance(error, OSError):
                raise CannotStart(f"{self._folder}: {error.strerror or error}") from None
            raise
        return self

    def _begin(self) -> None:
        """Start a daemon, which takes over from an earlier one there; raise CannotStart, OSError."""
        notice = str(self._folder / "notice")
        complaints, output = Path(self._folder, "stderr"), Path(self.log_directory, "control.log")
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            complaints.open("wb") as errors,
            output.open("ab") as log,
        ):
            ready.bind(notice)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pympsd", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=errors,
                env={**self._environment(), "NOTIFY_SOCKET": notice},
            )
            is_ready = _is_ready(ready, self._process)
        os.unlink(notice)
        if not is_ready:
            self._kill()
            complaint = complaints.read_text(errors="replace").strip()
            raise CannotStart(complaint or f"the daemon was not ready within {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """End the daemon with its servers and their clients' contexts, and remove its directories.

        Waits up to 30 s, and then kills the daemon. Does nothing if the daemon has been stopped already.
        """
        self._quit()
        if os.path.exists(os.path.join(self.pipe_directory, files.KEEPER)):
            # It was killed, and its servers still run: another daemon takes them over, and ends them.
            with suppress(CannotStart, OSError):
                self._begin()
            self._quit()
        self._remove()

    def _quit(self) -> None:
        if self.pid:
            with suppress(CannotAsk):
                self.command("quit -t 0")
        self._kill(END_SECONDS)

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
        emulated = {"PYMPSD_EMULATED_DEVICES": self._machine, "PYMPSD_BACKEND": "emulated"} if self._machine else {}
        own = {
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe_directory,
            "CUDA_MPS_LOG_DIRECTORY": self.log_directory,
            # Compute modes that were set for a machine of this name are not this one's.
            "PYMPSD_STATE_DIRECTORY": str(self._folder),
        }
        return {**inherited, **own, **emulated, **self._settings}

    def _kill(self, wait_seconds: float = 0.0) -> None:
        process = self._process
        if process is not None:
            try:
                process.wait(wait_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _target(
    client: int | None, server: str, namespace: str, cgroup: str, user: int | None, device: str, everything: bool
) -> list[str]:
    """Return the words that name the target of a drain."""
    options = {"server": server, "namespace": namespace, "cgroup": cgroup, "device": device}
    words = [] if client is None else [str(client)]
    words += [f"--{name}={value}" for name, value in options.items() if value]
    words += [] if user is None else [f"--user={user}"]
    return [*words, *["--all"] * everything]


def _is_ready(ready: socket.socket, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a daemon reports that it is ready; return whether it does so in time."""
    pidfd = os.pidfd_open(process.pid)
    try:
        readable, _, _ = select.select([ready.fileno(), pidfd], [], [], START_SECONDS)
    finally:
        os.close(pidfd)
    return ready.fileno() in readable
