"""What clients of other servers hold on a device, in all and by cgroup."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe
from pympsd.state_machine.memory_elsewhere import Elsewhere, memory_elsewhere
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon, Defaults
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import CgroupLimit, ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.rules import Origin

CGROUPS = ("/", "/a", "/a/b", "/c", "/d")
LIMITED = ("/a", "/a/b", "/c")
CLIENTS = st.tuples(st.integers(1, 3), st.sampled_from(CGROUPS), st.integers(0, 1), st.integers(0, 1 << 40))


def _daemon(clients: list[tuple[int, str, int, int]]) -> Daemon:
    daemon = Daemon(DaemonOptions(0), describe("2xH200"), Defaults(ThreadPercentage(), ClientPriority(), {}))
    limit = {0: CgroupLimit(PinnedMemory(1 << 30)), 1: CgroupLimit(PinnedMemory(1 << 30))}
    daemon.process_limits.cgroups = dict.fromkeys(LIMITED, limit)
    daemon.servers = {server_id: Server(server_id, 0, ThreadPercentage()) for server_id in (1, 2, 3)}
    for number, (server, cgroup, device, count) in enumerate(clients, 1):
        client = Client(
            number,
            0,
            ClientProcess(Peer(number, 0, 0), "train", 0, origin=Origin(0, cgroups=(cgroup,))),
            memory={device: count},
        )
        daemon.servers[server].clients[number] = client
    return daemon


@given(st.lists(CLIENTS, max_size=8))
def test_a_server_gets_the_sums_of_the_others(clients: list[tuple[int, str, int, int]]) -> None:
    """Of all, and of the limited cgroups that its own clients are in; no server is believed to hold too much."""
    daemon = _daemon(clients)
    elsewhere, most = memory_elsewhere(daemon), daemon.devices[0].memory_bytes

    def count_held(ordinal: int, path: str, but: int) -> int:
        return sum(
            min(
                most,
                sum(
                    client[3]
                    for client in clients
                    if (client[0], client[2]) == (at, ordinal) and _is_in(client[1], path)
                ),
            )
            for at in {1, 2, 3} - {but}
        )

    for server in (1, 2, 3):
        own = [path for path in LIMITED if any(client[0] == server and _is_in(client[1], path) for client in clients)]
        for ordinal in (0, 1):
            groups = {f"cgroup {path}": count for path in own if (count := count_held(ordinal, path, server))}
            assert elsewhere[server][ordinal] == Elsewhere(count_held(ordinal, "/", server), groups)


def _is_in(cgroup: str, path: str) -> bool:
    return f"{cgroup}/".startswith(f"{path.rstrip('/')}/")
