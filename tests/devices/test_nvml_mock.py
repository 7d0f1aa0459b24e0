"""Machines in the format of nvml-mock's profiles, and back: the same devices to NVML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pympsd.cli.machine import main
from pympsd.devices.machine import describe, parse_toml, set_attributes
from pympsd.devices.nvml_mock import BadProfile, export_profile, read_profile
from pympsd.devices.nvml_text import nvml_text

# As profiles of nvml-mock are written: defaults, and devices that name themselves.
PROFILE = """
version: "1.0"
system:
  driver_version: "550.163.01"
  num_devices: 3
device_defaults:
  name: "NVIDIA H100 80GB HBM3"
  serial: "1562821083900"
  architecture: "hopper"
  compute_capability:
    major: 9
    minor: 0
  num_gpu_cores: 16896  # 132 SMs
  memory:
    total_bytes: 85899345920
  pci:
    device_id: 0x233010DE
  power:
    default_limit_mw: 700000
  mig:
    mode_current: "disabled"
  compute_mode: "default"
  processes: []
devices:
  - index: 0
    uuid: "GPU-01000100-0000-0000-0000-000000000000"
    pci:
      bus_id: "0000:1A:00.0"
  - index: 1
    uuid: "GPU-01000100-0000-0000-0000-000000000001"
    name: "NVIDIA H100 NVL"
    memory:
      total_bytes: 42949672960
"""


def _profile(**defaults: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "device_defaults": {"compute_capability": {"major": 9, "minor": 0}, **defaults},
        "devices": [{"index": 0}],
    }


def test_a_profile_becomes_a_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h100.yaml"
    path.write_text(PROFILE)
    assert main(["import", str(path)]) == 0
    printed = capfd.readouterr()
    devices = parse_toml(printed.out)
    assert [(device.name, device.uuid, device.memory_bytes >> 30) for device in devices] == [
        ("NVIDIA H100 80GB HBM3", "GPU-01000100-0000-0000-0000-000000000000", 80),
        ("NVIDIA H100 NVL", "GPU-01000100-0000-0000-0000-000000000001", 40),
        ("NVIDIA H100 80GB HBM3", "GPU-4d4f434b-0000-0000-0000-000000000002", 80),  # what nvml-mock calls it
    ]
    assert (devices[0].bus_id, devices[0].multiprocessors) == ("00000000:1A:00.0", 132)
    assert printed.err == (
        "pympsd machine: emulated devices do not have, so left out: power, system.driver_version\n"
    )


@pytest.mark.parametrize("machine", ["2xH200", "1xT4", "3xV100", "8xL40S", "B200", "P100"])
def test_an_exported_machine_is_the_same_when_it_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], machine: str
) -> None:
    assert main(["export", machine]) == 0
    path = tmp_path / "profile.yaml"
    path.write_text(capfd.readouterr().out)
    assert main(["import", str(path)]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    assert nvml_text("emulated", parse_toml(printed.out)) == nvml_text("emulated", describe(machine))


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ([], "the profile has keys and values"),
        ({"version": "2.0"}, "the profile's version must be 1.0, not '2.0'"),
        ({**_profile(), "gpus": []}, "a profile: pympsd has no meaning for gpus"),
        (_profile(colour="green"), "device 0: pympsd has no meaning for colour"),
        (_profile(failure={"mode": "lost"}), "device 0: failure: pympsd does not have this"),
        (_profile(processes=[{"pid": 1}]), "device 0: processes: "),
        (_profile(dynamic_metrics={"power": {}}), "device 0: dynamic_metrics: "),
        (_profile(mig={"mode_current": "enabled"}), "device 0: mig.mode_current: emulated devices have no MIG"),
        (
            _profile(compute_mode="exclusive_thread"),
            "compute_mode must be one of default, prohibited, exclusive_process",
        ),
        (
            _profile(compute_capability={"major": 12, "minor": 1}),
            "compute capability 12.1: emulated devices",
        ),
        (_profile(compute_capability={}), "device_defaults.compute_capability has the numbers major and minor"),
        (_profile(num_gpu_cores=100), "num_gpu_cores must be a multiple of 128, not 100"),
        (_profile(memory={"total_bytes": 5}), "device 0: memory.total_bytes must be a number of whole MiB, not 5"),
        (_profile(name="a\nb"), "has characters that cannot be printed"),
        (_profile(pci={"bus_id": "1A:00"}), "pci.bus_id must be written like 0000:1A:00.0, not '1A:00'"),
        ({**_profile(), "devices": [{"index": 0}] * 2}, "each entry of devices has its own index"),
        ({**_profile(), "system": {"num_devices": 65}}, "a machine has 1 to 64 devices"),
    ],
)
def test_what_a_machine_does_not_have_is_refused_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], profile: Any, reason: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    assert main(["import", str(path)]) == 1
    printed = capfd.readouterr()
    assert (printed.out, reason in printed.err) == ("", True), printed.err


def test_what_a_profile_cannot_say_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "1xH200,1xT4"]) == 1
    assert "all devices have one compute capability" in capfd.readouterr().err
    assert main(["export", str(tmp_path / "none.toml")]) == 1
    assert "No such file or directory" in capfd.readouterr().err
    first, second = describe("2xH200")
    with pytest.raises(BadProfile, match="one compute mode"):
        export_profile([first, set_attributes(second, COMPUTE_MODE=3)])
    (tmp_path / "bad.yaml").write_text("a: [")
    assert main(["import", str(tmp_path / "bad.yaml")]) == 1
    assert "the text is not YAML" in capfd.readouterr().err


def test_a_driver_that_pympsd_has_is_taken() -> None:
    profile = {**_profile(), "system": {"driver_version": "580.65.06", "cuda_version": "13.0"}}
    read = read_profile(profile)
    assert read.omitted == ()
    assert parse_toml(read.toml)[0].driver == 580
