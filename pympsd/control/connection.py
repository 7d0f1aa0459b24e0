"""A connection to the daemon: its queries as data, its commands as text.

`pympsd.control.RunningDaemon` opens one for each call; use `Control` itself to ask several questions over one
connection, or to choose the time-out.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

from pympsd.channel.attached_file import expand_path, text_of
from pympsd.cli import daemon_connection
from pympsd.errors import DaemonError
from pympsd.vocabulary.untrusted import ESCAPED, is_query
from pympsd.wire import frames


class CannotAsk(DaemonError):
    """No daemon listens, or it is silent, or it refused; the message explains which.

    Raised by `Control` and by every call of `RunningDaemon` that asks the daemon. The text of a refusal begins with
    the command, and control characters in it are escaped, so it may be shown on a terminal.

    >>> from pympsd.control import Control
    >>> Control("/nowhere")
    Traceback (most recent call last):
    pympsd.control.connection.CannotAsk: /nowhere/control: ...
    """

    printed = ""
    """The text that the daemon printed although it refused the command."""


class Silent(CannotAsk):
    """The daemon does not answer within the timeout.

    The daemon is stopped, or busy with another command for longer than `Control` waits. Asking again may succeed; for
    any other CannotAsk it does not, unless somebody starts a daemon or changes the request.
    """


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)


class Control:
    """A connection to a daemon; close it, or use it in a ``with`` statement.

    Args:
        pipe_directory: The daemon's. Empty: CUDA_MPS_PIPE_DIRECTORY, or the default directory.
        timeout: Seconds to wait for a silent daemon. There is no limit for a daemon that reports that it is working,
            unless it is another user's.
        warn: Called with a sentence if the daemon is neither root's nor this user's. Default: a RuntimeWarning.
        trust_daemon: Send commands that change something to such a daemon too. Otherwise it gets queries only.

    Raises:
        CannotAsk: No daemon listens at this directory, or it does not take commands.

    >>> from pympsd.control import Daemon
    >>> with Daemon(machine="H200") as daemon, Control(daemon.pipe_directory) as control:
    ...     control.command("get_default_active_thread_percentage"), control.query("get_server_list", "ps")
    ('100.0\\n', [[], []])
    """

    def __init__(
        self,
        pipe_directory: str = "",
        timeout: float = daemon_connection.TIMEOUT,
        warn: Callable[[str], None] = _warn,
        trust_daemon: bool = False,
    ) -> None:
        folder = pipe_directory.encode()
        self._timeout, self._trust_daemon = timeout, trust_daemon
        self._daemon = daemon_connection.DaemonConnection()
        try:
            path, reason = self._daemon.reach(timeout, folder)  # the vendor's own daemon has no JSON
            if reason:
                raise CannotAsk(f"{path.decode(errors='replace')}: {reason}; check CUDA_MPS_PIPE_DIRECTORY")
            self.owner_warning = self._daemon.owner_warning(path, timeout).decode(errors="replace").rstrip()
            """A sentence that names the daemon's user, if that is neither root nor this user."""
            if self.owner_warning:
                self._daemon.distrust(timeout)
                warn(self.owner_warning)
            self._daemon.send(frames.encode(frames.OPERATOR_HELLO))
        except (CannotAsk, TimeoutError, OSError) as error:
            self.close()
            raise self._failure(error) from None

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. It may be closed more than once.

        A command that was sent is carried out nevertheless. Afterwards every other method raises CannotAsk.
        """
        self._daemon.close()

    def query(self, *queries: str) -> list[Any]:
        """Return the answers to queries with --json, one value each, all requested together.

        In protocol 3 these are the rows of ``list`` and ``describe``, and the text of another query.

        Raises:
            CannotAsk: A query was refused, or the daemon is gone.
        """
        return [_json(text) for text in self._ask([f"{query} --json" for query in queries])]

    def listing(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query of protocol 3, a dict for each with the columns as keys.

        Args:
            query: ``MODULE list`` or ``MODULE describe`` with its options, such as ``namespace list --server=a``;
                without ``--format``, which is added.

        Raises:
            CannotAsk: The query was refused (a daemon of protocol 2 refuses it), or the daemon is gone.
        """
        rows: list[dict[str, Any]] = _json(self._ask([f"{query} --format=json"])[0])
        return rows

    def command(self, line: str) -> str:
        """Give the daemon a command and return what it prints. For ``config apply`` the file is sent with it.

        Raises:
            CannotAsk: The daemon refused the command, the file cannot be read, or the command was not sent because
                the daemon is another user's.
        """
        if self._daemon.is_foreign and not self._trust_daemon and not is_query(line):
            raise CannotAsk(
                f"{line}: not sent, because it may change something: {self.owner_warning} (trust_daemon sends it)"
            )
        words = line.split()
        if words[:2] == ["config", "apply"]:
            try:
                text = text_of(words[2:])
            except LookupError as error:
                raise CannotAsk(f"{line}: {error.args[0]}") from None
            self._daemon.send(frames.encode(frames.OPERATOR_FILE, text))
            line = " ".join((*words[:2], *expand_path(words[2:])))
        return self._ask([line])[0]

    def report(self, line: str) -> list[dict[str, Any]]:
        """Give the daemon a command with --json and return the records that it prints, even if it has failed.

        Raises:
            CannotAsk: The daemon refused the command, or it was not sent because the daemon is another user's.
        """
        try:
            printed = self.command(f"{line} --json")
        except CannotAsk as refusal:
            if not refusal.printed:
                raise
            printed = refusal.printed
        return [_json(text) for text in printed.splitlines()]

    def _ask(self, lines: list[str]) -> list[str]:
        try:
            self._daemon.send(b"".join(frames.encode(frames.OPERATOR_LINE, line.encode()) for line in lines))
            self._daemon.begin_answer()
            answers = [self._answer() for _ in lines]
        except (daemon_connection.DaemonGone, TimeoutError, OSError) as error:
            raise self._failure(error) from None
        for line, (printed, complaint, refused) in zip(lines, answers, strict=True):
            if refused:
                # The message may be shown on a terminal.
                refusal = CannotAsk(f"{line}: {complaint or printed}".strip().translate(ESCAPED))
                refusal.printed = printed
                raise refusal
        return [printed for printed, _, _ in answers]

    def _answer(self) -> tuple[str, str, bool]:
        output = {frames.OPERATOR_STDOUT: b"", frames.OPERATOR_STDERR: b""}
        while True:
            kind, body = self._daemon.receive()
            if kind == frames.OPERATOR_DONE:
                self._daemon.wait_at_most(self._timeout)
                printed, complaint = (text.decode(errors="replace") for text in output.values())
                return printed, complaint, body != b"\0"
            if kind == frames.OPERATOR_WORKING:
                self._daemon.wait_at_most(0)
            elif kind in output:
                output[kind] += body

    def _failure(self, error: Exception) -> CannotAsk:
        if isinstance(error, CannotAsk):
            return error
        if isinstance(error, TimeoutError):
            return Silent(f"the MPS control daemon sent nothing for {self._timeout:g} s")
        if isinstance(error, OSError) and error.errno is None:
            return CannotAsk(str(error))  # the daemon sent too much
        return CannotAsk(f"the MPS control daemon has closed the connection {error}".strip())


def _json(text: str) -> Any:
    """Return the value of a JSON text; raise CannotAsk."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CannotAsk(f"the MPS control daemon's answer is not JSON: {error}".translate(ESCAPED)) from None
