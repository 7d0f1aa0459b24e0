"""A program that runs natively: every call goes to the native driver."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pympsd.channel.own_libraries import remove_routing
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.bindings import bindings
from pympsd_client._connect import driver_library, private_executor
from pympsd_client._objects import process as process_module
from pympsd_client._objects.process import process


@pytest.fixture
def native(fresh_process: object, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Install a driver that records its calls; there is no daemon."""
    calls: list[tuple[Any, ...]] = []

    def note(name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
            calls.append((name, *arguments, *keywords.items()))
            return (cuda.CUresult.CUDA_SUCCESS, name)

        return call

    driver = SimpleNamespace(**{name: note(name) for name in cuda._FUNCTIONS if hasattr(bindings, name)})
    monkeypatch.setattr(process_module, "bindings", driver)
    monkeypatch.setattr(private_executor, "has_native_driver", lambda: True)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    monkeypatch.delenv("PYMPSD_REQUIRE_MPS", raising=False)
    assert cuda.cuInit(0) == (cuda.CUresult.CUDA_SUCCESS,)
    return calls


def test_every_call_goes_to_the_driver_unchanged(native: list[tuple[Any, ...]]) -> None:
    assert cuda.cuMemAlloc(bytesize=64) == (cuda.CUresult.CUDA_SUCCESS, "cuMemAlloc")
    assert cuda.cuCtxCreate(0, 1) == (cuda.CUresult.CUDA_SUCCESS, "cuCtxCreate")
    cuda.cuInit(0)
    assert native == [("cuMemAlloc", 64), ("cuCtxCreate", 0, 1), ("cuInit", 0)]


@pytest.mark.parametrize("name", cuda._FUNCTIONS)
def test_every_function_has_its_counterpart_in_the_bindings(name: str) -> None:
    assert hasattr(bindings, name.removesuffix("_v2"))


def test_a_function_of_a_version_is_called_by_its_plain_name(native: list[tuple[Any, ...]]) -> None:
    assert cuda.cuDeviceGetUuid_v2(0) == (cuda.CUresult.CUDA_SUCCESS, "cuDeviceGetUuid")


def test_functions_that_pympsd_lacks_exist_natively(native: list[tuple[Any, ...]]) -> None:
    assert cuda.cuGraphicsMapResources is not None


def test_fork_is_left_to_the_driver(native: list[tuple[Any, ...]]) -> None:
    process.after_fork()
    assert not process.forked


def test_a_program_that_requires_mps_tries_no_driver(fresh_process: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    monkeypatch.setenv("PYMPSD_REQUIRE_MPS", "1")
    monkeypatch.setattr(private_executor, "has_native_driver", lambda: pytest.fail("asked the driver"))
    assert cuda.cuInit(0) == (cuda.CUresult.CUDA_ERROR_MPS_CONNECTION_FAILED,)


@pytest.fixture
def drivers_daemon(fresh_process: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A daemon whose clients speak the driver's wire, over packets; the program requires MPS."""
    path = str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        monkeypatch.setenv("PYMPSD_REQUIRE_MPS", "1")
        yield path


def test_a_daemon_of_the_drivers_server_leads_to_the_native_driver(
    drivers_daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_executor, "has_native_driver", lambda: True)
    assert cuda.cuInit(0) == (cuda.CUresult.CUDA_SUCCESS,)
    assert process.native is bindings


def test_cuinit_without_a_driver_reports_that_one_is_needed(
    drivers_daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_executor, "has_native_driver", lambda: False)
    assert cuda.cuInit(0) == (cuda.CUresult.CUDA_ERROR_MPS_CONNECTION_FAILED,)
    assert last_error().startswith(f"the MPS control daemon at {drivers_daemon} manages the driver's own server")
    assert "this machine's driver is not usable" in last_error()


def test_devices_are_listed_by_the_python_that_has_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """pympsd-run names it to native programs, and to a Python of another environment."""
    monkeypatch.setenv("PYMPSD_PYTHON", sys.executable)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    devices = private_executor.list_devices({"PYMPSD_BACKEND": "emulated", "PYMPSD_EMULATED_DEVICES": "2xH200"})
    assert [device.properties.name for device in devices] == ["NVIDIA H200"] * 2


def test_without_libcuda_there_is_no_native_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(driver_library.ctypes, "CDLL", no_library)
    assert not private_executor.has_native_driver()


@pytest.mark.parametrize(("result", "expected"), [("CUDA_SUCCESS", True), ("CUDA_ERROR_NO_DEVICE", False)])
def test_a_driver_counts_only_if_it_initialises(monkeypatch: pytest.MonkeyPatch, result: str, expected: bool) -> None:
    library = SimpleNamespace(cuInit=lambda flags: int(getattr(cuda.CUresult, result)))
    monkeypatch.setattr(driver_library.ctypes, "CDLL", lambda name: library)
    assert private_executor.has_native_driver() is expected


def test_pympsds_own_library_is_not_the_machines_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, other = SimpleNamespace(pympsd_attach=None), SimpleNamespace(cuInit=None)
    libraries = {"libcuda.so.1": own, f"{tmp_path}/libcuda.so.1": other}
    folder = Path(driver_library.__file__).parents[1] / "native" / "libraries"
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{folder}:{tmp_path}")
    monkeypatch.setattr(driver_library.ctypes, "CDLL", lambda name: libraries[name])
    assert driver_library.load_driver() is other
    assert remove_routing({"LD_LIBRARY_PATH": f"{folder}:{tmp_path}", "PYMPSD_ROUTING": "1", "A": "b"}) == {
        "LD_LIBRARY_PATH": str(tmp_path),
        "A": "b",
    }
