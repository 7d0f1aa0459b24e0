"""Configuration of structlog, only here: an event name and fields in, a sentence of the catalogue out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from attrs import Factory, evolve, field, frozen

from pympsd.journal.catalogue import CONTROL_LINES, SERVER_LINES
from pympsd.journal.files import LogFile
from pympsd.journal.line_format import Dialect, Line, LogEntry, render
from pympsd.journal.log_folders import LogFolders
from pympsd.journal.recognition import Recognised, Recogniser
from pympsd.vocabulary.files import SERVER_LOG

Fields = dict[str, str | int | float]


@frozen
class Journal:
    """The daemon's two logs, in one dialect; either is None if its file could not be opened."""

    control: LogFile | None
    server: LogFile | None
    dialect: Dialect = Dialect.DOCUMENTED
    folder: str = ""
    """The log directory; named servers have theirs there."""
    folders: LogFolders = field(default=Factory(lambda self: LogFolders(self.folder), takes_self=True), init=False)
    """The folders that were made there."""
    _recogniser: Recogniser = field(factory=Recogniser, init=False)
    _named: dict[str, LogFile] = field(factory=dict, init=False)
    """The logs of named servers, by name."""
    _given: dict[str, int] = field(factory=dict, init=False)
    """The users who own the folders of named servers' logs, by the server's name."""
    _names: dict[int, str] = field(factory=dict, init=False)
    """The names of servers by the PIDs of their latest processes."""

    def write_control(self, event: str, fields: dict[str, Any]) -> None:
        """Write a line of control.log; a newline in an answer is written as it is, as recorded."""
        self._write(self.control, LogEntry("Control", os.getpid(), event, fields, time.time()), CONTROL_LINES)

    def write_server(
        self,
        who: str,
        pid: int,
        event: str,
        fields: dict[str, Any],
        when: float | None = None,
        is_volta: bool = True,
    ) -> None:
        """Write a line of server.log, for a server (``who`` Server) or the FIFO (Other)."""
        entry = LogEntry(who, pid, event, fields, time.time() if when is None else when, is_volta)
        self._write(self._named.get(self._names.get(pid, ""), self.server), entry, SERVER_LINES)

    def write_server_text(self, who: str, pid: int, text: str, when: float | None = None) -> None:
        """Write a line of the driver's own server: unchanged in r580, in other dialects as its event, if it has one.

        ``who`` is the server's name for itself, which only r580 shows; other dialects call it Server, as they do
        pympsd's own.
        """
        recognised = Recognised("vendor_line", {"text": text})
        if self.dialect is not Dialect.R580:
            who, recognised = "Server", self._recogniser.recognise(pid, text) or recognised
        event = recognised.documented if self.dialect is Dialect.DOCUMENTED else recognised.event
        self.write_server(who, pid, event, recognised.fields, when)

    def open_for_server(self, name: str, uid: int, pid: int = 0) -> Journal:
        """Return a journal whose server.log is that of a user's named server; lines of process ``pid`` go there from
        now on.
        """
        if name not in self._named and self.server is not None:
            try:
                self.folders.check_room(name, uid)
                is_new = self.folders.is_missing(name)
                file = LogFile(os.path.join(self.folder, name, SERVER_LOG), uid, self._given.get(name))
                self.folders.note_opened(name, uid, is_new)
                self._named[name], self._given[name] = file, uid
            except OSError as error:
                self.write_control("server_log_not_opened", {"name": name, "reason": error.strerror})
                return self  # the lines then go to the log of all servers
        if pid:
            for earlier in [earlier_pid for earlier_pid, server_name in self._names.items() if server_name == name]:
                del self._names[earlier]
            self._names[pid] = name
        return evolve(self, server=self._named.get(name, self.server))

    def close_server_log(self, name: str) -> None:
        """Close the log of a named server that is deleted; its folder is removed or kept as `LogFolders` decides."""
        if (file := self._named.pop(name, None)) is not None:
            file.close()
            self.folders.note_deleted(name)
        for pid in [pid for pid, server_name in self._names.items() if server_name == name]:
            del self._names[pid]
        # Users can make up any number of names.
        for server_name in self._given.keys() - self._named.keys():
            if self.folders.is_missing(server_name):
                del self._given[server_name]

    def _write(self, file: LogFile | None, entry: LogEntry, lines: dict[str, Line]) -> None:
        data = render(entry, lines[entry.event], self.dialect)
        if file is None or data is None:
            return
        if file.dropped:
            self._report_dropped(file, entry.when, lines)
        file.write(data)

    def _report_dropped(self, file: LogFile, when: float, lines: dict[str, Line]) -> None:
        fields = {"count": file.dropped, "reason": file.reason}
        line = render(LogEntry("Control", os.getpid(), "lines_lost", fields, when), lines["lines_lost"], self.dialect)
        if line is not None:
            file.report_dropped(line)

    def reopen(self) -> list[str]:
        """Open all files again by their paths; return a sentence for each that cannot be opened and stays as it
        is.
        """
        if self.server is None:
            return ["There are no log files: they could not be opened when the daemon started."]
        failed = []
        for file in filter(None, (self.control, self.server, *self._named.values())):
            try:
                file.reopen()
            except OSError as error:
                failed.append(
                    f"{file.path} cannot be opened ({error.strerror}): its lines still go to the former file."
                )
        return failed


def control_logger(journal: Journal) -> structlog.typing.FilteringBoundLogger:
    """Configure structlog for the daemon: ``logger.info(event, **fields)`` writes a line of control.log."""
    return _configure(journal.write_control)


def link_logger(send: Callable[[str, Fields, float], None]) -> structlog.typing.FilteringBoundLogger:
    """Configure structlog for a server: events are sent to the daemon, which formats and writes them."""
    return _configure(lambda event, fields: send(event, fields, time.time()))


def _configure(emit: Callable[[str, dict[str, Any]], None]) -> structlog.typing.FilteringBoundLogger:
    def deliver(_: object, __: str, event_dict: MutableMapping[str, Any]) -> str:
        event = event_dict.pop("event")
        emit(event, dict(event_dict))
        raise structlog.DropEvent

    structlog.configure(
        processors=[deliver],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    # Bound once: a lazy proxy would be assembled again for every line.
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind()
    return logger
