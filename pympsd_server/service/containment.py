"""Containment of fatal faults: which clients a fault ends, and how the server serves again afterwards.

**The problem.** A fatal fault (a kernel that writes to a wild address, an executor that crashed) makes a device
unusable for all clients whose contexts run in the same process. The MPS documents define which clients are lost and
which continue; all others must neither be affected nor wait.

**The idea.** `state_machine.blast_radius` computes the reach of a fault, without I/O: the contexts of the faulty
domain, all contexts of their processes, the contexts on the devices of these, and so on. This module acts on the
result in three steps:

    1. contain    note the sticky error of every reached context, log the fault, refuse new clients of these slots
    2. tear down  stop the work of the reached contexts, at most TEARDOWN_SECONDS; kill executors that do not stop
    3. recover    when the last reached client has exited: replace the executors of the slots, admit clients again

Example: clients A (devices 0 and 1), B (device 1) and C (device 2); a kernel of A faults on device 0. A is reached on
both devices, B because it shares device 1 with A; C continues. When A and B have exited, the executors of devices 0
and 1 are replaced.

**Waiting clients.** A client that connects before all reached processes have exited is refused, as documented. A
client that connects later, while executors are being replaced, waits (`hold`) for at most HOLD_SECONDS. A second
fault wakes the waiting clients, which check again.

**Smaller faults.** A device that contains faults loses only the faulty context. In a static SM partition the fault
stays with the clients of the partition, and no executor of other clients is replaced (docs/decisions/019).

**What must never happen.** The server must not wait for a reached client that has exited, so `client_left` is called
for every client in any state. A context must not be torn down twice with different errors, so `contexts` keeps the
first one. An executor must not be replaced while a reached process lives, because the process's kernels would write
into the new executor's memory.

Source: the MPS documents, 2.3.3.2 (Error Containment), and the recorded sessions several-gpus and
faults-and-shutdown.
"""

import select
from collections.abc import Iterable
from typing import Final

import trio
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd_server.service.executor import ExecutorError
from pympsd_server.service.executors import Executors
from pympsd_server.service.server import Server
from pympsd_server.state_machine.blast_radius import Blast, OnDevice, blast_of, sticky_error
from pympsd_server.state_machine.client_table import ClientRecord, ContextRecord
from pympsd_server.state_machine.executor_slots import ExecutorSlot, FaultDomain

TEARDOWN_SECONDS: Final = 5.0
"""The time limit for stopping the work of the contexts that a fault reaches."""
HOLD_SECONDS: Final = 30.0
"""The time limit for holding a new client while executors are replaced, which takes some seconds on a GPU. An
executor has twice as long to become ready, but the program's user should get a message earlier.
"""

REACHED: Final = "a fatal GPU fault of another context has reached this one"
"""The reason for the contexts that a fault reaches, except the one that caused it."""


