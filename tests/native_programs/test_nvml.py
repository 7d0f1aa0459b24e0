"""libnvidia-ml.so.1: what a daemon's file contains, what is not such a file, and programs without a daemon."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_library import (
    INVALID,
    LIBRARY,
    NOT_FOUND,
    NOT_LOADED,
    NOT_SUPPORTED,
    TIMEOUT,
    TOO_SMALL,
    UNINITIALIZED,
    VERSION,
    Nvml,
    PciInfo,
    ProcessInfo,
)
from processes import SECONDS

from pympsd.devices.machine import describe, parse_toml
from pympsd.devices.nvml_text import DeviceProcess, ModesFile, nvml_text

SOURCES = Path(__file__).parent
TABLE = (SOURCES.parents[1] / "pympsd_client/native/src/nvml/functions.h").read_text()
NAMES = [
    name + suffix
    for kind, name in re.findall(r"^(FUNCTION|VERSION_2|OWN_IN)\((\w+),", TABLE, re.MULTILINE)
    for suffix in (("", "_v2") if kind == "VERSION_2" else ("",))
]
UUID = "GPU-7685caad-23a2-2403-a46b-a1dfeabe3819"
DEVICES = parse_toml(f'[[device]]\nuuid = "{UUID}"\npci = "0001:1a.06.00"\n[[device]]\nprofile = "V100"')
USED = 64 << 20
TOTAL, RESERVED = 143771 << 20, 644939776
"""An H200's memory by NVML, and the part of it that CUDA does not have (driver 580)."""
TEXT = nvml_text("emulated", DEVICES, [[DeviceProcess(9, False, 0), DeviceProcess(8, True, USED)], []])
USER = 10001


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pipe directory at whose socket somebody listens."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("PYMPSD_PYTHON", sys.executable)
    for name in ("PYMPSD_UNMAPPED_DAEMON", "LD_LIBRARY_PATH", "PYMPSD_REQUIRE_MPS", "PYMPSD_EXPLAIN"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        yield tmp_path


def _publish(pipe: Path, text: str | bytes = TEXT) -> Path:
    new = pipe / "new"
    new.write_bytes(text.encode() if isinstance(text, str) else text)
    new.chmod(0o644)
    return new.rename(pipe / "pympsd.nvml")


@pytest.fixture
def nvml(pipe: Path) -> Iterator[Nvml]:
    """NVML, initialized with DEVICES."""
    _publish(pipe)
    loaded = Nvml.load()
    assert loaded.call("nvmlInit_v2") == 0
    yield loaded
    assert loaded.call("nvmlShutdown") == 0


def test_nvml_describes_the_devices(nvml: Nvml) -> None:
    first, second = nvml.handles()
    assert [nvml.text("nvmlDeviceGetName", handle) for handle in (first, second)] == [
        "NVIDIA H200",
        "Tesla V100-SXM2-32GB",
    ]
    assert nvml.text("nvmlDeviceGetUUID", first) == UUID
    memory, old = nvml.memory(first), (ctypes.c_ulonglong * 3)()
    assert (memory.total, memory.reserved, memory.used) == (TOTAL, RESERVED, USED)
    assert memory.free == TOTAL - RESERVED - USED, "the driver's part is neither free nor used"
    assert nvml.call("nvmlDeviceGetMemoryInfo", first, old) == 0
    assert [*old] == [TOTAL, memory.free, RESERVED + USED], "in the first version it is used"
    info = PciInfo()
    assert nvml.call("nvmlDeviceGetPciInfo_v3", first, ctypes.byref(info)) == 0
    assert (info.long_id, info.short_id) == (b"00000001:1A:06.0", b"0001:1A:06.0")
    assert (info.domain, info.bus, info.device) == (1, 26, 6)
    assert [nvml.text(f"nvmlSystemGet{name}Version") for name in ("Driver", "NVML")] == ["590.0", "13.590.0"]
    assert nvml.number("nvmlSystemGetCudaDriverVersion") == 13010
    branch = ctypes.create_string_buffer((84 | 1 << 24).to_bytes(4, "little"), 84)
    assert nvml.call("nvmlSystemGetDriverBranch", branch, 80) == 0
    assert branch.raw[4:].partition(b"\0")[0] == b"r590_00"
    assert [nvml.number("nvmlDeviceGetArchitecture", handle) for handle in (first, second)] == [9, 5]
    assert [nvml.number("nvmlDeviceGetBrand", handle) for handle in (first, second)] == [14, 2]
    modes = ctypes.c_uint(7), ctypes.c_uint(7)
    assert nvml.call("nvmlDeviceGetMigMode", first, *map(ctypes.byref, modes)) == 0
    assert [mode.value for mode in modes] == [0, 0]
    assert nvml.call("nvmlDeviceGetMigMode", second, *map(ctypes.byref, modes)) == NOT_SUPPORTED
    for name, key in (
        ("UUID", UUID),
        ("UUID", UUID[4:].upper()),
        ("PciBusId", "0001:1a:06.0"),
        ("PciBusId_v2", "00000001:1A:06.0"),
    ):
        handle = ctypes.c_void_p()
        assert nvml.call(f"nvmlDeviceGetHandleBy{name}", key.encode(), ctypes.byref(handle)) == 0
        assert handle.value == first.value
    assert nvml.call("nvmlDeviceGetHandleByUUID", b"GPU-none", ctypes.byref(handle)) == NOT_FOUND


@pytest.mark.parametrize(
    ("name", "head", "size"),
    [
        ("nvmlDeviceGetGpuFabricInfo", 0, 28),
        ("nvmlDeviceGetGpuFabricInfoV", 36 | 2 << 24, 36),
        ("nvmlDeviceGetGpuFabricInfoV", 40 | 3 << 24, 40),
        ("nvmlGpmQueryDeviceSupport", 1, 8),
    ],
)
def test_nvml_reports_no_fabric_and_no_gpm(nvml: Nvml, name: str, head: int, size: int) -> None:
    """As recorded on an H200 (driver 580.159.04) of which the machine has no fabric manager, but for GPM."""
    first, _ = nvml.handles()
    info = bytearray(head.to_bytes(4, "little") + b"\xff" * (size - 3))
    place = (ctypes.c_char * len(info)).from_buffer(info)
    assert nvml.call(name, first, place) == 0
    assert info == head.to_bytes(4, "little") + bytes(size - 4) + b"\xff"
    info[:4] = (9 << 24 | 99).to_bytes(4, "little")
    assert nvml.call(name, first, place) == (VERSION if head else 0)


def test_nvml_lists_processes_in_every_version(nvml: Nvml, pipe: Path) -> None:
    first, second = nvml.handles()
    for version in ("", "_v2", "_v3"):
        assert nvml.processes(first, "Compute", version) == [(9, 0), (8, USED)]
        assert nvml.processes(first, "MPSCompute", version) == [(8, USED)]
        assert nvml.processes(first, "Graphics", version) == nvml.processes(second, "Compute", version) == []
    count, place = ctypes.c_uint(1), ProcessInfo(77)
    name = "nvmlDeviceGetComputeRunningProcesses_v3"
    assert nvml.call(name, first, ctypes.byref(count), ctypes.byref(place)) == TOO_SMALL
    assert (count.value, place.pid) == (2, 77)
    count.value = 0
    assert nvml.call(name, first, ctypes.byref(count), None) == TOO_SMALL
    assert nvml.call(name, second, ctypes.byref(count), None) == 0
    assert nvml.call(name, first, None, None) == INVALID


def test_a_query_sees_what_the_daemon_wrote_last(nvml: Nvml, pipe: Path) -> None:
    first, second = nvml.handles()
    _publish(pipe, nvml_text("emulated", DEVICES, [[], [DeviceProcess(7, False, 5)]]))
    assert (nvml.processes(first), nvml.processes(second), nvml.memory(second).used) == ([], [(7, 5)], 5)
    _publish(pipe, TEXT[: len(TEXT) // 2])  # no daemon leaves that; the last valid one counts
    assert nvml.processes(second) == [(7, 5)]
    _publish(pipe, nvml_text("emulated", DEVICES[1:]))
    lost = 15
    assert nvml.call("nvmlDeviceGetMemoryInfo", first, ctypes.byref(ProcessInfo())) == lost
    assert nvml.processes(second) == []
    _publish(pipe)
    assert nvml.memory(first).used == USED
    (pipe / "pympsd.nvml").unlink()  # the daemon has quit
    assert (nvml.processes(first), nvml.memory(first).used) == ([], 0)
    assert nvml.text("nvmlDeviceGetUUID", first) == UUID


def test_the_utilization_is_the_daemons(nvml: Nvml, pipe: Path) -> None:
    first, second = nvml.handles()
    assert nvml.utilization(first) == (0, 0)
    busy = nvml_text("emulated", DEVICES, utilization=[37, None])
    _publish(pipe, busy)
    assert nvml.utilization(first) == (37, 0)
    assert nvml.call("nvmlDeviceGetUtilizationRates", first, None) == INVALID
    # A daemon of an earlier version, or one with a server of it, does not know it.
    assert nvml.call("nvmlDeviceGetUtilizationRates", second, (ctypes.c_uint * 2)()) == NOT_SUPPORTED
    _publish(pipe, busy).unlink()  # the daemon has quit
    assert nvml.utilization(first) == (0, 0)


class ProcessSample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t"""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("microseconds", ctypes.c_ulonglong),
        *((name, ctypes.c_uint) for name in ("multiprocessors", "memory", "encoder", "decoder")),
    )


def test_the_utilization_by_process_is_that_of_servers(nvml: Nvml, pipe: Path) -> None:
    # Results, the count and who has a row are as recorded: H200, driver 580.159.
    first, second = nvml.handles()
    samples, count = (ProcessSample * 72)(), ctypes.c_uint(0)

    def ask(place: object, last_seen: int = 0) -> int:
        name = "nvmlDeviceGetProcessUtilization"
        return nvml.call(name, first, place, ctypes.byref(count), ctypes.c_ulonglong(last_seen))

    assert (ask(None), count.value) == (TOO_SMALL, 72)
    assert (ask(samples), count.value) == (NOT_FOUND, 0), "no kernel ran"
    users = [DeviceProcess(9, False, 0, 30), DeviceProcess(8, True, USED), DeviceProcess(7, False, 0, 7)]
    _publish(pipe, nvml_text("emulated", DEVICES, [users, []], utilization=[37, None]))
    began = time.time_ns() // 1000
    count.value = 72
    assert (ask(samples), count.value) == (0, 2)
    rows = [tuple(getattr(row, name) for name, _ in ProcessSample._fields_) for row in samples[:2]]
    assert [(pid, *rest) for pid, _, *rest in rows] == [(9, 30, 0, 0, 0), (7, 7, 0, 0, 0)]
    assert all(began <= microseconds <= time.time_ns() // 1000 for _, microseconds, *_ in rows)
    assert (ask(samples, 1 << 62), count.value) == (NOT_FOUND, 0), "nothing is newer than that"
    count.value = 1
    assert (ask(samples), count.value) == (TOO_SMALL, 72)
    name = "nvmlDeviceGetProcessUtilization"
    assert nvml.call(name, first, samples, None, ctypes.c_ulonglong(0)) == INVALID
    assert nvml.call(name, second, samples, ctypes.byref(count), ctypes.c_ulonglong(0)) == NOT_SUPPORTED


def test_the_compute_mode_is_the_one_that_pympsd_smi_set(nvml: Nvml, pipe: Path) -> None:
    modes, name = pipe / "modes", "nvmlDeviceGetComputeMode"
    assert nvml.call("nvmlShutdown") == 0
    _publish(pipe, nvml_text("emulated", DEVICES, modes=ModesFile(str(modes))))
    assert nvml.call("nvmlInit_v2") == 0
    first, second = nvml.handles()
    assert nvml.number(name, first) == 0
    modes.write_text(f"{DEVICES[1].uuid} PROHIBITED\n{UUID} EXCLUSIVE_PROCESS\n")
    assert (nvml.number(name, first), nvml.number(name, second)) == (3, 2)
    os.chown(modes, USER, -1)  # anybody may write a file there
    assert nvml.number(name, first) == 0


MANGLED = {
    "empty": b"",
    "another file": b"hello\n",
    "cut off": TEXT.encode()[:-4],
    "cut off in a line": TEXT.encode()[: TEXT.index("memory") + 9],
    "of another version": TEXT.replace("pympsd-nvml 1", "pympsd-nvml 2").encode(),
    "with a NUL": TEXT.replace("NVIDIA", "NV\0DIA").encode(),
    "without a driver": TEXT.replace("driver ", "other ").encode(),
    "without a name": TEXT.replace("name ", "other ").encode(),
    "a name that is too long": TEXT.replace("NVIDIA H200", "A" * 96).encode(),
    "a negative number": TEXT.replace("memory 1", "memory -1").encode(),
    "a number that is too large": TEXT.replace("memory 1", f"memory {1 << 64}").encode(),
    "more used than there is": TEXT.replace(f" {USED}\nres", f" {1 << 60}\nres").encode(),
    "more reserved than can be": TEXT.replace(f"reserved {RESERVED}", f"reserved {(1 << 64) - 1}").encode(),
    "a percentage that is missing": TEXT.replace("utilization 0 0", "utilization 0").encode(),
    "no number": TEXT.replace("capability 9 0", "capability 9").encode(),
    "a kind of process that there is not": TEXT.replace("process 9 C", "process 9 X").encode(),
    "too many devices": TEXT.replace("end\n", "device\nuuid a\nname b\n" * 300 + "end\n").encode(),
    "without end": TEXT.replace("end\n", "x" * (9 << 20)).encode(),
}


@pytest.mark.parametrize("content", MANGLED)
def test_a_mangled_file_is_refused(pipe: Path, content: str) -> None:
    assert MANGLED[content] != TEXT.encode()
    _publish(pipe, MANGLED[content])
    nvml = Nvml.load()
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    assert nvml.explain(NOT_LOADED).startswith(f"Driver Not Loaded: {pipe}/pympsd.nvml")
    assert nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(ctypes.c_uint())) == UNINITIALIZED


def test_an_untrusted_nvml_file_is_not_read(pipe: Path) -> None:
    nvml, file = Nvml.load(), _publish(pipe)
    file.chmod(0o664)
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    assert "may be written by others" in nvml.explain(NOT_LOADED)
    file.chmod(0o644)
    os.chown(file, USER, -1)
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    assert f"is user {USER}'s, neither root's nor yours" in nvml.explain(NOT_LOADED)
    file.rename(pipe / "mine")
    file.symlink_to(pipe / "mine")
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    file.unlink()
    os.mkfifo(file)
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    assert "is not a file of a daemon" in nvml.explain(NOT_LOADED)
    file.unlink()
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    assert "has no file pympsd.nvml" in nvml.explain(NOT_LOADED)


def test_a_program_in_the_directory_of_a_namespace(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(pipe)
    below = pipe / "server" / "namespace"
    below.mkdir(parents=True)
    os.link(pipe / "control", below / "control")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(below))
    nvml = Nvml.load()
    assert nvml.call("nvmlInit") == 0
    assert len(nvml.handles()) == 2
    assert nvml.call("nvmlShutdown") == 0


def test_a_device_plugin_of_kubernetes_gets_what_it_requests(nvml: Nvml) -> None:
    """What its device plugin, its DRA driver and go-nvlib call for a GPU that is not divided."""
    first, _ = nvml.handles()
    mode = (ctypes.c_uint * 2)(8 | 1 << 24, 7)  # nvmlDeviceAddressingMode_v1_t: its version, and the mode
    assert nvml.call("nvmlDeviceGetAddressingMode", first, mode) == 0
    assert mode[1] == 0, "none: the emulated GPU does not reach pageable memory"
    mode[0] += 1
    assert nvml.call("nvmlDeviceGetAddressingMode", first, mode) == VERSION
    assert nvml.call("nvmlDeviceGetAddressingMode", first, None) == INVALID
    for name in ("GetVirtualizationMode", "GetPersistenceMode", "GetMaxMigDeviceCount", "IsMigDeviceHandle"):
        assert nvml.number(f"nvmlDevice{name}", first) == 0
    for name in ("GetNvLinkState", "GetAttributes_v2"):  # no NVLink, MIG is disabled
        assert nvml.call(f"nvmlDevice{name}", first, ctypes.create_string_buffer(512)) == NOT_SUPPORTED


class Partition(ctypes.Structure):
    """nvmlGpuInstanceProfileInfo_v2_t; the first version has neither its first nor its last field."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("number", ctypes.c_uint),
        ("figures", ctypes.c_uint * 9),
        ("mebibytes", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
    )


def test_the_profiles_of_an_h200s_parts_are_listed_although_mig_is_disabled(nvml: Nvml) -> None:
    """As NVML lists them on an H200 with driver 580.159.04."""
    first, second = nvml.handles()
    profiles, places = {}, (ctypes.c_uint * 14)()
    for number in range(0x12):
        info = Partition(152 | 2 << 24)
        result = nvml.call("nvmlDeviceGetGpuInstanceProfileInfoV", first, number, ctypes.byref(info))
        if result == NOT_SUPPORTED:
            continue
        assert result == 0
        old = (ctypes.c_uint * 12)()
        assert nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", first, number, old) == 0
        assert [*old] == [info.number, *info.figures, info.mebibytes, 0]
        third = (ctypes.c_uint * 39)(152 | 3 << 24, *[7] * 38)
        name = "nvmlDeviceGetGpuInstanceProfileInfoByIdV"
        assert nvml.call(name, first, info.number, third) == 0
        assert [*third[1:10], third[10]] == [info.number, *info.figures[1:], info.mebibytes]
        assert bytes(third)[48:144].partition(b"\0")[0] == info.name
        assert third[36:] == [0, 7, 7], "neither peers nor graphics; nothing is written after that"
        count = ctypes.c_uint()
        name = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
        assert nvml.call(name, first, info.number, None, ctypes.byref(count)) == 0
        assert nvml.call(name, first, info.number, places, ctypes.byref(count)) == 0
        capacity = nvml.number("nvmlDeviceGetGpuInstanceRemainingCapacity", first, info.number)
        assert capacity == info.figures[2], "as many as there can be: there are none"
        starts, sizes = places[: 2 * count.value : 2], {*places[1 : 2 * count.value : 2]}
        profiles[info.name.decode()] = (info.number, [*info.figures], info.mebibytes / 1024, starts, sizes)
    assert profiles == {
        "MIG 1g.18gb": (19, [0, 1, 7, 16, 1, 1, 0, 1, 0], 16, [0, 1, 2, 3, 4, 5, 6], {1}),
        "MIG 1g.18gb+me": (20, [0, 1, 1, 16, 1, 1, 0, 1, 1], 16, [0, 1, 2, 3, 4, 5, 6], {1}),
        "MIG 1g.35gb": (15, [0, 1, 4, 26, 1, 1, 0, 1, 0], 32.5, [0, 2, 4, 6], {2}),
        "MIG 2g.35gb": (14, [0, 2, 3, 32, 2, 2, 0, 2, 0], 32.5, [0, 2, 4], {2}),
        "MIG 3g.71gb": (9, [0, 3, 2, 60, 3, 3, 0, 3, 0], 69.75, [0, 4], {4}),
        "MIG 4g.71gb": (5, [0, 4, 1, 64, 4, 4, 0, 4, 0], 69.75, [0], {4}),
        "MIG 7g.141gb": (0, [0, 7, 1, 132, 8, 7, 0, 7, 1], 140, [0], {8}),
    }
    assert nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", first, 0x12, old) == INVALID, "the end of the list"
    assert nvml.call("nvmlDeviceGetGpuInstanceProfileInfoV", first, 0, ctypes.byref(Partition(9))) == INVALID
    assert nvml.call("nvmlDeviceGetGpuInstanceProfileInfoByIdV", first, 99, third) == INVALID
    assert nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", second, 0, old) == NOT_SUPPORTED, "a V100"
    assert (
        nvml.call("nvmlDeviceGetGpuInstancePossiblePlacements", second, 19, None, ctypes.byref(count))
        == NOT_SUPPORTED
    )


def test_only_devices_with_the_memory_of_the_profiles_have_them(nvml: Nvml, pipe: Path) -> None:
    assert nvml.call("nvmlShutdown") == 0
    _publish(pipe, nvml_text("emulated", parse_toml('[[device]]\nprofile = "H100"\n[[device]]\nmemory_mib = 1024')))
    assert nvml.call("nvmlInit_v2") == 0
    whole, small = nvml.handles()
    info = (ctypes.c_uint * 12)()
    assert nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", whole, 4, info) == 0
    assert [*info] == [0, 0, 7, 1, 132, 8, 7, 0, 7, 1, 81152, 0]
    assert nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", small, 4, info) == NOT_SUPPORTED


def test_arguments_as_c_passes_them(nvml: Nvml) -> None:
    first, text = nvml.handles()[0], ctypes.create_string_buffer(96)
    structure = (ctypes.c_uint * 64)(40)
    assert [
        nvml.call("nvmlDeviceGetName", first, text, 4),
        nvml.call("nvmlDeviceGetName", first, None, 96),
        nvml.call("nvmlDeviceGetName", None, text, 96),
        nvml.call("nvmlDeviceGetName", ctypes.c_void_p(7), text, 96),
        nvml.call("nvmlDeviceGetMemoryInfo_v2", first, structure),
        nvml.call("nvmlDeviceGetHandleByUUID", None, structure),
        nvml.call("nvmlDeviceGetHandleByIndex_v2", 2, structure),
        nvml.call("nvmlInitWithFlags", 8),
        nvml.call("nvmlDeviceGetTemperature", first, 0, structure),
    ] == [TOO_SMALL, INVALID, INVALID, INVALID, VERSION, INVALID, INVALID, INVALID, NOT_SUPPORTED]
    structure[0] = 40 | 2 << 24
    assert nvml.call("nvmlDeviceGetMemoryInfo_v2", first, structure) == 0
    assert ctypes.cast(structure, ctypes.POINTER(ctypes.c_ulonglong))[4] == USED


def test_events_never_come(nvml: Nvml) -> None:
    first, events, data = nvml.handles()[0], ctypes.c_void_p(), (ctypes.c_ulonglong * 4)()
    assert nvml.call("nvmlEventSetWait_v2", ctypes.c_void_p(7), data, 0) == INVALID
    assert nvml.call("nvmlEventSetCreate", ctypes.byref(events)) == 0
    assert nvml.call("nvmlDeviceGetSupportedEventTypes", first, data) == 0
    assert nvml.call("nvmlDeviceRegisterEvents", first, ctypes.c_ulonglong(data[0]), events) == 0
    assert nvml.call("nvmlDeviceRegisterEvents", first, ctypes.c_ulonglong(1 << 60), events) == NOT_SUPPORTED
    assert nvml.call("nvmlEventSetWait_v2", events, data, 1) == TIMEOUT
    assert nvml.call("nvmlEventSetFree", events) == 0
    assert nvml.call("nvmlEventSetFree", events) == INVALID


def test_every_name_is_there_and_takes_nothing_for_an_argument(pipe: Path) -> None:
    """Null pointers, wrong handles and no initialization: a result of NVML, never a crash."""
    _publish(pipe)
    program = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
others = "nvmlInit", "nvmlShutdown", "nvmlErrorString"
names = [name for name in sys.argv[2:] if not name.startswith(others)]
nothing = [ctypes.c_void_p(0)] * 8
before = {name: getattr(library, name)(*nothing) for name in names}
assert set(before.values()) <= {1, 2}, before
assert library.nvmlInit_v2() == 0
after = {name: getattr(library, name)(*nothing) for name in names}
assert set(after.values()) <= {2, 3}, after
assert sum(result == 3 for result in after.values()) > 300
print(len(names))
"""
    words = [sys.executable, "-c", program, str(LIBRARY), *NAMES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 430


def test_what_pympsd_does_not_have_is_named_once_on_request(pipe: Path) -> None:
    _publish(pipe)
    program = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.nvmlInit_v2()
for _ in range(2):
    library.nvmlDeviceGetTemperature(None, 0, None)
"""
    for explains, text in (
        ("0", ""),
        ("1", "pympsd: nvmlDeviceGetTemperature: NVML_ERROR_NOT_SUPPORTED: pympsd does not have it\n"),
    ):
        words = [sys.executable, "-c", program, str(LIBRARY)]
        environment = {**os.environ, "PYMPSD_EXPLAIN": explains}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert (done.returncode, done.stderr) == (0, text)


def test_threads_and_children_ask_too(nvml: Nvml, pipe: Path) -> None:
    """While the file is replaced all the time, nobody sees a part of two."""
    texts = [nvml_text("emulated", DEVICES, [[DeviceProcess(n, True, n << 20)] * n, []]) for n in range(1, 9)]
    first, stop, wrong = nvml.handles()[0], threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            listed = nvml.processes(first)
            if len({(len(listed), pid, used >> 20) for pid, used in listed}) > 1:
                wrong.append(listed)

    _publish(pipe, texts[0])
    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    for number in range(200):
        _publish(pipe, texts[number % 8])
    stop.set()
    for thread in asking:
        thread.join(SECONDS)
    assert wrong == []
    child = os.fork()
    if not child:
        os._exit(len(nvml.processes(first)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8


# --- without a daemon


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver's library."""
    folder = tmp_path_factory.mktemp("driver")
    options = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(folder / "libnvidia-ml.so.1")]
    command = [os.environ.get("CC", "cc"), *options, str(SOURCES / "fake_nvml.c")]
    subprocess.run(command, check=True, timeout=SECONDS)
    return folder


def test_without_a_daemon_the_environment_describes_the_machine(
    pipe: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, nowhere = Nvml.load(), tmp_path_factory.mktemp("nowhere")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(nowhere))
    monkeypatch.setenv("PYMPSD_BACKEND", "emulated")
    monkeypatch.setenv("PYMPSD_EMULATED_DEVICES", "3xA100")
    (nowhere / "pympsd.py").write_text("raise SystemExit")
    monkeypatch.chdir(nowhere)  # nothing is imported from where the program runs
    assert nvml.call("nvmlInit_v2") == 0
    expected = [device.uuid for device in describe("3xA100")]
    assert [nvml.text("nvmlDeviceGetUUID", handle) for handle in nvml.handles()] == expected
    assert nvml.call("nvmlShutdown") == 0
    # Nothing reports that it is emulated: the driver is asked, and pympsd's libcuda.so.1 must not answer for it.
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nonexistent:{LIBRARY.parent}")
    monkeypatch.delenv("PYMPSD_BACKEND")
    monkeypatch.delenv("PYMPSD_EMULATED_DEVICES")
    assert nvml.call("nvmlInit_v2") == 0
    assert nvml.handles() != []
    assert nvml.call("nvmlShutdown") == 0
    monkeypatch.setenv("PYMPSD_BACKEND", "emulated")
    monkeypatch.setenv("PYMPSD_EMULATED_DEVICES", "3xNothing")
    assert nvml.call("nvmlInit_v2") == NOT_LOADED
    assert re.search(r"no daemon of pympsd at .*nowhere.*; and PYMPSD_EMULATED_DEVICES=3xNothing: ", nvml.explain(9))
    monkeypatch.setenv("PYMPSD_EMULATED_DEVICES", "A100")
    monkeypatch.setenv("PYMPSD_REQUIRE_MPS", "1")
    assert nvml.call("nvmlInit_v2") == NOT_LOADED


def test_another_installation_of_pympsd_is_not_the_driver(
    pipe: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would ask each other for ever."""
    other = tmp_path_factory.mktemp("other") / "pympsd_client/native/libraries"
    shutil.copytree(LIBRARY.parent, other)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(other))
    monkeypatch.setenv("PYMPSD_BACKEND", "emulated")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{LIBRARY.parent}:{other}")
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit_v2())"
    words = [sys.executable, "-c", program, str(LIBRARY)]
    assert subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=SECONDS).stdout == "0\n"


def test_a_killed_daemons_file_does_not_count(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(pipe)
    (pipe / "control").unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(pipe / "control"))
    monkeypatch.setenv("PYMPSD_REQUIRE_MPS", "1")
    assert Nvml.load().call("nvmlInit_v2") == NOT_LOADED


def test_without_a_daemon_the_drivers_library_answers(
    pipe: Path, drivers: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, nowhere = Nvml.load(), tmp_path_factory.mktemp("nowhere")
    _publish(pipe)
    assert nvml.call("nvmlInit_v2") == 0
    assert len(nvml.handles()) == 2
    assert nvml.call("nvmlShutdown") == 0
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(nowhere))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{LIBRARY.parent}:{drivers}")
    assert nvml.call("nvmlInit_v2") == 0
    (only,) = nvml.handles()
    assert nvml.text("nvmlDeviceGetName", only) == "the driver's"
    assert nvml.number("nvmlDeviceGetTemperature", only, 2) == 42
    assert nvml.call("nvmlDeviceGetUUID", only, None, 0) == NOT_SUPPORTED  # that library does not have it
    assert nvml.call("nvmlShutdown") == 0
    assert nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(ctypes.c_uint())) == UNINITIALIZED


def test_on_a_gpu_the_driver_answers_but_for_devices_and_processes(
    pipe: Path, drivers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml.load()
    _publish(pipe, nvml_text("cuda", DEVICES[:1], [[DeviceProcess(8, True, USED)]]))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(drivers))
    assert nvml.call("nvmlInit_v2") == 0
    (only,) = nvml.handles()
    assert nvml.text("nvmlDeviceGetName", only) == "the driver's"
    assert nvml.number("nvmlDeviceGetTemperature", only, 0) == 40
    assert nvml.utilization(only) == (12, 3)
    assert nvml.processes(only) == nvml.processes(only, "MPSCompute") == [(8, USED)]
    assert nvml.call("nvmlShutdown") == 0
