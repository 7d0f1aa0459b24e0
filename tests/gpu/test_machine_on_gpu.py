"""Which device a daemon on a machine with a GPU has: the GPU, unless an emulated one is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from processes import DaemonProcess, wait_until
from tested_machine import gpu

from pympsd.devices.machine import describe
from tests.gpu.cuda_programs import running

RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
MakeDaemon = Callable[..., DaemonProcess]


def rows(daemon: DaemonProcess) -> list[list[str]]:
    """Return what device_query reports of the daemon's devices."""
    title, _, *lines = daemon.run_command("device_query --csv").splitlines()
    assert title == "Default"
    return [line.split(",") for line in lines]


def read_shown() -> list[str]:
    return ["0", gpu().pci, gpu().uuid, gpu().name, "N/A"]


def check_computes(daemon: DaemonProcess) -> None:
    client = daemon.client()
    try:
        assert client.connect().call("add") == RIGHT
    finally:
        client.end()


@pytest.mark.parametrize("backend", ["auto", "cuda"])
def test_the_gpu_is_found_shown_and_used(make_daemon: MakeDaemon, backend: str) -> None:
    daemon = make_daemon(PYMPSD_BACKEND=backend)
    done = daemon.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert rows(daemon)[0] == read_shown()
    check_computes(daemon)
    # auto prefers the driver's own server where it is installed.
    used = "vendor" if backend == "auto" and running.driver_program(running.SERVER) else "cuda"
    assert any(line.startswith(f"The backend is {used}: ") for line in daemon.log())


@pytest.mark.parametrize("worker", ["native", "python"])
def test_either_kind_of_worker_executes_what_clients_want(make_daemon: MakeDaemon, worker: str) -> None:
    daemon = make_daemon(PYMPSD_WORKER=worker)
    assert daemon.start().returncode == 0
    clients = [daemon.client().connect() for _ in range(2)]
    try:
        for client in clients:
            client.send("add")
        assert [client.result() for client in clients] == [RIGHT] * 2
    finally:
        for client in clients:
            client.end()

    def worker_kinds() -> list[str]:
        lines = (line.partition("command stream workers: ")[2] for line in daemon.log("server.log"))
        return [kind.split(",")[0] for kind in lines if kind]

    wait_until(worker_kinds, "the kind of workers in server.log")
    assert worker_kinds() == [worker]


def test_an_emulated_device_is_used_where_it_is_set(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="H200")
    assert daemon.start().returncode == 0
    assert [row[2] for row in rows(daemon)] == [describe("H200")[0].uuid]
    check_computes(daemon)
    assert "Device backend: emulated" in daemon.log("server.log")


def test_a_client_sees_what_the_driver_says(daemon: DaemonProcess) -> None:
    client = daemon.client().connect()
    try:
        assert client.call("count") == "1"
        assert client.call("sm") == str(gpu().multiprocessors)
        assert client.call("mem").split()[1] == str(gpu().memory_bytes >> 20)
    finally:
        client.end()


@pytest.mark.parametrize("how", ["index", "uuid", "prefix"])
def test_the_gpu_by_index_and_uuid(make_daemon: MakeDaemon, how: str) -> None:
    name = {"index": "0", "uuid": gpu().uuid, "prefix": gpu().uuid[:14]}[how]
    daemon = make_daemon(CUDA_VISIBLE_DEVICES=name)
    assert daemon.start().returncode == 0
    assert rows(daemon) == [read_shown()]


def test_a_gpu_that_is_not_there_is_refused(make_daemon: MakeDaemon) -> None:
    done = make_daemon(CUDA_VISIBLE_DEVICES="99").run(["-d"])
    assert (done.returncode, done.stdout) == (100, "")
    assert "leaves no device visible" in done.stderr
