"""Static SM partitions of protocol 2 under arbitrary orders of events of operators, clients, servers and the daemon.

The users, servers and restarts are those of daemon_machine.py. In addition operators add and remove partitions, and
each client names an existing or earlier one, all existing ones, or none.
"""

from __future__ import annotations

from daemon_machine import DEVICES, UIDS, DaemonMachine
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pympsd.commands.grammar.line import parse
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.operator_line import decide_line
from pympsd.state_machine import events
from pympsd.state_machine import instructions as do
from pympsd.takeover.state.records import check, snapshot
from pympsd.vocabulary.partitions import SmPartition

DEVICE = st.integers(0, len(DEVICES) - 1)


class StaticMachine(DaemonMachine):
    """A daemon that was started with -S."""

    static = True
    gets_a_status_query = None
    """None, because only the driver's servers are asked for contexts, and they have no partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[SmPartition] = []
        """Every partition that was ever made."""
        self.named: dict[int, str] = {}
        """The values of clients' variables."""
        self.runs_on: dict[int, dict[int, SmPartition]] = {}
        """The partitions of the clients that have some, by device."""
        self.server_of: dict[int, int] = {}
        """The server that works on a termination, by its token."""
        self.evicted: set[int] = set()
        """The clients that cannot get a context again."""
        self.requested: dict[int, set[int]] = {}
        """The clients whose contexts a termination ends, by its token."""
        self.stopped: set[int] = set()
        """The clients whose contexts terminate_client has ended, as this daemon knows."""

    # --- the I/O layer

    def environment_of(self, client: int) -> dict[str, str]:
        if client not in self.named:
            ids = [f"{DEVICES[entry.device].uuid}/{entry.name}" for entry in self.made]
            choices = ["", *ids[-1:], *ids[:1], ",".join(ids), "0/nothing"]
            self.named[client] = choices[client % len(choices)]
        return {"CUDA_MPS_SM_PARTITION": self.named[client]}

    def partitions_of(self, client: int) -> dict[int, str]:
        own = self.runs_on.get(client, {})
        return {device: own[device].name if device in own else "" for device in range(len(DEVICES))}

    def feed(self, event: events.Event) -> list[do.Instruction]:
        match event:
            case events.ContextPushed(server, client, context) if server not in self.pending:
                self.stopped.discard(client)
                # A termination ends the contexts that there were when it began.
                is_new = context not in self.daemon.servers[server].clients[client].contexts
                for clients in self.requested.values() if is_new else ():
                    clients.discard(client)
            case events.TerminationAnswered(server, token, code) if server == self.server_of.get(token):
                clients = self.requested.pop(token, set())
                self.stopped |= clients if code == 0 else set()
            case events.ServerTakenOver(server, _, _, clients) if clients:
                # What it reports replaces what was known: clients with contexts.
                self.stopped -= {client for client, on in self.on_server.items() if on == server}
        return super().feed(event)

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.AdmitClient(client, _, _, _, limits) if client not in self.joining:
                assert limits is not None
                assert limits.static
                assert limits.partitions.keys() == set(range(len(DEVICES)))
                own = self.runs_on[client] = {}
                for device, chosen in limits.partitions.items():
                    if not chosen.problem:
                        own[device] = SmPartition(chosen.name, device, chosen.chunks)
                        assert own[device] in self.daemon.partitions
                        assert chosen.name in self.named[client]
            case do.TerminateClient(server, token, pid, _, evicted):
                self.evicted.update(evicted)
                self.server_of[token] = server
                here = {client for client, on in self.on_server.items() if on == server}
                self.requested[token] = here & {pid - 5000}
        super()._carry_out(instruction)

    def _present(self, partition: SmPartition) -> set[int]:
        """Return the clients of a partition that may have contexts in it."""
        own = {client: self.runs_on.get(client, {}) for client in set(self.on_server) - self.evicted}
        return {client for client, partitions in own.items() if partitions.get(partition.device) == partition}

    def _makes_contexts(self, client: int) -> bool:
        """Return whether a client can make contexts: its server refuses it if `sm_partition rm` has evicted it."""
        return client not in self.evicted

    # --- what can happen

    @initialize(clients=st.integers(0, 4), ended=st.booleans())
    def start_busy(self, clients: int, ended: bool) -> None:
        for device, chunks in ((0, 3), (1, 2), (0, 4)):
            self.add(device, chunks, self.daemon_uid)
        super().start_busy(clients, ended)

    @rule(device=DEVICE, chunks=st.integers(1, 9), uid=UIDS)
    def add(self, device: int, chunks: int, uid: int) -> None:
        before = list(self.daemon.partitions)
        self._give(f"sm_partition add {device} {chunks}".encode(), uid)
        added = self.daemon.partitions[len(before) :]
        assert self.daemon.partitions[: len(before)] == before
        assert len(added) <= (uid in (0, self.daemon_uid))
        for partition in added:
            assert (partition.device, len(partition.chunks)) == (device, chunks)
            # The same chunks have the same name for ever.
            assert all((entry.name == partition.name) == (entry == partition) for entry in self.made)
            self.made.append(partition)

    @precondition(lambda self: self.made)
    @rule(data=st.data(), uid=UIDS)
    def remove(self, data: st.DataObject, uid: int) -> None:
        partition = data.draw(st.sampled_from(self.made))
        before, present = list(self.daemon.partitions), self._present(partition)
        self._give(f"sm_partition rm {partition.device} {partition.name}".encode(), uid)
        is_removed = before != self.daemon.partitions
        assert [other for other in before if not is_removed or other != partition] == self.daemon.partitions
        # Only clients whose work has ended were in it, and they cannot make a context there any more.
        assert not is_removed or present <= self.stopped & self.evicted
        may_be_removed = partition in before and uid in (0, self.daemon_uid) and not self.pending
        assert is_removed or present - self.stopped or not may_be_removed

    @precondition(lambda self: self.on_server)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 0, 702]), uid=st.just(0))
    def drain(self, data: st.DataObject, code: int, uid: int) -> None:
        """Terminate a client and remove a partition, as programs do before they change partitions."""
        client = data.draw(st.sampled_from(sorted(self.on_server)))
        server = self.on_server[client]
        self._give(b"terminate_client %d %d" % (self.running[server], 5000 + client), uid)
        token = max(self.terminating)
        if self._makes_contexts(client) and data.draw(st.booleans(), label="it makes a context before the answer"):
            self.feed(events.ContextPushed(server, client, 7, 2, 0))
            if server not in self.pending:
                self._has_served(server)
        del self.terminating[token]
        self.feed(events.TerminationAnswered(server, token, code))
        if self.made:
            self.remove(data, uid)

    @precondition(lambda self: not self.exits and (self.running or self.in_queue or self._start_requests()))
    @rule(data=st.data())
    def daemon_dies(self, data: st.DataObject) -> None:
        before = list(self.daemon.partitions)
        self.stopped.clear()
        self.requested.clear()
        self.server_of.clear()
        check(snapshot(self.daemon, self.initial), len(DEVICES))
        super().daemon_dies(data)
        assert self.daemon.partitions == before

    # --- what always holds

    @invariant()
    def no_chunk_has_two_owners(self) -> None:
        owners: dict[tuple[int, int], SmPartition] = {}
        runs_on = [self.runs_on.get(client, {}) for client in set(self.on_server) - self.evicted]
        for partition in {*self.daemon.partitions, *(partition for row in runs_on for partition in row.values())}:
            for chunk in partition.chunks:
                assert owners.setdefault((partition.device, chunk), partition) == partition

    @invariant()
    def every_partition_is_listed(self) -> None:
        answer = decide_line(self.daemon, Caller(0, 600), parse(b"lspart", 2)).answer
        assert answer is not None
        rows = [line.split() for line in answer.printed.splitlines()[2:]]
        assert all(len(row) == 5 for row in rows)
        listed = {row[1]: row[4] for row in rows if not row[1].isdecimal()}
        assert listed.keys() == {partition.name for partition in self.daemon.partitions}
        in_use = {partition.name for partition in self.daemon.partitions if self._present(partition)}
        assert {name for name, has_clients in listed.items() if has_clients == "Yes"} <= in_use | self._reported()

    def _reported(self) -> set[str]:
        """Return the partitions of evicted clients, which a server also reports to the next daemon."""
        return {entry.name for client in self.evicted for entry in self.runs_on.get(client, {}).values()}


class CrowdedStaticMachine(StaticMachine):
    """Two users have servers at the same time, and clients of both are in partitions."""

    most_servers = 2
