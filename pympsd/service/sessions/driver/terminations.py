"""Terminations of clients of the driver's server, which is never asked to terminate the same context twice.

Asked again while the context is still there, it answers nothing any more, to any question, until the client's process
ends (measured on driver 580). A context stays there until its process destroys or resets it.
"""

from collections.abc import Callable

from attrs import define, field

from pympsd.service.sessions.driver.server_link import ServerLink
from pympsd.vocabulary.results import Result
from pympsd.wire.driver import server_commands as commands


@define(eq=False)
class DriverTerminations:
    """Terminates clients, and remembers their contexts by PID; ``changed`` is called with a PID and its contexts."""

    _changed: Callable[[int, frozenset[int]], None]
    _terminated: dict[int, frozenset[int]] = field(factory=dict)

    def restore(self, pid: int, contexts: frozenset[int]) -> None:
        """Take over what an earlier daemon had terminated."""
        self._terminated[pid] = contexts

    def of(self, pid: int) -> frozenset[int]:
        """Return the contexts of a process that have been terminated, as far as they may still be there."""
        return self._terminated.get(pid, frozenset())

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._terminated.pop(pid, None)

    def terminate(self, link: ServerLink, pid: int, answered: Callable[[int], None]) -> None:
        """Let the server terminate a process's contexts; ``answered`` is called with a CUresult number."""

        def ask(devices: tuple[commands.DeviceClients, ...]) -> None:
            present = _contexts(devices, pid)
            terminated = present & self.of(pid)
            if terminated:
                answered(Result.ERROR_INVALID_CONTEXT if terminated == present else Result.ERROR_NOT_SUPPORTED)
                return
            # Before it is asked: another operator may ask the same, or this daemon be killed, before it answers.
            self._note(pid, present)
            link.ask(commands.terminate(pid), note_result)

        def note_result(code: int) -> None:
            if not code:
                # A context that was made since then may have been terminated too.
                link.ask(commands.device_clients(), lambda devices: self._note(pid, _contexts(devices, pid)))
            answered(code)

        link.ask(commands.device_clients(), ask)

    def _note(self, pid: int, contexts: frozenset[int]) -> None:
        self._terminated[pid] = contexts
        self._changed(pid, contexts)


def _contexts(devices: tuple[commands.DeviceClients, ...], pid: int) -> frozenset[int]:
    """Return the numbers of a process's contexts."""
    return frozenset(context.number for device in devices for context in device.contexts if context.pid == pid)
