"""Which backend a machine gets, by what is asked for, the driver says, and which servers are installed; and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

from pympsd.channel.own_libraries import OWN_LIBRARIES
from pympsd.devices.discovery import Machine, NoDriver, Probed, visible_machine
from pympsd.devices.driver_probe import SERVER_NAME, find_driver_server, run_probe
from pympsd.devices.machine import describe
from pympsd.vocabulary.settings import Settings
from pympsd.vocabulary.variables import BadSetting

DEVICES = describe("2xH200")
FOUND = Probed(DEVICES)
ABSENT = Probed(absent="there is no libcuda.so.1")
UNUSABLE = Probed(unusable="CUDA_ERROR_SYSTEM_NOT_READY")
SERVER = "/usr/bin/nvidia-cuda-mps-server"


def machine(backend: str, probed: Probed, server: str = "", **settings: str) -> Machine:
    """Return the machine for a backend that is asked for."""
    chosen = Settings.from_environment({"PYMPSD_BACKEND": backend, **settings})
    return visible_machine(chosen, lambda: probed, lambda: server)


@pytest.mark.parametrize(
    ("backend", "probed", "server", "expected"),
    [
        ("auto", FOUND, SERVER, ("vendor", f"the driver finds 2 devices, and its MPS server is {SERVER}", 2, SERVER)),
        ("auto", FOUND, "", ("cuda", "the driver finds 2 devices, but not its MPS server", 2, "")),
        ("auto", ABSENT, SERVER, ("emulated", "there is no libcuda.so.1", 1, "")),
        ("auto", ABSENT, "", ("emulated", "there is no libcuda.so.1", 1, "")),
        ("vendor", FOUND, SERVER, ("vendor", f"PYMPSD_BACKEND selects it, and its server is {SERVER}", 2, SERVER)),
        ("vendor", ABSENT, SERVER, ("vendor", f"PYMPSD_BACKEND selects it, and its server is {SERVER}", 0, SERVER)),
        ("vendor", UNUSABLE, SERVER, ("vendor", f"PYMPSD_BACKEND selects it, and its server is {SERVER}", 0, SERVER)),
        ("cuda", FOUND, SERVER, ("cuda", "PYMPSD_BACKEND selects it", 2, "")),
        ("cuda", FOUND, "", ("cuda", "PYMPSD_BACKEND selects it", 2, "")),
        ("emulated", FOUND, SERVER, ("emulated", "PYMPSD_BACKEND selects it", 1, "")),
        ("emulated", UNUSABLE, SERVER, ("emulated", "PYMPSD_BACKEND selects it", 1, "")),
    ],
)
def test_the_backend_and_the_reason(
    backend: str, probed: Probed, server: str, expected: tuple[str, str, int, str]
) -> None:
    chosen = machine(backend, probed, server)
    assert (chosen.backend, chosen.reason, len(chosen.devices), chosen.vendor_server) == expected


def test_only_auto_has_another_backend_in_the_drivers_place() -> None:
    instead = machine("auto", FOUND, SERVER, CUDA_VISIBLE_DEVICES="1").instead
    assert instead is not None
    assert (instead.backend, [device.uuid for device in instead.devices]) == ("cuda", [DEVICES[1].uuid])
    assert machine("vendor", FOUND, SERVER).instead is None


@pytest.mark.parametrize(
    ("backend", "devices", "setting", "driver"),
    [
        ("emulated", "2xH200", "", 590),
        ("emulated", "2xH200", "580", 580),
        ("cuda", "", "", 590),
        ("vendor", "", "", 580),
        ("vendor", "", "590", 590),
    ],
)
def test_one_branch_of_the_driver_is_chosen_for_daemon_and_devices(
    backend: str, devices: str, setting: str, driver: int
) -> None:
    chosen = machine(backend, FOUND, SERVER, PYMPSD_EMULATED_DEVICES=devices, PYMPSD_DRIVER=setting)
    assert {chosen.driver, *(device.driver for device in chosen.devices)} == {driver}


def test_a_machine_is_described_with_a_branch_of_the_driver(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text("driver = 580\n[[device]]\n")
    described = {"PYMPSD_EMULATED_DEVICES": str(path)}
    assert machine("auto", FOUND, SERVER, **described).driver == 580
    assert machine("auto", FOUND, SERVER, **described, PYMPSD_DRIVER="590").driver == 590


@pytest.mark.parametrize(
    ("backend", "probed", "server", "message"),
    [
        (
            "auto",
            UNUSABLE,
            SERVER,
            r"cannot be used: CUDA_ERROR_SYSTEM_NOT_READY; fix it, or set PYMPSD_BACKEND=emul",
        ),
        ("cuda", UNUSABLE, SERVER, r"cannot be used: CUDA_ERROR_SYSTEM_NOT_READY"),
        ("cuda", ABSENT, SERVER, r"PYMPSD_BACKEND=cuda: there is no libcuda.so.1; set PYMPSD_BACKEND=emulated"),
        ("vendor", FOUND, "", r"no nvidia-cuda-mps-server is in PATH; name the driver's in PYMPSD_VENDOR_SERVER"),
        ("vendor", ABSENT, "", r"no nvidia-cuda-mps-server is in PATH"),
        ("vendor", UNUSABLE, "", r"no nvidia-cuda-mps-server is in PATH"),
    ],
)
def test_what_is_requested_and_not_there_is_an_error(backend: str, probed: Probed, server: str, message: str) -> None:
    with pytest.raises(NoDriver, match=message):
        machine(backend, probed, server)


def test_a_server_that_is_named_and_no_program_is_named_in_the_error() -> None:
    with pytest.raises(NoDriver, match="PYMPSD_VENDOR_SERVER=/nowhere is not a program"):
        machine("vendor", FOUND, "", PYMPSD_VENDOR_SERVER="/nowhere")


def test_a_single_device_is_reported_in_the_singular() -> None:
    machine_of_one = evolve(FOUND, devices=DEVICES[:1])
    assert (
        machine("auto", machine_of_one, SERVER).reason == f"the driver finds 1 device, and its MPS server is {SERVER}"
    )
    assert machine("auto", machine_of_one).reason == "the driver finds 1 device, but not its MPS server"


def test_a_described_machine_is_emulated_whatever_is_installed() -> None:
    chosen = machine("auto", FOUND, SERVER, PYMPSD_EMULATED_DEVICES="2xH100")
    assert (chosen.backend, len(chosen.devices)) == ("emulated", 2)


def test_a_backend_that_is_set_wins_over_a_described_machine() -> None:
    assert machine("vendor", FOUND, SERVER, PYMPSD_EMULATED_DEVICES="2xH100").backend == "vendor"


@pytest.mark.parametrize("backend", ["vendor", "cuda", "auto"])
def test_visible_devices_are_chosen_from_the_drivers(backend: str) -> None:
    chosen = machine(backend, FOUND, SERVER, CUDA_VISIBLE_DEVICES="1")
    assert [device.uuid for device in chosen.devices] == [DEVICES[1].uuid]


def test_the_driver_and_the_server_are_looked_for_only_if_that_matters() -> None:
    def never() -> Probed:
        raise AssertionError("the driver was asked")

    def nor() -> str:
        raise AssertionError("a server was looked for")

    emulated = Settings.from_environment({"PYMPSD_BACKEND": "emulated"})
    assert visible_machine(emulated, never, nor).backend == "emulated"
    cuda = Settings.from_environment({"PYMPSD_BACKEND": "cuda"})
    assert visible_machine(cuda, lambda: FOUND, nor).backend == "cuda"


def test_another_backend_is_refused_with_those_that_are_allowed() -> None:
    with pytest.raises(BadSetting, match="one of auto, vendor, cuda, emulated, not 'nvidia'"):
        Settings.from_environment({"PYMPSD_BACKEND": "nvidia"})


# --- the driver's server


def program(folder: Path, name: str = SERVER_NAME, mode: int = 0o755) -> str:
    """Write a program; return its path."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


