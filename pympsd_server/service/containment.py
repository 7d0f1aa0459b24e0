"""A fatal fault: whom it reaches is told, nobody new comes in, and when they have gone the devices are made anew.

Source: the MPS documents, 2.3.3.2 (Error Containment), and the recorded sessions several-gpus and
faults-and-shutdown. How far a fault reaches is decided in `pympsd_server.state_machine.blast_radius`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd_server.service.executors import ExecutorError
from pympsd_server.service.server import Server
from pympsd_server.state_machine.blast_radius import Blast, OnDevice, blast_of, sticky_error
from pympsd_server.state_machine.executor_slots import Place
from pympsd_server.state_machine.roster import Client, Context

TEARDOWN_SECONDS: Final = 5.0
"""Contexts that a fault reaches have so long to stop their work."""


@define
class Containment:
    """The faults that a server has at hand."""

    server: Server
    nursery: trio.Nursery
    places: set[Place] = field(factory=set, init=False)
    """Whose executors are to be made anew."""
    clients: set[int] = field(factory=set, init=False)
    """Serials of the clients that a fault has reached and that have not left."""
    contexts: dict[int, int] = field(factory=dict, init=False)
    """The sticky error of each context that was torn down, by its serial."""
    _recovering: bool = field(default=False, init=False)

    @property
    def active(self) -> bool:
        """Whether a fault is at hand."""
        return bool(self.places)

    def refuses(self, client: Client) -> bool:
        """Whether a client that comes now is not taken in: its user's executors are to be made anew."""
        return any(place.is_for(client.uid) for place in self.places)

    # --- what happens

    def context_faulted(self, serial: int, code: int, reason: str) -> None:
        """An executor says that a context is ruined, by its own kernel or because it was terminated."""
        found = self._find(serial)
        if code == Result.ERROR_MPS_CLIENT_TERMINATED or serial in self.contexts or found is None:
            return
        client, context = found
        self.server.faulted(client, context, code, reason)
        if self.server.devices[context.device].contains_faults:
            self.server.log.info("context_inactive", pid=client.pid, context=context.number)
            return
        self._contain(context.place, code, reason)

    def executor_lost(self, place: Place, reason: str) -> None:
        """The process that owns a device has ended by itself, or was killed: as a fatal fault of its device."""
        if place in self.places or not self._anybody_at(place):
            return  # it was to be replaced anyhow, or the next client's context starts another
        self._contain(place, Result.ERROR_LAUNCH_FAILED, reason)

    async def reset(self, context: Context, reason: str) -> None:
        """End what runs for a context by ending its executor: as a fatal fault of its device.

        Nothing of it runs any more when this returns; who else the fault reaches is told meanwhile, and afterwards.
        """
        executor = self.server.executors.that_runs(context)
        if executor is None:
            return
        if context.place not in self.places:
            self._contain(context.place, Result.ERROR_LAUNCH_FAILED, reason)
        await self.server.executors.end(executor)

    def context_left(self, context: Context) -> None:
        """A context is gone (the roster has forgotten it)."""
        self.contexts.pop(context.serial, None)
        if context.place in self.places and not self._anybody_at(context.place):
            self.server.dropped_device(context.device)

    def context_never_was(self, context: Context) -> None:
        """A context that was being opened could not be made."""
        self.contexts.pop(context.serial, None)

    def client_left(self, client: Client) -> None:
        """A client is gone; with the last one that a fault has reached the devices can be made anew."""
        if client.serial in self.clients:
            self.clients.discard(client.serial)
            if not self.clients:
                self.nursery.start_soon(self._recover)

    # --- what follows

    def refusal(self, client: Client, device: int) -> tuple[int, str] | None:
        """Return why a client gets no context on a device just now, as a CUresult and a sentence."""
        if client.serial in self.clients:
            code = next((self.contexts[one] for one in client.contexts if one in self.contexts), 0)
            return code or Result.ERROR_LAUNCH_FAILED, "a fatal GPU fault has reached this process: end it"
        if self.server.place_of(client, device) in self.places:
            reason = f"device {device} is being made anew after a fatal GPU fault: try again"
            return Result.ERROR_MPS_SERVER_NOT_READY, reason
        return None

    def _contain(self, place: Place, code: int, reason: str) -> None:
        blast = blast_of(place, self.server.roster.clients.values())
        if not self.server.is_volta_or_newer:
            # Before Volta there is one context for all, and it is the server's own.
            blast = _everything(self.server)
        fresh = [client for client in blast.clients if client.serial not in self.clients]
        self.places |= set(blast.places)
        self.clients |= {client.serial for client in blast.clients}
        self.server.begin_fault()
        self._log(blast)
        doomed = [context for client in fresh for context in client.contexts.values()]
        for context in doomed:
            self.contexts[context.serial] = sticky_error(place.device, code, context)
        self.nursery.start_soon(self._tear_down, doomed, reason)

    def _log(self, blast: Blast) -> None:
        log = self.server.log
        log.error("fault_handling")
        for step in blast.steps:
            if isinstance(step, OnDevice):
                who = {"pid": step.client.pid, "context": step.context.number}
                log.info("fault_on_device", **who, device=step.context.device)
                continue
            log.info("fault_process", pid=step.client.pid)
            for context in step.contexts:
                log.info("fault_in_process", pid=step.client.pid, context=context.number)
        for client in blast.clients:
            for context in client.contexts.values():
                if context.serial not in self.server.opening:
                    log.info("context_terminated", pid=client.pid, context=context.number)
        log.info("fault_devices")
        for device in blast.devices:
            log.info("fault_device", device=device)
        log.info("fault_clients")
        for client in blast.clients:
            log.info("fault_client", pid=client.pid)

    async def _tear_down(self, contexts: Iterable[Context], reason: str) -> None:
        """Stop all work of the contexts; each answers with its sticky error from now on.

        An executor that does not stop in time what runs on it is killed: that stops it.
        """
        unstopped = {context.serial: context for context in contexts}
        with trio.move_on_after(TEARDOWN_SECONDS):
            async with trio.open_nursery() as nursery:
                for context in tuple(unstopped.values()):
                    nursery.start_soon(self._tear_one_down, context, reason, unstopped)
        for context in unstopped.values():
            executor = self.server.executors.that_runs(context)
            if executor is not None:
                await self.server.executors.end(executor)
        if not self.server.is_volta_or_newer:
            self.server.end_by_fault()

    async def _tear_one_down(self, context: Context, reason: str, unstopped: dict[int, Context]) -> None:
        executor = self.server.executors.that_runs(context)
        code = self.contexts.get(context.serial)
        if executor is not None and code is not None:
            request = self.server.executors.next_request()
            try:
                await executor.ask(request, Terminate(request, context.serial, code, reason))
            except ExecutorError as error:
                if error.code == Result.ERROR_LAUNCH_TIMEOUT:
                    return  # its device cannot stop what runs
                # Else the context, or its executor, has ended meanwhile: no work of it is left.
        del unstopped[context.serial]

    async def _recover(self) -> None:
        """Replace the executors of the devices; the server is active again when no other fault is at hand."""
        if self._recovering:
            return
        self._recovering = True
        try:
            while self.places and not self.clients:
                await self._make_anew(sorted(self.places))
        finally:
            self._recovering = False
        if not self.active:
            self.server.end_fault()

    async def _make_anew(self, places: list[Place]) -> None:
        for place in places:
            await self.server.executors.retire(place)
            self.server.log.info("server_context_destroyed", device=place.device)
        for place in places:
            if self.server.leaving:
                break  # who is still here starts what it needs
            self.server.log.info("server_context_recreating", device=place.device)
            try:
                await self.server.executors.of(place)
            except ExecutorError as error:
                # The next client's context tries again, and is told why.
                self.server.log.error("server_context_failed", device=place.device, reason=error.reason)
        self.places -= set(places)

    def _find(self, serial: int) -> tuple[Client, Context] | None:
        for client in self.server.roster.clients.values():
            if serial in client.contexts:
                return client, client.contexts[serial]
        return None

    def _anybody_at(self, place: Place) -> bool:
        return any(each.serial not in self.server.opening for each in self.server.roster.contexts_at(place))


def _everything(server: Server) -> Blast:
    clients = tuple(server.roster.clients.values())
    contexts = frozenset(serial for client in clients for serial in client.contexts)
    places = {server.place_of(client, ordinal) for client in clients for ordinal in range(len(server.devices))}
    return Blast((), tuple(sorted(places)), clients, contexts)
