"""Programs written for driver 590 that make static SM partitions: their own parsing, rebuilt from what they need.

A model server (sglang-omni) reads ``lspart`` by words and the daemon's process in /proc; a robotics toolkit (Isaac
ROS) gives commands as arguments, takes any standard error for a failure, and computes the size of a chunk.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define, field
from processes import PYMPSD, DaemonProcess

from pympsd.cli.options import DROP_IN_NAME
from pympsd.devices.machine import describe

UUID = describe("H200")[0].uuid
HEADINGS = (["GPU", "Partition", "free", "used", "free", "used", "clients"], ["chunks", "chunks", "SM", "SM"])


@pytest.fixture
def control(directory: Path) -> Iterator[DaemonProcess]:
    """Return the tool under the vendor's name; no daemon runs."""
    link = directory / DROP_IN_NAME
    link.symlink_to(PYMPSD)
    daemon = DaemonProcess(directory, {"PYMPSD_EMULATED_DEVICES": "H200"}, command=str(link))
    try:
        yield daemon
    finally:
        daemon.stop()


def sees(daemon: DaemonProcess, partition: str) -> str:
    """Return the SMs that a client of a partition sees, and end it."""
    client = daemon.client(CUDA_MPS_SM_PARTITION=partition).connect()
    count = client.call("sm")
    client.process.kill()
    client.process.communicate()
    return count


# --- the model server


@define
class Device:
    """What it reads of a device in ``lspart``."""

    free_chunks: int
    used_chunks: int
    free_sms: int
    used_sms: int
    partitions: dict[str, tuple[int, int, bool]] = field(factory=dict)
    """By id: chunks, SMs, and whether there are clients."""


def parse_lspart(text: str) -> dict[str, Device]:
    """Return the devices by the beginning of their UUID; raise ValueError for any other form."""
    first, second, *rows = [line.split() for line in text.splitlines() if line.strip()]
    if (first, second) != HEADINGS:
        raise ValueError(f"other headings: {first} {second}")
    devices: dict[str, Device] = {}
    current: Device | None = None
    for row in rows:
        if len(row) != 5:
            raise ValueError(f"not five words: {row}")
        if row[1].isdecimal():
            current = devices[row[0]] = Device(*map(int, row[1:]))
        elif current is None or row[4] not in ("Yes", "No"):
            raise ValueError(f"a partition of no device: {row}")
        else:
            current.partitions[row[1]] = int(row[2]), int(row[3]), row[4] == "Yes"
    return devices


def create_partition(daemon: DaemonProcess, chunks: int) -> str:
    """Return the whole id of a new partition; raise ValueError if the answer is another one."""
    answer = daemon.run_command(f"sm_partition add {UUID} {chunks}\n")
    if not (answer.startswith("Partition ") and answer.endswith(" created\n") and answer.count("\n") == 1):
        raise ValueError(answer)
    return answer.removeprefix("Partition ").removesuffix(" created\n")


def remove_partition(daemon: DaemonProcess, partition: str) -> str:
    """Remove a partition, and return the answer; the list reports whether it is gone."""
    uuid, _, name = partition.partition("/")
    return daemon.run_command(f"sm_partition rm {uuid} {name}\n")


def static_partitioning_enabled(directory: Path) -> bool:
    """Return whether the daemon of a pipe directory was started with static partitioning."""
    pid = int((directory / f"{DROP_IN_NAME}.pid").read_text())
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    if Path(words[0]).name != DROP_IN_NAME or f"CUDA_MPS_PIPE_DIRECTORY={directory}" not in environment:
        raise ValueError("another process")
    return bool({"-S", "--static-partitioning"} & set(words[1:]))


def test_a_model_server_has_partitions_for_its_replicas(control: DaemonProcess) -> None:
    assert control.start("-d", "-S").stderr == ""
    assert static_partitioning_enabled(control.directory / "pipe")
    probe = create_partition(control, 1)
    (device,) = parse_lspart(control.run_command("lspart\n")).values()
    assert device.partitions[probe.partition("/")[2]] == (1, 8, False)
    remove_partition(control, probe)
    large, small = create_partition(control, 10), create_partition(control, 5)
    (device,) = parse_lspart(control.run_command("lspart\n")).values()
    assert (device.free_chunks, device.used_chunks, device.free_sms, device.used_sms) == (0, 15, 12, 120)
    with pytest.raises(ValueError, match="INVALID_RESOURCE_CONFIGURATION"):
        create_partition(control, 1)
    assert (sees(control, large), sees(control, small)) == ("80", "40")
    # It drains a partition by the list of clients, and removes it.
    client = control.client(CUDA_MPS_SM_PARTITION=large).connect()
    try:
        assert "in use" in remove_partition(control, large)
        (server,) = control.servers()
        assert str(client.pid) in control.run_command(f"get_client_list {server}\n").split()
        assert control.run_command(f"terminate_client {server} {client.pid}\n") == "0\n"
        remove_partition(control, large)
        (device,) = parse_lspart(control.run_command("lspart\n")).values()
        assert list(device.partitions) == [small.partition("/")[2]]
    finally:
        client.process.kill()
        client.process.communicate()


def test_a_daemon_without_static_partitioning_is_recognized(control: DaemonProcess) -> None:
    assert control.start("-d").returncode == 0
    assert not static_partitioning_enabled(control.directory / "pipe")


# --- the robotics toolkit


@define
class Partitions:
    """Its steps, each of which fails if the tool prints to standard error or exits with another status than 0."""

    daemon: DaemonProcess

    def run(self, *words: str) -> str:
        done = self.daemon.run(list(words))
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def row(self) -> list[str]:
        """Return the words of the first device, which are in the third line."""
        return self.run("lspart").splitlines()[2].split()

    def add(self, chunks: int) -> str:
        """Return the id of a new partition: what follows the first slash of the second word."""
        answer = self.run(f"sm_partition add {self.row()[0]} {chunks}")
        assert "Failed" not in answer
        assert "created" in answer
        return answer.split()[1].partition("/")[2]

    def clear(self) -> None:
        """Remove each partition that is listed."""
        for line in self.run("lspart").splitlines()[3:]:
            self.run(f"sm_partition rm {' '.join(line.split()[:2])}")


def test_a_robotics_toolkit_configures_the_gpu(control: DaemonProcess) -> None:
    done = control.start("-d", "-s", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    output = subprocess.run(["ps", "-ef"], capture_output=True, text=True, check=True).stdout
    assert any(line.endswith(f"{DROP_IN_NAME} -d -s -q") for line in output.splitlines())
    partitions = Partitions(control)
    _, free_chunks, _, free_sms, _ = partitions.row()
    assert int(free_sms) // int(free_chunks) == 8
    ids = [partitions.add(2), partitions.add(3)]
    ids.append(partitions.add(int(partitions.row()[1])))  # the default: all that is left
    uuid = partitions.row()[0]
    assert [sees(control, f"{uuid}/{partition_id}") for partition_id in ids] == ["16", "24", "80"]
    assert len(partitions.run("lspart").splitlines()) == 6
    partitions.clear()
    assert partitions.run("lspart").splitlines()[2:] == [f"{uuid:<52}15      0       132   0"]
