"""Write the file pympsd.nvml in the pipe directory, from which libnvidia-ml.so.1 reads the devices and who uses them.

Theory of operation. NVML works without a server and without a request to the daemon, so the daemon keeps the answers
in a file (`pympsd.devices.nvml_text`) that every user can read. `NvmlFile.update` is called after changes of the
state (`pympsd.service.followers`), at most a few times per second; an idle daemon writes nothing. The file is
replaced as a whole, so a reader sees one state or the next, and recognises a new one by its inode.

The invariants:

- The processes are those of this daemon that pympsd-smi shows: each server on its devices, and the clients with a
  context there. Before Volta all memory is the server's (MPS documents, 2.3.1.1).
- The utilization is the sum of the running servers' last reports. Servers measure it
  (`pympsd_server.executor.memory.device_memory`) and report changes, so nothing is timed here.
- The file has only the compute modes of the machine's description. pympsd-smi keeps changed modes in a file of its
  own, whose path is in this file.
- A daemon removes its file when it ends; the next daemon replaces the file of a killed one. With the driver's own
  server this file does not exist, and NVML is the driver's.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Final

from attrs import define, field

from pympsd.devices.nvml_text import DeviceProcess, ModesFile, nvml_text
from pympsd.devices.state_folder import state_folder_of
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.files import remains
from pympsd.service.files.pipe_directory import PipeDirectory
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary import files
from pympsd.vocabulary.device_properties import combine_utilization

MODE: Final = 0o644


@define
class NvmlFile:
    """Writes the file of the running daemon."""

    dispatcher: Dispatcher
    directory: PipeDirectory
    _written: str = field(default="", init=False)
    _has_failed: bool = field(default=False, init=False)

    def update(self) -> None:
        """Replace the file if its contents have changed; log a failure once, and try again at the next change."""
        text = self._text()
        if text == self._written and os.path.lexists(self.directory.name(files.NVML)):
            return
        try:
            self._replace(text)
        except OSError as error:
            if not self._has_failed:
                reason = str(error) if isinstance(error, remains.NotOfADaemon) else error.strerror
                self.dispatcher.log.error("nvml_not_written", file=self.directory.name(files.NVML), reason=reason)
            self._has_failed = True
            return
        self._written, self._has_failed = text, False

    def _text(self) -> str:
        state, settings = self.dispatcher.state, self.dispatcher.settings
        ordinals = range(len(state.devices))
        processes = [list_processes(state, ordinal) for ordinal in ordinals]
        is_counted = settings.backend == "emulated"  # for GPUs the driver counts it
        percentages = [get_utilization(state, ordinal) if is_counted else None for ordinal in ordinals]
        return nvml_text(settings.backend, state.devices, processes, self._modes(), percentages)

    def _modes(self) -> ModesFile | None:
        if self.dispatcher.settings.backend != "emulated":
            return None
        folder = state_folder_of(self.dispatcher.settings.emulated_devices)
        try:
            owner = os.stat(folder.description).st_uid if folder.description else 0
        except OSError:
            owner = 0
        return ModesFile(folder.modes_path, owner)

    def _replace(self, text: str) -> None:
        if self.directory.is_taken_by_another():
            return  # the file is the other daemon's
        remains.check(self.directory.name(files.NVML))
        new = self.directory.name(files.NEW_NVML)
        remains.remove(new)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(new, flags, MODE), "w") as file:
                file.write(text)
            os.rename(new, self.directory.name(files.NVML))
        except OSError:
            remains.remove(new)
            raise


def get_utilization(daemon: Daemon, ordinal: int) -> int | None:
    """Return the percentage of time in which kernels of any server ran on a device.

    Return None if a server on the device is of an earlier version, which does not report it.
    """
    uses = [server.use[ordinal] for server in daemon.list_running_servers() if ordinal in server.use]
    percentages = [use.utilization for use in uses if use.utilization is not None]
    return combine_utilization(percentages) if len(percentages) == len(uses) else None


def list_processes(daemon: Daemon, ordinal: int) -> list[DeviceProcess]:
    """Return the processes on a device: each server by PID, followed by its clients by PID."""
    servers = [server for server in daemon.list_running_servers() if ordinal in daemon.ordinals_of(server)]
    is_volta = daemon.devices[ordinal].is_volta_or_newer
    return [
        process
        for server in sorted(servers, key=lambda server: server.pid)
        for process in _list_processes(server, ordinal, is_volta)
    ]


def _list_processes(server: Server, ordinal: int, is_volta: bool) -> Iterator[DeviceProcess]:
    used: Counter[int] = Counter()
    for client in server.clients.values():
        count = client.memory.get(ordinal, 0)
        if count or any(context.device == ordinal for context in client.contexts.values()):
            used[client.pid] += count
    unclaimed_bytes = server.use[ordinal].left if ordinal in server.use else 0
    held_bytes = unclaimed_bytes if is_volta else unclaimed_bytes + used.total()
    yield DeviceProcess(server.pid, False, held_bytes, server.utilization.get(ordinal, 0))
    if is_volta:
        yield from (DeviceProcess(pid, True, count) for pid, count in sorted(used.items()))