def path_of(*folders: Path) -> dict[str, str]:
    """Return an environment with these folders in PATH."""
    return {"PATH": os.pathsep.join(map(str, folders))}


def test_the_first_in_path(tmp_path: Path) -> None:
    first, second = program(tmp_path / "a"), program(tmp_path / "b")
    assert find_driver_server("", path_of(tmp_path / "none", tmp_path / "a", tmp_path / "b")) == first
    assert find_driver_server("", path_of(tmp_path / "b", tmp_path / "a")) == second


def test_links_to_ours_are_passed_over(tmp_path: Path) -> None:
    """A package may put pympsd's programs under the vendor's names first in PATH."""
    for folder in ("a", "b"):
        ours = program(tmp_path / folder, "pympsd-server")
        (tmp_path / folder / SERVER_NAME).symlink_to(ours)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / SERVER_NAME).symlink_to(tmp_path / "b" / SERVER_NAME)  # a link to a link
    theirs = program(tmp_path / "d")
    folders = [tmp_path / name for name in "abcd"]
    assert find_driver_server("", path_of(*folders)) == theirs
    assert find_driver_server("", path_of(*folders[:3])) == ""


def test_a_link_to_theirs_is_found(tmp_path: Path) -> None:
    theirs = program(tmp_path / "driver", "nvidia-cuda-mps-server.580")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / SERVER_NAME).symlink_to(theirs)
    assert find_driver_server("", path_of(tmp_path / "a")) == str(tmp_path / "a" / SERVER_NAME)