@define
class Containment:
    """The faults that a server is handling. It observes the server to learn when the reached clients have gone."""

    server: Server
    executors: Executors
    nursery: trio.Nursery
    slots: set[ExecutorSlot] = field(factory=set, init=False)
    """The slots whose executors must be replaced."""
    clients: set[int] = field(factory=set, init=False)
    """The ids of connected clients that a fault has reached."""
    clients_in_partitions: set[int] = field(factory=set, init=False)
    """The ids of connected clients that a fault has reached in their SM partition; their executors stay."""
    evicted: set[int] = field(factory=set, init=False)
    """The ids of connected clients whose namespace or SM partition was deleted."""
    contexts: dict[int, int] = field(factory=dict, init=False)
    """The sticky error of each context that was torn down, by the context's id."""
    errors: dict[int, int] = field(factory=dict, init=False)
    """The first sticky error of each reached client, by client id.

    It is kept after the client's contexts have gone.
    """
    pidfds: dict[int, int] = field(factory=dict, init=False)
    """The pidfd of each client that has a session, by the client's id; -1 if the process is not visible here."""
    making_room: trio.Lock = field(factory=trio.Lock, init=False)
    """A lock that is held while clients are ended to free memory for others."""
    _recovering: bool = field(default=False, init=False)
    _held: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    """The tasks of the new clients that wait for the executors."""

    @property
    def active(self) -> bool:
        """Whether a fault is being handled."""
        return bool(self.slots)

    def refuses(self, client: ClientRecord) -> bool:
        """Return whether a new client is refused because executors of its user must be replaced."""
        return any(self.server.slot_of(client, slot.device) == slot for slot in self.slots)

    async def hold(self, client: ClientRecord) -> None:
        """Wait, at most HOLD_SECONDS, while executors of a new client's user are replaced.

        Do not wait while a process that the fault has reached is running, because it may run forever.
        """
        with trio.move_on_after(HOLD_SECONDS):
            while self.server.is_volta_or_newer and self.refuses(client) and all(map(self._has_ended, self.clients)):
                await self._held.park()

    def _has_ended(self, client_id: int) -> bool:
        """Return whether a client's process has ended; its resources may not be freed yet."""
        pidfd = self.pidfds.get(client_id)
        if pidfd is None or pidfd < 0:
            return pidfd is None
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))

    # --- events

    def context_faulted(self, context_id: int, code: int, reason: str) -> None:
        """Handle the report of an executor that a context has faulted, because of its own kernel or a termination."""
        entry = self._find(context_id)
        if code == Result.ERROR_MPS_CLIENT_TERMINATED or context_id in self.contexts or entry is None:
            return
        client, context = entry
        self.server.context_faulted(client, context, code, reason)
        if self.server.devices[context.device].contains_faults:
            self.server.log.info("context_inactive", pid=client.pid, context=context.number)
            return
        # Other clients must not see the context's kernel and addresses, because they may be other users'.
        self._contain([context.fault_domain], code, REACHED)

    def executor_lost(self, slot: ExecutorSlot, reason: str) -> None:
        """Handle the unexpected end of an executor as a fatal fault of its device."""
        if slot in self.slots or not self._has_contexts(slot):
            return  # it is being replaced already, or the next context starts another one
        self._contain(self._domains_of(slot), Result.ERROR_LAUNCH_FAILED, reason)

    async def reset(self, context: ContextRecord, reason: str) -> None:
        """Stop a context's work by ending its executor, as a fatal fault of its device.

        When this returns, the work has stopped; other contexts that the fault reaches may be torn down later.
        """
        executor = self.executors.executor_of(context)
        if executor is None:
            return
        if context.slot not in self.slots:
            self._contain(self._domains_of(context.slot), Result.ERROR_LAUNCH_FAILED, reason)
        await self.executors.end(executor)

    def context_closed(self, context: ContextRecord) -> None:
        """Handle the end of a context that was removed from the client table."""
        self.contexts.pop(context.id, None)
        if context.slot in self.slots and not self._has_contexts(context.slot):
            self.server.device_dropped(context.device)

    def context_not_opened(self, context: ContextRecord) -> None:
        """Handle a context that could not be opened."""
        self.contexts.pop(context.id, None)

    def client_left(self, client: ClientRecord) -> None:
        """Handle the end of a client. After the last client that a fault has reached, replace the executors."""
        self.evicted.discard(client.id)
        self.clients_in_partitions.discard(client.id)
        self.errors.pop(client.id, None)
        if client.id in self.clients:
            self.clients.discard(client.id)
            if not self.clients:
                self.nursery.start_soon(self._recover)

    # --- reactions

    def refusal(self, client: ClientRecord, device: int) -> tuple[int, str] | None:
        """Return why a client cannot get a context on a device now, as a CUresult and a sentence; None if it can."""
        if client.id in self.clients or client.id in self.clients_in_partitions:
            return self._sticky_of(client.id), "a fatal GPU fault has reached this process: end it"
        if client.id in self.evicted:
            reason = "an operator drained this process, or deleted its namespace or SM partition: end it"
            return Result.ERROR_MPS_CLIENT_TERMINATED, reason
        if self.server.slot_of(client, device) in self.slots:
            reason = f"device {device} is being reset after a fatal GPU fault: try again"
            return Result.ERROR_MPS_SERVER_NOT_READY, reason
        return None

    def _sticky_of(self, client_id: int) -> int:
        return self.errors.get(client_id, Result.ERROR_LAUNCH_FAILED)

    def _domains_of(self, slot: ExecutorSlot) -> list[FaultDomain]:
        """Return the fault domains of a slot whose executor is lost, with the domain of the whole slot first."""
        partitions = {context.fault_domain for context in self.server.client_table.contexts_in(slot)}
        return [FaultDomain(slot), *sorted(partitions - {FaultDomain(slot)})]

    def _contain(self, domains: list[FaultDomain], code: int, reason: str) -> None:
        """Record and log the clients and contexts that a fault in these domains reaches; start to stop their work."""
        blast = blast_of(domains, self.server.client_table.clients.values())
        if not self.server.is_volta_or_newer:
            # Before Volta all clients share the server's own context.
            blast = _include_everything(self.server)
        fresh = [client for client in blast.clients if client.id not in self.clients]
        if blast.slots:
            self.slots |= set(blast.slots)
            self.clients |= {client.id for client in blast.clients}
            self._held.unpark_all()  # after a second fault, the waiting clients check again
        else:
            self.clients_in_partitions |= {client.id for client in blast.clients}
        if any(not slot.partition for slot in blast.slots):
            self.server.begin_fault()
            self.server.log.error("fault_handling")
        else:
            name = domains[0].partition or domains[0].slot.partition
            self.server.log.error("fault_in_partition", name=name)
        self._log(blast)
        reached = [(client.id, context) for client in fresh for context in client.contexts.values()]
        for client_id, context in reached:
            error = self.contexts[context.id] = sticky_error(domains[0].slot.device, code, context)
            self.errors.setdefault(client_id, error)
        self.nursery.start_soon(self._tear_down, [context for _, context in reached], reason)

    def _log(self, blast: Blast) -> None:
        """Log the blast radius: how the fault spread, then the contexts, devices and clients that it reached."""
        log = self.server.log
        for step in blast.steps:
            if isinstance(step, OnDevice):
                names = {"pid": step.client.pid, "context": step.context.number}
                log.info("fault_on_device", **names, device=step.context.device)
                continue
            log.info("fault_process", pid=step.client.pid)
            for context in step.contexts:
                log.info("fault_in_process", pid=step.client.pid, context=context.number)
        for client in blast.clients:
            for context in client.contexts.values():
                if context.id not in self.server.opening:
                    log.info("context_terminated", pid=client.pid, context=context.number)
        if blast.slots:
            log.info("fault_devices")
        for device in blast.devices:
            log.info("fault_device", device=device)
        log.info("fault_clients")
        for client in blast.clients:
            log.info("fault_client", pid=client.pid)

    async def _tear_down(self, contexts: Iterable[ContextRecord], reason: str) -> None:
        """Stop all work of the contexts and give each its sticky error.

        Kill executors that do not stop the work within TEARDOWN_SECONDS.
        """
        unstopped = {context.id: context for context in contexts}
        with trio.move_on_after(TEARDOWN_SECONDS):
            async with trio.open_nursery() as nursery:
                for context in tuple(unstopped.values()):
                    nursery.start_soon(self._tear_one_down, context, reason, unstopped)
        for context in unstopped.values():
            executor = self.executors.executor_of(context)
            if executor is not None:
                await self.executors.end(executor)
        if not self.server.is_volta_or_newer:
            # Another client that polls may notice that the executor has ended before it gets its context's error.
            codes = {client_id: self._sticky_of(client_id) for client_id in self.server.client_table.clients}
            self.server.end_by_fault(codes, reason)

    async def _tear_one_down(self, context: ContextRecord, reason: str, unstopped: dict[int, ContextRecord]) -> None:
        executor = self.executors.executor_of(context)
        code = self.contexts.get(context.id)
        if executor is not None and code is not None:
            request = self.executors.next_request()
            try:
                await executor.ask(request, Terminate(request, context.id, code, reason))
            except ExecutorError as error:
                if error.code == Result.ERROR_LAUNCH_TIMEOUT:
                    return  # the device cannot stop the work
                # Otherwise the context or its executor has ended, and with it the work.
        del unstopped[context.id]

    async def _recover(self) -> None:
        """Replace the executors of the faulty slots; then end the fault, unless another one is pending."""
        if self._recovering:
            return
        self._recovering = True
        try:
            while self.slots and not self.clients:
                await self._replace(sorted(self.slots))
        finally:
            self._recovering = False
        if not self.active:
            self.server.end_fault()

    async def _replace(self, slots: list[ExecutorSlot]) -> None:
        for slot in slots:
            await self.executors.vacate(slot)
            self.server.log.info("server_context_destroyed", device=slot.device)
        for slot in slots:
            if self.server.is_leaving:
                break  # the remaining clients start the executors that they need
            self.server.log.info("server_context_recreating", device=slot.device)
            try:
                await self.executors.get_or_start(slot)
            except ExecutorError as error:
                # The next client's context tries again; if that fails too, the client gets the reason.
                self.server.log.error("server_context_failed", device=slot.device, reason=error.reason)
        self.slots -= set(slots)
        self._held.unpark_all()

    def _find(self, context_id: int) -> tuple[ClientRecord, ContextRecord] | None:
        for client in self.server.client_table.clients.values():
            if context_id in client.contexts:
                return client, client.contexts[context_id]
        return None

    def _has_contexts(self, slot: ExecutorSlot) -> bool:
        return any(context.id not in self.server.opening for context in self.server.client_table.contexts_in(slot))


def _include_everything(server: Server) -> Blast:
    clients = tuple(server.client_table.clients.values())
    contexts = frozenset(context_id for client in clients for context_id in client.contexts)
    slots = {server.slot_of(client, ordinal) for client in clients for ordinal in range(len(server.devices))}
    return Blast((), tuple(sorted(slots)), clients, contexts)
