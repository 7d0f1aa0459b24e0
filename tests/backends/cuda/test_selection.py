"""The backend of a machine, by its settings and the answer of a fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

import pympsd_server
from pympsd.devices.discovery import NoDriver, Probed, visible_machine
from pympsd.devices.driver_probe import run_probe
from pympsd.devices.machine import describe
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.settings import Settings
from pympsd.vocabulary.variables import CONNECTIONS
from pympsd_server.backends.cuda.driver.probe import pci_of
from pympsd_server.backends.cuda.objects.device import prepare_environment
from pympsd_server.backends.interface import BackendError

_EMULATED_ONLY = {"stops_kernels": False, "isolates_address_spaces": False}
GPUS = tuple(evolve(each, name="a real one", **_EMULATED_ONLY) for each in describe("2xH200"))
PROBE = Path(pympsd_server.__file__).parent / "backends" / "cuda" / "driver" / "probe.py"


def machine(probed: Probed, **environment: str) -> tuple[str, list[str]]:
    """Return the backend and the names of the devices."""
    machine = visible_machine(Settings.from_environment(environment), lambda: probed, find_server=str)
    return machine.backend, [device.name for device in machine.devices]


def never() -> Probed:
    """Fail when the driver is probed."""
    pytest.fail("the driver was probed though its answer does not matter")


@pytest.mark.parametrize("backend", ["auto", "cuda"])
def test_gpus_are_used_if_there_are_any(backend: str) -> None:
    assert machine(Probed(GPUS), PYMPSD_BACKEND=backend) == ("cuda", ["a real one"] * 2)
    assert machine(Probed(GPUS), PYMPSD_BACKEND=backend, CUDA_VISIBLE_DEVICES="1") == ("cuda", ["a real one"])


def test_auto_without_a_driver_is_emulated() -> None:
    assert machine(Probed(absent="no library")) == ("emulated", ["NVIDIA H200"])


def test_cuda_without_a_driver_is_an_error_with_the_reason() -> None:
    with pytest.raises(NoDriver, match=r"PYMPSD_BACKEND=cuda: no library; set PYMPSD_BACKEND=emulated"):
        machine(Probed(absent="no library"), PYMPSD_BACKEND="cuda")


@pytest.mark.parametrize("backend", ["auto", "cuda"])
def test_a_driver_that_does_not_work_is_an_error_never_an_emulation(backend: str) -> None:
    with pytest.raises(NoDriver, match="cannot be used: cuInit returns CUresult 999"):
        machine(Probed(unusable="cuInit returns CUresult 999"), PYMPSD_BACKEND=backend)


@pytest.mark.parametrize("environment", [{"PYMPSD_BACKEND": "emulated"}, {"PYMPSD_EMULATED_DEVICES": "H200"}])
def test_the_driver_is_not_probed_for_an_emulated_machine(environment: dict[str, str]) -> None:
    machine = visible_machine(Settings.from_environment(environment), never, find_server=str)
    assert machine.backend == "emulated"


# --- the child


def printing(text: str, status: int = 0) -> list[str]:
    """Return the command of a child that prints a text."""
    return [sys.executable, "-c", f"import sys; sys.stdout.write({text!r}); sys.exit({status})"]


def test_the_childs_answer_is_read() -> None:
    properties = {
        "name": "a real one", "uuid": GPUS[0].uuid, "pci": GPUS[0].pci, "compute_capability": [9, 0],
        "multiprocessors": 132, "memory_bytes": GPUS[0].memory_bytes, "attributes": GPUS[0].attributes,
        "sm_chunks": [15, 8], "reserved_bytes": GPUS[0].reserved_bytes,
    }  # fmt: skip
    assert run_probe(printing(json.dumps({"devices": [properties]}))) == Probed((GPUS[0],))
    assert run_probe(printing('{"absent": "why"}')) == Probed(absent="why")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (printing("", 7), "ended with status 7: no word"),
        (printing("Segmentation fault"), "ended with status 0"),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"], "ended with status -11"),
        ([sys.executable, "-c", "raise RuntimeError('no symbol')"], "RuntimeError: no symbol"),
        (["/nonexistent"], "could not be started"),
    ],
)
def test_a_child_that_fails_means_an_unusable_driver(command: list[str], reason: str) -> None:
    assert reason in run_probe(command).unusable


def test_a_driver_that_hangs_is_unusable() -> None:
    hanging = [sys.executable, "-c", "import select; select.select([], [], [])"]
    assert run_probe(hanging, seconds=0.2).unusable == "the driver did not report its devices within 0.2 s"


def test_the_probe_reports_absent_without_a_library(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "libcuda.so.1").write_text("no library")
    done = subprocess.run([sys.executable, "-I", str(PROBE)], env=environment, capture_output=True, check=True)
    assert "cannot be loaded" in json.loads(done.stdout)["absent"]


def test_pci_ids_are_written_as_by_device_query() -> None:
    assert pci_of("0000:00:06.0") == "0000:00.06.00"
    assert pci_of("00000000:C1:00.1") == "0000:c1.00.01"


def test_an_executor_reads_no_settings_of_clients() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "5", "PATH": "/bin"}
    prepare_environment(environment)
    assert environment == {
        "PATH": "/bin",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "CUDA_MODULE_LOADING": "EAGER",
        "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
    }


@pytest.mark.parametrize("connections", ["1", "8", "32"])
def test_an_executor_has_the_number_of_queues_that_its_operator_set(connections: str) -> None:
    environment = {CONNECTIONS: connections, "CUDA_DEVICE_MAX_CONNECTIONS": "2"}
    prepare_environment(environment)
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == connections


def test_an_empty_number_of_queues_is_the_default() -> None:
    environment = {CONNECTIONS: ""}
    prepare_environment(environment)
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


@pytest.mark.parametrize("connections", ["0", "33", "-1", "many"])
def test_an_impossible_number_of_queues_is_refused(connections: str) -> None:
    with pytest.raises(BackendError) as caught:
        prepare_environment({CONNECTIONS: connections})
    assert caught.value.code == Result.ERROR_NOT_SUPPORTED
    assert f"{CONNECTIONS} must be a number from 1 to 32, not {connections!r}" in caught.value.reason
