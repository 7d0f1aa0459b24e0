"""The daemon's side of its keeper: deposit descriptors there, and fetch those of the previous daemon's keeper.

    found = await KeeperLink.fetch(directory, log)  # None: there is no keeper, or it cannot be used
    keeper, held = found or (KeeperLink(directory, log), {})
    await nursery.start(keeper.run)                 # starts a process if there is none, and another when it ends
    keeper.hold("listener control", listener.fileno())       # before anything relies on the descriptor
    await keeper.accept("listener control", "connection 1", b"", late)  # a connection that it holds already
    keeper.drop("listener control")                         # before the descriptor is closed
    keeper.end()                                    # the daemon quits; ``run`` returns soon afterwards

Only ``fetch`` waits for the keeper, and it has a limit. ``run`` sends the packets that the link did not take: in
order, and of each name only its latest state. A keeper that takes nothing for STALLED_SECONDS is killed. Another is
started in place of one that has ended, and is given everything again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import ADVICE, close_all, explain
from pympsd.service.files.pipe_directory import PipeDirectory, Unusable
from pympsd.service.processes.fd_quota import SPARE, can_open
from pympsd.takeover.keeper import packets as packets
from pympsd.takeover.keeper.process import Entry, KeeperProcess
from pympsd.vocabulary import files
from pympsd.vocabulary.identities import Ids

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

WAITING_SECONDS: Final = 60.0
"""The seconds for which a keeper without a daemon, and without servers, waits for the next daemon."""
FETCH_SECONDS: Final = 5.0
"""The seconds in which the previous daemon's keeper has to send everything."""
STALLED_SECONDS: Final = 5.0
"""The seconds after which a keeper whose link is full counts as stopped; on a busy machine its start takes
seconds."""
PAUSES: Final = (0.0, 0.1, 0.5, 2.0, 10.0)
"""The seconds before each new start of a keeper; the last pause is repeated."""
STABLE_SECONDS: Final = 10.0
"""The seconds after which a running keeper counts as working, so that the next restart begins with the first pause
again."""
ANSWER_SECONDS: Final = 0.25
"""The seconds in which the keeper has to accept a connection; after them the daemon itself accepts."""
_NO_DESCRIPTOR: Final = -2
CROWDED_SECONDS: Final = 0.01
"""The seconds before the next try to send if the kernel did not take a packet into a link that had space."""


@define(eq=False)
class _Request:
    """A request to the keeper to accept a connection.

    ``fd`` is the result: the connection's descriptor, -1 if no connection waited, _NO_DESCRIPTOR if this process
    could not receive it, None if the keeper cannot accept. ``late`` is called with a descriptor that arrives when the
    request's task no longer waits.
    """

    late: Callable[[int], None]
    fd: int | None = None
    is_late: bool = False
    answered: trio.Event = field(factory=trio.Event)

    def answer(self, fd: int | None) -> None:
        """Give the answer to the task that waits for it, or if that no longer waits, to ``late``."""
        self.fd = fd
        self.answered.set()
        if self.is_late and fd is not None and fd >= 0:
            self.late(fd)


