"""Which processes NVML lists on a device: servers, and their clients with a context or memory there."""

from __future__ import annotations

import pytest

from pympsd.devices.machine import describe
from pympsd.devices.nvml_text import DeviceProcess
from pympsd.service.nvml_file import get_utilization, list_processes
from pympsd.state_machine.state.client import Client, ClientProcess, ReportedContext
from pympsd.state_machine.state.daemon import Daemon, Defaults
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.device_properties import DeviceUse
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import ClientPriority, ThreadPercentage


def _daemon(machine: str) -> Daemon:
    daemon = Daemon(DaemonOptions(0), describe(machine), Defaults(ThreadPercentage(), ClientPriority(), {}))
    daemon.servers = {
        number: Server(number, uid, ThreadPercentage(), pid=pid)
        for number, uid, pid in ((1, 0, 90), (2, 5, 80), (3, 6, 0))  # the last is only being started
    }
    return daemon


def _add(server: Server, id: int, pid: int, memory: dict[int, int], *devices: int) -> None:
    contexts = {number: ReportedContext(number, number, device) for number, device in enumerate(devices, 1)}
    process = ClientProcess(Peer(pid, server.uid, 0), "train")
    server.clients[id] = Client(id, 0, process, memory=memory, contexts=contexts)


@pytest.mark.parametrize("machine", ["2xH200", "2xP100"])
def test_processes_of_a_device(machine: str) -> None:
    daemon = _daemon(machine)
    of_root, of_user = daemon.servers[1], daemon.servers[2]
    _add(of_root, 1, 30, {0: 5}, 0)
    _add(of_root, 2, 20, {0: 0, 1: 7}, 0)
    _add(of_root, 3, 10, {})  # has no context yet
    _add(of_user, 4, 0, {1: 1}, 1)  # processes of another PID namespace
    _add(of_user, 5, 0, {1: 2}, 1)
    of_user.use[1] = DeviceUse({}, left=100)
    server, client = (
        (lambda pid, used: DeviceProcess(pid, False, used)),
        (lambda pid, used: DeviceProcess(pid, True, used)),
    )
    if machine == "2xP100":
        assert list_processes(daemon, 0) == [server(80, 0), server(90, 5)]
        assert list_processes(daemon, 1) == [server(80, 103), server(90, 7)]
    else:
        assert list_processes(daemon, 0) == [server(80, 0), server(90, 0), client(20, 0), client(30, 5)]
        assert list_processes(daemon, 1) == [server(80, 100), client(0, 3), server(90, 0), client(20, 7)]


def test_servers_of_a_device_add_up() -> None:
    daemon = _daemon("2xH200")
    of_root, of_user, starting = daemon.servers.values()
    assert get_utilization(daemon, 0) == 0, "nobody has reported"
    of_root.use = {0: DeviceUse({}, utilization=30), 1: DeviceUse({}, utilization=80)}
    of_user.use = {1: DeviceUse({}, utilization=70)}
    _add(of_user, 1, 10, {}, 1)
    assert [(process.pid, process.utilization) for process in list_processes(daemon, 1)] == [
        (80, 70),
        (10, 0),
        (90, 80),
    ]
    assert (get_utilization(daemon, 0), get_utilization(daemon, 1)) == (30, 100)
    of_root.pid = 0  # its process has ended
    assert (get_utilization(daemon, 0), get_utilization(daemon, 1)) == (0, 70)
    starting.pid, starting.use = 60, {1: DeviceUse({})}  # of an earlier version, which does not count it
    assert (get_utilization(daemon, 0), get_utilization(daemon, 1)) == (0, None)