def test_files_that_are_not_programs_are_skipped(tmp_path: Path) -> None:
    program(tmp_path / "a", mode=0o644)
    (tmp_path / "b" / SERVER_NAME).mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / SERVER_NAME).symlink_to(tmp_path / "nowhere")
    folders = [tmp_path / name for name in "abc"]
    assert find_driver_server("", path_of(*folders)) == ""
    theirs = program(tmp_path / "d")
    assert find_driver_server("", path_of(*folders, tmp_path / "d")) == theirs


def test_relative_folders_of_path_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon changes to / and might start another's program as root."""
    program(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    assert find_driver_server("", {"PATH": "a:.:"}) == ""


def test_without_a_path_the_systems_is_searched() -> None:
    path = find_driver_server("", {})
    assert path == "" or os.path.basename(path) == SERVER_NAME


def test_a_given_one_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    server_path = program(tmp_path / "a", "pympsd-server")
    assert find_driver_server(server_path, path_of(tmp_path)) == server_path
    assert find_driver_server(str(tmp_path / "nowhere"), path_of(tmp_path / "a")) == ""
    assert find_driver_server(program(tmp_path / "b", mode=0o644), path_of(tmp_path / "b")) == ""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "ended with status 3: no word"),
        ("echo first >&2; echo last >&2; exit 1", "ended with status 1: last"),
        ("echo '{'", "ended with status 0: no word"),
        ("kill -9 $$", "ended with status -9"),
    ],
)
def test_a_probe_that_fails_means_that_the_driver_is_unusable(script: str, message: str) -> None:
    probed = run_probe(["/bin/sh", "-c", script])
    assert message in probed.unusable
    assert not probed.devices
    with pytest.raises(NoDriver, match="cannot be used"):
        machine("auto", probed, SERVER)


def test_a_probe_is_not_routed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_ROUTING", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{OWN_LIBRARIES}:/opt/other")
    probed = run_probe(["/bin/sh", "-c", "echo $PYMPSD_ROUTING,$LD_LIBRARY_PATH >&2; exit 1"])
    assert probed.unusable.endswith("ended with status 1: ,/opt/other")


def test_what_the_cuda_backend_does_not_do_is_not_among_the_attributes() -> None:
    for backend, value in (("cuda", 0), ("vendor", 1)):
        attributes = machine(backend, FOUND, SERVER).devices[0].attributes
        assert attributes["MANAGED_MEMORY"] == value
        assert attributes["TENSOR_MAP_ACCESS_SUPPORTED"] == value
        assert bool(attributes["MAXIMUM_TEXTURE2D_WIDTH"]) == value
        assert attributes["CAN_MAP_HOST_MEMORY"] == 1