@define(eq=False)
class KeeperLink:
    """The descriptors to be held, and the process that holds them. The descriptors stay the caller's."""

    directory: PipeDirectory
    log: FilteringBoundLogger
    waiting_seconds: float = WAITING_SECONDS
    stalled_seconds: float = STALLED_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    connections: Ids = field(factory=Ids)
    """The allocator of the ids of connections, which are in the entries' names."""
    _process: KeeperProcess | None = None
    _held: dict[str, Entry] = field(factory=dict)
    _unsent: dict[str, bool] = field(factory=dict, init=False)
    """The names whose latest state has not been sent, in order; True if it must be sent with the descriptor."""
    _has_unsent: trio.Event = field(factory=trio.Event, init=False)
    _caught_up: trio.Event | None = field(default=None, init=False)
    """An event that is set when the link has taken everything; None if nothing is left to send."""
    _requests: dict[str, _Request] = field(factory=dict, init=False)
    """The pending requests, by the name of the connection."""
    _ending: trio.Event = field(factory=trio.Event, init=False)
    _replaced: bool = field(default=False, init=False)

    @classmethod
    async def fetch(
        cls, directory: PipeDirectory, log: FilteringBoundLogger, seconds: float = FETCH_SECONDS
    ) -> tuple[KeeperLink, dict[str, Entry]] | None:
        """Return the keeper of the previous daemon, and its entries in order; None if another keeper must be started.

        The caller owns the descriptors, and drops the entries that it does not need. Only a keeper of this process's
        user is believed. One that does not send everything within ``seconds`` is killed. Raise Unusable, and leave
        everything as it is, if this process may not open that many files.
        """
        process = KeeperProcess.find(directory)
        if process is None:
            return None
        entries: dict[str, Entry] = {}
        reason = f"the keeper did not send its entries within {seconds:g} s"
        with trio.move_on_after(seconds):
            reason = await _receive_entries(process, entries)
        is_short = any(entry.fd < 0 for entry in entries.values()) or not can_open(SPARE)
        if not reason and not is_short:
            return cls(directory, log, process=process, held=dict(entries)), entries
        close_all(entry.fd for entry in entries.values() if entry.fd >= 0)
        if reason:
            log.error("keeper_unusable", reason=reason)
            await process.kill()
            return None
        process.close()  # it takes this daemon for killed, and waits for another
        what = f"{len(entries)} sockets of the previous daemon are more than this daemon may open"
        effect = "until then servers and programs continue, and clients wait"
        raise Unusable(directory.requested_path, f"{what}: {ADVICE} and start the daemon again; {effect}")

    def hold(self, name: str, fd: int, note: bytes = b"") -> None:
        """Hold a copy of a descriptor, which stays the caller's; drop the copy if the note is too long.

        Args:
            name: The name by which the next daemon recognises the descriptor, at most NAME_BYTES long (ValueError if
                it is longer); an earlier one of that name is replaced.
            fd: The descriptor, which the keeper copies.
            note: The data that the next daemon needs to continue, such as a hello; at most NOTE_BYTES.
        """
        if len(note) > packets.NOTE_BYTES:
            self.drop(name)
            return
        packets.encode(packets.HOLD, name, note)
        self._held.pop(name, None)
        self._held[name] = Entry(note, fd)
        self._unsent.pop(name, None)  # its place is now the last
        self._note_change(name, True)

    def note(self, name: str, note: bytes) -> None:
        """Replace an entry's note; raise KeyError if there is no such entry, ValueError if the note is too long."""
        packets.encode(packets.NOTE, name, note)
        self._held[name] = Entry(note, self._held[name].fd)
        self._note_change(name, self._unsent.get(name, False))

    def drop(self, name: str) -> None:
        """Close and remove an entry. Call this before the descriptor is closed here."""
        self._held.pop(name, None)
        self._note_change(name, False)

    @contextlib.contextmanager
    def hold_during(self, name: str, fd: int, note: bytes = b"") -> Iterator[None]:
        """Hold a descriptor during a block.

        If this daemon is ending, the keeper holds it also after the block, for the next daemon.
        """
        self.hold(name, fd, note)
        with self.drop_after(name):
            yield

    @contextlib.contextmanager
    def drop_after(self, name: str) -> Iterator[None]:
        """On leaving the block, drop a descriptor that was held before, unless this daemon is ending."""
        is_cancelled = True
        try:
            yield
            is_cancelled = False
        except Exception:
            is_cancelled = False
            raise
        finally:
            if not is_cancelled:
                self.drop(name)

    async def accept(self, listener: str, name: str, greeting: bytes, late: Callable[[int], None]) -> int | None:
        """Ask the keeper to accept a connection; return its descriptor, -1 if there was none, None if it cannot.

        The keeper then holds it already under ``name``, whenever the daemon is killed; ``greeting`` has been sent. A
        keeper that does not answer within ANSWER_SECONDS is not asked again before it has: its answer goes to
        ``late``. Raise OSError if this process has no descriptor left for the connection, which is then closed.
        """
        await self.wait_until_caught_up()
        process = self._process
        if process is None or self._replaced or self.is_silent:
            return None
        request = self._requests[name] = _Request(late)
        try:
            process.send(packets.encode(packets.ACCEPT, listener, name.encode() + b"\0" + greeting))
        except OSError:  # full, or gone
            del self._requests[name]
            return None
        try:
            with trio.move_on_after(self.answer_seconds):
                await request.answered.wait()
        finally:
            request.is_late = not request.answered.is_set()
        if request.fd == _NO_DESCRIPTOR:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return request.fd

    @property
    def is_silent(self) -> bool:
        """Return whether the keeper is late: packets to it stay in the link until it continues or is killed."""
        return any(request.is_late for request in self._requests.values())

    async def wait_until_caught_up(self) -> None:
        """Return when the link has taken everything, or there is no keeper; within about STALLED_SECONDS."""
        if self._caught_up is not None:
            await self._caught_up.wait()

    def end(self) -> None:
        """Remove the socket and end the process: the daemon quits."""
        self._ending.set()
        with contextlib.suppress(OSError, Unusable):
            self.directory.remove(files.KEEPER)
        if self._process is not None:
            try:
                self._process.send(packets.encode(packets.END))
            except OSError:
                # Without the packet it would take the daemon for killed.
                self._process.signal_kill()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a keeper running; return after ``end``, or when it serves another daemon.

        ``task_status`` is set after the first try to start one. By then everything held so far has been sent.
        """
        started, failures = False, 0
        while not self._ending.is_set():
            began = trio.current_time()
            reason = "" if self._process is not None else await self._start()
            if not started:
                task_status.started()
                started = True
            if self._process is not None:
                reason = await self._watch(self._process)
            if self._replaced or self._ending.is_set():
                return
            failures = 0 if trio.current_time() - began >= STABLE_SECONDS else failures
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            failures += 1
            self.log.error("keeper_ended", reason=reason, seconds=pause)
            with trio.move_on_after(pause):
                await self._ending.wait()

    async def _start(self) -> str:
        """Start a process and send it everything that is held; return why that failed, or nothing."""
        try:
            self._process = await KeeperProcess.start(self.directory, self.waiting_seconds)
        except OSError as error:
            return f"the keeper cannot be started: {explain(error)}"
        except Unusable as error:
            return f"the keeper cannot be started: {error}"
        self._unsent = dict.fromkeys(self._held, True)
        self._send_now(self._process)
        if self._ending.is_set():
            self.end()
        return ""

    async def _watch(self, process: KeeperProcess) -> str:
        """Kill a keeper that cannot be used any more, unless it serves another daemon, and return why."""
        reasons: list[str] = []

        async def until(work: Callable[[KeeperProcess], Awaitable[str]]) -> None:
            reasons.append(await work(process))
            nursery.cancel_scope.cancel()

        try:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(until, self._read)
                    nursery.start_soon(until, self._send_later)
            finally:
                # Before it is killed: nothing more is sent to it, and its successor is sent everything.
                self._process = None
                self._set_caught_up()
                for name in list(self._requests):
                    self._requests.pop(name).answer(None)
            if not self._replaced:
                await process.kill()
        finally:
            process.close()
        return reasons[0]

    async def _read(self, process: KeeperProcess) -> str:
        """Handle the keeper's packets; return why it can no longer be used."""
        while True:
            received = await _receive_packet(process)
            if isinstance(received, str):
                return received
            kind, name, entry = received
            request = self._requests.pop(name, None) if kind in (packets.HOLD, packets.REFUSED) else None
            if request is not None and kind == packets.HOLD:
                if entry.fd >= 0:
                    self._held[name] = entry
                else:
                    self.drop(name)
                request.answer(entry.fd if entry.fd >= 0 else _NO_DESCRIPTOR)
                continue
            if entry.fd >= 0:
                close_all((entry.fd,))
            if request is not None:
                request.answer(None if entry.note else -1)
            elif kind == packets.REPLACED:
                self._replaced = True
            elif kind == packets.REFUSED:
                self.log.error("keeper_lacks", name=name, reason=entry.note.decode(errors="replace"))

    async def _send_later(self, process: KeeperProcess) -> str:
        """Send the packets that the link did not take immediately; return why the keeper cannot be used any more."""
        while True:
            while self._unsent:
                with trio.move_on_after(self.stalled_seconds) as waiting:
                    await trio.lowlevel.wait_writable(process.link)
                if waiting.cancelled_caught:
                    return f"the keeper has received nothing for {self.stalled_seconds:g} s"
                if not self._send_unsent(process):
                    await trio.sleep(CROWDED_SECONDS)
            self._set_caught_up()
            self._has_unsent = trio.Event()
            await self._has_unsent.wait()

    def _note_change(self, name: str, with_descriptor: bool) -> None:
        if self._process is None:
            return  # the next one is sent everything
        self._unsent[name] = with_descriptor
        self._send_now(self._process)

    def _send_now(self, process: KeeperProcess) -> None:
        """Send as much as the link takes now; ``_send_later`` sends the rest."""
        if not self._send_unsent(process):
            self._has_unsent.set()
            if self._caught_up is None:
                self._caught_up = trio.Event()

    def _set_caught_up(self) -> None:
        if self._caught_up is not None:
            self._caught_up.set()
            self._caught_up = None

    def _send_unsent(self, process: KeeperProcess) -> bool:
        """Send as much as the link takes now; return whether that was all."""
        while self._unsent:
            name, with_descriptor = next(iter(self._unsent.items()))
            try:
                self._send(process, name, with_descriptor)
            except OSError as error:
                if error.errno != errno.EBADF:
                    return False  # full, or gone, which ``_read`` sees
                self.log.error("keeper_lacks", name=name, reason=explain(error))
                self._held.pop(name, None)
            del self._unsent[name]
        return True

    def _send(self, process: KeeperProcess, name: str, with_descriptor: bool) -> None:
        entry = self._held.get(name)
        if entry is None:
            process.send(packets.encode(packets.DROP, name))
        elif with_descriptor:
            process.send(packets.encode(packets.HOLD, name, entry.note), entry.fd)
        else:
            process.send(packets.encode(packets.NOTE, name, entry.note))


async def _receive_entries(process: KeeperProcess, entries: dict[str, Entry]) -> str:
    """Receive the entries of a keeper; return why that failed, or nothing."""
    while True:
        received = await _receive_packet(process)
        if isinstance(received, str):
            return received
        kind, name, entry = received
        if kind == packets.COMPLETE:
            return ""
        entries[name] = entry


async def _receive_packet(process: KeeperProcess) -> tuple[int, str, Entry] | str:
    """Return the next packet, or why the keeper cannot be used any more."""
    try:
        received = await process.receive()
    except packets.Malformed as error:
        return f"the keeper sent a malformed packet: {error}"
    return "the keeper has ended" if received is None else received
