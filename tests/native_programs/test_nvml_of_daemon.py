"""libnvidia-ml.so.1 and pympsd-smi on the same daemon: they report the same devices, memory and processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_node import Node
from nvml_library import NOT_LOADED, Nvml
from processes import wait_until

UUIDS = tuple(f"GPU-0000000{n}-23a2-2403-a46b-a1dfeabe3819" for n in range(2))
TEXT = "\n".join(f'[[device]]\nuuid = "{uuid}"\npci = "0000:0{n}.06.00"' for n, uuid in enumerate(UUIDS))
MIB = 1 << 20
MODES = {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3}


@pytest.fixture
def node() -> Iterator[Node]:
    directory = Path(tempfile.mkdtemp(prefix="pympsd-test-"))
    directory.chmod(0o755)
    node = Node(directory, TEXT)
    yield node
    node.close()
    shutil.rmtree(directory)


def _by_smi(node: Node) -> tuple[list[list[str]], list[list[str]]]:
    fields = "compute_mode,compute_cap,driver_version,index,uuid,name,pci.bus_id"
    fields += ",memory.total,memory.reserved,memory.used,memory.free"
    answers = (
        node.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout,
        node.smi("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits").stdout,
    )
    devices, processes = ([line.split(", ") for line in answer.splitlines()] for answer in answers)
    return devices, sorted(processes)


def _by_nvml(nvml: Nvml) -> tuple[list[list[str]], list[list[str]]]:
    devices, processes = [], []
    modes = {number: name for name, number in MODES.items()}
    for handle in nvml.handles():
        memory = nvml.memory(handle)
        uuid = nvml.text("nvmlDeviceGetUUID", handle)
        assert memory.total == memory.reserved + memory.free + memory.used
        devices.append(
            [
                modes[nvml.number("nvmlDeviceGetComputeMode", handle)],
                ".".join(map(str, nvml.capability(handle))),
                nvml.text("nvmlSystemGetDriverVersion"),
                str(nvml.number("nvmlDeviceGetIndex", handle)),
                uuid,
                nvml.text("nvmlDeviceGetName", handle),
                nvml.bus_id(handle),
                *(str(count // MIB) for count in (memory.total, memory.reserved, memory.used, memory.free)),
            ]
        )
        processes += [[uuid, str(pid), str(held // MIB)] for pid, held in nvml.processes(handle)]
    return devices, sorted(processes)


@pytest.mark.long
def test_the_utilization_is_that_of_the_last_second(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, nvml = node.daemon("a"), Nvml.load()
    for name, value in daemon.environment.items():
        monkeypatch.setenv(name, value)
    assert nvml.call("nvmlInit_v2") == 0
    first, second = nvml.handles()

    def by_smi(index: int) -> int:
        done = node.smi("-i", str(index), "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
        return int(done.stdout)

    client = node.client(daemon).connect()
    assert nvml.utilization(first) == nvml.utilization(second) == (0, 0)
    assert client.call("spin").startswith("CUDA_SUCCESS")  # until its memory is written
    wait_until(lambda: nvml.utilization(first)[0] > 50, "the kernel")
    wait_until(lambda: by_smi(0) > 50, "the kernel, by pympsd-smi")
    assert (nvml.utilization(second), by_smi(1)) == ((0, 0), 0)
    assert client.call("release") == "CUDA_SUCCESS"
    wait_until(lambda: nvml.utilization(first) == (0, 0), "the kernel's end")
    wait_until(lambda: by_smi(0) == 0, "the kernel's end, by pympsd-smi")

    assert client.call("endless").startswith("CUDA_SUCCESS")
    wait_until(lambda: nvml.utilization(first)[0] > 50, "the endless kernel")
    client.process.kill()  # the server stops its kernel
    wait_until(lambda: nvml.utilization(first) == (0, 0), "the client's end")
    assert nvml.call("nvmlShutdown") == 0


def test_they_report_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, nvml = node.daemon("a"), Nvml.load()
    for name, value in daemon.environment.items():
        monkeypatch.setenv(name, value)
    assert nvml.call("nvmlInit_v2") == 0
    first = nvml.handles()[0]
    assert _by_nvml(nvml) == _by_smi(node)
    assert nvml.processes(first) == []

    clients = [node.client(daemon).connect(device) for device in (0, 0)]
    assert clients[0].call(f"alloc {64 * MIB}").startswith("CUDA_SUCCESS")
    pids = sorted(client.pid for client in clients)
    wait_until(lambda: [pid for pid, _ in nvml.processes(first, "MPSCompute")] == pids, "the clients")
    wait_until(lambda: dict(nvml.processes(first))[clients[0].pid] >= 64 * MIB, "its memory")
    wait_until(lambda: _by_nvml(nvml) == _by_smi(node), "agreement")
    assert nvml.memory(first).used == sum(used for _, used in nvml.processes(first))

    daemon.kill()  # its servers and clients continue, and the keeper holds its sockets
    assert [pid for pid, _ in nvml.processes(first, "MPSCompute")] == pids
    assert daemon.start().returncode == 0
    clients[0].end()
    wait_until(lambda: [pid for pid, _ in nvml.processes(first, "MPSCompute")] == [clients[1].pid], "its end")
    wait_until(lambda: _by_nvml(nvml) == _by_smi(node), "agreement")
    daemon.stop()
    assert nvml.processes(first) == []
    node.set_mode("EXCLUSIVE_PROCESS")
    assert _by_nvml(nvml) == _by_smi(node)
    assert nvml.call("nvmlShutdown") == 0
    monkeypatch.setenv("PYMPSD_REQUIRE_MPS", "1")
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    assert nvml.explain(NOT_LOADED).startswith("Driver Not Loaded: no daemon of pympsd at ")
