"""The description of devices that libnvidia-ml.so.1 reads."""

from __future__ import annotations

from attrs import evolve

from pympsd.devices.machine import describe, set_attributes
from pympsd.devices.nvml_text import DeviceProcess, ModesFile, nvml_text


def test_the_description_has_a_line_for_each_property() -> None:
    device = evolve(describe("H200")[0], uuid="GPU-7685caad-23a2-2403-a46b-a1dfeabe3819", pci="0001:1a.06.00")
    processes = [[DeviceProcess(4711, False, 0, 37), DeviceProcess(4712, True, 67108864)]]
    text = nvml_text("emulated", [device], processes, ModesFile("/run/a folder/modes", 1000), [37])
    assert text.splitlines() == [
        "pympsd-nvml 1",
        "backend emulated",
        "driver 590.0 590 13010 13010",
        "modes 0 1000 /run/a folder/modes",
        "device",
        "uuid GPU-7685caad-23a2-2403-a46b-a1dfeabe3819",
        "name NVIDIA H200",
        "pci 1 26 6 0",
        "board 0 0",
        "capability 9 0",
        "memory 150109880320 67108864",
        "reserved 644939776",
        "utilization 37 0",
        "compute_mode 0",
        "numa_node 0",
        "ordinal 0",
        "process 4711 C 0 37",
        "process 4712 M 67108864",
        "end",
    ]


def test_values_in_the_nvml_text_cannot_begin_lines() -> None:
    device = evolve(set_attributes(describe("H200")[0], COMPUTE_MODE=3), name="A\nmemory 1 1\x1b  " + "é" * 100)
    text = nvml_text("cuda", [device], modes=ModesFile("/run\n/modes"))
    lines = text.splitlines()
    name = next(line for line in lines if line.startswith("name "))
    assert name == "name A?memory 1 1? " + "é" * 40
    assert [line for line in lines if line.startswith(("modes", "memory", "compute_mode"))] == [
        "memory 150109880320 0",
        "compute_mode 3",
    ]


def test_no_more_memory_is_used_than_there_is() -> None:
    text = nvml_text("emulated", describe("P100"), [[DeviceProcess(1, False, 1 << 60)]])
    assert f"memory {16276 << 20} {16276 << 20}\n" in text


def test_the_utilization_of_gpus_is_the_drivers() -> None:
    assert "utilization 0 0\n" in nvml_text("emulated", describe("H200"))
    for text in (nvml_text("cuda", describe("H200")), nvml_text("emulated", describe("H200"), utilization=[None])):
        assert "utilization" not in text
