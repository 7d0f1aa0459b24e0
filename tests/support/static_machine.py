"""Static SM partitions of protocol 2 under any order of events: operators, clients, servers, and the daemon's end.

The users, servers and restarts are those of daemon_machine.py. In addition operators add and remove partitions, and
each client names one that there is or was, all that there are, or none.
"""

from __future__ import annotations

from daemon_machine import DEVICES, UIDS, DaemonMachine
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from pympsd.commands.grammar.line import parse
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.operator_line import decide_line
from pympsd.state_machine import instructions as do
from pympsd.takeover.state.records import check, snapshot
from pympsd.vocabulary.partitions import SmPartition

DEVICE = st.integers(0, len(DEVICES) - 1)


class StaticMachine(DaemonMachine):
    """A daemon that was started with -S."""

    static = True

    def __init__(self) -> None:
        super().__init__()
        self.made: list[SmPartition] = []
        """Every partition that was ever made."""
        self.named: dict[int, str] = {}
        """The values of clients' variables."""
        self.runs_on: dict[int, dict[int, SmPartition]] = {}
        """The partitions of the clients that have some, by device."""
        self.evicted: set[int] = set()
        """The clients that get no context any more."""

    # --- the I/O layer

    def environment_of(self, client: int) -> dict[str, str]:
        if client not in self.named:
            ids = [f"{DEVICES[one.device].uuid}/{one.name}" for one in self.made]
            choices = ["", *ids[-1:], *ids[:1], ",".join(ids), "0/nothing"]
            self.named[client] = choices[client % len(choices)]
        return {"CUDA_MPS_SM_PARTITION": self.named[client]}

    def partitions_of(self, client: int) -> dict[int, str]:
        own = self.runs_on.get(client, {})
        return {device: own[device].name if device in own else "" for device in range(len(DEVICES))}

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
            case do.TerminateClient(_, _, _, _, evicted):
                self.evicted.update(evicted)
        super()._carry_out(instruction)

    def _present(self, partition: SmPartition) -> set[int]:
        """Return the clients of a partition that may have contexts in it."""
        own = {client: self.runs_on.get(client, {}) for client in set(self.on_server) - self.evicted}
        return {client for client, partitions in own.items() if partitions.get(partition.device) == partition}

    # --- what can happen

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
            assert all((one.name == partition.name) == (one == partition) for one in self.made)
            self.made.append(partition)

    @precondition(lambda self: self.made)
    @rule(data=st.data(), uid=UIDS)
    def remove(self, data: st.DataObject, uid: int) -> None:
        partition = data.draw(st.sampled_from(self.made))
        before, present = list(self.daemon.partitions), self._present(partition)
        self._give(f"sm_partition rm {partition.device} {partition.name}".encode(), uid)
        is_removed = before != self.daemon.partitions
        assert [one for one in before if not is_removed or one != partition] == self.daemon.partitions
        # Nobody is left in it who could still make a context there.
        assert not is_removed or not present - self.evicted
        may_be_removed = partition in before and uid in (0, self.daemon_uid) and not self.pending
        assert is_removed or present or not may_be_removed

    @precondition(lambda self: self.on_server)
    @rule(data=st.data())
    def terminate_one(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.on_server)))
        server = self.on_server[client]
        self._give(b"terminate_client %d %d" % (self.running[server], 5000 + client), 0)

    @precondition(lambda self: not self.exits and (self.running or self.in_queue or self._start_requests()))
    @rule(data=st.data())
    def daemon_dies(self, data: st.DataObject) -> None:
        before = list(self.daemon.partitions)
        check(snapshot(self.daemon, self.initial), len(DEVICES))
        super().daemon_dies(data)
        assert self.daemon.partitions == before

    # --- what always holds

    @invariant()
    def no_chunk_has_two_owners(self) -> None:
        owners: dict[tuple[int, int], SmPartition] = {}
        here = {one for client in set(self.on_server) - self.evicted for one in self.runs_on.get(client, {}).values()}
        for partition in {*self.daemon.partitions, *here}:
            for chunk in partition.chunks:
                assert owners.setdefault((partition.device, chunk), partition) == partition

    @invariant()
    def every_partition_is_listed(self) -> None:
        answer = decide_line(self.daemon, Caller(0, 600), parse(b"lspart", 2)).answer
        assert answer is not None
        rows = [line.split() for line in answer.printed.splitlines()[2:]]
        assert all(len(row) == 5 for row in rows)
        listed = {row[1]: row[4] for row in rows if not row[1].isdecimal()}
        assert listed.keys() == {one.name for one in self.daemon.partitions}
        in_use = {one.name for one in self.daemon.partitions if self._present(one)}
        assert {name for name, has_clients in listed.items() if has_clients == "Yes"} <= in_use | self._reported()

    def _reported(self) -> set[str]:
        """Return the partitions of evicted clients, which a server reports again to the next daemon."""
        return {one.name for client in self.evicted for one in self.runs_on.get(client, {}).values()}


class CrowdedStaticMachine(StaticMachine):
    """Two users have servers at the same time, and clients of both are in partitions."""

    most_servers = 2
